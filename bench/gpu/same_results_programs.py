"""The programs of `same_results.py` and `soak.py`: each prints the sha256 of its results."""
import hashlib
import json
import os
import sys
import time


def print_digest(*arrays):
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(array.tobytes())
    print(json.dumps({"event": "sha256", "sha256": digest.hexdigest()}), flush=True)


def host(*tensors):
    return [tensor.detach().float().contiguous().cpu().numpy() for tensor in tensors]


def deterministic_torch():
    """PyTorch with deterministic algorithms and a fixed seed."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    torch.manual_seed(0)
    return torch


def repeat(seconds, step):
    """Repeats a step, so that it overlaps with other programs; every result must equal the first."""
    first, until = step(), time.monotonic() + seconds
    while time.monotonic() < until:
        again = step()
        if any(a.tobytes() != b.tobytes() for a, b in zip(first, again)):
            sys.exit("the same step gave two different results")
    print_digest(*first)


def resnet152():
    torch = deterministic_torch()
    import torchvision
    with torch.device("cuda"), torch.no_grad():
        model = torchvision.models.resnet152(weights=None, zero_init_residual=True).half().eval()
        x = torch.randn(16, 3, 224, 224).half()
        repeat(2.0, lambda: host(model(x)))


def bert():
    torch = deterministic_torch()
    import transformers
    config = transformers.BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16,
                                     intermediate_size=4096)
    with torch.device("cuda"), torch.no_grad():
        model = transformers.BertModel(config).half().eval()
        x = torch.randint(0, 30000, (8, 128))
        repeat(2.0, lambda: host(model(x).last_hidden_state))


def graph():
    torch = deterministic_torch()
    import torchvision
    with torch.device("cuda"), torch.no_grad():
        model = torchvision.models.resnet50(weights=None, zero_init_residual=True).half().eval()
        x = torch.randn(8, 3, 224, 224).half()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.no_grad(), torch.cuda.stream(stream):
        for _ in range(3):
            y = model(x)
        stream.synchronize()
        recorded = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recorded, stream=stream):
            y = model(x)

        def replay():
            recorded.replay()
            stream.synchronize()
            return host(y)
        repeat(2.0, replay)


def train(torch, steps, batches):
    # No pooling: its backward pass adds in arbitrary order.
    layers, width = [], 3
    for wider in (64, 128, 256, 512):
        layers += [torch.nn.Conv2d(width, wider, 3, stride=2), torch.nn.BatchNorm2d(wider), torch.nn.ReLU()]
        width = wider
    with torch.device("cuda"):
        model = torch.nn.Sequential(*layers, torch.nn.Conv2d(width, 1000, 1)).cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    losses = []
    for _, (x, t) in zip(range(steps), batches):
        loss = torch.nn.functional.cross_entropy(model(x.cuda()).mean((2, 3)), t.cuda())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    print_digest(*host(torch.stack(losses), *model.state_dict().values()))


def training():
    torch = deterministic_torch()
    x, t = torch.randn(128, 3, 224, 224), torch.randint(0, 1000, (128,))
    train(torch, 20, [(x, t)] * 20)


def compile_():
    torch = deterministic_torch()
    with torch.device("cuda"):
        model = torch.nn.Sequential(*(layer for _ in range(4) for layer in (torch.nn.Linear(512, 512), torch.nn.GELU())))
        x = torch.randn(256, 512)
    compiled = torch.compile(model)
    with torch.no_grad():
        repeat(2.0, lambda: host(compiled(x)))


class Numbers:
    """A data set that the loader's worker processes generate."""

    def __len__(self):
        return 640

    def __getitem__(self, at):
        import torch
        generator = torch.Generator().manual_seed(at)
        return torch.randn(3, 96, 96, generator=generator), at % 1000


def dataloader():
    torch = deterministic_torch()
    train(torch, 20, torch.utils.data.DataLoader(Numbers(), batch_size=32, num_workers=2))


def child(number, results):
    torch = deterministic_torch()
    torch.manual_seed(number)
    x = torch.randn(512, 512, device="cuda")
    for _ in range(2000):
        x = torch.tanh(x @ x)
    results.put((number, host(x)[0].tobytes()))


def spawn():
    import multiprocessing
    import numpy
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    children = [context.Process(target=child, args=(number, results)) for number in range(2)]
    for process in children:
        process.start()
    found = dict(results.get(timeout=120) for _ in children)
    for process in children:
        process.join(60)
        if process.exitcode != 0:
            sys.exit(f"a child exited with {process.exitcode}")
    print_digest(*(numpy.frombuffer(found[number], dtype=numpy.float32) for number in sorted(found)))


def cupy():
    import cupy
    x = cupy.arange(1 << 20, dtype=cupy.float32).reshape(1024, 1024) / (1 << 20)

    def step():
        y = x
        for _ in range(20):
            y = cupy.tanh(y @ x + 0.5)
        return [cupy.asnumpy(y)]
    repeat(2.0, step)


def jax():
    import jax
    import jax.numpy as jnp
    import numpy

    @jax.jit
    def step(x):
        return jax.lax.fori_loop(0, 20, lambda _, y: jnp.tanh(y @ x + 0.5), x)
    if jax.devices()[0].platform not in ("gpu", "cuda"):
        sys.exit("JAX has no GPU here")
    x = jax.random.normal(jax.random.PRNGKey(0), (1024, 1024))
    repeat(2.0, lambda: [numpy.asarray(step(x))])


if __name__ == "__main__":
    {"compile": compile_}.get(sys.argv[1], globals().get(sys.argv[1]))()
