"""Parallelised Q-network (PQN): Gallici et al. 2024 (arXiv 2407.04811), algorithm 1, Q(lambda).

The file follows the paper: settings, epsilon-greedy acting, targets, loss. There is no replay
buffer and no target network. Targets are computed once per rollout with the parameters that acted;
`recompute_targets` recomputes them before every epoch. Layer norm in the torsos keeps learning
stable (see configs/pqn/network). Variants of the estimates (dueling, double, distributional, noisy)
are settings of the head.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxppo.algorithms.acting import next_values, state_values, unroll
from jaxppo.algorithms.algorithm import Algorithm
from jaxppo.algorithms.metrics import GREATEST, LAST, LEAST, SUM, metric, metrics
from jaxppo.config.fields import ConfigError, other_default, setting, traced
from jaxppo.config.schema import Config, SystemConfig, SystemNumbers
from jaxppo.networks import q_network
from jaxppo.ops.action_values import (
    DoubleQ,
    QOutput,
    ScalarQ,
    epsilon_greedy,
    epsilon_greedy_log_prob,
    greedy_actions,
    munchausen_bonus,
    scaled_entropy,
    soft_value,
)
from jaxppo.ops.advantages import negamax
from jaxppo.ops.histograms import NUM_BINS, counts
from jaxppo.types import (
    ActorOutput,
    Agent,
    Batch,
    Environment,
    Policy,
    PolicyInfo,
    PyTree,
    Rollout,
    System,
    pytree,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PQNNumbers(SystemNumbers):
    """The traced settings of PQN: floats in its settings, arrays in its agent."""

    learning_rate: float = traced(
        5e-4, "learning rate of the Q-network", low=0, rate=True, tune=(1e-5, 1e-2)
    )
    q_lambda: float = traced(
        0.65,
        "lambda of Q(lambda): 0 bootstraps at every step, 1 only at truncations and at the end of "
        "the rollout",
        low=0,
        high=1,
        tune=(0.2, 0.95),
    )
    epsilon_start: float = traced(
        1.0, "epsilon-greedy: probability of a random action at the start", low=0, high=1
    )
    epsilon_end: float = traced(
        0.05,
        "epsilon-greedy: probability of a random action after the decay",
        low=0,
        high=1,
        tune=(0.01, 0.2),
    )
    epsilon_fraction: float = traced(
        0.1,
        "epsilon-greedy: fraction of training over which epsilon decays linearly",
        low=0,
        high=1,
        tune=(0.05, 0.5),
    )
    munchausen_alpha: float = traced(0.9, "munchausen: weight of the log-policy", low=0, high=1)
    munchausen_temperature: float = traced(
        0.03, "munchausen: temperature of the policy, in units of scaled reward", above=0
    )
    munchausen_clip: float = traced(
        1.0, "munchausen: clip temperature x log-policy to [-munchausen_clip, 0]", low=0
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PQNSettings(PQNNumbers, SystemConfig):
    """Settings of PQN."""

    algorithm: str = other_default(SystemConfig, "algorithm", "pqn")
    epochs: int = other_default(SystemConfig, "epochs", 2)
    optimizer: str = other_default(SystemConfig, "optimizer", "radam")
    max_grad_norm: float = other_default(SystemConfig, "max_grad_norm", 10.0)
    munchausen: bool = setting(
        False,
        "Munchausen targets: add the scaled log-policy to rewards, and bootstrap from the soft "
        "value, with the policy softmax(Q / munchausen_temperature)",
    )

    def searched(self) -> dict[str, tuple[float, float]]:
        """Return the settings that `jaxppo.tune` searches, with their bounds.

        An epsilon of 0 stays: other noise explores then.
        """
        found = super().searched()
        if not self.epsilon_end:
            found.pop("epsilon_end", None)
        if not (self.epsilon_start or self.epsilon_end):
            found.pop("epsilon_fraction", None)
        return found


PQNAgent = Agent[PQNNumbers, tuple[()]]


@pytree
class Steps:
    """The data that the loss needs for each step, `[L, S, ...]`."""

    obs: PyTree  # [L, S, O...] raw
    reset: jax.Array  # [L, S] bool
    action: jax.Array  # [L, S, C] int32, by component
    target: jax.Array  # [L, S] Q(lambda); [L, S, K] of distributions; a double head adds [2]


@metrics
class LossMetrics:
    """Metrics of one gradient step."""

    q_loss: jax.Array = metric(headline="Q loss {:.3g}")
    q_value: jax.Array = metric(headline="Q {:.3g}")  # mean of Q(s_t, a_t)


@metrics
class DetailMetrics:
    """Of an update, with logger.details: of Q(s_t, a_t) after the epochs, in units of reward."""

    value_min: jax.Array = metric(LEAST)
    value_max: jax.Array = metric(GREATEST)
    value_histogram: jax.Array = metric(SUM, count=True, num=NUM_BINS)


@metrics
class FinishMetrics:
    """Metrics of one update."""

    epsilon: jax.Array = metric(LAST)  # with which the rollout acted


class PQN(Algorithm):
    """Q(lambda) with a Q-network that acts in many environments at once."""

    Settings = PQNSettings
    loss_metrics, finish_metrics, detail_metrics = LossMetrics, FinishMetrics, DetailMetrics
    layers = q_network.LAYERS

    @classmethod
    def build(cls, config: Config, env: Environment) -> "PQN":
        """Make the algorithm of a run.

        `ConfigError` if network and environment do not fit, or if `munchausen` is used with a head
        that is double or predicts distributions.
        """
        algorithm = cls(config.system, q_network.build(config, env), env.action_space)
        estimate = algorithm.network.example()[1].estimate
        if algorithm.settings.munchausen and not isinstance(estimate, ScalarQ):
            gives = (
                "makes two estimates" if isinstance(estimate, DoubleQ) else "predicts distributions"
            )
            raise ConfigError(
                f"system.munchausen=true needs one number for each action, but the head {gives}; "
                "take network/q_head=scalar without network.q_head.double, or set it to false"
            )
        # Soft values and distributions of the other player are not the negative of one's own
        single = estimate.pair if isinstance(estimate, DoubleQ) else estimate
        algorithm.signs = isinstance(single, ScalarQ) and not algorithm.settings.munchausen
        if config.arch.policy_lag:
            # An older network than the one that learns has acted, so its Q-values are not kept
            algorithm.keeps_values = False
        return algorithm

    def __init__(self, settings: SystemConfig, network: Any, action_space: Any) -> None:
        super().__init__(settings, network)
        self.action_shape: tuple[int, ...] = getattr(action_space, "shape", ())
        self.keeps_values = not settings.recompute_targets

    def exploration(self, hp: Any, update: jax.Array) -> jax.Array:
        """Return epsilon: linear from `epsilon_start` to `epsilon_end`, then constant."""
        duration = hp.epsilon_fraction * hp.num_updates
        progress = jnp.where(duration > 0, update / jnp.maximum(duration, 1e-6), 1.0)
        change = hp.epsilon_end - hp.epsilon_start
        return (hp.epsilon_start + change * jnp.minimum(progress, 1.0)).astype(jnp.float32)

    def act(self, policy: Policy, output: QOutput, key: jax.Array) -> ActorOutput:
        """Choose epsilon-greedy actions, with Q(s_t, .) if the targets use it."""
        q, epsilon = output.estimate.mean(), policy.exploration
        action = epsilon_greedy(q, output.legal, epsilon, key)
        extras = output if self.keeps_values else ()
        return ActorOutput(action=action, env_action=self.env_action(action), extras=extras)

    def greedy(self, policy: Policy, output: QOutput) -> PyTree:
        """Return argmax_a Q(s, a)."""
        del policy
        return self.env_action(greedy_actions(output.estimate.mean(), output.legal))

    def describe(self, policy: Policy, output: QOutput, action: jax.Array | None) -> PolicyInfo:
        """Return max_a Q(s, a) and Q(s, .) `[L, B, A..., K]`, -inf where an action is illegal.

        With several action components, the value is the mean of the components' maxima.
        Log-probabilities are those of the epsilon-greedy policy.
        """
        q, legal = output.estimate.mean(), output.legal
        if action is None:
            action = greedy_actions(q, legal)
        log_prob = epsilon_greedy_log_prob(q, legal, policy.exploration, action)
        q = jnp.where(legal, q, -jnp.inf)
        shape = (*q.shape[:-2], *self.action_shape, q.shape[-1])
        return PolicyInfo(
            values=jnp.mean(jnp.max(q, axis=-1), axis=-1),
            log_probs=jnp.sum(log_prob, axis=-1),
            distribution={"q_values": q.reshape(shape)},
        )

    def env_action(self, action: jax.Array) -> jax.Array:
        """Return actions `[L, B, C]` as the environment takes them, `[L, B, A...]`."""
        return action.reshape(*action.shape[:-1], *self.action_shape)

    def targets(
        self, system: System, agent: PQNAgent, rollout: Rollout
    ) -> tuple[PQNAgent, Steps, Any]:
        """Return the agent, the steps with their Q(lambda) targets, and empty metrics.

        R_t = r_t + gamma (1 - terminated_t) [(1 - lambda) max_a Q(s'_t, a) + lambda R_{t+1}]; at
        truncations and at the last step lambda is 0. r_t is the scaled reward. With several action
        components, max_a Q is the mean of the components' maxima.

        With `munchausen`, R_t = r_t + m_t
        + gamma (1 - terminated_t) [(1 - lambda) V(s'_t) + lambda (R_{t+1} + H_{t+1})], where m is
        `munchausen_bonus`, V the soft value and H the temperature times the entropy of the policy:
        V includes H, so R_{t+1} needs it too.
        """
        hp, steps = agent.hyperparameters, rollout.steps
        value = partial(self.value, hp)
        if not self.keeps_values:  # the parameters may have changed since they acted
            output, _, next_value = state_values(system, agent.policy, rollout, value)
        else:
            output = steps.extras
            next_value = next_values(system, agent.policy, rollout, value(output), value)
        bonus, entropy = self.munchausen(hp, output, steps.action)
        with jax.named_scope("targets"):
            target = output.estimate.lambda_returns(
                steps.reward + bonus + entropy,
                negamax(hp.gamma, steps.sign) * (1.0 - steps.terminated),
                next_value,
                steps.truncated,
                hp.q_lambda,
            )
            target -= entropy  # targets exclude the entropy of their own state
        found = Steps(obs=steps.obs, reset=steps.reset, action=steps.action, target=target)
        return agent, found, self.target_metrics()

    def value(self, hp: PQNNumbers, output: QOutput) -> jax.Array:
        """Return the value of states, `[L, S]`: max_a Q(s, a), or the soft value.

        For heads that predict distributions: the return distribution of the greedy action,
        `[L, S, K]`. A double head adds an axis of 2.
        """
        if self.settings.munchausen:
            q = output.estimate.mean()
            return jnp.mean(soft_value(q, output.legal, hp.munchausen_temperature), axis=-1)
        return output.estimate.greedy_value(output.legal)

    def munchausen(
        self, hp: PQNNumbers, output: QOutput, action: jax.Array
    ) -> tuple[jax.Array | float, jax.Array | float]:
        """Return the bonus of the actions, and the scaled entropy of the policy, `[L, S]` each."""
        if not self.settings.munchausen:
            return 0.0, 0.0
        q, temperature = output.estimate.mean(), hp.munchausen_temperature
        bonus = munchausen_bonus(
            q, output.legal, action, hp.munchausen_alpha, temperature, hp.munchausen_clip
        )
        entropy = scaled_entropy(q, output.legal, temperature)
        return jnp.mean(bonus, axis=-1), jnp.mean(entropy, axis=-1)

    def loss(
        self, system: System, agent: PQNAgent, params: PyTree, minibatch: Batch
    ) -> tuple[jax.Array, LossMetrics]:
        """Return the mean over `[L, M]` of (Q(s_t, a_t) - R_t)^2 / 2, or of the head's own loss."""
        steps = minibatch.steps
        policy = dataclasses.replace(agent.policy, params=params)
        _, output = unroll(system, policy, minibatch.carry, steps.obs, steps.reset)
        taken = output.estimate.select(steps.action)
        loss = jnp.mean(taken.loss(steps.target))
        return loss, LossMetrics(q_loss=loss, q_value=jnp.mean(taken.mean()))

    def details(self, system: System, agent: PQNAgent, batch: Batch) -> DetailMetrics:
        """Return the extremes and the histogram of Q(s_t, a_t)."""
        steps = batch.steps
        _, output = unroll(system, agent.policy, batch.carry, steps.obs, steps.reset)
        q = output.estimate.select(steps.action).mean()
        return DetailMetrics(value_min=jnp.min(q), value_max=jnp.max(q), value_histogram=counts(q))

    def finish(
        self, system: System, agent: PQNAgent, batch: Batch
    ) -> tuple[PQNAgent, FinishMetrics]:
        """Report epsilon."""
        del system, batch
        return agent, FinishMetrics(epsilon=agent.policy.exploration)
