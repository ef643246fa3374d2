"""The Q-network: input layer, torso, memory and a Q head."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import Config
from jaxppo.networks.building import (
    LEAD,
    check_shape,
    hide_privileged,
    make_layer,
    make_layers,
    torso_dtype,
    try_out,
)
from jaxppo.networks.composed import ACTOR, CRITIC, SHARED, Composed, apply_input, apply_layers
from jaxppo.networks.q_heads import check_discrete
from jaxppo.ops.action_values import QOutput
from jaxppo.ops.actions import component_sizes
from jaxppo.types import Environment, PyTree

LAYERS = ("input_layer", *SHARED, *CRITIC, "q_head")


class Layers(nn.Module):
    """input_layer -> SHARED -> CRITIC -> q_head; see `composed.Layers`.

    A layer may be None, except the first and the last. Parameters are keyed by the layer's name.
    """

    input_layer: nn.Module
    shared_torso: nn.Module | None
    shared_memory: nn.Module | None
    critic_torso: nn.Module | None
    critic_memory: nn.Module | None
    critic_post_torso: nn.Module | None
    q_head: nn.Module
    dtype: Any = jnp.float32

    def __call__(
        self, carry: PyTree, obs: PyTree, mask: PyTree, reset: jax.Array
    ) -> tuple[PyTree, QOutput]:
        """Return the next carry, and the Q-values of each step `[L, S]`."""
        x = apply_input(self, obs)
        after, x = apply_layers(self, (*SHARED, *CRITIC), carry, x, reset)
        return after, self.q_head(x.astype(jnp.float32), *(() if mask is None else (mask,)))


def build(config: Config, env: Environment) -> Composed:
    """Build the Q-network of `config.network` for `env`; `ConfigError` if it does not fit."""
    try:
        check_discrete(env.action_space)
    except ValueError as error:
        raise ConfigError(f"env={env.name}: {error}") from error
    for name in (*ACTOR, "actor_head", "critic_head"):
        if getattr(config.network, name):
            raise ConfigError(
                f"network.{name}: a Q-network has no such layer; leave it out; it has "
                f"{', '.join(LAYERS)}"
            )
    config = hide_privileged(config, env)
    names = [name for name in LAYERS if name != "q_head"]
    layers = make_layers(config, names, ("input_layer",))
    q_head = config.network.q_head or {"_target_": "jaxppo.networks.q_heads.ScalarQHead"}
    network = Layers(
        **layers,
        q_head=make_layer("q_head", q_head, action_space=env.action_space),
        dtype=torso_dtype(config),
    )
    composed = Composed.of(config, env, network)

    def read(output: QOutput, key: jax.Array) -> Any:
        del key
        return output.estimate.mean(), output.legal

    found = try_out(config, env, composed, read, "q_head")
    sizes = component_sizes(env.action_space)
    wanted = (*LEAD, len(sizes), max(sizes))
    for x in found:  # of components and their values
        check_shape("q_head", x.shape, wanted, "network/q_head=scalar does")
    return composed
