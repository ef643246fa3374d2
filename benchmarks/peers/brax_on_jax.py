"""What Brax 0.14 still calls and jax has dropped; importing this module puts it back."""

from typing import Any

import jax
import jax.numpy as jnp


def device_put_replicated(x: Any, devices: Any) -> Any:
    """Return `x` with a first axis over `devices`, a copy on each."""
    copy = jax.pmap(lambda _, x: x, in_axes=(0, None), devices=devices)
    return copy(jnp.arange(len(devices)), x)


if not hasattr(jax, "device_put_replicated"):
    jax.device_put_replicated = device_put_replicated
