"""The actor-critic network: input layer, torsos, memories and heads."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import Config
from jaxppo.networks.building import (
    check_shape,
    hide_privileged,
    make_layer,
    make_layers,
    torso_dtype,
    try_out,
)
from jaxppo.networks.composed import ACTOR, CRITIC, SHARED, Composed, apply_input, apply_layers
from jaxppo.ops.actions import to_action
from jaxppo.types import Discrete, Environment, PyTree, ValueEstimate, pytree, zeros


@pytree
class ActorCriticOutput:
    """Output of an actor-critic, batched over its leading axes."""

    distribution: Any  # a distrax.Distribution over actions
    value: ValueEstimate


LAYERS = ("input_layer", *SHARED, *ACTOR, "actor_head", "critic_input", *CRITIC, "critic_head")


class Layers(nn.Module):
    """input_layer -> SHARED -> (ACTOR -> actor_head, CRITIC -> critic_head); None: no layer.

    With `critic_input` the critic has its own: critic_input -> CRITIC -> critic_head. Parameters
    have these names. See `composed.Layers`.
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
    dtype: Any = jnp.float32

    def __call__(
        self, carry: PyTree, obs: PyTree, mask: PyTree, reset: jax.Array
    ) -> tuple[PyTree, ActorCriticOutput]:
        """Return the next carry, and the action distribution and value of each step `[L, S]`."""
        shared, features = apply_layers(self, SHARED, carry, apply_input(self, obs), reset)
        of_actor, actor = apply_layers(self, ACTOR, carry, features, reset)
        if self.critic_input is not None:
            features = self.critic_input(obs)
        of_critic, critic = apply_layers(self, CRITIC, carry, features, reset)
        actor, critic = actor.astype(jnp.float32), critic.astype(jnp.float32)
        masks = () if mask is None else (mask,)
        distribution, value = self.actor_head(actor, *masks), self.critic_head(critic)
        output = ActorCriticOutput(distribution=distribution, value=value)
        return {**shared, **of_actor, **of_critic}, output


def shares_layers(network: Any) -> bool:
    """Return whether the critic is known to have no layers of its own but its head."""
    layers = getattr(network, "network", None)
    if not isinstance(layers, Layers):
        return False
    return all(getattr(layers, name) is None for name in ("critic_input", *CRITIC))


def build(config: Config, env: Environment) -> Composed:
    """Build the network of `config.network` for `env`; `ConfigError` if it does not fit."""
    config = hide_privileged(config, env)
    names = ("input_layer", *SHARED, *ACTOR, "critic_input", *CRITIC, "critic_head")
    layers = make_layers(config, names, ("input_layer", "critic_head"))
    actor_head = config.network.actor_head or {"_target_": "jaxppo.networks.heads.follow"}
    network = Layers(
        **layers,
        actor_head=make_layer("actor_head", actor_head, action_space=env.action_space),
        dtype=torso_dtype(config),
    )
    composed = Composed.of(config, env, network)
    _try_out(config, env, composed)
    return composed


def _try_out(config: Config, env: Environment, composed: Composed) -> None:
    """Raise `ConfigError` if layers and spaces do not fit."""

    def read(output: ActorCriticOutput, key: jax.Array) -> Any:
        distribution = output.distribution
        raw, log_prob = distribution.sample_and_log_prob(seed=key)
        to_action(distribution, distribution.mode())
        distribution.entropy()
        logits = getattr(distribution, "logits", None)
        logits = logits if isinstance(logits, jax.Array) else None
        return to_action(distribution, raw), log_prob, output.value.mean(), logits

    action, log_prob, value, logits = try_out(config, env, composed, read, "actor_head")
    check_shape("actor_head", log_prob.shape)
    check_shape("critic_head", value.shape)
    wanted = jax.eval_shape(lambda: zeros(env.action_space, log_prob.shape))
    given, needed = (jax.tree.map(jnp.shape, actions) for actions in (action, wanted))
    check_shape("actor_head", given, needed, "network/actor_head=auto follows the action space")
    *lead, size = getattr(logits, "shape", ()) or (0,)
    of_categories = isinstance(env.action_space, Discrete) and (*lead,) == log_prob.shape
    if of_categories and size > env.action_space.num_values:
        raise ConfigError(
            f"network.actor_head: gives {size} categories, but {env.name} takes "
            f"{env.action_space}; network/actor_head=auto follows it"
        )
