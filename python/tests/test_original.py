"""The names of the original C++ XSched's Python package, compared with the C headers and used on the simulated device."""

import os
import re
import unittest

from environment import HERE, XSCHED, Environment

HEADERS = os.path.join(os.path.dirname(os.path.dirname(HERE)), "include", "xsched")


def header(name):
    with open(os.path.join(HEADERS, name)) as file:
        return file.read()


class Original(unittest.TestCase):
    def test_enums_and_constants_are_those_of_the_headers(self):
        import xsched

        types = header("types.h")
        for body, name in re.findall(r"typedef enum \{(.*?)\} (\w+);", types, re.DOTALL):
            expected = {value: int(number) for value, number in re.findall(r"(k\w+) = (-?\d+)", body)}
            self.assertEqual({value.name: int(value) for value in getattr(xsched, name)}, expected)
        constants = re.findall(r"#define (\w+) \(?(-?\d+|UINT64_MAX)\)?$", types, re.MULTILINE)
        self.assertGreater(len(constants), 10)
        for name, number in constants:
            self.assertEqual(getattr(xsched, name), 2**64 - 1 if number == "UINT64_MAX" else int(number))
        for alias in re.findall(r"^typedef u?int\d+_t (\w+);", types, re.MULTILINE):
            self.assertIs(getattr(xsched, alias), int)

    def test_every_function_of_the_headers_exists_but_that_with_a_function_pointer(self):
        import xsched
        from xsched.cuda import XSchedCuda
        from xsched.hip import XSchedHip

        def declared(name):
            return set(re.findall(r"^XResult (\w+)\(", header(name), re.MULTILINE))

        def public(kind):
            return {name for name in vars(kind) if not name.startswith("_")}

        self.assertEqual(public(xsched.XSched), (declared("xqueue.h") | declared("hint.h")) - {"HwCommandCreateCallback"})
        self.assertEqual(public(XSchedCuda), declared("cuda/hal.h"))
        self.assertEqual(public(XSchedHip), declared("hip/hal.h"))

    def test_queue_is_created_suspended_and_resumed(self):
        environment = Environment()
        self.addCleanup(environment.close)
        program = """
import ctypes, json
from environment import Device
from xsched import PRIORITY_MAX, XPreemptLevel, XQueueState, XResult, XSched
from xsched._original import _library
device = Device()
handle = ctypes.c_uint64()
create = _library().XsimQueueCreate
create.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
assert create(ctypes.byref(handle), device.queue) == 0
created, queue = XSched.XQueueCreate(handle.value, XPreemptLevel.kPreemptLevelBlock, 0)
found, same = XSched.XQueueGet(handle.value)
results = [created, found, XSched.XHintPriority(queue, PRIORITY_MAX), XSched.XQueueSuspend(queue, 0),
           XSched.XQueueResume(queue, 0), XSched.XQueueWaitAll(queue)]
idle = XSched.XQueueQuery(queue)
count = XSched.XQueueProfileHwCommandCount(queue)
refused = XSched.XHintPriority(queue, 1000)
results += [XSched.XQueueDestroy(queue), XSched.HwQueueDestroy(handle.value)]
stale = XSched.XQueueDestroy(queue)
try:
    XSched.XQueueDestroy()
except TypeError as raised:
    error = str(raised)
print(json.dumps([results, queue == same, idle == (XResult.kXSchedSuccess, XQueueState.kQueueStateIdle), count[0],
                  refused.name, stale.name, error]))
"""
        for prefix in ([], [XSCHED, "run", "--"]):
            if prefix:
                environment.start_service()
            output = environment.python(program, *prefix)
            self.assertEqual(output, [[0] * 8, True, True, 0, "kXSchedErrorInvalidValue", "kXSchedErrorNotFound",
                                      "XQueueDestroy() takes 1 arguments, not 0"])


if __name__ == "__main__":
    unittest.main()
