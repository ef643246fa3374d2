"""Relative entropy pathwise policy optimisation (REPPO): Voelcker et al. 2026 (ICLR).

The loop of PPO with a critic Q(s, a), which is trained on soft lambda returns of the rollout. The
policy follows the gradient of Q at its own actions wherever it is close to the policy at the start
of the update, and returns to that policy elsewhere. Two multipliers are learnt: alpha holds the
entropy at a target, beta the KL at its bound. The file is in the order of the paper: settings,
acting, targets, losses of critic, policy and multipliers.

Entropies and KLs are exact here; the paper estimates both from actions. For discrete actions, means
of Q under the policy are exact too.
"""

import dataclasses
import math
from typing import Any, Self

import jax
import jax.numpy as jnp

from jaxppo.algorithms.acting import next_values, unroll, unroll_again
from jaxppo.algorithms.actor_critic import ActorCritic
from jaxppo.algorithms.metrics import LAST, metric, metrics
from jaxppo.config.fields import other_default, traced
from jaxppo.config.schema import Config, SystemConfig, SystemNumbers
from jaxppo.kernels import random_bits
from jaxppo.kernels.reductions import means
from jaxppo.networks import actor_q
from jaxppo.networks.actor_critic import ActorCriticOutput
from jaxppo.networks.actor_q import ActorQOutput
from jaxppo.ops import sequences
from jaxppo.ops.losses import squared_error
from jaxppo.ops.returns import lambda_returns
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
class REPPONumbers(SystemNumbers):
    """The traced settings of REPPO: floats in its settings, arrays in its agent."""

    decay_learning_rates: bool = other_default(SystemNumbers, "decay_learning_rates", False)
    actor_lr: float = traced(
        3e-4,
        "learning rate of the actor's and the shared parameters",
        low=0,
        rate=True,
        tune=(1e-5, 1e-2),
    )
    critic_lr: float = traced(
        3e-4, "learning rate of the critic's parameters", low=0, rate=True, tune=(1e-5, 1e-2)
    )
    multiplier_lr: float = traced(
        3e-4, "learning rate of log alpha and log beta", low=0, rate=True, tune=(1e-5, 1e-2)
    )
    q_lambda: float = traced(
        0.95,
        "lambda of the soft lambda returns: 0 bootstraps at every step, 1 only at truncations and "
        "at the end of the rollout",
        low=0,
        high=1,
        tune=(0.5, 0.99),
    )
    initial_alpha: float = traced(
        0.01, "weight of the entropy at the start, in units of scaled reward; learnt", above=0
    )
    initial_beta: float = traced(
        0.01, "weight of KL(old || new) where it is above kl_bound, at the start; learnt", above=0
    )
    target_entropy: float = traced(
        -0.5,
        "entropy that alpha aims at for continuous actions: nats per dimension, of actions scaled "
        "to [-1, 1], whose entropy is at most 0.69",
    )
    target_entropy_share: float = traced(
        0.1,
        "entropy that alpha aims at for discrete actions, as a share of the greatest",
        low=0,
        high=1,
    )
    kl_bound: float = traced(
        0.1,
        "KL(old || new) of a state, in nats, above which the loss of the policy only reduces it",
        above=0,
        tune=(0.01, 1.0),
    )
    auxiliary_coef: float = traced(
        1.0, "weight of predicting the next embedding and the reward, in the critic's loss", low=0
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class REPPOSettings(REPPONumbers, SystemConfig):
    """Settings of REPPO."""

    algorithm: str = other_default(SystemConfig, "algorithm", "reppo")
    rollout_length: int = other_default(SystemConfig, "rollout_length", 64)
    num_minibatches: int = other_default(SystemConfig, "num_minibatches", 64)
    normalize_rewards: bool = other_default(SystemConfig, "normalize_rewards", True)
    normalize_observations: bool = other_default(SystemConfig, "normalize_observations", True)


REPPOAgent = Agent[REPPONumbers, tuple[()]]


@pytree
class Extras:
    """What learning needs of acting, `[T, B]`."""

    seed: jax.Array  # uint32, for the draws of later losses
    output: Any  # of the network; (): computed for the whole rollout at once


@pytree
class Steps:
    """The data that the loss needs for each step, `[L, S, ...]`."""

    obs: PyTree  # [L, S, O...] raw
    reset: jax.Array  # [L, S] bool
    action: PyTree  # [L, S, A...] raw
    seed: jax.Array  # [L, S] uint32
    distribution: Any  # [L, S] of actions under the policy at the start of the update
    reward: jax.Array  # [L, S] scaled
    terminated: jax.Array  # [L, S] bool
    target: jax.Array  # [L, S] soft lambda return
    next_embedding: jax.Array  # [L, S, E] at the true successor, before the epochs


@metrics
class LossMetrics:
    """Of a gradient step."""

    actor_loss: jax.Array = metric()
    value_loss: jax.Array = metric(headline="value loss {:.3g}")  # cross entropy of histograms
    auxiliary_loss: jax.Array = metric()
    entropy: jax.Array = metric(headline="entropy {:.3f}")  # nats, of actions scaled to [-1, 1]
    kl: jax.Array = metric(headline="kl {:.4f}")  # KL(old || new)
    bound_fraction: jax.Array = metric()  # of transitions whose KL is above its bound
    q_value: jax.Array = metric(headline="Q {:.3g}")  # mean of Q at the policy's own actions


@metrics
class FinishMetrics:
    """Of an update."""

    alpha: jax.Array = metric(LAST)
    beta: jax.Array = metric(LAST)


class REPPO(ActorCritic):
    """Pathwise policy gradients through Q, with a bound on the KL of each update."""

    Settings = REPPOSettings
    loss_metrics, finish_metrics = LossMetrics, FinishMetrics
    group_names = ("actor", "critic", "multipliers")
    network: actor_q.ActorQ

    @classmethod
    def build(cls, config: Config, env: Environment) -> Self:
        """Make the algorithm of a run; `ConfigError` if network and environment do not fit."""
        algorithm = cls(config.system, actor_q.build(config, env), env.action_space)
        # An older policy than the one that learns has acted, so its outputs are not kept
        algorithm.keeps_values &= not config.arch.policy_lag
        return algorithm

    def __init__(self, settings: SystemConfig, network: Any, action_space: Any) -> None:
        super().__init__(settings, network)
        self.num_actions = getattr(action_space, "num_values", None)  # of discrete ones
        self.num_dimensions = math.prod(getattr(action_space, "shape", ()))
        self.log_half_width = actor_q.log_half_width(action_space)
        self.keeps_values = not settings.recompute_targets

    def init(self, key: jax.Array) -> PyTree:
        """Return the network's parameters and `multipliers`.

        These are log(alpha / initial_alpha) and log(beta / initial_beta), so that initial values
        are hyperparameters.
        """
        zero = jnp.zeros((), jnp.float32)
        return {**self.network.init(key), "multipliers": {"alpha": zero, "beta": zero}}

    def groups(self, params: PyTree) -> dict[str, str]:
        """Put the critic's own parts in `critic`, other layers, also shared ones, in `actor`."""
        layers = {part: "critic" if part.startswith("critic") else "actor" for part in params}
        return {**layers, "multipliers": "multipliers"}

    def rates(self, agent: REPPOAgent) -> dict[str, jax.Array]:
        """Return `actor_lr`, `critic_lr` and `multiplier_lr`."""
        hp = agent.hyperparameters
        rates = {"actor": hp.actor_lr, "critic": hp.critic_lr, "multipliers": hp.multiplier_lr}
        return {name: jnp.asarray(rate) for name, rate in rates.items()}

    def multipliers(self, hp: REPPONumbers, params: PyTree) -> tuple[jax.Array, jax.Array]:
        """Return alpha and beta."""
        logs = params["multipliers"]
        return hp.initial_alpha * jnp.exp(logs["alpha"]), hp.initial_beta * jnp.exp(logs["beta"])

    def act(self, policy: Policy, output: Any, key: jax.Array) -> ActorOutput:
        """Sample from the distribution; return `Extras` with the actions."""
        key, seed_key = random_bits.split(key)
        acted = super().act(policy, output, key)
        seed = jax.random.bits(random_bits.quick(seed_key), acted.extras.shape, jnp.uint32)
        kept = output if self.keeps_values else ()
        return dataclasses.replace(acted, extras=Extras(seed=seed, output=kept))

    def describe(self, policy: Policy, output: Any, action: PyTree) -> PolicyInfo:
        """Return Q of the actions (discrete: its mean over the policy), and the distribution."""
        distribution = output.distribution
        raw = distribution.mode() if action is None else action
        value = self.critic(policy.params, output, raw)[0].value
        seen = ActorCriticOutput(distribution=distribution, value=value)
        values = self.mean_q(distribution, value.mean())
        return dataclasses.replace(super().describe(policy, seen, action), values=values)

    def critic(
        self, params: PyTree, output: ActorQOutput, action: PyTree
    ) -> tuple[actor_q.ActionValue, jax.Array]:
        """Return the critic's output for raw actions `[L, S, A...]`, and these as it takes them."""
        inputs = self.network.encode_action(output.distribution, action)
        return self.network.critic(params, output.features, inputs), inputs

    def mean_q(self, distribution: Any, q: jax.Array) -> jax.Array:
        """Return Q, `[L, S]`; for discrete actions, its mean over the policy."""
        if self.num_actions is None:
            return q
        return jnp.sum(jax.nn.softmax(distribution.logits) * q, axis=-1)

    def entropy(self, distribution: Any) -> jax.Array:
        """Return the entropy `[L, S]` in nats, of continuous actions scaled to [-1, 1]."""
        return distribution.entropy() - self.log_half_width

    def targets(
        self, system: System, agent: REPPOAgent, rollout: Rollout
    ) -> tuple[REPPOAgent, Steps, Any]:
        """Return the agent, the steps with soft lambda returns as targets, and empty metrics.

        G_t = r_t + gamma (1 - terminated_t) [alpha H(s'_t) + (1 - c_t) Q(s'_t, a'_t) + c_t G_{t+1}]
        with c_t = lambda, and 0 at truncations and at the last step. H is the entropy of the
        policy, Q(s', a') of discrete actions its mean. a'_t is the action that was taken in s'_t;
        where none was, at truncations and after the last step, it is sampled here.
        """
        hp, steps, params = agent.hyperparameters, rollout.steps, agent.policy.params

        def look(output: ActorQOutput, action: PyTree) -> jax.Array:
            """Return Q, the entropy and the embedding side by side, `[L, S, 2 + E]`."""
            critic, _ = self.critic(params, output, action)
            q = self.mean_q(output.distribution, critic.value.mean())
            pair = jnp.stack([q, self.entropy(output.distribution)], axis=-1)
            return jnp.concatenate([pair, critic.embedding], axis=-1)

        def look_ahead(output: ActorQOutput) -> jax.Array:
            return look(output, output.distribution.sample(seed=draws_of(steps.extras.seed)))

        output = steps.extras.output or unroll_again(system, agent.policy, rollout)
        with jax.named_scope("values"):
            _, now = sequences.scan_chunks(
                lambda carry, seen: (carry, look(*seen)),
                (),
                (output, steps.action),
                system.num_value_chunks,
            )
        after = next_values(system, agent.policy, rollout, now, look_ahead)
        discount = hp.gamma * (1.0 - steps.terminated)
        alpha, _ = self.multipliers(hp, params)
        with jax.named_scope("targets"):
            soft_reward = steps.reward + discount * alpha * after[..., 1]
            target = lambda_returns(
                soft_reward, discount, after[..., 0], steps.truncated, hp.q_lambda
            )
        found = Steps(
            obs=steps.obs,
            reset=steps.reset,
            action=steps.action,
            seed=steps.extras.seed,
            distribution=output.distribution,
            reward=steps.reward,
            terminated=steps.terminated,
            target=target,
            next_embedding=after[..., 2:],
        )
        return agent, found, self.target_metrics()

    def retarget(self, steps: Steps, again: Steps) -> Steps:
        """Replace the targets of the critic; the policy at the start of the update stays."""
        return dataclasses.replace(steps, target=again.target, next_embedding=again.next_embedding)

    def loss(
        self, system: System, agent: REPPOAgent, params: PyTree, minibatch: Batch
    ) -> tuple[jax.Array, LossMetrics]:
        """Return the losses of critic, policy and multipliers, a mean over `[L, M]`.

        Each reaches the parameters of its own part alone (and of shared layers).
        """
        hp, steps = agent.hyperparameters, minibatch.steps
        policy = dataclasses.replace(agent.policy, params=params)
        _, output = unroll(system, policy, minibatch.carry, steps.obs, steps.reset)
        value_loss, auxiliary_loss = self.critic_losses(params, output, steps)
        q = self.q_of_policy(params, output, draws_of(steps.seed))
        entropy = self.entropy(output.distribution)
        kl = steps.distribution.kl_divergence(output.distribution)
        alpha, beta = self.multipliers(hp, params)
        found = means(
            policy_loss(q, entropy, kl, alpha, beta, hp.kl_bound),
            multiplier_loss(entropy, kl, alpha, beta, self.aim(hp), hp.kl_bound),
            value_loss,
            auxiliary_loss,
            entropy,
            kl,
            jnp.asarray(kl >= hp.kl_bound, jnp.float32),
            q,
        )
        actor_loss, of_multipliers, value_loss, auxiliary_loss, *rest = found
        total = actor_loss + of_multipliers + value_loss + hp.auxiliary_coef * auxiliary_loss
        names = ("entropy", "kl", "bound_fraction", "q_value")
        return total, LossMetrics(
            actor_loss=actor_loss,
            value_loss=value_loss,
            auxiliary_loss=auxiliary_loss,
            **dict(zip(names, rest, strict=True)),
        )

    def critic_losses(
        self, params: PyTree, output: ActorQOutput, steps: Steps
    ) -> tuple[jax.Array, jax.Array]:
        """Return the cross entropy to the targets, and the error of predictions, `[L, M]` each.

        Predicted are the next embedding (mean squared error) and the reward (squared error), except
        where the MDP ended. Truncated steps count: their true successor is known.
        """
        critic, inputs = self.critic(params, output, steps.action)
        value = critic.value
        if self.num_actions is not None:
            value = jax.tree.map(lambda x: taken(x, steps.action), value)
        predicted = self.network.predict(params, critic.embedding, inputs)
        error = jnp.mean(jnp.square(predicted[..., :-1] - steps.next_embedding), axis=-1)
        error += jnp.square(predicted[..., -1] - steps.reward)
        return value.loss(steps.target, squared_error), jnp.where(steps.terminated, 0.0, error)

    def q_of_policy(self, params: PyTree, output: ActorQOutput, key: jax.Array) -> jax.Array:
        """Return Q of the policy's own actions, `[L, M]`, differentiable in the policy alone.

        Continuous actions are sampled and carry the gradient; of discrete ones it is the mean.
        """
        fixed, features = jax.lax.stop_gradient((params, output.features))
        output = dataclasses.replace(output, features=features)
        critic, _ = self.critic(fixed, output, output.distribution.sample(seed=key))
        return self.mean_q(output.distribution, critic.value.mean())

    def aim(self, hp: REPPONumbers) -> jax.Array | float:
        """Return the entropy that alpha aims at, in nats."""
        if self.num_actions is None:
            return hp.target_entropy * self.num_dimensions
        return hp.target_entropy_share * math.log(self.num_actions)

    def finish(
        self, system: System, agent: REPPOAgent, batch: Batch
    ) -> tuple[REPPOAgent, FinishMetrics]:
        """Report alpha and beta."""
        del system, batch
        alpha, beta = self.multipliers(agent.hyperparameters, agent.policy.params)
        return agent, FinishMetrics(alpha=alpha, beta=beta)


def policy_loss(
    q: jax.Array,
    entropy: jax.Array,
    kl: jax.Array,
    alpha: jax.Array,
    beta: jax.Array,
    bound: jax.Array | float,
) -> jax.Array:
    """Return -alpha H - Q where KL(old || new) is below its bound, and beta KL elsewhere, `[...]`.

    Alpha and beta get no gradient.
    """
    alpha, beta = jax.lax.stop_gradient((alpha, beta))
    return jnp.where(kl < bound, -alpha * entropy - q, beta * kl)


def multiplier_loss(
    entropy: jax.Array,
    kl: jax.Array,
    alpha: jax.Array,
    beta: jax.Array,
    target_entropy: jax.Array | float,
    bound: jax.Array | float,
) -> jax.Array:
    """Return alpha (H - target) + beta (bound - KL), `[...]`, whose gradient is of alpha and beta.

    So alpha grows where the entropy is below its target, and beta where the KL is above its bound.
    """
    entropy, kl = jax.lax.stop_gradient((entropy, kl))
    return alpha * (entropy - target_entropy) + beta * (bound - kl)


def draws_of(seed: jax.Array) -> jax.Array:
    """Return a key for the draws of a minibatch with these seeds `[L, M]`.

    The seeds come from acting, so they differ between devices and members. The first sequence of a
    minibatch differs from one to the next.
    """
    return jax.random.key(seed[0, 0])


def taken(x: jax.Array, action: jax.Array) -> jax.Array:
    """Return `x[l, m, action[l, m]]`, `[L, M, ...]`, of `[L, M, N, ...]`."""
    index = action.reshape(*action.shape, *(1,) * (x.ndim - action.ndim))
    return jnp.take_along_axis(x, index, axis=2).squeeze(2)
