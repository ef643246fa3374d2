"""The network of REPPO: a policy, and a critic Q(s, a) that predicts its own next embedding."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import Config
from jaxppo.kernels.platforms import forms
from jaxppo.kernels.precisions import precision
from jaxppo.kernels.products import Dense
from jaxppo.networks.building import (
    LEAD,
    check_shape,
    check_stored,
    hide_privileged,
    make_layer,
    make_layers,
    torso_dtype,
    try_out,
)
from jaxppo.networks.composed import ACTOR, CRITIC, SHARED, Composed, apply_input, apply_layers
from jaxppo.networks.heads import is_bounded
from jaxppo.networks.torsos import MLP
from jaxppo.ops.actions import to_action
from jaxppo.types import Box, Discrete, Environment, PyTree, ValueEstimate, bounds, describe, pytree

*HISTORY, EMBEDDING = CRITIC  # layers of the critic before the action, and after it


@pytree
class ActorQOutput:
    """Output of the network, batched over its leading axes."""

    distribution: Any  # a distrax.Distribution over actions
    features: jax.Array  # [..., F] what the critic reads beside the action


@pytree
class ActionValue:
    """The critic's output for features and an action, batched over the leading axes `...`."""

    value: ValueEstimate  # of the action, [...]; of every discrete action, [..., N]
    embedding: jax.Array  # [..., E]


class Layers(nn.Module):
    """input_layer -> SHARED -> (ACTOR -> actor_head, HISTORY -> features of the critic).

    The critic is (features, action) -> EMBEDDING -> critic_head. With N discrete actions the
    embedding does not depend on the action, and critic_head has a value for each.
    `critic_prediction` maps the embedding and the action to the next embedding and the reward. See
    `composed.Layers`.
    """

    input_layer: nn.Module
    shared_torso: nn.Module | None
    shared_memory: nn.Module | None
    actor_torso: nn.Module | None
    actor_memory: nn.Module | None
    actor_post_torso: nn.Module | None
    critic_input: nn.Module | None
    critic_torso: nn.Module | None
    critic_memory: nn.Module | None
    critic_post_torso: nn.Module | None
    actor_head: nn.Module
    critic_head: nn.Module
    critic_prediction: nn.Module
    num_inputs: int  # numbers of an action, as the critic takes it
    is_discrete: bool
    dtype: Any = jnp.float32

    def __call__(
        self, carry: PyTree, obs: PyTree, mask: PyTree, reset: jax.Array
    ) -> tuple[PyTree, ActorQOutput]:
        """Return the next carry, and the action distribution and features of each step `[L, S]`."""
        shared, x = apply_layers(self, SHARED, carry, apply_input(self, obs), reset)
        of_actor, actor = apply_layers(self, ACTOR, carry, x, reset)
        if self.critic_input is not None:
            x = self.critic_input(obs)
        of_critic, features = apply_layers(self, tuple(HISTORY), carry, x, reset)
        masks = () if mask is None else (mask,)
        distribution = self.actor_head(actor.astype(jnp.float32), *masks)
        if self.is_initializing():
            action = jnp.zeros((*reset.shape, self.num_inputs))
            self.predict(self.critic(features, action).embedding, action)
        output = ActorQOutput(distribution=distribution, features=features)
        return {**shared, **of_actor, **of_critic}, output

    def critic(self, features: jax.Array, action: jax.Array) -> ActionValue:
        """Return the critic's output for features `[L, S, F]` and actions `[L, S, N]`."""
        x = features if self.is_discrete else jnp.concatenate([features, action], -1)
        _, embedding = apply_layers(self, (EMBEDDING,), {}, x, jnp.zeros(()))
        embedding = embedding.astype(jnp.float32)
        return ActionValue(value=self.critic_head(embedding), embedding=embedding)

    def predict(self, embedding: jax.Array, action: jax.Array) -> jax.Array:
        """Return the predicted next embedding and reward, `[L, S, E + 1]`."""
        return self.critic_prediction(jnp.concatenate([embedding, action], -1))


class Prediction(nn.Module):
    """A hidden layer as wide as the embedding, then a linear layer.

    The action has `num_inputs` numbers.
    """

    num_inputs: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Map embedding and action `[L, S, E + N]` to the next embedding and the reward."""
        size = x.shape[-1] - self.num_inputs
        x = MLP((size,), "silu", layer_norm=True)(x)
        return Dense(size + 1, kernel_init=nn.initializers.orthogonal(1.0))(x)


class ActorQ(Composed):
    """Implements `types.Network`, with a critic of actions."""

    def critic(self, params: PyTree, features: jax.Array, action: jax.Array) -> ActionValue:
        """Return the critic's output for features `[L, S, F]` and actions of `encode_action`."""
        return self._call("critic", params, features, action)

    def predict(self, params: PyTree, embedding: jax.Array, action: jax.Array) -> jax.Array:
        """Return the predicted next embedding and reward, `[L, S, E + 1]`."""
        return self._call("predict", params, embedding, action)

    def encode_action(self, distribution: Any, action: jax.Array) -> jax.Array:
        """Return raw actions `[L, S, A...]` as the critic takes them, `[L, S, N]`.

        Discrete ones are one-hot, others are scaled from the bounds of the space to [-1, 1].
        """
        if isinstance(self.action_space, Discrete):
            return jax.nn.one_hot(action, self.action_space.num_values)
        middle, half = _middle(self.action_space)
        scaled = (to_action(distribution, action) - jnp.float32(middle)) / jnp.float32(half)
        return scaled.reshape(*scaled.shape[: scaled.ndim - middle.ndim], -1)

    def _call(self, method: str, params: PyTree, *args: jax.Array) -> Any:
        with precision(self.precision or forms().precision):
            return self.network.apply({"params": self.prepare(params)}, *args, method=method)


def log_half_width(space: Any) -> float:
    """Return the entropy of actions less that of actions scaled to [-1, 1]; of discrete ones, 0."""
    return 0.0 if isinstance(space, Discrete) else float(np.sum(np.log(_middle(space)[1])))


def _middle(space: Box) -> tuple[np.ndarray, np.ndarray]:
    """Return the middle and half of the width between the bounds, `[A...]`."""
    low, high = (np.broadcast_to(bound, space.shape) for bound in bounds(space))
    return low / 2.0 + high / 2.0, high / 2.0 - low / 2.0


def build(config: Config, env: Environment) -> ActorQ:
    """Build the network of `config.network` for `env`; `ConfigError` if it does not fit."""
    space = env.action_space
    is_discrete = isinstance(space, Discrete)
    if not (is_discrete or (isinstance(space, Box) and is_bounded(space))):
        raise ConfigError(
            f"env={env.name}: REPPO takes Discrete actions, or Box actions of floats with finite "
            f"bounds, not {describe(space)}; jaxppo.ff_ppo and jaxppo.rec_ppo take any actions"
        )
    config = hide_privileged(config, env)
    names = ("input_layer", *SHARED, *ACTOR, "critic_input", *CRITIC)
    layers = make_layers(config, names, ("input_layer",))
    if not config.network.critic_head:
        raise ConfigError(
            "network.critic_head=null: REPPO needs a critic head; set "
            "network/critic_head=categorical"
        )
    of_actions = {"action_space": space} if is_discrete else {}
    num_inputs = space.num_values if is_discrete else int(np.prod(space.shape, dtype=int))
    actor_head = config.network.actor_head or {"_target_": "jaxppo.networks.heads.follow"}
    network = Layers(
        **layers,
        actor_head=make_layer("actor_head", actor_head, action_space=space),
        critic_head=make_layer("critic_head", config.network.critic_head, **of_actions),
        critic_prediction=Prediction(num_inputs),
        num_inputs=num_inputs,
        is_discrete=is_discrete,
        dtype=torso_dtype(config),
    )
    composed = ActorQ.of(config, env, network)
    _try_out(config, env, composed)
    return composed


def _try_out(config: Config, env: Environment, composed: Any) -> None:
    """Raise `ConfigError` if layers and spaces do not fit."""

    def read(output: ActorQOutput, key: jax.Array) -> Any:
        distribution = output.distribution
        raw = distribution.sample(seed=key)
        distribution.entropy()
        distribution.kl_divergence(distribution)
        action = composed.encode_action(distribution, raw)
        value = composed.critic(composed.init(key), output.features, action).value.mean()
        return distribution.log_prob(raw), value, distribution

    log_prob, value, distribution = try_out(config, env, composed, read, "actor_head")
    check_shape("actor_head", log_prob.shape)
    wanted = (*LEAD, env.action_space.num_values) if composed.network.is_discrete else LEAD
    check_shape("critic_head", value.shape, wanted, "network/critic_head=categorical does")
    check_stored(f"system.algorithm={config.system.algorithm}", distribution)
