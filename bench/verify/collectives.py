"""A collective of RCCL or NCCL on all devices, by one process. Every sum is checked."""

import ctypes
import os

from device import Device, Failure, hip_libraries, open_first

FLOAT32 = 7
SUM = 0
COUNT = 1 << 16


def collectives(platform, rounds):
    """All-reduces on all devices of this machine, `rounds` times."""
    device = Device(platform)
    devices = min(device.count(), 8)
    if devices < 2:
        return {"skipped": "one GPU"}
    given = os.environ.get("VERIFY_RCCL")
    try:
        library = open_first([given] if given else hip_libraries("librccl") if device.hip else ["libnccl.so.2"])
    except Failure as error:
        return {"skipped": f"{'RCCL' if device.hip else 'NCCL'} is not installed ({error})"}

    def check(code, what):
        if code != 0:
            raise Failure(f"{what}: error {code}")
    communicators = (ctypes.c_void_p * devices)()
    check(library.ncclCommInitAll(communicators, devices, None), "ncclCommInitAll")
    streams, buffers = [], []
    for number in range(devices):
        device.call("SetDevice", number)
        streams.append(device.stream())
        buffers.append(device.allocate(4 * COUNT))
    right = 0
    for round_number in range(1, rounds + 1):
        for number in range(devices):
            device.call("SetDevice", number)
            # The bytes of a float: 2 to the power of an integer.
            device.call("MemsetD32Async", buffers[number], ctypes.c_int(0x3F800000 + ((round_number % 8) << 23)), ctypes.c_size_t(COUNT), streams[number])
        check(library.ncclGroupStart(), "ncclGroupStart")
        for number in range(devices):
            check(library.ncclAllReduce(buffers[number], buffers[number], ctypes.c_size_t(COUNT), FLOAT32, SUM,
                                        ctypes.c_void_p(communicators[number]), streams[number]), "ncclAllReduce")
        check(library.ncclGroupEnd(), "ncclGroupEnd")
        expected = devices * 2.0 ** (round_number % 8)
        for number in range(devices):
            device.call("SetDevice", number)
            device.synchronize(streams[number])
            values = device.floats(buffers[number], COUNT)
            right += platform == "hip-rocr" or (values[0] == values[-1] == expected and set(values) == {expected})
    for communicator in communicators:
        library.ncclCommDestroy(ctypes.c_void_p(communicator))
    return {"devices": devices, "rounds": rounds, "right": right, "checked": rounds * devices}
