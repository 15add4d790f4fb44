"""The PyTorch programs that are measured. They are not aware of scheduling.

A program imports what it needs and prints an event. Then it executes the commands on its input, lines of JSON, in order:
  {"do": "prepare"}                                    builds the model on the GPU, warms up, prints the result's checksum
  {"do": "serve", "requests": N, "period_ms": P}       serves requests at irregular times, prints statistics of their latencies,
                                                       and with "all": true each latency
  {"do": "iterate", "seconds": S}                      runs iterations, prints their durations
  {"do": "start"} ... {"do": "stop"}                   runs iterations until stopped, prints when each ended
It exits at the end of its input. Times are those of the system's monotonic budget.
"""
import argparse
import hashlib
import json
import os
import queue
import random
import sys
import threading
import time

from harness import latency_figures

parser = argparse.ArgumentParser()
parser.add_argument("program")
parser.add_argument("--device", default="cuda", help="cpu to try the programs out without a GPU")
parser.add_argument("--small", action="store_true", help="smaller models, for the same purpose")
args = parser.parse_args()

import torch

if args.program.startswith("resnet") or args.program == "streams":
    import torchvision
elif args.program != "tokens-graph":
    import transformers

DEVICE, CUDA = args.device, args.device == "cuda"


def emit(event, **more):
    print(json.dumps({"event": event, **more}), flush=True)


def synchronize():
    if CUDA:
        torch.cuda.synchronize()


def checksum(tensor):
    data = tensor.detach().float().contiguous().cpu().numpy().tobytes()
    return hashlib.sha256(data).hexdigest()[:16]


class Eager:
    """A model that launches its kernels from Python one by one."""

    def __init__(self, build):
        torch.manual_seed(0)
        with torch.device(DEVICE):
            self.model, self.inputs = build()

    @torch.no_grad()
    def step(self):
        out = self.model(*self.inputs)
        self.out = getattr(out, "last_hidden_state", out)

    def request(self):
        self.step()
        synchronize()

    def iteration(self):
        self.request()

    def checksum(self):
        return checksum(self.out)


class Graph(Eager):
    """The same model as one CUDA graph, on its own stream."""

    def __init__(self, build, priority=0):
        super().__init__(build)
        if not CUDA:
            return
        synchronize()
        self.stream = torch.cuda.Stream(priority=priority)
        with torch.no_grad(), torch.cuda.stream(self.stream):
            for _ in range(5):
                self.step()
            self.stream.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=self.stream):
                self.step()
        synchronize()

    def request(self):
        if not CUDA:
            return super().request()
        with torch.cuda.stream(self.stream):
            self.graph.replay()
            self.stream.synchronize()


class Tokens(Graph):
    """One CUDA graph per token, synchronized after each: the token determines the next step."""

    TOKENS = 20

    def step(self):
        super().step()
        self.token = self.out[0, -1].argmax()

    def request(self):
        for _ in range(self.TOKENS):
            if CUDA:
                with torch.cuda.stream(self.stream):
                    self.graph.replay()
                    self.token.item()
            else:
                self.step()


class Decoder:
    """A small decoder that generates tokens one by one, with a cache."""

    TOKENS = 16

    def __init__(self):
        torch.manual_seed(0)
        config = transformers.GPT2Config(n_layer=2 if args.small else 12, n_embd=768, n_head=12, vocab_size=50257)
        with torch.device(DEVICE):
            self.model = transformers.GPT2LMHeadModel(config).eval()
            self.prompt = torch.randint(0, 50000, (1, 32))
        if CUDA:
            self.model.half()

    @torch.no_grad()
    def request(self):
        tokens, past, generated = self.prompt, None, []
        for _ in range(self.TOKENS):
            out = self.model(input_ids=tokens, past_key_values=past, use_cache=True)
            past = out.past_key_values
            tokens = out.logits[:, -1:].argmax(-1)
            generated.append(tokens)
        synchronize()
        self.out = torch.cat(generated, 1)

    iteration = request

    def checksum(self):
        return checksum(self.out)


class Generate:
    """GPT-2 with 24 layers, which generates 20 tokens with the `generate` of transformers."""

    TOKENS = 20

    def __init__(self):
        torch.manual_seed(0)
        layers = 2 if args.small else 24
        config = transformers.GPT2Config(n_layer=layers, n_embd=1024, n_head=16, vocab_size=50257, eos_token_id=None)
        with torch.device(DEVICE):
            self.model = transformers.GPT2LMHeadModel(config).eval()
            self.prompt = torch.randint(0, 50000, (1, 32))
        if CUDA:
            self.model.half()
        self.mask = torch.ones_like(self.prompt)

    @torch.no_grad()
    def request(self):
        self.out = self.model.generate(self.prompt, attention_mask=self.mask, max_new_tokens=self.TOKENS, do_sample=False, pad_token_id=0)
        synchronize()

    iteration = request

    def checksum(self):
        return checksum(self.out)


class Training:
    """ResNet-50 in bf16."""

    def __init__(self, stream=None, batch=64):
        torch.manual_seed(0)
        self.stream = stream
        batch, size = (2, 64) if args.small else (batch, 224)
        with torch.device(DEVICE):
            self.model = torchvision.models.resnet50(weights=None).train()
            self.x, self.t = torch.randn(batch, 3, size, size), torch.randint(0, 1000, (batch,))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        synchronize()

    def request(self):
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(self.model(self.x), self.t)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.loss = loss.item()

    def iteration(self):
        if self.stream is None:
            return self.request()
        with torch.cuda.stream(self.stream):
            self.request()

    def checksum(self):
        return None


class Streams(Graph):
    """The service and the training as two threads of one program; the service's stream has the highest priority."""

    def __init__(self, build):
        # Otherwise each thread would wait up to 5 ms for the GIL.
        sys.setswitchinterval(2e-4)
        highest = 0
        if CUDA:
            highest = min(torch.cuda.Stream.priority_range()) if hasattr(torch.cuda.Stream, "priority_range") else -5
        super().__init__(build, highest)
        self.training = Training(torch.cuda.Stream(priority=0) if CUDA else None)
        for _ in range(5):
            self.training.iteration()
        synchronize()

    def iteration(self):
        self.training.iteration()


def resnet152(batch):
    def build():
        size = 64 if args.small else 224
        model = torchvision.models.resnet152(weights=None, zero_init_residual=True).eval()
        x = torch.randn(1 if args.small else batch, 3, size, size)
        return (model.half(), (x.half(),)) if CUDA else (model, (x,))
    return build


def bert_large(batch):
    def build():
        return bert_of(batch)
    return build


def bert_of(batch):
    config = transformers.BertConfig(hidden_size=1024, num_hidden_layers=2 if args.small else 24,
                                     num_attention_heads=16, intermediate_size=4096)
    model = transformers.BertModel(config).eval()
    x = torch.randint(0, 30000, (1 if args.small else batch, 128))
    return (model.half() if CUDA else model), (x,)


def transformer():
    layers = 2 if args.small else 12
    model = torch.nn.Sequential(*(torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True) for _ in range(layers)))
    x = torch.randn(1, 64, 1024)
    return (model.eval().half(), (x.half(),)) if CUDA else (model.eval(), (x,))


PROGRAMS = {
    "resnet152-graph": lambda: Graph(resnet152(1)),
    "resnet152-eager": lambda: Eager(resnet152(32)),
    "resnet152-64": lambda: Eager(resnet152(64)),
    "resnet152-1": lambda: Eager(resnet152(1)),
    "bert-large-8": lambda: Eager(bert_large(8)),
    "bert-large-8-graph": lambda: Graph(bert_large(8)),
    "generate": Generate,
    "bert-large": lambda: Eager(bert_large(16)),
    "bert-large-64": lambda: Eager(bert_large(64)),
    "tokens-graph": lambda: Tokens(transformer),
    "decoder": Decoder,
    "resnet50-training": Training,
    "resnet50-training-256": lambda: Training(batch=256),
    "streams": lambda: Streams(resnet152(1)),
}


def read(commands, stop):
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "stop":
            stop.set()
        else:
            commands.put(command)
    stop.set()
    commands.put(None)


def serve(program, requests, period_ms, all=False):
    latencies, rng = [], random.Random(1)
    begin = due = time.monotonic()
    for _ in range(requests):
        # Between 0.75 and 1.25 periods, so that requests arrive at every phase of the background; the same in every scenario.
        due = max(due + period_ms / 1e3 * rng.uniform(0.75, 1.25), time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
        arrived = time.monotonic()
        program.request()
        latencies.append((time.monotonic() - arrived) * 1e3)
    end = time.monotonic()
    more = {"latencies_ms": [round(latency, 3) for latency in latencies]} if all else {}
    emit("result", **latency_figures(latencies), **more, begin=begin, end=end, checksum=program.checksum())


def iterate(program, seconds):
    begin = last = time.monotonic()
    spans = []
    while last < begin + seconds:
        program.iteration()
        now = time.monotonic()
        spans.append((now - last) * 1e3)
        last = now
    emit("result", **latency_figures(spans), begin=begin, end=last, checksum=program.checksum())


def until_stopped(program, stop):
    ends = [time.monotonic()]
    try:
        while not stop.is_set():
            program.iteration()
            ends.append(time.monotonic())
        emit("stopped", ends=ends)
    except Exception as error:
        emit("error", what=f"{type(error).__name__}: {error}"[:1500])


def main():
    commands, stop, program, running = queue.Queue(), threading.Event(), None, None
    threading.Thread(target=read, args=(commands, stop), daemon=True).start()
    emit("imported", torch=torch.__version__, python=sys.version.split()[0])
    while (command := commands.get()) is not None:
        action = command.pop("do")
        if action == "prepare":
            program = PROGRAMS[args.program]()
            for _ in range(2 if args.small else 10):
                program.request()
            emit("ready", checksum=program.checksum())
        elif action == "serve":
            serve(program, **command)
        elif action == "iterate":
            iterate(program, **command)
        elif action == "start":
            stop.clear()
            running = threading.Thread(target=until_stopped, args=(program, stop), daemon=True)
            running.start()
    if running is not None:
        running.join(20)


try:
    main()
except Exception as error:
    emit("error", what=f"{type(error).__name__}: {error}"[:1500])
    raise
# Exits without the interpreter's shutdown, because a thread may still use the GPU.
sys.stdout.flush()
os._exit(0)
