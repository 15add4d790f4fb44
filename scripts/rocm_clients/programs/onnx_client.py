"""ONNX Runtime: a small model on the ROCm execution provider.

    python3 onnx_client.py MODEL
"""

import sys

import numpy as np
import onnxruntime


def main() -> None:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["ROCMExecutionProvider"])
    print("ONNX Runtime", onnxruntime.__version__, session.get_providers())
    x = np.ones((64, 64), np.float32)
    for _ in range(300):
        result = session.run(None, {"x": x})[0]
    print("result", result.shape, result.dtype)


main()
