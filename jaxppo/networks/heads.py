"""Heads: from a torso's features `[L, S, F]` to a distribution or a value."""

import flax.linen as nn
import jax

from jaxppo.distributions import categorical
from jaxppo.types import Discrete, Distribution, PyTree


class CategoricalHead(nn.Module):
    """Unnormalised log-probabilities of a discrete action space; orthogonal gain 0.01."""

    action_space: Discrete

    def __post_init__(self) -> None:
        """`ValueError` on an action space that is not discrete."""
        if not isinstance(self.action_space, Discrete):
            raise ValueError(f"a categorical head takes Discrete actions, not {self.action_space}")
        super().__post_init__()

    @nn.compact
    def __call__(self, x: jax.Array) -> Distribution:
        """A distribution over int32 actions `[L, S]`."""
        init = nn.initializers.orthogonal(0.01)
        return categorical(nn.Dense(self.action_space.num_values, kernel_init=init)(x))


class ScalarHead(nn.Module):
    """A value; orthogonal gain 1."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Values `[L, S]`."""
        return nn.Dense(1, kernel_init=nn.initializers.orthogonal(1.0))(x)[..., 0]


def follow(action_space: PyTree) -> nn.Module:
    """The head that the action space calls for; `ValueError` where there is none."""
    if isinstance(action_space, Discrete):
        return CategoricalHead(action_space)
    raise ValueError(f"no head for the action space {action_space}: only Discrete is supported")
