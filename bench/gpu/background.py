"""A job that takes all it can get: ResNet-50 training in bf16. Prints a line per second until it is ended."""
import sys, time
import torch, torchvision

torch.manual_seed(0)
model = torchvision.models.resnet50(weights=None).cuda().train()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(64, 3, 224, 224, device="cuda")
t = torch.randint(0, 1000, (64,), device="cuda")
count, since = 0, time.monotonic()
while True:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(model(x), t)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    loss.item()
    count += 1
    now = time.monotonic()
    if now - since >= 1.0:
        print(f"{count / (now - since):.3f}", flush=True)
        count, since = 0, now
