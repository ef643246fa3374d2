"""The axis legend, the states that programs carry, and the contracts between layers.

Axes, as every docstring of this package names them:

    D  devices                                 L  sequence length (feed-forward: 1)
    P  members: independent agents             S  sequences of a batch
    U  update batches of one agent             M  sequences of a minibatch
    T  rollout steps                           O  an observation's own shape
    B  environments of one update batch        A  an action's own shape

Time: `reset` opens an episode (before the step), `terminated` is the MDP's end and `truncated`
the clock's (both after the step). Where both are set the step is terminated.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp

PyTree = Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Hyperparameters:
    """Numbers that shape no array: traced, so that changing one never recompiles. All scalars."""

    actor_lr: jax.Array  # Adam step size of everything but the critic
    critic_lr: jax.Array
    gamma: jax.Array  # discount per step
    gae_lambda: jax.Array
    clip_eps: jax.Array  # clip of the ratio to 1 - clip_eps, and of the value's change
    clip_eps_high: jax.Array  # clip of the ratio to 1 + clip_eps_high
    kl_coef: jax.Array  # weight of KL(old || new), before kl_factor; objective penalty
    kl_target: jax.Array  # nats an update, of the adaptive kl_coef
    kl_stop: jax.Array  # nats of a minibatch at which an update's epochs end; inf: never
    dpo_alpha: jax.Array
    dpo_beta: jax.Array
    rho_clip: jax.Array  # V-trace
    c_clip: jax.Array
    ent_coef: jax.Array
    vf_coef: jax.Array
    huber_delta: jax.Array  # error at which the Huber loss becomes linear
    value_norm_decay: jax.Array  # an update, of the statistics of value targets
    max_grad_norm: jax.Array  # of the actor's and of the critic's gradient; inf: no clipping
    reward_scale: jax.Array
    reward_clip: jax.Array  # largest magnitude after scaling; inf: no clipping
    decay_learning_rates: jax.Array  # 1.0: linearly to zero over num_updates; 0.0: constant
    num_updates: jax.Array  # int32, the budget over which learning rates decay


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class RunningStatistics:
    """Mean and population variance of every float leaf seen so far (of observations, say).

    Other leaves hold `None`. A count of zero is the identity (mean 0, variance 1).
    """

    count: jax.Array  # float32; saturates near 2^24 batches, where a batch's weight is nil anyway
    mean: PyTree  # O...
    variance: PyTree  # O...


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class TimeStep:
    """What one step of `B` auto-reset environments returns."""

    obs: PyTree  # [B, O...] the next observation to act on (of a new episode after an end)
    final_observation: PyTree  # [B, O...] the true successor, before any auto-reset
    reward: jax.Array  # [B] float32
    terminated: jax.Array  # [B] bool, the MDP ended: do not bootstrap
    truncated: jax.Array  # [B] bool, the clock ended it: bootstrap from final_observation


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Transition:
    """One step as the learner stores it; `collect` stacks it to `[T, B, ...]`."""

    obs: PyTree  # [T, B, O...] raw; normalised with the statistics of this iteration
    reset: jax.Array  # [T, B] bool, obs opens an episode (before the step)
    carry: PyTree  # [T, B, ...] memory before the step; where `reset`, not yet emptied
    action: PyTree  # [T, B, A...] raw: as the policy's distribution drew it
    log_prob: jax.Array  # [T, B] of the action under the acting policy
    reward: jax.Array  # [T, B] as the environment gave it; from scale_rewards on, as learnt from
    terminated: jax.Array  # [T, B] bool, after the step
    truncated: jax.Array  # [T, B] bool, after the step
    final_observation: PyTree  # [T, B, O...] the true successor of this step


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch:
    """What the gradient epochs read: transitions with their targets, cut into sequences."""

    obs: PyTree  # [L, S, O...] raw
    reset: jax.Array  # [L, S] bool
    carry: PyTree  # [S, ...] memory before the first step of each sequence
    action: PyTree  # [L, S, A...] raw
    log_prob: jax.Array  # [L, S] under the acting policy
    distribution: PyTree  # [L, S] the acting policy's own, where the objective reads it; else ()
    value: jax.Array  # [L, S] of the acting parameters, in units of reward
    critic_value: jax.Array  # [L, S] the same as the critic said it, in units of that time
    advantage: jax.Array  # [L, S] standardised over the batch when the system says so
    target: jax.Array  # [L, S] value target, in units of reward


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy:
    """All that acting needs: evaluated, kept as the best and saved as one thing."""

    params: PyTree
    obs_statistics: RunningStatistics
    noise_key: jax.Array | None  # typed key of noisy layers, if any, new each iteration; None: off


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class AgentState:
    """The learnt part: identical along D and U, held once per device."""

    policy: Policy
    opt_state: PyTree
    hyperparameters: Hyperparameters
    value_statistics: RunningStatistics  # of value targets, a scalar: the critic's units
    reward_statistics: RunningStatistics  # of discounted sums of reward, a scalar
    kl_factor: jax.Array  # of kl_coef, where it adapts; 1 at first
    update: jax.Array  # int32, updates done; steps are counted on the host in exact integers


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class ActingState:
    """Environments in mid-episode and their random stream: one per device and update batch."""

    env_state: PyTree  # [B, ...]
    obs: PyTree  # [B, O...] the observation to act on next
    reset: jax.Array  # [B] bool, obs opens an episode
    carry: PyTree  # [B, ...] memory before the next step
    episode_return: jax.Array  # [B] float32, undiscounted, of the running episode
    episode_length: jax.Array  # [B] int32
    discounted_return: jax.Array  # [B] float32, the past rewards of the episode, discounted
    key: jax.Array  # typed key


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class LearnerState:
    """Everything that training reads and writes: what a resume needs."""

    agent: AgentState  # [D, P, ...]
    acting: ActingState  # [D, P, U, ...]


@dataclasses.dataclass(frozen=True)
class Discrete:
    """`num_values` integers from 0; a scalar."""

    num_values: int


@dataclasses.dataclass(frozen=True)
class MultiDiscrete:
    """Integers from 0, each component with its own number of values; an array of `shape`."""

    num_values: tuple[int, ...]  # of the components in row-major order
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Box:
    """Arrays of `shape`; `low` and `high` are per element (nested tuples) or one number."""

    shape: tuple[int, ...]
    dtype: str
    low: Any = float("-inf")
    high: Any = float("inf")


Space = Discrete | MultiDiscrete | Box  # a space is one of these, or a dict or tuple of spaces


def is_space(x: Any) -> bool:
    """Whether `x` is a leaf of a tree of spaces."""
    return isinstance(x, Space)


def zeros(space: PyTree, lead: tuple[int, ...] = ()) -> PyTree:
    """Arrays of zeros in the form of a space, `[lead..., ...]`."""

    def one(space: Space) -> jax.Array:
        if isinstance(space, Discrete):
            return jnp.zeros(lead, jnp.int32)
        return jnp.zeros((*lead, *space.shape), getattr(space, "dtype", jnp.int32))

    return jax.tree.map(one, space, is_leaf=is_space)


class Environment(Protocol):
    """`B` environments stepped together; implemented by the adapters of `envs/`."""

    name: str
    observation_space: PyTree  # of Space
    action_space: PyTree  # of Space
    time_limit: int | None  # steps after which every episode has ended, if there is such a number

    def reset(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        """`[B]` keys to (state `[B, ...]`, observation `[B, O...]`)."""

    def step(self, key: jax.Array, state: PyTree, action: PyTree) -> tuple[PyTree, TimeStep]:
        """`[B]` keys, state and `[B, A...]` actions to (next state, time step), auto-reset."""


class Distribution(Protocol):
    """A policy's distribution over actions, batched over its leading axes; a pytree.

    It draws, stores and judges *raw* actions (the value before a tanh, say), from which
    `to_action` makes what the environment takes. Every array leaf carries the batch axes first.
    """

    def sample_and_log_prob(self, *, seed: jax.Array) -> tuple[PyTree, jax.Array]:
        """Draw one raw action per batch entry."""

    def log_prob(self, value: PyTree) -> jax.Array:
        """Natural log of the probability (density) of the action that raw `value` makes."""

    def entropy(self) -> jax.Array:
        """Entropy in nats, of the action."""

    def kl_divergence(self, other: Any) -> jax.Array:
        """KL(self || other) in nats; `other` is of the same family."""

    def mode(self) -> PyTree:
        """The greedy raw action."""

    def to_action(self, value: PyTree) -> PyTree:
        """What the environment takes for the raw `value` `[..., A...]`."""


class ValueEstimate(Protocol):
    """What a critic says of states, batched over its leading axes; a pytree."""

    def mean(self) -> jax.Array:
        """The value, in the critic's units."""

    def loss(
        self, target: jax.Array, error: Callable[[jax.Array, jax.Array], jax.Array]
    ) -> jax.Array:
        """Elementwise loss to targets in the critic's units; `error(value, target)` if scalar."""


class ActorCritic(Protocol):
    """A policy and a value function over sequences; the carry of feed-forward has no leaves."""

    def init(self, key: jax.Array) -> PyTree:
        """Parameters, a dict; `critic_lr` trains the entries whose names begin with `critic`."""

    def initial_carry(self, num_envs: int) -> PyTree:
        """The memory that opens an episode, `[num_envs, ...]`."""

    def unroll(
        self,
        params: PyTree,
        carry: PyTree,
        obs: PyTree,
        reset: jax.Array,
        noise_key: jax.Array | None = None,
    ) -> tuple[PyTree, Distribution, ValueEstimate]:
        """Normalised `obs` `[L, S, O...]` to (carry, distribution `[L, S]`, value `[L, S]`).

        `carry` `[S, ...]` is the memory before the first step; `reset` `[L, S]` empties it before
        its step. `noise_key` is the draw of noisy layers; None: without noise.
        """

    def empty_masks(self, obs: PyTree) -> jax.Array:
        """Where raw `obs` `[L, S, O...]` carries an action mask that allows nothing, `[L, S]`."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class System:
    """What shapes the program: static, hashed by identity, shared by every phase."""

    env: Environment
    actor_critic: ActorCritic
    num_envs: int  # B
    rollout_length: int  # T
    sequence_length: int  # L
    burn_in: int  # of the L, the first that are not learnt from
    refresh_carries: bool
    epochs: int
    num_minibatches: int
    gradient_pieces: int  # in which a minibatch is differentiated, one after another
    value_pieces: int  # in which a rollout's steps are valued, one after another
    objective: Callable[..., jax.Array]  # an objectives.Objective
    advantages: str  # of objectives.ESTIMATORS
    value_loss: str  # of objectives.VALUE_LOSSES
    standardize_advantages: str  # batch, minibatch, none
    recompute_advantages: bool
    adapt_kl_coef: bool
    stop_by_kl: bool
    normalize_observations: bool
    normalize_values: bool
    normalize_rewards: bool
    clip_value_loss: bool
    clip_together: bool  # one gradient norm of actor and critic
    skip_nonfinite: bool  # gradient steps, and moves of statistics
    evaluation_greedy: bool
    max_eval_steps: int
    axes: tuple[str, ...] = ()  # mapped axes over which one agent is averaged: batch, device
    member_axes: tuple[str, ...] = ()  # those of independent agents, which share branches alone
