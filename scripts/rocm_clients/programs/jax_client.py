"""JAX: compiled functions, a matrix product, random numbers, and data that must survive a copy to the device and back."""

import jax
import jax.numpy as jnp
import numpy as np


def main() -> None:
    print("JAX", jax.__version__, jax.default_backend(), len(jax.devices()))
    host = np.arange(65536, dtype=np.uint32)
    print("copies are right:", bool((np.asarray(jax.device_put(host)) == host).all()))

    @jax.jit
    def step(x):
        return jnp.tanh(x @ x) + 1

    x = jax.device_put(np.ones((64, 64), np.float32))
    for _ in range(500):
        x = step(x)
    x.block_until_ready()
    print("steps done", x.shape)
    key = jax.random.key(1)
    print("random numbers", jax.random.normal(key, (128,)).shape)


main()
