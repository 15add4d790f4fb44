"""CuPy: kernels of its own and from source, streams, events, a graph, threads, and memory that must hold the right values."""

import ctypes
import threading

import cupy

SOURCE = r"""
extern "C" __global__ void step(float *data, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) data[i] += 1.0f;
}
"""


def fill_and_read(number: int) -> bool:
    """Fills and copies are carried out for real."""
    data = cupy.cuda.alloc(4096)
    copy = cupy.cuda.alloc(4096)
    data.memset_async(number, 4096)
    copy.copy_from_device_async(data, 4096)
    host = (ctypes.c_char * 4096)()
    stream = cupy.cuda.get_current_stream()
    cupy.cuda.runtime.memcpyAsync(ctypes.addressof(host), copy.ptr, 4096, cupy.cuda.runtime.memcpyDeviceToHost, stream.ptr)
    stream.synchronize()
    return bytes(host) == bytes([number]) * 4096


def launch_raw_kernels(kernel: cupy.RawKernel, count: int) -> None:
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        data = cupy.empty(1024, dtype=cupy.float32)
        for _ in range(count):
            kernel((4,), (256,), (data, cupy.int32(1024)))
    stream.synchronize()


def main() -> None:
    print("CuPy", cupy.__version__, "devices", cupy.cuda.runtime.getDeviceCount())
    kernel = cupy.RawKernel(SOURCE, "step")
    launch_raw_kernels(kernel, 2000)
    print("raw kernels done")
    threads = [threading.Thread(target=launch_raw_kernels, args=(kernel, 200)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("threads done")
    print("fills and copies are right:", all(fill_and_read(number) for number in range(64)))
    left = cupy.ones((64, 64), dtype=cupy.float32)
    for _ in range(200):
        product = left @ left
    print("matrix product", product.shape)
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    (left * 2 + 1).sum()
    end.record()
    end.synchronize()
    print("time between events is positive:", cupy.cuda.get_elapsed_time(start, end) > 0)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        data = cupy.empty(1024, dtype=cupy.float32)
        stream.begin_capture()
        for _ in range(10):
            kernel((4,), (256,), (data, cupy.int32(1024)))
        graph = stream.end_capture()
        for _ in range(20):
            graph.launch(stream)
    stream.synchronize()
    print("graph done")


main()
