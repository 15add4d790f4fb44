"""Writes a small language model with random weights in the GGUF format, for llama.cpp.

    python3 gguf_model.py FILE
"""

import random
import struct
import sys

ALIGNMENT = 32
UINT32, FLOAT32, STRING, ARRAY, INT32 = 4, 6, 8, 9, 5
VOCABULARY = 259  # three control tokens and a token for each byte
EMBEDDING, HEADS, BLOCKS, FEED_FORWARD, CONTEXT = 64, 4, 2, 128, 512


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def number(kind: int, value: float) -> bytes:
    return struct.pack({UINT32: "<I", INT32: "<i", FLOAT32: "<f"}[kind], value)


def entry(key: str, kind: int, value) -> bytes:
    data = text(value) if kind == STRING else number(kind, value)
    return text(key) + struct.pack("<I", kind) + data


def array(key: str, kind: int, values: list) -> bytes:
    data = b"".join(text(value) if kind == STRING else number(kind, value) for value in values)
    return text(key) + struct.pack("<IIQ", ARRAY, kind, len(values)) + data


def metadata() -> list[bytes]:
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    kinds = [2, 3, 3] + [6] * 256  # unknown, control, byte
    return [
        entry("general.architecture", STRING, "llama"),
        entry("general.name", STRING, "random"),
        entry("llama.context_length", UINT32, CONTEXT),
        entry("llama.embedding_length", UINT32, EMBEDDING),
        entry("llama.block_count", UINT32, BLOCKS),
        entry("llama.feed_forward_length", UINT32, FEED_FORWARD),
        entry("llama.rope.dimension_count", UINT32, EMBEDDING // HEADS),
        entry("llama.attention.head_count", UINT32, HEADS),
        entry("llama.attention.head_count_kv", UINT32, HEADS),
        entry("llama.attention.layer_norm_rms_epsilon", FLOAT32, 1e-5),
        entry("llama.vocab_size", UINT32, VOCABULARY),
        entry("tokenizer.ggml.model", STRING, "llama"),
        array("tokenizer.ggml.tokens", STRING, tokens),
        array("tokenizer.ggml.scores", FLOAT32, [0.0] * VOCABULARY),
        array("tokenizer.ggml.token_type", INT32, kinds),
        entry("tokenizer.ggml.bos_token_id", UINT32, 1),
        entry("tokenizer.ggml.eos_token_id", UINT32, 2),
        entry("tokenizer.ggml.unknown_token_id", UINT32, 0),
    ]


def tensors() -> list[tuple[str, list[int]]]:
    """Names and shapes; the first number of a shape is the length of a row."""
    square, wide, tall = [EMBEDDING, EMBEDDING], [EMBEDDING, FEED_FORWARD], [FEED_FORWARD, EMBEDDING]
    block = [
        ("attn_norm", [EMBEDDING]), ("attn_q", square), ("attn_k", square), ("attn_v", square), ("attn_output", square),
        ("ffn_norm", [EMBEDDING]), ("ffn_gate", wide), ("ffn_up", wide), ("ffn_down", tall),
    ]
    return [
        ("token_embd.weight", [EMBEDDING, VOCABULARY]),
        *((f"blk.{number}.{name}.weight", shape) for number in range(BLOCKS) for name, shape in block),
        ("output_norm.weight", [EMBEDDING]),
        ("output.weight", [EMBEDDING, VOCABULARY]),
    ]


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % ALIGNMENT)


def model() -> bytes:
    generator = random.Random(1)
    infos, data = b"", b""
    for name, shape in tensors():
        count = 1
        for size in shape:
            count *= size
        infos += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        infos += struct.pack("<IQ", 0, len(data))  # 32-bit floating-point numbers
        data += padded(struct.pack(f"<{count}f", *(generator.gauss(0, 0.1) for _ in range(count))))
    pairs = metadata()
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors()), len(pairs))
    return padded(header + b"".join(pairs) + infos) + data


if __name__ == "__main__":
    with open(sys.argv[1], "wb") as file:
        file.write(model())
