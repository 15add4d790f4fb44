"""PyTorch's results, bit for bit: each operation's result as a hash, so that two processes can be compared."""

import hashlib
import os


def digest(value):
    """The hash of the bytes of a tensor, or of several."""
    import torch
    summary = hashlib.sha256()
    for tensor in value if isinstance(value, (tuple, list)) else [value]:
        if isinstance(tensor, torch.Tensor):
            flat = tensor.detach().cpu().contiguous().flatten()
            content = flat.view(torch.uint8)
            try:
                summary.update(content.numpy().tobytes())
            except RuntimeError:
                # PyTorch without numpy.
                summary.update(bytes(content.tolist()))
        else:
            summary.update(repr(tensor).encode())
    return summary.hexdigest()[:16]


def training(torch, device, compute=None):
    """The loss of every step, and the weights after them."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.LayerNorm(512), torch.nn.Linear(512, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = torch.randn(256, 256, device=device), torch.randint(0, 10, (256,), device=device)
    losses = []
    for _ in range(20):
        with torch.autocast(device_type=torch.device(device).type, dtype=compute, enabled=compute is not None):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [torch.stack(losses), *[parameter for parameter in model.parameters()]]


def graph(torch, device):
    """A captured graph, replayed with new input."""
    if not device.startswith("cuda"):
        return torch.zeros(1)
    weights, given = torch.randn(256, 256, device=device), torch.randn(64, 256, device=device)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            torch.relu(given @ weights)
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        out = torch.relu(given @ weights)
    outputs = []
    for step in range(5):
        given.fill_(step / 7)
        captured.replay()
        outputs.append(out.clone())
    return outputs


def streams(torch, device):
    """Work on four streams that wait for each other."""
    if not device.startswith("cuda"):
        return torch.zeros(1)
    all_streams = [torch.cuda.Stream(priority=-(n % 2)) for n in range(4)]
    total = torch.zeros(1024, device=device)
    for n, stream in enumerate(all_streams * 4):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            total = total * 1.5 + n
            total.record_stream(stream)
        torch.cuda.current_stream().wait_stream(stream)
    return total


def operations(torch, device):
    """Name and function of every operation. Each seeds its own random numbers."""
    def random(*shape, dtype=None):
        return torch.randn(*shape, device=device, dtype=dtype)

    functional = torch.nn.functional

    def convolution():
        layer = torch.nn.Conv2d(16, 32, 3, padding=1).to(device)
        image = random(4, 16, 32, 32).requires_grad_()
        out = layer(image)
        out.sum().backward()
        return [out, image.grad, layer.weight.grad]

    half = torch.float16 if device.startswith("cuda") else torch.bfloat16
    return {
        "random numbers": lambda: random(1 << 16),
        "matrix product, float32": lambda: random(256, 256) @ random(256, 256),
        "matrix product, float16": lambda: random(512, 512, dtype=half) @ random(512, 512, dtype=half),
        "matrix product, bfloat16": lambda: random(512, 512, dtype=torch.bfloat16) @ random(512, 512, dtype=torch.bfloat16),
        "batched matrix product": lambda: torch.bmm(random(8, 64, 128), random(8, 128, 64)),
        "convolution and its gradients": convolution,
        "attention": lambda: functional.scaled_dot_product_attention(*(random(2, 8, 128, 64, dtype=half) for _ in range(3))),
        "softmax and layer norm": lambda: functional.layer_norm(torch.softmax(random(256, 1000), -1), (1000,)),
        "sort and cumulative sum": lambda: list(torch.sort(random(1 << 16)))[:1] + [torch.cumsum(random(1 << 12), 0)],
        "Fourier transform": lambda: torch.view_as_real(torch.fft.rfft(random(16, 4096))),
        "linear system": lambda: torch.linalg.solve(random(64, 64) + 64 * torch.eye(64, device=device), random(64, 4)),
        "memset and copies": lambda: [torch.zeros(1 << 20, device=device), torch.full((1 << 18,), 3.5, device=device).clone(), torch.arange(1 << 16).to(device)],
        "four streams": lambda: streams(torch, device),
        "graph": lambda: graph(torch, device),
        "training, float32": lambda: training(torch, device),
        "training, bfloat16": lambda: training(torch, device, torch.bfloat16),
    }


def results():
    """The hash of every operation, or the error that it raised; what is installed."""
    try:
        import torch
    except ModuleNotFoundError:
        return {"skipped": "PyTorch is not installed"}
    except Exception as error:  # pylint: disable=broad-except
        # It raises errors of every kind if a library is missing.
        return {"skipped": f"PyTorch cannot be imported: {str(error).splitlines()[0][:200] if str(error) else type(error).__name__}"}
    device = os.environ.get("VERIFY_TORCH_DEVICE", "cuda")
    about = {"torch": torch.__version__, "hip": getattr(torch.version, "hip", None), "cuda": torch.version.cuda}
    if device.startswith("cuda") and not torch.cuda.is_available():
        return {**about, "skipped": "PyTorch sees no device"}
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    hashes = {}
    for name, operation in operations(torch, device).items():
        torch.manual_seed(1)
        try:
            hashes[name] = digest(operation())
        except (RuntimeError, NotImplementedError, AttributeError, TypeError) as error:
            hashes[name] = f"error: {str(error).splitlines()[0][:200]}"
    return {**about, "hashes": hashes}
