"""What environments tell besides the reward: choose the numbers of `env.metrics`."""

from collections.abc import Collection, Iterable
from typing import Any

import jax
import jax.numpy as jnp

from jaxppo.config.fields import ConfigError

SHOWN = 30  # names in an error, at most


class UntoldError(ConfigError):
    """An environment does not tell a number of `env.metrics`."""


def chosen(owner: str, names: Collection[str], tree: Any) -> dict[str, jax.Array]:
    """Return the numbers `names` of what `B` environments tell, `[B]` float32.

    Of nested dicts, named tuples and dataclasses, dots join the names. `UntoldError` if there is no
    such number.
    """
    if not names:
        return {}
    leaves = {
        jax.tree_util.keystr(path, simple=True, separator="."): x
        for path, x in jax.tree.leaves_with_path(tree)
    }
    numbers = {name: x for name, x in leaves.items() if _is_number(x)}
    refuse_untold(owner, names, numbers)
    return {name: jnp.asarray(numbers[name], jnp.float32) for name in names}


def _is_number(x: Any) -> bool:
    kinds = jnp.bool_, jnp.number
    return x.ndim == 1 and any(jnp.issubdtype(x.dtype, kind) for kind in kinds)


def refuse_untold(owner: str, names: Iterable[str], known: Collection[str]) -> None:
    """Raise `UntoldError` for a name that is not known; it lists those that are."""
    for name in names:
        if name not in known:
            shown = ", ".join([*known][:SHOWN]) + (", ..." if len(known) > SHOWN else "")
            raise UntoldError(
                f"env.metrics=[{name}]: {owner} tells no such number; "
                + (f"it tells {shown}" if known else "it tells none; leave it out")
            )
