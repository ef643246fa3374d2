"""What Brax 0.14 still calls and jax has dropped; importing this module puts it back."""

import jax
import jax.numpy as jnp

if not hasattr(jax, "device_put_replicated"):
    jax.device_put_replicated = lambda tree, devices: jax.pmap(
        lambda _, x: x, in_axes=(0, None), devices=devices
    )(jnp.arange(len(devices)), tree)
