"""Checks the C and Python interfaces on PyTorch's own streams, in PyTorch's context.

  python3 bench/gpu/own_queues.py --xsched target/release/xsched --package DIRECTORY [--out FILE.json]

`--package` is the directory of the Python package: an unpacked wheel, or `pip install --target`. Each check is a separate process under
`xsched run`, with a separate service; a check that fails prints what it observed.
"""
import argparse
import faulthandler
import json
import os
import sys
import threading
import time

EVENT_TIMEOUT_S = 60
# Before that timeout, a process that hangs prints its stack.
STACK_DUMP_AFTER_S = 25


class Launch:
    """Work on a stream, launched from a separate thread, because launches on a suspended stream block."""

    def __init__(self, torch, stream, work):
        def launch():
            with torch.cuda.stream(stream):
                self.result = work()

        self.result, self.stream = None, stream
        self.thread = threading.Thread(target=launch, daemon=True)
        self.thread.start()

    def is_held(self, milliseconds=100):
        """Whether the work has not completed after this time."""
        time.sleep(milliseconds / 1e3)
        return self.thread.is_alive() or not self.stream.query()

    def done(self):
        self.thread.join()
        self.stream.synchronize()
        return self.result


def require(what, holds):
    if not holds:
        raise AssertionError(what)


# ---------------------------------------------------------------- the checks, each in a separate process

def suspended_and_resumed(torch, xsched, stream):
    """Work on a suspended stream waits, that of other streams does not; afterwards the result is bit-identical."""
    other, x = torch.cuda.Stream(), torch.randn(2048, 2048, device="cuda")
    expected = (x @ x).clone()
    torch.cuda.synchronize()
    queue = xsched.Queue(stream)
    queue.suspend()
    launch = Launch(torch, stream, lambda: x @ x)
    require("a suspended stream does not complete its work", launch.is_held())
    beside = Launch(torch, other, lambda: x @ x)
    require("another stream is not held", torch.equal(beside.done(), expected))
    queue.resume()
    require("the result is bit-identical", torch.equal(launch.done(), expected))
    queue.close()


def check_stream(torch, xsched):
    suspended_and_resumed(torch, xsched, torch.cuda.Stream())


def check_external_stream(torch, xsched):
    """By the handle's number alone, as another library would pass it."""
    stream = torch.cuda.Stream()
    queue = xsched.Queue(stream.cuda_stream)
    require("an idle stream is idle", queue.state == "idle")
    queue.suspend()
    launch = Launch(torch, stream, lambda: torch.ones(1000, device="cuda") * 3)
    require("a suspended stream does not complete its work", launch.is_held())
    queue.resume()
    launch.thread.join()
    queue.wait()
    require("the result is right", float(launch.result.sum()) == 3000)


def check_default_stream(torch, xsched):
    x = torch.randn(2048, 2048, device="cuda")
    expected = (x @ x).cpu()
    queue, stream = xsched.Queue(torch.cuda.default_stream()), torch.cuda.default_stream()
    queue.suspend()
    launch = Launch(torch, stream, lambda: x @ x)
    require("the default stream does not complete its work", launch.is_held())
    queue.resume()
    require("the result is bit-identical", torch.equal(launch.done().cpu(), expected))


def check_running_kernel(torch, xsched):
    """Level 3: a running kernel is stopped while all streams of the process are suspended. It measures the GPU's clock, which
    advances meanwhile, so it ends as soon as it resumes."""
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
    require("a kernel of 200 ms has not completed after 600 ms", launch.is_held(600))
    queue.resume()
    launch.done()
    return {"duration of a kernel of about 200 ms, suspended for 600 ms, ms": round((time.monotonic() - begin) * 1e3)}


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
    result = train()
    over.set()
    thread.join()
    require("the trained weights are bit-identical", torch.equal(result, expected))
    return {"suspended and resumed": pairs}


def check_priorities_in_one_process(torch, xsched):
    """A stream with a higher priority does not wait for the other stream's queue."""
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

    # As a graph, so that the request waits for the GPU and not for Python.
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
    prioritized = requests()
    over.set()
    thread.join()
    require(f"priority helps: {prioritized:.2f} ms with it, {equal:.2f} ms without, {alone:.2f} ms alone", prioritized < 0.8 * equal)
    return {"p50 alone, ms": round(alone, 3), "p50 with equal priorities, ms": round(equal, 3), "p50 with priority, ms": round(prioritized, 3)}


def check_own_priority(torch, xsched):
    """`xsched.priority` sets the priority of the process while its block is open."""
    (torch.ones(10, device="cuda") + 1).cpu()
    own_priority = lambda: next(task.priority for task in xsched.tasks() if task.pid == os.getpid())
    before = own_priority()
    with xsched.priority(10):
        inside = own_priority()
    require(f"priority {before}, {inside} inside, {own_priority()} after", (inside, own_priority()) == (10, before) and before != 10)


def check_c_interface(torch, xsched):
    """The functions of the original C++ XSched on a stream of PyTorch: fails with error 709 without a shared context."""
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
    results = [c.CudaQueueCreate(ctypes.byref(hardware), ctypes.c_void_p(stream.cuda_stream)),
               c.XQueueCreate(ctypes.byref(queue), hardware, 1, 0)]
    require(f"both are created: {results}", results == [0, 0])
    for level in (1, 2, 3):
        require(f"level {level} is set", c.XQueueSetPreemptLevel(queue, level) == 0)
        require("suspended", c.XQueueSuspend(queue, 0) == 0)
        launch = Launch(torch, stream, lambda: x @ x)
        require(f"level {level}: nothing completes while suspended", launch.is_held())
        require("resumed", c.XQueueResume(queue, 0) == 0)
        launch.thread.join()
        require("waited for", c.XQueueWaitAll(queue) == 0 and c.HwQueueSynchronize(hardware) == 0)
        require(f"level {level}: the result is bit-identical", torch.equal(launch.done(), expected))
    results = [c.XQueueDestroy(queue), c.XQueueDestroy(queue), c.HwQueueDestroy(hardware), c.HwQueueDestroy(hardware),
               c.XQueueCreate(None, hardware, 1, 0)]
    require(f"stale handles are rejected, a null output is invalid: {results}", results == [0, 3, 0, 3, 2])


CHECKS = {name.removeprefix("check_"): function for name, function in list(globals().items()) if name.startswith("check_")}


def run_check(name):
    import torch
    import xsched
    print(json.dumps({"event": "imported"}), flush=True)
    sys.stdin.readline()
    faulthandler.dump_traceback_later(STACK_DUMP_AFTER_S, exit=True)
    require("the library is loaded", xsched.loaded())
    torch.manual_seed(1)
    torch.ones(1, device="cuda")
    torch.cuda.synchronize()
    measured = CHECKS[name](torch, xsched)
    torch.cuda.synchronize()
    print(json.dumps({"event": "checked", "seen": measured or {}}), flush=True)


# ---------------------------------------------------------------- the driver

def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xsched")
    parser.add_argument("--package")
    parser.add_argument("--only", default=",".join(CHECKS))
    parser.add_argument("--out")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        return run_check(args.inside)
    if not args.xsched or not args.package:
        parser.error("--xsched and --package are required")
    from harness import Failure, Environment, end_on_signals
    end_on_signals()
    environment, report = Environment(args.xsched), {}
    environment.start_service()
    names = args.only.split(",")
    variables = {"PYTHONPATH": os.path.abspath(args.package), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    # Importing PyTorch takes longest: all import at the same time. The checks run one by one.
    start = lambda name: environment.start(name, [sys.executable, os.path.abspath(__file__), "--inside", name], ["--priority", "normal"], **variables)
    programs = {name: start(name) for name in names}
    for name, program in programs.items():
        try:
            program.expect("imported", EVENT_TIMEOUT_S)
            program.send(do="check")
            report[name] = {"well": True, **program.expect("checked", EVENT_TIMEOUT_S)["seen"]}
            status = program.process.wait(20)
            if status != 0:
                raise Failure(f"exited with {status}. {program.stderr()}")
        except Exception as error:
            report[name] = {"well": False, "why": str(error)[-600:]}
        program.end(1.0)
        print(f"    {name}: {report[name]}", flush=True)
    environment.close()
    if args.out:
        with open(args.out, "w") as file:
            json.dump(report, file, indent=1)
    failed = [name for name in names if not report[name]["well"]]
    print(f"{len(names) - len(failed)} of {len(names)} checks passed" + (f"; failed: {', '.join(failed)}" if failed else ""))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
