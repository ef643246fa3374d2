"""Heads: map features `[L, S, F]` to a distribution over actions or to a value.

If the observation has an action mask, the actor's head takes it too. A mask is true for legal
actions and has the structure of the action space. Actor heads start with orthogonal weights of gain
0.01, so that the initial policy hardly depends on the observation.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.config.fields import check
from jaxppo.kernels.products import Dense
from jaxppo.networks.checks import Checked, argument, check_range
from jaxppo.ops import distributions, values
from jaxppo.ops.actions import check_no_mask, component_sizes, flat_mask, part_masks
from jaxppo.types import Box, Discrete, MultiDiscrete, PyTree, ValueEstimate, describe

_orthogonal = nn.initializers.orthogonal(0.01)


class CategoricalHead(nn.Module):
    """Logits of a discrete action."""

    action_space: Any
    takes: ClassVar[tuple[str, type]] = ("a categorical head", Discrete)

    def __post_init__(self) -> None:
        """Raise `ValueError` on an action space of another kind."""
        _check_space(*self.takes, self.action_space)
        super().__post_init__()

    @nn.compact
    def __call__(self, x: jax.Array, mask: PyTree = None) -> distributions.Distribution:
        """Return a distribution over int32 actions `[L, S, A...]`; `mask` as in `flat_mask`."""
        space, sizes = self.action_space, component_sizes(self.action_space)
        logits = Dense(sum(sizes), kernel_init=_orthogonal)(x)
        mask = flat_mask(space, mask)
        return distributions.multi_categorical(logits, sizes, getattr(space, "shape", ()), mask)


class MultiCategoricalHead(CategoricalHead):
    """Logits of every component of a multi-discrete action."""

    takes = ("a multi-categorical head", MultiDiscrete)


class NormalHead(Checked):
    """A normal distribution over actions, which are clipped to the bounds of the space, if any.

    The standard deviation, in units of the action, is one parameter per dimension or depends on the
    state. It starts at `initial_std` and stays above `min_std`.
    """

    action_space: Box
    state_dependent_std: bool = False
    initial_std: float = 1.0
    min_std: float = argument(1e-3, low=0)
    make = staticmethod(distributions.clipped_normal)

    def __post_init__(self) -> None:
        """Raise `ValueError` on another action space than a Box of floats, or a wrong argument."""
        _check_space("a normal head", Box, self.action_space)
        super().__post_init__()
        if self.initial_std <= self.min_std:
            raise ValueError(f"initial_std={self.initial_std} must be above min_std={self.min_std}")

    @nn.compact
    def __call__(self, x: jax.Array, mask: PyTree = None) -> distributions.Distribution:
        """Return a distribution over actions `[L, S, A...]`."""
        space = self.action_space
        check_no_mask(space, mask)
        std = self.state_dependent_std, self.initial_std, self.min_std
        loc, scale = _Normal(space.shape, *std, name="normal")(x)
        return self.make(loc, scale, low=space.low, high=space.high, event_ndim=len(space.shape))


class TanhNormalHead(NormalHead):
    """A normal distribution squashed by tanh into the bounds of the space.

    The standard deviation is that before the tanh, otherwise as in `NormalHead`.
    """

    make = staticmethod(distributions.tanh_normal)

    def __post_init__(self) -> None:
        """Raise `ValueError` unless the action space is a Box of floats with finite bounds."""
        _check_space("a tanh-normal head", Box, self.action_space, bounded=True)
        super().__post_init__()


class BetaHead(nn.Module):
    """A Beta distribution between the bounds of the space.

    alpha and beta are 1 + softplus of a dense layer, so there is one mode: Chou et al. 2017 (ICML).
    """

    action_space: Box

    def __post_init__(self) -> None:
        """Raise `ValueError` unless the action space is a Box of floats with finite bounds."""
        _check_space("a beta head", Box, self.action_space, bounded=True)
        super().__post_init__()

    @nn.compact
    def __call__(self, x: jax.Array, mask: PyTree = None) -> distributions.Distribution:
        """Return a distribution over actions `[L, S, A...]`."""
        check_no_mask(self.action_space, mask)
        space = self.action_space
        alpha = 1.0 + nn.softplus(_ShapedDense(space.shape, name="alpha")(x))
        beta = 1.0 + nn.softplus(_ShapedDense(space.shape, name="beta")(x))
        return distributions.beta(
            alpha, beta, low=space.low, high=space.high, event_ndim=len(space.shape)
        )


class ProductHead(nn.Module):
    """Independent distributions over the parts of a dict or tuple action, with one head each."""

    parts: Any  # dict or tuple of heads

    @nn.compact
    def __call__(self, x: jax.Array, mask: PyTree = None) -> distributions.Distribution:
        """Return a distribution over trees of actions; `mask` is such a tree or a part of it."""
        masks = part_masks(self.parts, mask)
        if isinstance(self.parts, Mapping):
            return distributions.product({k: h(x, masks[k]) for k, h in self.parts.items()})
        return distributions.product(tuple(head(x, masks[i]) for i, head in enumerate(self.parts)))


CONTINUOUS: dict[str, Any] = {"tanh_normal": TanhNormalHead, "normal": NormalHead, "beta": BetaHead}


def follow(action_space: PyTree, continuous: str = "tanh_normal", **of_normal: Any) -> nn.Module:
    """Return the head that suits the action space; `ValueError` if there is none.

    `continuous` names the head for floats with finite bounds; others get `NormalHead`. `of_normal`
    are further arguments of normal heads, such as `state_dependent_std`; other heads take none.
    """
    check("continuous", continuous, str, {"choices": tuple(CONTINUOUS)})
    for name in of_normal:
        if name not in NormalHead.__dataclass_fields__:
            raise ValueError(f"{name}: is no argument of normal heads")

    def part(space: PyTree) -> nn.Module:
        return follow(space, continuous, **of_normal)

    if isinstance(action_space, Mapping) and action_space:
        return ProductHead({k: part(space) for k, space in action_space.items()})
    if isinstance(action_space, tuple | list) and action_space:
        return ProductHead(tuple(map(part, action_space)))
    if isinstance(action_space, Discrete):
        return CategoricalHead(action_space)
    if isinstance(action_space, MultiDiscrete):
        return MultiCategoricalHead(action_space)
    if isinstance(action_space, Box) and _is_float(action_space):
        head = CONTINUOUS[continuous] if is_bounded(action_space) else NormalHead
        if head is BetaHead:
            return BetaHead(action_space)
        return head(action_space, **of_normal)
    raise ValueError(
        f"no head for the action space {action_space}: heads take Discrete, MultiDiscrete, Box of "
        "floats, and dicts and tuples of them"
    )


class ScalarHead(nn.Module):
    """One value, or with a discrete `action_space` one for each action; orthogonal gain 1."""

    action_space: Discrete | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> ValueEstimate:
        """Return values `[L, S]`, or `[L, S, N]` of N actions."""
        num = self.action_space.num_values if self.action_space else 1
        value = Dense(num, kernel_init=nn.initializers.orthogonal(1.0))(x)
        return values.scalar_value(value if self.action_space else value[..., 0])


class CategoricalCriticHead(Checked):
    """A histogram over values from `low` to `high`, in the value normalisation; gain 0.01.

    Targets outside are clipped: choose the range of returns, or normalise values. `sigma` is the
    standard deviation of a target's histogram, in bins; 0 splits a target between the two nearest
    bins. Farebrother et al. 2024 (arXiv 2403.03950), section 3.1. With a discrete `action_space`
    there is a histogram for each action.
    """

    num_atoms: int = argument(51, low=2)
    low: float = -10.0
    high: float = 10.0
    sigma: float = argument(0.75, low=0)
    action_space: Discrete | None = None

    def __post_init__(self) -> None:
        """Raise `ValueError` on a wrong argument or an empty range."""
        super().__post_init__()
        check_range(self.low, self.high)

    @nn.compact
    def __call__(self, x: jax.Array) -> ValueEstimate:
        """Return histograms over values, `[L, S]`, or `[L, S, N]` of N actions."""
        actions = (self.action_space.num_values,) if self.action_space else ()
        logits = Dense(math.prod(actions) * self.num_atoms, kernel_init=_orthogonal)(x)
        logits = logits.reshape(*x.shape[:-1], *actions, self.num_atoms)
        return values.categorical_value(logits, low=self.low, high=self.high, sigma=self.sigma)


class _ShapedDense(nn.Module):
    """A dense layer to an array of any `shape`; its outputs start near `bias`."""

    shape: tuple[int, ...]
    bias: float = 0.0

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `[L, S, F]` to `[L, S, *shape]`."""
        constant = nn.initializers.constant(self.bias)
        y = Dense(math.prod(self.shape), kernel_init=_orthogonal, bias_init=constant)(x)
        return y.reshape(*x.shape[:-1], *self.shape)


class _Normal(nn.Module):
    """Mean and standard deviation of each element."""

    shape: tuple[int, ...]
    state_dependent_std: bool
    initial_std: float
    min_std: float

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Map `[L, S, F]` to two arrays `[L, S, *shape]`."""
        loc = _ShapedDense(self.shape, name="loc")(x)
        above = self.initial_std - self.min_std
        if self.state_dependent_std:  # softplus, since an exponential of features can overflow
            inverse = above + math.log(-math.expm1(-above))
            std = nn.softplus(_ShapedDense(self.shape, inverse, name="std")(x))
        else:
            constant = nn.initializers.constant(math.log(above))
            std = jnp.exp(self.param("log_std", constant, self.shape))
        return loc, jnp.broadcast_to(self.min_std + std, loc.shape)


def _check_space(head: str, kind: type, space: Any, bounded: bool = False) -> None:
    takes = f"{kind.__name__} actions{' of floats' if kind is Box else ''}"
    takes += " with finite bounds" if bounded else ""
    fits = isinstance(space, kind) and (kind is not Box or _is_float(space))
    if not fits or (bounded and not is_bounded(space)):
        way_out = "normal" if fits else "auto, whose setting continuous chooses those of floats"
        raise ValueError(
            f"{head} takes {takes}, not {type(space).__name__} ({describe(space)}); use "
            f"network/actor_head={way_out}"
        )


def _is_float(space: Any) -> bool:
    return bool(jnp.issubdtype(jnp.dtype(space.dtype), jnp.floating))


def is_bounded(space: Box) -> bool:
    """Return whether these are floats between finite bounds, whose range float32 can hold."""
    if not _is_float(space):
        return False
    low, high = (np.asarray(bound, np.float64) for bound in (space.low, space.high))
    finite = np.all(np.isfinite(low) & np.isfinite(high))
    return bool(finite and np.all((low < high) & (high - low < np.finfo(np.float32).max)))
