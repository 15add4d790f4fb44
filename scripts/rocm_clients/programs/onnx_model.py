"""Writes a small ONNX model, a matrix product with a bias, without the onnx package.

    python3 onnx_model.py FILE
"""

import struct
import sys


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: int | bytes | str) -> bytes:
    """One protobuf field: an integer, or bytes with their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def tensor(name: str, shape: list[int], values: list[float]) -> bytes:
    """A TensorProto of 32-bit floating-point numbers."""
    return b"".join(field(1, size) for size in shape) + field(2, 1) + field(8, name) + field(9, struct.pack(f"<{len(values)}f", *values))


def value_info(name: str, shape: list[int]) -> bytes:
    """A ValueInfoProto of 32-bit floating-point numbers."""
    dimensions = b"".join(field(1, field(1, size)) for size in shape)
    return field(1, name) + field(2, field(1, field(1, 1) + field(2, dimensions)))


def node(operator: str, inputs: list[str], output: str) -> bytes:
    return b"".join(field(1, name) for name in inputs) + field(2, output) + field(3, output) + field(4, operator)


def model(size: int = 64) -> bytes:
    """A ModelProto: y = relu(x @ weights + bias)."""
    weights = [(i * 37 % 101) / 101 - 0.5 for i in range(size * size)]
    graph = (
        field(1, node("MatMul", ["x", "weights"], "product"))
        + field(1, node("Add", ["product", "bias"], "sum"))
        + field(1, node("Relu", ["sum"], "y"))
        + field(2, "small")
        + field(5, tensor("weights", [size, size], weights))
        + field(5, tensor("bias", [size], weights[:size]))
        + field(11, value_info("x", [size, size]))
        + field(12, value_info("y", [size, size]))
    )
    return field(1, 8) + field(2, "xsched") + field(7, graph) + field(8, field(1, "") + field(2, 13))


if __name__ == "__main__":
    with open(sys.argv[1], "wb") as file:
        file.write(model())
