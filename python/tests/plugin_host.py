"""A program that loads plugins as vLLM does, and then starts a worker that uses the device. Tells what it saw."""

import importlib.metadata
import json
import multiprocessing
import os

GROUP = "vllm.general_plugins"


def worker(pipe):
    import xsched
    from stage import Device, eventually

    def own():
        return [task.priority for task in xsched.tasks() if task.pid == os.getpid()]

    Device().work()
    own = eventually("its task", own) if xsched.loaded() else own()
    pipe.send({"loaded": xsched.loaded(), "priorities": own})


def plugins():
    found = importlib.metadata.entry_points()
    # Before Python 3.10 they came as a dict.
    return found.select(group=GROUP) if hasattr(found, "select") else found.get(GROUP, [])


if __name__ == "__main__":
    loaded = [[plugin.name, plugin.load()()] for plugin in plugins()]
    # What vLLM does with this variable.
    method = os.environ.get("VLLM_WORKER_MULTIPROC_METHOD", "fork")
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    process = context.Process(target=worker, args=(theirs,))
    process.start()
    theirs.close()
    said = ours.recv()
    process.join()
    print(json.dumps({"plugins": loaded, "worker": said}))
