"""A PyTorch program without scheduling code: runs a model repeatedly and prints the durations.

    worker.py BATCH PAUSE_MS
"""

import json
import sys
import time

import torch

batch, pause = int(sys.argv[1]), float(sys.argv[2]) / 1e3

model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(10)]).to("cuda")
x = torch.randn(batch, 2048, device="cuda")


def run():
    with torch.no_grad():
        model(x)
    torch.cuda.synchronize()


run()
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    end, times = time.monotonic() + json.loads(line), []
    while time.monotonic() < end:
        begin = time.perf_counter()
        run()
        times.append((time.perf_counter() - begin) * 1e3)
        time.sleep(pause)
    print(json.dumps(times), flush=True)
