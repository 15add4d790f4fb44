"""TensorFlow: matrix products, one by one and in a graph, and data that must survive a copy to the device and back.

Other operations are compiled by TensorFlow at run time, which needs the device libraries of a complete ROCm installation.
"""

import numpy as np
import tensorflow as tf


def main() -> None:
    print("TensorFlow", tf.__version__, [device.name for device in tf.config.list_physical_devices("GPU")])
    host = np.arange(65536, dtype=np.float32)
    with tf.device("/GPU:0"):
        print("copies are right:", bool((tf.identity(tf.constant(host)).numpy() == host).all()))
        x = tf.ones((64, 64))
        for _ in range(300):
            x = tf.matmul(x, x)

        @tf.function
        def step(value):
            return tf.matmul(tf.matmul(value, value), value)

        for _ in range(300):
            x = step(x)
    print("steps done", x.numpy().shape)


main()
