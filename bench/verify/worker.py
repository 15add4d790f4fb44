"""The programs that the verification runs with and without XSched. They print one JSON value per line.

    worker.py PLATFORM describe
    worker.py PLATFORM forms
    worker.py PLATFORM requests COUNT COMMANDS LENGTH_US PERIOD_MS
    worker.py PLATFORM work SECONDS COMMANDS LENGTH_US
    worker.py PLATFORM rounds COUNT COMMANDS LENGTH_US
    worker.py PLATFORM resets COUNT
    worker.py PLATFORM cost BATCHES
    worker.py PLATFORM busy COUNT COMMANDS LENGTH_US PERIOD_MS
    worker.py PLATFORM steady kernel|memset|copy LENGTH
    worker.py PLATFORM suspend LIBRARY LEVEL COUNT LENGTH_US
    worker.py PLATFORM runtimes [SECOND_RUNTIME]
    worker.py PLATFORM collectives ROUNDS
    worker.py PLATFORM results
"""

import ctypes
import json
import os
import select
import sys
import time

from collectives import collectives
from device import Device, Failure, libraries_of_packages
from results import results


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
    outcomes = {}
    number = 0.0
    for form in launches:
        for name, stream in streams.items():
            number += 1
            arguments = [ctypes.c_void_p(memory.value), ctypes.c_float(number), ctypes.c_uint64(count)]
            try:
                device.launch("fill", *arguments, stream=stream, form=form, blocks=1)
                device.synchronize(stream)
                is_right = device.floats(memory, count) == [number] * count
                outcomes[f"{form} on {name}"] = "right" if is_right else "wrong"
            except (Failure, AttributeError) as error:
                outcomes[f"{form} on {name}"] = str(error)
    outcomes["graph"] = graph(device, streams["own"])
    emit(outcomes)


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
    # The first kernel of a process initializes much; it is not measured.
    device.spin(10)
    device.synchronize()
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


def busy(device, count, commands, length_us, period_ms):
    """Requests, each of which is waited for. Prints when the first launch of each returned and when it ended, in nanoseconds of the machine's
    clock. Before that launch the thread may wait for a processor, while the device has no work of this program."""
    stream = device.stream()
    device.spin(10, stream)
    device.synchronize(stream)
    following = time.monotonic()
    for _ in range(count):
        device.spin(length_us, stream)
        begin = time.monotonic_ns()
        for _ in range(commands - 1):
            device.spin(length_us, stream)
        device.synchronize(stream)
        emit([begin, time.monotonic_ns()])
        following = max(following + period_ms / 1000, time.monotonic())
        time.sleep(max(0.0, following - time.monotonic()))


def steady(device, kind, length):
    """Repeats one operation, each waited for, until its input is closed. Prints when each completed."""
    stream = device.stream()
    size = ctypes.c_size_t(length)
    if kind == "kernel":
        def launch():
            device.spin(length, stream)
    elif kind == "memset":
        memory = device.allocate(length)
        name, value = ("MemsetAsync", ctypes.c_int(7)) if device.hip else ("MemsetD8Async", ctypes.c_ubyte(7))

        def launch():
            device.call(name, memory, value, size, stream)
    else:
        source, target = device.allocate(length), device.allocate(length)
        name, more = ("MemcpyAsync", [ctypes.c_int(3)]) if device.hip else ("MemcpyDtoDAsync", [])

        def launch():
            device.call(name, target, source, size, *more, stream)
    completed = []
    while not select.select([sys.stdin], [], [], 0)[0]:
        launch()
        device.synchronize(stream)
        completed.append(time.monotonic_ns())
        if len(completed) == 3:
            emit("running")
    emit(completed)


def suspend(device, library, level, count, length_us):
    """Suspends and resumes the queue of a running kernel with the C interface. Prints the times in microseconds, and how often
    the kernel was stopped."""
    api = ctypes.CDLL(library)
    stream = device.stream()
    device.spin(100, stream)
    device.synchronize(stream)
    hardware, queue = ctypes.c_uint64(), ctypes.c_uint64()
    create = api.HipQueueCreate if device.hip else api.CudaQueueCreate

    def check(code, what):
        if code != 0:
            raise Failure(f"{what}: error {code}")
    check(create(ctypes.byref(hardware), stream), "creating the queue's handle")
    check(api.XQueueCreate(ctypes.byref(queue), hardware, ctypes.c_int64(level), ctypes.c_int64(0)), f"requesting level {level}")
    times = {"suspend_us": [], "resume_us": [], "stopped": 0, "resumed": 0}
    query = device.function("StreamQuery")
    for _ in range(count):
        device.spin(length_us, stream)
        begin = time.perf_counter_ns()
        check(api.XQueueSuspend(queue, ctypes.c_int64(0)), "XQueueSuspend")
        suspended = time.perf_counter_ns()
        # Twice the kernel's time: it would have completed if it were not stopped.
        time.sleep(2 * length_us / 1e6)
        times["stopped"] += query(stream) != 0
        restart = time.perf_counter_ns()
        check(api.XQueueResume(queue, ctypes.c_int64(0)), "XQueueResume")
        resumed = time.perf_counter_ns()
        device.synchronize(stream)
        times["resumed"] += query(stream) == 0
        times["suspend_us"].append(round((suspended - begin) / 1000, 1))
        times["resume_us"].append(round((resumed - restart) / 1000, 1))
    emit(times)


def runtimes(platform, second):
    """Uses two copies of the runtime in one process, by turns."""
    given = os.environ.get("VERIFY_RUNTIME")
    copies = [given, second] if second else [None, *libraries_of_packages("libamdhip64")[:1]]
    if len(copies) < 2:
        emit({"skipped": "there is one copy of the runtime"})
        return
    devices = [Device(platform, copy) for copy in copies]
    paths = {line.split()[-1] for line in open("/proc/self/maps", encoding="utf-8") if "libamdhip64" in line}
    if len(paths) < 2:
        emit({"skipped": "all names lead to one copy of the runtime"})
        return
    outcome = {"copies": len(paths), "right": 0, "rounds": 0}
    streams = [device.stream() for device in devices]
    memory = [device.allocate(4 * 100) for device in devices]
    for number in range(1, 21):
        for device, stream, place in zip(devices, streams, memory):
            device.spin(100, stream)
            device.launch("fill", ctypes.c_void_p(place.value), ctypes.c_float(number), ctypes.c_uint64(100), stream=stream, blocks=1)
            device.synchronize(stream)
            outcome["rounds"] += 1
            outcome["right"] += device.floats(place, 100) == [number] * 100
    emit(outcome)


def main():
    platform, what, words = sys.argv[1], sys.argv[2], sys.argv[3:]
    if what == "results":
        emit(results())
        return
    if what == "collectives":
        emit(collectives(platform, *map(int, words)))
        return
    if what == "runtimes":
        runtimes(platform, words[0] if words else None)
        return
    if what == "resets":
        resets(platform, *map(int, words))
        return
    device = Device(platform)
    if what == "steady":
        steady(device, words[0], int(words[1]))
        return
    if what == "suspend":
        suspend(device, words[0], *map(int, words[1:]))
        return
    numbers = [int(text) for text in words]
    if what == "describe":
        clock = device.clock() if platform == "hip" else None
        emit({"device": device.name(), "version": device.version(), "devices": device.count(), "clock": clock})
    elif what == "forms":
        forms(device)
    elif what == "requests":
        requests(device, *numbers)
    elif what == "busy":
        busy(device, *numbers)
    elif what == "work":
        if "VERIFY_START" in os.environ:
            # Several programs that begin together: initializing the runtime takes seconds, and not always the same.
            emit("ready")
            sys.stdin.readline()
        end = time.monotonic() + numbers[0]
        work(device, lambda _: time.monotonic() < end, *numbers[1:])
    elif what == "rounds":
        work(device, lambda rounds: rounds < numbers[0], *numbers[1:])
    elif what == "cost":
        cost(device, *numbers)


main()
