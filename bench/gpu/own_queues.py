"""Do the C and the Python interface work on PyTorch's own streams, while PyTorch owns the context?

  python3 bench/gpu/own_queues.py --xsched target/release/xsched --package DIRECTORY [--out FILE.json]

`--package` is where the Python package is: a wheel that was unpacked, or `pip install --target`. Each check is a process of its own
under `xsched run`, with a service of its own; a check that fails says what it saw.
"""
import argparse
import faulthandler
import json
import os
import sys
import threading
import time

PATIENCE = 60
# Before the patience ends: who hangs says where.
HANGS_AFTER = 25


class Launch:
    """Work on a stream, from a thread of its own: launches on a suspended stream wait."""

    def __init__(self, torch, stream, work):
        def launch():
            with torch.cuda.stream(stream):
                self.result = work()

        self.result, self.stream = None, stream
        self.thread = threading.Thread(target=launch, daemon=True)
        self.thread.start()

    def is_held(self, milliseconds=100):
        """Whether it is not done after a while."""
        time.sleep(milliseconds / 1e3)
        return self.thread.is_alive() or not self.stream.query()

    def done(self):
        self.thread.join()
        self.stream.synchronize()
        return self.result


def must(what, holds):
    if not holds:
        raise AssertionError(what)


# ---------------------------------------------------------------- what the checks do, each in a process of its own

def suspended_and_resumed(torch, xsched, stream):
    """Work on a suspended stream waits, that of others does not; afterwards the result is the same bits."""
    other, x = torch.cuda.Stream(), torch.randn(2048, 2048, device="cuda")
    expected = (x @ x).clone()
    torch.cuda.synchronize()
    queue = xsched.Queue(stream)
    queue.suspend()
    launch = Launch(torch, stream, lambda: x @ x)
    must("a suspended stream does not finish its work", launch.is_held())
    beside = Launch(torch, other, lambda: x @ x)
    must("another stream is not held up", torch.equal(beside.done(), expected))
    queue.resume()
    must("the result is the same bits", torch.equal(launch.done(), expected))
    queue.close()


def check_stream(torch, xsched):
    suspended_and_resumed(torch, xsched, torch.cuda.Stream())


def check_external_stream(torch, xsched):
    """By the number alone, as another library would hand it over."""
    stream = torch.cuda.Stream()
    queue = xsched.Queue(stream.cuda_stream)
    must("an idle stream is idle", queue.state == "idle")
    queue.suspend()
    launch = Launch(torch, stream, lambda: torch.ones(1000, device="cuda") * 3)
    must("a suspended stream does not finish its work", launch.is_held())
    queue.resume()
    launch.thread.join()
    queue.wait()
    must("the result is right", float(launch.result.sum()) == 3000)


def check_default_stream(torch, xsched):
    x = torch.randn(2048, 2048, device="cuda")
    expected = (x @ x).cpu()
    queue, stream = xsched.Queue(torch.cuda.default_stream()), torch.cuda.default_stream()
    queue.suspend()
    launch = Launch(torch, stream, lambda: x @ x)
    must("the default stream does not finish its work", launch.is_held())
    queue.resume()
    must("the result is the same bits", torch.equal(launch.done().cpu(), expected))


def check_running_kernel(torch, xsched):
    """Level 3: a kernel that runs stands still while all of the process's streams are suspended. It counts the GPU's clock, which
    goes on meanwhile: so it ends as soon as it runs again."""
    stream = torch.cuda.current_stream()
    clock = torch.cuda.get_device_properties(0).clock_rate if hasattr(torch.cuda.get_device_properties(0), "clock_rate") else 1_980_000
    torch.cuda._sleep(1000)
    torch.cuda.synchronize()
    queue = xsched.Queue(stream, level=3)
    begin = time.monotonic()
    launch = Launch(torch, stream, lambda: torch.cuda._sleep(int(clock * 200)))
    launch.thread.join()
    time.sleep(0.03)
    queue.suspend()
    must("a kernel of 200 ms has not ended after 600 ms", launch.is_held(600))
    queue.resume()
    launch.done()
    return {"a kernel of about 200 ms took, with 600 ms of standing still, ms": round((time.monotonic() - begin) * 1e3)}


def check_many_suspends(torch, xsched):
    """Training with a fixed seed, while another thread suspends and resumes its stream without pause."""
    torch.use_deterministic_algorithms(True)

    def train():
        torch.manual_seed(0)
        model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]).cuda()
        x, optimizer = torch.randn(256, 1024, device="cuda"), torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(150):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        return torch.cat([parameter.flatten() for parameter in model.parameters()]).detach().cpu()

    expected, over, pairs = train(), threading.Event(), 0
    queue = xsched.Queue(torch.cuda.default_stream())

    def disturb():
        nonlocal pairs
        while not over.is_set():
            queue.suspend()
            time.sleep(0.0005)
            queue.resume()
            time.sleep(0.0005)
            pairs += 1

    thread = threading.Thread(target=disturb)
    thread.start()
    got = train()
    over.set()
    thread.join()
    must("the trained weights are the same bits", torch.equal(got, expected))
    return {"suspended and resumed": pairs}


def check_priorities_in_one_process(torch, xsched):
    """A stream that was told to be more important does not wait for the other's queue."""
    sys.setswitchinterval(2e-4)
    high, low = torch.cuda.Stream(), torch.cuda.Stream()
    big, small = torch.randn(4096, 4096, device="cuda").half(), torch.randn(512, 512, device="cuda").half()
    over = threading.Event()

    def load():
        with torch.cuda.stream(low):
            while not over.is_set():
                # About 10 ms of work, each kernel of which fills the GPU for 0.2 ms.
                for _ in range(50):
                    big @ big
                low.synchronize()

    # As a graph, so that it waits for the GPU and not for Python.
    request = torch.cuda.CUDAGraph()
    with torch.cuda.stream(high):
        small @ small
        high.synchronize()
        with torch.cuda.graph(request, stream=high):
            for _ in range(100):
                small @ small

    def requests():
        times = []
        with torch.cuda.stream(high):
            for _ in range(60):
                begin = time.perf_counter()
                request.replay()
                high.synchronize()
                times.append((time.perf_counter() - begin) * 1e3)
                time.sleep(0.005)
        return sorted(times)[len(times) // 2]

    requests()
    alone = requests()
    thread = threading.Thread(target=load)
    thread.start()
    time.sleep(0.3)
    equal = requests()
    queues = xsched.Queue(high), xsched.Queue(low)
    queues[0].hint(priority="high")
    queues[1].hint(priority="low")
    prior = requests()
    over.set()
    thread.join()
    must(f"priority helps: {prior:.2f} ms with it, {equal:.2f} ms without, {alone:.2f} ms alone", prior < 0.8 * equal)
    return {"p50 alone, ms": round(alone, 3), "p50 with equal priorities, ms": round(equal, 3), "p50 with priority, ms": round(prior, 3)}


def check_own_priority(torch, xsched):
    """`xsched.priority` counts for the process while its block is open, and no longer."""
    (torch.ones(10, device="cuda") + 1).cpu()
    mine = lambda: next(task.priority for task in xsched.tasks() if task.pid == os.getpid())
    before = mine()
    with xsched.priority(10):
        inside = mine()
    must(f"priority {before}, {inside} inside, {mine()} after", (inside, mine()) == (10, before) and before != 10)


def check_c_interface(torch, xsched):
    """The reference's functions on a stream of PyTorch's: the case that ends with error 709 elsewhere."""
    import ctypes
    c = ctypes.CDLL(None)
    handle = ctypes.c_uint64
    c.XQueueCreate.argtypes = [ctypes.POINTER(handle), handle, ctypes.c_int64, ctypes.c_int64]
    for name in ("XQueueSuspend", "XQueueResume"):
        getattr(c, name).argtypes = [handle, ctypes.c_int64]
    for name in ("XQueueDestroy", "HwQueueDestroy", "HwQueueSynchronize", "XQueueWaitAll"):
        getattr(c, name).argtypes = [handle]
    c.XQueueSetPreemptLevel.argtypes = [handle, ctypes.c_int]
    stream, hardware, queue = torch.cuda.Stream(), handle(), handle()
    with torch.cuda.stream(stream):
        x = torch.randn(2048, 2048, device="cuda")
        expected = (x @ x).clone()
    stream.synchronize()
    answers = [c.CudaQueueCreate(ctypes.byref(hardware), ctypes.c_void_p(stream.cuda_stream)),
               c.XQueueCreate(ctypes.byref(queue), hardware, 1, 0)]
    must(f"both are created: {answers}", answers == [0, 0])
    for level in (1, 2, 3):
        must(f"level {level} is set", c.XQueueSetPreemptLevel(queue, level) == 0)
        must("suspended", c.XQueueSuspend(queue, 0) == 0)
        launch = Launch(torch, stream, lambda: x @ x)
        must(f"level {level}: nothing is finished while suspended", launch.is_held())
        must("resumed", c.XQueueResume(queue, 0) == 0)
        launch.thread.join()
        must("waited for", c.XQueueWaitAll(queue) == 0 and c.HwQueueSynchronize(hardware) == 0)
        must(f"level {level}: the result is the same bits", torch.equal(launch.done(), expected))
    answers = [c.XQueueDestroy(queue), c.XQueueDestroy(queue), c.HwQueueDestroy(hardware), c.HwQueueDestroy(hardware),
               c.XQueueCreate(None, hardware, 1, 0)]
    must(f"stale handles are not found, no place for the answer is invalid: {answers}", answers == [0, 3, 0, 3, 2])


CHECKS = {name.removeprefix("check_"): function for name, function in list(globals().items()) if name.startswith("check_")}


def inside(name):
    import torch
    import xsched
    print(json.dumps({"event": "imported"}), flush=True)
    sys.stdin.readline()
    faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)
    must("the library is loaded", xsched.loaded())
    torch.manual_seed(1)
    torch.ones(1, device="cuda")
    torch.cuda.synchronize()
    seen = CHECKS[name](torch, xsched)
    torch.cuda.synchronize()
    print(json.dumps({"event": "checked", "seen": seen or {}}), flush=True)


# ---------------------------------------------------------------- the whole

def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xsched")
    parser.add_argument("--package")
    parser.add_argument("--only", default=",".join(CHECKS))
    parser.add_argument("--out")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        return inside(args.inside)
    if not args.xsched or not args.package:
        parser.error("--xsched and --package are needed")
    from harness import Failure, Stage, end_on_signals
    end_on_signals()
    stage, report = Stage(args.xsched), {}
    stage.start_service()
    names = args.only.split(",")
    variables = {"PYTHONPATH": os.path.abspath(args.package), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    # Importing PyTorch is what takes long: all at the same time. The checks come one after the other.
    start = lambda name: stage.start(name, [sys.executable, os.path.abspath(__file__), "--inside", name], ["--priority", "normal"], **variables)
    programs = {name: start(name) for name in names}
    for name, program in programs.items():
        try:
            program.expect("imported", PATIENCE)
            program.tell(do="check")
            report[name] = {"well": True, **program.expect("checked", PATIENCE)["seen"]}
            status = program.process.wait(20)
            if status != 0:
                raise Failure(f"ended with {status}. {program.stderr()}")
        except Exception as error:
            report[name] = {"well": False, "why": str(error)[-600:]}
        program.end(1.0)
        print(f"    {name}: {report[name]}", flush=True)
    stage.close()
    if args.out:
        with open(args.out, "w") as file:
            json.dump(report, file, indent=1)
    failed = [name for name in names if not report[name]["well"]]
    print(f"{len(names) - len(failed)} of {len(names)} checks went well" + (f"; failed: {', '.join(failed)}" if failed else ""))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
