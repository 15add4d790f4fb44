"""Stands in for the user's program in the documentation's commands: runs a model for DOC_PROGRAM_SECONDS."""

import os
import time

import torch

model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(10)]).to("cuda")
x = torch.randn(256, 2048, device="cuda")
end = time.monotonic() + float(os.environ.get("DOC_PROGRAM_SECONDS", "0.5"))
while time.monotonic() < end:
    with torch.no_grad():
        model(x)
    torch.cuda.synchronize()
