"""A stand-in for PyTorch without a GPU: the part that the examples use, on the simulated device.

Kernels occupy the device for as long as a GPU of 10 TFLOP/s would need, and compute nothing. The examples run unchanged with
the real PyTorch.
"""

import contextlib
import ctypes
import os

_LIBRARY = os.environ.get("XSIM_LIBRARY", "libxsim.so")
_FLOPS = 10e12


def _check(code):
    if code:
        raise RuntimeError(f"the simulated device returned {code}")


class _Device:
    """The device. It is opened by the first kernel, as in CUDA."""

    opened = None

    def __init__(self):
        self.library = ctypes.CDLL(_LIBRARY)
        device, self.queue = ctypes.c_void_p(), ctypes.c_void_p()
        _check(self.library.xsim_open(None, ctypes.byref(device)))
        _check(self.library.xsim_queue_create(device, ctypes.byref(self.queue)))

    @classmethod
    def get(cls):
        cls.opened = cls.opened or cls()
        return cls.opened

    def launch(self, seconds):
        _check(self.library.xsim_launch(self.queue, ctypes.c_uint64(max(int(seconds * 1e9), 5000))))


class Tensor:
    def __init__(self, *shape):
        self.shape = shape


def randn(*shape, device=None):
    return Tensor(*shape)


def no_grad():
    return contextlib.nullcontext()


class nn:
    class Linear:
        def __init__(self, inputs, outputs):
            self.inputs, self.outputs = inputs, outputs

        def __call__(self, x):
            _Device.get().launch(2 * x.shape[0] * self.inputs * self.outputs / _FLOPS)
            return Tensor(x.shape[0], self.outputs)

    class Sequential:
        def __init__(self, *layers):
            self.layers = layers

        def to(self, device):
            return self

        def __call__(self, x):
            for layer in self.layers:
                x = layer(x)
            return x


class cuda:
    @staticmethod
    def is_available():
        return True

    @staticmethod
    def get_device_name():
        return "the simulated device, with a stand-in for PyTorch"

    @staticmethod
    def synchronize():
        device = _Device.get()
        _check(device.library.xsim_synchronize(device.queue))
