"""The programs that the verification runs with and without XSched. They print one JSON value per line.

    worker.py PLATFORM describe
    worker.py PLATFORM forms
    worker.py PLATFORM requests COUNT COMMANDS LENGTH_US PERIOD_MS
    worker.py PLATFORM work SECONDS COMMANDS LENGTH_US
    worker.py PLATFORM rounds COUNT COMMANDS LENGTH_US
    worker.py PLATFORM resets COUNT
    worker.py PLATFORM cost BATCHES
    worker.py PLATFORM models
"""

import ctypes
import json
import sys
import time

from device import Device, Failure


def emit(value):
    """Prints one line and flushes it."""
    print(json.dumps(value), flush=True)


def forms(device):
    """Every form of a launch that is possible from Python; each must fill its memory."""
    count = 1000
    memory = device.allocate(4 * count)
    streams = {"default": None, "own": device.stream(), "high": device.stream(-1), "low": device.stream(0)}
    launches = ["ModuleLaunchKernel", "ModuleLaunchCooperativeKernel"]
    if device.hip:
        launches += ["ExtModuleLaunchKernel", "HccModuleLaunchKernel"]
    results = {}
    number = 0.0
    for form in launches:
        for name, stream in streams.items():
            number += 1
            arguments = [ctypes.c_void_p(memory.value), ctypes.c_float(number), ctypes.c_uint64(count)]
            try:
                device.launch("fill", *arguments, stream=stream, form=form, blocks=1)
                device.synchronize(stream)
                is_right = device.floats(memory, count) == [number] * count
                results[f"{form} on {name}"] = "right" if is_right else "wrong"
            except (Failure, AttributeError) as error:
                results[f"{form} on {name}"] = str(error)
    results["graph"] = graph(device, streams["own"])
    emit(results)


def graph(device, stream):
    """Captures three kernels and launches them as a graph."""
    captured, executable = ctypes.c_void_p(), ctypes.c_void_p()
    try:
        device.call("StreamBeginCapture", stream, 0)
        for _ in range(3):
            device.spin(10, stream)
        device.call("StreamEndCapture", stream, ctypes.byref(captured))
        nodes = ctypes.c_size_t()
        device.call("GraphGetNodes", captured, None, ctypes.byref(nodes))
        if device.hip:
            device.call("GraphInstantiate", ctypes.byref(executable), captured, None, None, ctypes.c_size_t(0))
        else:
            device.call("GraphInstantiateWithFlags", ctypes.byref(executable), captured, ctypes.c_ulonglong(0))
        for _ in range(3):
            device.call("GraphLaunch", executable, stream)
        device.synchronize(stream)
        return f"{nodes.value} nodes"
    except (Failure, AttributeError) as error:
        return str(error)


def requests(device, count, commands, length_us, period_ms):
    """Prints the duration of each request in microseconds."""
    following = time.monotonic()
    for _ in range(count):
        begin = time.monotonic()
        for _ in range(commands):
            device.spin(length_us)
        device.synchronize()
        emit(round((time.monotonic() - begin) * 1e6))
        following = max(following + period_ms / 1000, time.monotonic())
        time.sleep(max(0.0, following - time.monotonic()))


def work(device, may_continue, commands, length_us):
    """Runs rounds while `may_continue` returns true; prints their number."""
    stream = device.stream()
    rounds = 0
    while may_continue(rounds):
        for n in range(commands):
            device.spin(length_us, stream if n % 2 else None)
        device.synchronize()
        device.synchronize(stream)
        rounds += 1
        if rounds == 1:
            emit("running")
    emit(rounds)


def resets(platform, count):
    """Uses the device and resets it, which destroys all its objects."""
    for number in range(1, count + 1):
        device = Device(platform)
        memory, size = device.allocate(4 * 100), 100
        for stream in (None, device.stream()):
            device.spin(300, stream)
            arguments = [ctypes.c_void_p(memory.value), ctypes.c_float(number), ctypes.c_uint64(size)]
            device.launch("fill", *arguments, stream=stream, blocks=1)
            device.synchronize(stream)
            if device.floats(memory, size) != [number] * size:
                raise Failure(f"wrong in round {number}")
            # Work that is pending at the reset.
            device.spin(300, stream)
        device.reset()
    emit(count)


def cost(device, batches):
    """Prints the nanoseconds of one launch: the minimum over the batches."""
    # As little Python code as possible between two launches.
    name = "hipModuleLaunchKernel" if device.hip else "cuLaunchKernel"
    launch = getattr(device.library, name)
    one, zero = ctypes.c_uint(1), ctypes.c_uint(0)
    arguments = (device.kernels["nothing"], one, one, one, one, one, one, zero, None, None, None)
    best = float("inf")
    for _ in range(batches):
        begin = time.perf_counter_ns()
        for _ in range(200):
            launch(*arguments)
        best = min(best, (time.perf_counter_ns() - begin) / 200)
        device.synchronize()
    emit(best)


def models():
    """Runs PyTorch: random numbers, products, convolutions, streams, a model. Results must equal those on the CPU."""
    try:
        import torch
    except ImportError:
        emit({"skipped": "PyTorch is not installed"})
        return
    if not torch.cuda.is_available():
        emit({"skipped": "PyTorch sees no device"})
        return
    torch.manual_seed(1)
    results = {"torch": torch.__version__, "randn": tuple(torch.randn(64, 64, device="cuda").shape) == (64, 64)}
    a, b = torch.randn(128, 128), torch.randn(128, 128)
    results["matmul"] = torch.allclose((a.cuda() @ b.cuda()).cpu(), a @ b, atol=1e-2)
    layer, image = torch.nn.Conv2d(3, 8, 3), torch.randn(1, 3, 32, 32)
    expected = layer(image)
    results["conv"] = torch.allclose(layer.cuda()(image.cuda()).cpu(), expected, atol=1e-2)
    stream = torch.cuda.Stream(priority=-1)
    with torch.cuda.stream(stream):
        total = torch.ones(1000, device="cuda").sum()
    stream.synchronize()
    results["stream"] = total.item() == 1000
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(512, 256, device="cuda"), torch.randint(0, 10, (512,), device="cuda")
    losses = []
    for _ in range(20):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    results["training"] = losses[-1] < losses[0]
    emit(results)


def main():
    platform, what, numbers = sys.argv[1], sys.argv[2], [int(text) for text in sys.argv[3:]]
    if what == "models":
        models()
        return
    if what == "resets":
        resets(platform, *numbers)
        return
    device = Device(platform)
    if what == "describe":
        emit({"device": device.name(), "version": device.version()})
    elif what == "forms":
        forms(device)
    elif what == "requests":
        requests(device, *numbers)
    elif what == "work":
        end = time.monotonic() + numbers[0]
        work(device, lambda _: time.monotonic() < end, *numbers[1:])
    elif what == "rounds":
        work(device, lambda rounds: rounds < numbers[0], *numbers[1:])
    elif what == "cost":
        cost(device, *numbers)


main()
