"""Axes, states and interfaces that all folders of the package share.

Docstrings name axes by these letters:

    D  devices                                 L  sequence length (feed-forward: 1)
    P  members: independent agents             S  sequences of a batch
    U  update batches of one agent             M  sequences of a minibatch
    T  rollout steps                           O  an observation's own shape
    B  environments of one update batch        A  an action's own shape

Of worlds with several agents, each agent is one of the `B`.

`reset` says that an observation starts an episode (before the step). `terminated` says that the MDP
ended and `truncated` that a time limit ended the episode (both after the step). If both are set,
the step is terminated.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

PyTree = Any
Class = TypeVar("Class")
STATIC = dict(static=True)  # metadata of a field that is no leaf of a `pytree`


@typing.dataclass_transform(
    kw_only_default=True, frozen_default=True, field_specifiers=(dataclasses.field,)
)
def pytree(cls: type[Class]) -> type[Class]:
    """Class decorator: a frozen dataclass, made with keywords, that is a pytree."""
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True, kw_only=True)(cls))


@jax.tree_util.register_pytree_with_keys_class
class Hyperparameters:
    """The traced settings of an algorithm, as attributes: scalars, or `[P]` for members.

    Changing one never recompiles. Type checkers know them by the class that declares them.
    """

    num_updates: jax.Array  # int32, over which learning rates decay

    def __init__(self, **numbers: Any) -> None:
        self.__dict__.update(numbers)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with changes; `AttributeError` for an unknown name.

        Changes `[P]` make a grid: all other numbers are repeated `P` times.
        """
        for name in changes:
            getattr(self, name)
        numbers = {name: jnp.asarray(x) for name, x in {**vars(self), **changes}.items()}
        shape = jnp.broadcast_shapes(*(x.shape for x in numbers.values()))
        return type(self)(
            **{
                name: jnp.broadcast_to(x, shape).astype(jnp.asarray(getattr(self, name)).dtype)
                for name, x in numbers.items()
            }
        )

    if not TYPE_CHECKING:  # so that a type checker knows the names

        def __getattr__(self, name: str) -> Any:
            names = ", ".join(sorted(vars(self)))
            raise AttributeError(f"no hyperparameter {name}; there are {names}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("hyperparameters are not changed in place: use replace")

    def __repr__(self) -> str:
        return f"Hyperparameters({', '.join(f'{k}={v}' for k, v in sorted(vars(self).items()))})"

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], tuple[str, ...]]:
        """Flatten by name, in alphabetical order."""
        names = tuple(sorted(vars(self)))
        return [(jax.tree_util.GetAttrKey(name), vars(self)[name]) for name in names], names

    @classmethod
    def tree_unflatten(cls, names: tuple[str, ...], numbers: Any) -> Self:
        """The inverse of flattening."""
        return cls(**dict(zip(names, numbers, strict=True)))


@pytree
class RunningStatistics:
    """Mean and population variance of every float leaf seen so far, such as of observations.

    Other leaves are `None`. With a count of zero the mean is 0 and the variance 1. `mean_low` is
    below the rounding error of `mean`; without it, changes that small would be lost at each update.
    """

    count: jax.Array  # float32; saturates near 2^24 batches, where a batch's weight is nil anyway
    mean: PyTree  # O...
    mean_low: PyTree  # O... the exact mean less `mean`
    variance: PyTree  # O...


@pytree
class TimeStep:
    """Result of one step of `B` auto-reset environments."""

    obs: PyTree  # [B, O...] the next observation to act on (of a new episode after an end)
    final_observation: PyTree  # [B, O...] the true successor, before any auto-reset
    reward: jax.Array  # [B] float32
    terminated: jax.Array  # [B] bool, the MDP ended: do not bootstrap
    truncated: jax.Array  # [B] bool, a time limit ended it: bootstrap from final_observation
    # [B] float32 each, of env.metrics; NaN where this step tells nothing
    metrics: dict[str, jax.Array] = dataclasses.field(default_factory=dict)
    # [B] bool, the agent acted; where not, the row pads until its world is over. None: all act
    alive: jax.Array | None = None
    # [B] float32, of games: 1 if the successor is seen by the same player, -1 if by the other,
    # whose values are the negative of the first one's. None: there is one player
    sign: jax.Array | None = None


@pytree
class Tally:
    """What a number that the environment tells has added up to in the running episodes."""

    total: jax.Array  # [B] float32; 0 before the first number
    count: jax.Array  # [B] int32, steps that told a number


@pytree
class ActorOutput:
    """Actions of one step of `B` environments."""

    action: PyTree  # [B, A...] raw, as the algorithm learns from it
    env_action: PyTree  # [B, A...] what the environment takes
    extras: PyTree  # [B, ...] what else the loss needs, such as log-probabilities


@pytree
class PolicyInfo:
    """What a policy computed to choose the actions of `B` environments. None: it has no such thing.

    Log-probabilities and entropies are those of the policy that samples, also if the actions are
    greedy.
    """

    values: jax.Array | None = None  # [B] estimates of the state's value, in units of training
    log_probs: jax.Array | None = None  # [B] of the actions taken
    entropies: jax.Array | None = None  # [B] in nats
    # A distribution's parameters by name, [B, ...]; of a product, dicts by part
    distribution: dict[str, Any] = dataclasses.field(default_factory=dict)
    raw_actions: PyTree = None  # [B, A...] where the environment gets a function of them


@pytree
class Transition:
    """One environment step; a rollout stacks it to `[T, B, ...]`."""

    obs: PyTree  # [T, B, O...] raw; normalised with the statistics of this update
    reset: jax.Array  # [T, B] bool, obs starts an episode (before the step)
    carry: PyTree  # [T, B, ...] memory before the step; where `reset`, not yet emptied
    action: PyTree  # [T, B, A...] raw
    extras: PyTree  # [T, B, ...] of ActorOutput
    reward: jax.Array  # [T, B] as the environment gave it; in `learn`, scaled
    terminated: jax.Array  # [T, B] bool, the MDP ended (after the step): do not bootstrap
    truncated: jax.Array  # [T, B] bool, a time limit ended it (after the step): bootstrap
    final_observation: PyTree  # [T, B, O...] the true successor of this step
    discounted_return: PyTree  # [T, B] of the episode's rewards so far; () unless normalised by
    # [T, B] bool, of TimeStep; where not, nothing is learnt. None: all acted
    alive: jax.Array | None = None
    sign: jax.Array | None = None  # [T, B] of TimeStep


@pytree
class Ended:
    """The episodes that ended: how many, and sums of their returns and lengths."""

    count: jax.Array  # int32
    episode_return: jax.Array  # float32, undiscounted
    episode_length: jax.Array  # int32
    # Of env.metrics: sums over those of the episodes that told a number, and how many these are
    metrics: dict[str, jax.Array] = dataclasses.field(default_factory=dict)  # float32
    told: dict[str, jax.Array] = dataclasses.field(default_factory=dict)  # float32


@pytree
class Rollout:
    """`T` steps of `B` environments and the state after them: the input of `learn`."""

    steps: Transition  # [T, B, ...]
    obs: PyTree  # [B, O...] after the last step
    reset: jax.Array  # [B] bool, that obs starts an episode
    carry: PyTree  # [B, ...] memory after the last step
    ended: Ended  # scalars
    reused_starts: dict[str, jax.Array]  # how often a `Pool` gave a used one; or empty


@pytree
class Batch:
    """A rollout with its targets, cut into sequences. A minibatch has `M` instead of `S`."""

    carry: PyTree  # [S, ...] memory before the first step of each sequence
    steps: Any  # [L, S, ...] a dataclass of the algorithm, with fields `obs` and `reset`


@pytree
class Policy:
    """All that acting needs: what is evaluated, exported and kept as the best policy."""

    params: PyTree
    obs_statistics: RunningStatistics
    noise_key: jax.Array | None  # typed key of noisy layers, if any, new each update; None: off
    exploration: PyTree = ()  # numbers that sampling needs besides the network, such as an epsilon


@pytree
class Opponents:
    """`N` older policies of an agent, the opponents in some of its games."""

    policies: Policy  # [N, ...] without a `noise_key`
    since: jax.Array  # [N] int32, the update after which each came into the pool; 0: untrained


Numbers = TypeVar("Numbers")  # the class that declares the traced settings
Own = TypeVar("Own")


@pytree
class Agent(Generic[Numbers, Own]):
    """Everything learnt: identical along D and U, stored once per device."""

    policy: Policy
    opt_state: PyTree
    hyperparameters: Numbers
    algorithm_state: Own  # what the algorithm keeps from update to update
    reward_statistics: RunningStatistics  # of discounted sums of reward, a scalar
    update: jax.Array  # int32, updates done; steps are counted on the host in exact integers
    opponents: PyTree = ()  # an `Opponents`, where games are played against older policies


AgentState = Agent[Any, Any]  # of any algorithm: a type only, whose class is Agent


@pytree
class ActingState:
    """The state of `B` environments and their random stream."""

    env_state: PyTree  # [B, ...]
    obs: PyTree  # [B, O...] the observation to act on next
    reset: jax.Array  # [B] bool, obs starts an episode
    carry: PyTree  # [B, ...] memory before the next step
    episode_return: jax.Array  # [B] float32, undiscounted, of the running episode
    episode_length: jax.Array  # [B] int32
    discounted_return: jax.Array  # [B] float32, the past rewards of the episode, discounted
    key: jax.Array  # typed key
    tallies: dict[str, Tally] = dataclasses.field(default_factory=dict)  # [B] of env.metrics


@pytree
class LearnerState:
    """All state of training, and all that a resume needs."""

    agent: AgentState  # [D, P, ...]
    acting: ActingState  # [D, P, U, ...]


@dataclasses.dataclass(frozen=True)
class Discrete:
    """`num_values` integers; a scalar. Programs count from 0, a simulator from `start`."""

    num_values: int
    start: int = dataclasses.field(default=0, repr=False)


@dataclasses.dataclass(frozen=True)
class MultiDiscrete:
    """Integers, each component with its own number of values; an array of `shape`.

    Programs count from 0, a simulator from `start`: one number, or nested tuples.
    """

    num_values: tuple[int, ...]  # of the components in row-major order
    shape: tuple[int, ...] = None  # type: ignore[assignment]  # None: one axis
    start: Any = dataclasses.field(default=0, repr=False)

    def __post_init__(self) -> None:
        if self.shape is None:
            object.__setattr__(self, "shape", np.shape(self.num_values))


@dataclasses.dataclass(frozen=True)
class Box:
    """Arrays of `shape`; `low` and `high` are per element (nested tuples) or one number."""

    shape: tuple[int, ...]
    dtype: str
    low: Any = float("-inf")
    high: Any = float("inf")


Space = Discrete | MultiDiscrete | Box  # a space is one of these, or a dict or tuple of spaces


def is_space(x: Any) -> bool:
    """Return whether `x` is a leaf of a tree of spaces."""
    return isinstance(x, Space)


def describe(space: PyTree) -> str:
    """Describe a tree of spaces: shapes and data types."""
    if isinstance(space, dict):
        return "{" + ", ".join(f"{name}: {describe(part)}" for name, part in space.items()) + "}"
    if isinstance(space, tuple | list):
        return "(" + ", ".join(map(describe, space)) + ")"
    return f"{space.dtype}{list(space.shape)}" if isinstance(space, Box) else str(space)


def zeros(space: PyTree, lead: tuple[int, ...] = ()) -> PyTree:
    """Return zeros in the structure of a space, `[lead..., ...]`."""

    def one(space: Space) -> jax.Array:
        if isinstance(space, Discrete):
            return jnp.zeros(lead, jnp.int32)
        return jnp.zeros((*lead, *space.shape), getattr(space, "dtype", jnp.int32))

    return jax.tree.map(one, space, is_leaf=is_space)


def bounds(space: Space) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest and the highest values, as the environment counts: one or `[A...]`."""
    if isinstance(space, Box):
        return np.asarray(space.low, np.float64), np.asarray(space.high, np.float64)
    sizes = np.reshape(space.num_values, getattr(space, "shape", ()))
    low = np.asarray(space.start, np.int64)
    return low, low + sizes - 1


def counted(space: PyTree, tree: PyTree, sign: int = 1) -> PyTree:
    """Return values `[..., A...]`, whose integers count from 0, as the environment counts.

    With a `sign` of -1, the inverse.
    """

    def one(space: Space, x: Any) -> Any:
        start = getattr(space, "start", 0)
        return x + sign * np.asarray(start, np.int32) if np.any(start) else x

    return jax.tree.map(one, space, tree, is_leaf=is_space)


class Environment(Protocol):
    """`B` environments that step together; the adapters in `envs/` implement it."""

    name: str
    observation_space: PyTree  # of Space
    action_space: PyTree  # of Space
    time_limit: int | None  # steps after which every episode has ended, if there is such a number
    num_agents: int  # of a world; their rows are neighbours, and B is a multiple of it
    pads: bool  # steps have `alive`, since agents may end before their world

    @property
    def pool_size(self) -> int | None:
        """Starts of a `Pool`; None: by the steps of a rollout; 0: its state has no `Pool`."""

    def reset(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        """Map `[B]` keys to (state `[B, ...]`, observation `[B, O...]`)."""

    def step(self, key: jax.Array, state: PyTree, action: PyTree) -> tuple[PyTree, TimeStep]:
        """Map `[B]` keys, state and actions `[B, A...]` to (next state, time step); auto-reset."""


@pytree
class RunProgress:
    """How much of a run is done, in the state of an environment that depends on it.

    Wherever it is in the state, `acting.collect` updates it before a rollout.
    """

    share: jax.Array  # [B] float32, of the run's updates, from 0 to 1


@pytree
class Pool:
    """First states of episodes, in the state of an environment with `pool_size`.

    Wherever it is in the state, `acting.collect` fills it before a rollout and empties it after.
    """

    starts: PyTree  # (observation, state) [N, ...]; () between rollouts
    taken: PyTree  # int32, episodes that have begun with one of them; () between rollouts

    @property
    def size(self) -> int:
        """`N`."""
        return len(jax.tree.leaves(self.starts)[0])


class ValueEstimate(Protocol):
    """A critic's estimate, batched over its leading axes; a pytree."""

    def mean(self) -> jax.Array:
        """Return the expected value, in the value normalisation."""

    def loss(
        self, target: jax.Array, error: Callable[[jax.Array, jax.Array], jax.Array]
    ) -> jax.Array:
        """Return the elementwise loss; for scalar estimates it is `error(value, target)`."""


class Network(Protocol):
    """A network over sequences. The carry of feed-forward networks has no leaves."""

    def init(self, key: jax.Array) -> PyTree:
        """Return initial parameters, a dict by part; optimiser groups consist of parts."""

    def initial_carry(self, num_envs: int) -> PyTree:
        """Return the initial memory of an episode, `[num_envs, ...]`."""

    def prepare(self, params: PyTree) -> PyTree:
        """Return parameters in the types that `unroll` computes in; it gives the same with both."""

    def unroll(
        self,
        params: PyTree,
        carry: PyTree,
        obs: PyTree,
        reset: jax.Array,
        noise_key: jax.Array | None = None,
    ) -> tuple[PyTree, Any]:
        """Map normalised `obs` `[L, S, O...]` to (carry, output), a pytree of `[L, S, ...]`.

        `carry` `[S, ...]` is the memory before the first step. Where `reset` `[L, S]` is true the
        memory is reset before the step. `noise_key` draws the noise of noisy layers, if any.
        """

    def empty_masks(self, obs: PyTree) -> jax.Array:
        """Return `[L, S]` bool: the action mask in raw `obs` `[L, S, O...]` allows nothing."""

    def example(self, lead: tuple[int, int] = (1, 1)) -> tuple[PyTree, Any]:
        """Return the shapes of `unroll`'s results for `lead` `[L, S]` steps."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class System:
    """The static part of a program, hashed by identity."""

    env: Environment
    evaluation_env: Environment  # `env` itself, unless its parameters vary; with the same spaces
    algorithm: Any  # an algorithms.algorithm.Algorithm
    num_envs: int  # B
    rollout_length: int  # T
    sequence_length: int  # L
    burn_in: int  # of the L, the first that are not learnt from
    recompute_carries: bool  # before every epoch
    recompute_targets: bool  # before every epoch
    epochs: int
    num_minibatches: int
    num_microbatches: int  # in which a minibatch is differentiated, one after another
    num_value_chunks: int  # in which a rollout's steps are valued, one after another
    stop_early: bool  # epochs end where the algorithm says so
    stop_settled: bool  # epochs end once their loss hardly changes
    details: bool  # more metrics
    learns: bool  # False: only collect
    skip_nonfinite: bool  # gradient steps, and updates of statistics
    normalize_observations: bool
    normalize_entries: tuple[str, ...]  # of a dict observation; (): all
    obs_clip: float  # of normalised observations
    obs_min_std: float  # bounds of the standard deviations of observations
    obs_max_std: float
    obs_norm_share: float  # of the updates, in which statistics of observations are not frozen
    normalize_rewards: bool
    schedules: tuple[tuple[str, str], ...]  # (hyperparameter, kind), see algorithms.schedules
    clip_together: bool  # one gradient norm of all optimiser groups
    evaluation_greedy: bool
    max_eval_steps: int
    metrics: dict[str, str] = dataclasses.field(default_factory=dict)  # of env.metrics: last, ...
    env_params: dict[str, Any] = dataclasses.field(default_factory=dict)  # that `env` was made with
    num_opponents: int = 0  # N of `Opponents`; 0: none
    opponent_every: int = 0  # updates after which a policy comes into the pool
    axes: tuple[str, ...] = ()  # mapped axes over which one agent is averaged: batch, device
