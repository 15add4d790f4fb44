"""A service with a latency to keep: ResNet-152 in fp16 as a CUDA graph, at 20 % load. Prints latencies as JSON."""
import argparse, json, random, sys, time
import torch, torchvision

parser = argparse.ArgumentParser()
parser.add_argument("--requests", type=int, default=200)
parser.add_argument("--period-ms", type=float, default=13.0)
parser.add_argument("--batch", type=int, default=1)
args = parser.parse_args()

torch.manual_seed(0)
model = torchvision.models.resnet152(weights=None, zero_init_residual=True).cuda().half().eval()
x = torch.randn(args.batch, 3, 224, 224, device="cuda", dtype=torch.half)
stream = torch.cuda.Stream()
with torch.no_grad(), torch.cuda.stream(stream):
    for _ in range(5):
        y = model(x)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        y = model(x)
    for _ in range(20):
        graph.replay()
        stream.synchronize()
    latencies, dice, due = [], random.Random(1), time.monotonic()
    for _ in range(args.requests):
        due = max(due + args.period_ms / 1e3 * dice.uniform(0.75, 1.25), time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
        begin = time.monotonic()
        graph.replay()
        stream.synchronize()
        latencies.append((time.monotonic() - begin) * 1e3)
latencies.sort()
pick = lambda q: latencies[min(len(latencies) - 1, int(q * len(latencies)))]
print(json.dumps({"n": len(latencies), "p50_ms": round(pick(0.5), 3), "p99_ms": round(pick(0.99), 3),
                  "max_ms": round(latencies[-1], 3), "checksum": float(y.double().sum())}))
