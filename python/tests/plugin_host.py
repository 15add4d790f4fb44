"""A program that loads plugins as vLLM does, and then starts a worker that uses the device. Prints what it observed."""

import importlib.metadata
import json
import multiprocessing
import os

GROUP = "vllm.general_plugins"


def worker(pipe):
    import xsched
    from environment import Device, eventually

    def own_priorities():
        return [task.priority for task in xsched.tasks() if task.pid == os.getpid()]

    Device().work()
    priorities = eventually("its task", own_priorities) if xsched.loaded() else own_priorities()
    pipe.send({"loaded": xsched.loaded(), "priorities": priorities})


def plugins():
    found = importlib.metadata.entry_points()
    # Before Python 3.10 they are a dict.
    return found.select(group=GROUP) if hasattr(found, "select") else found.get(GROUP, [])


if __name__ == "__main__":
    loaded = [[plugin.name, plugin.load()()] for plugin in plugins()]
    # As vLLM uses this variable.
    method = os.environ.get("VLLM_WORKER_MULTIPROC_METHOD", "fork")
    context = multiprocessing.get_context(method)
    parent_end, child_end = context.Pipe()
    process = context.Process(target=worker, args=(child_end,))
    process.start()
    child_end.close()
    received = parent_end.recv()
    process.join()
    print(json.dumps({"plugins": loaded, "worker": received}))
