"""Policy distributions: the one door to distrax."""

from typing import cast

import distrax
import jax

from jaxppo.types import Distribution


def categorical(logits: jax.Array) -> Distribution:
    """A distribution over `[..., K]` unnormalised log-probabilities; actions are int32 `[...]`."""
    return cast(Distribution, distrax.Categorical(logits=logits))
