"""The actor-critic network: input layer, torsos, memories and heads."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import Config
from jaxppo.networks.building import (
    DTYPES,
    check_one_number,
    find_action_mask,
    make_layer,
    make_layers,
    try_out,
)
from jaxppo.ops.actions import empty_masks, to_action
from jaxppo.types import (
    Discrete,
    Environment,
    PyTree,
    Space,
    ValueEstimate,
    is_space,
    zeros,
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class ActorCriticOutput:
    """Output of an actor-critic, batched over its leading axes."""

    distribution: Any  # a distrax.Distribution over actions
    value: ValueEstimate


def encode(observation_space: PyTree, obs: PyTree) -> PyTree:
    """Encode discrete leaves one-hot, float32 `[L, S, num_values]`; others are unchanged."""

    def one(space: Space, x: jax.Array) -> jax.Array:
        return jax.nn.one_hot(x, space.num_values) if isinstance(space, Discrete) else x

    return jax.tree.map(one, observation_space, obs, is_leaf=is_space)


SHARED = ("shared_torso", "shared_memory")
ACTOR = ("actor_torso", "actor_memory", "actor_post_torso")
CRITIC = ("critic_torso", "critic_memory", "critic_post_torso")
MEMORIES = tuple(name for name in (*SHARED, *ACTOR, *CRITIC) if name.endswith("_memory"))


class Layers(nn.Module):
    """input_layer -> SHARED -> (ACTOR -> actor_head, CRITIC -> critic_head); None: no layer.

    Parameters have these names. Torsos compute in `dtype`; the input layer, memories and heads
    compute in float32.
    """

    input_layer: nn.Module
    shared_torso: nn.Module | None
    shared_memory: nn.Module | None
    actor_torso: nn.Module | None
    actor_memory: nn.Module | None
    actor_post_torso: nn.Module | None
    critic_torso: nn.Module | None
    critic_memory: nn.Module | None
    critic_post_torso: nn.Module | None
    actor_head: nn.Module
    critic_head: nn.Module
    dtype: Any = jnp.float32

    def __call__(
        self, carry: PyTree, obs: PyTree, mask: PyTree, reset: jax.Array
    ) -> tuple[PyTree, ActorCriticOutput]:
        """Return the next carry, and the action distribution and value of each step `[L, S]`.

        Takes a carry `[S, ...]`, encoded observations `[L, S, O...]`, an action mask or None, and
        reset `[L, S]`.
        """
        after = {}

        def through(names: tuple[str, ...], x: Any) -> Any:
            for name in names:
                layer: Any = getattr(self, name)
                if name in MEMORIES and layer is not None:
                    after[name], x = layer(carry[name], _cast(x, jnp.float32), reset)
                elif layer is not None:
                    x = layer(_cast(x, self.dtype))
            return x

        features = through(SHARED, self.input_layer(obs))
        actor, critic = through(ACTOR, features), through(CRITIC, features)
        actor, critic = actor.astype(jnp.float32), critic.astype(jnp.float32)
        masks = () if mask is None else (mask,)
        distribution, value = self.actor_head(actor, *masks), self.critic_head(critic)
        return after, ActorCriticOutput(distribution=distribution, value=value)


@dataclasses.dataclass(frozen=True)
class Composed:
    """A `types.Network` of a `Layers`; `action_mask` names an entry of the observation.

    The carry is a dict of the carries of all memories, by name; it is empty without memories.
    """

    network: Layers
    observation_space: PyTree
    action_space: PyTree
    action_mask: str | None = None

    def init(self, key: jax.Array) -> PyTree:
        """Return initial float32 parameters, by the name of the layer."""
        obs, mask = self.split(zeros(self.observation_space, (1, 1)))
        reset = jnp.ones((1, 1), bool)
        return self.network.init(key, self.initial_carry(1), obs, mask, reset)["params"]

    def initial_carry(self, num_envs: int) -> PyTree:
        """Return the carry at the start of an episode, `[num_envs, ...]`."""
        memories = {name: getattr(self.network, name) for name in MEMORIES}
        return {name: m.initial_carry(num_envs) for name, m in memories.items() if m is not None}

    def unroll(
        self,
        params: PyTree,
        carry: PyTree,
        obs: PyTree,
        reset: jax.Array,
        noise_key: jax.Array | None = None,
    ) -> tuple[PyTree, ActorCriticOutput]:
        """Map normalised `obs` `[L, S, O...]` to (carry, output)."""
        if self.network.dtype != jnp.float32:
            params = {
                name: _cast(part, self.network.dtype) if name.endswith("_torso") else part
                for name, part in params.items()
            }
        noise = None if noise_key is None else {"noise": noise_key}
        obs, mask = self.split(obs)
        outputs: Any = self.network.apply({"params": params}, carry, obs, mask, reset, rngs=noise)
        return outputs

    def empty_masks(self, obs: PyTree) -> jax.Array:
        """Return where the action mask in raw `obs` `[L, S, O...]` allows nothing, `[L, S]`."""
        if self.action_mask is None:
            return jnp.zeros(jax.tree.leaves(obs)[0].shape[:2], bool)
        return empty_masks(self.action_space, obs[self.action_mask])

    def example(self) -> tuple[PyTree, ActorCriticOutput]:
        """Return the shapes of `unroll`'s results for one step of one environment."""

        def unroll(key: jax.Array) -> Any:
            obs = zeros(self.observation_space, (1, 1))
            return self.unroll(self.init(key), self.initial_carry(1), obs, jnp.ones((1, 1), bool))

        found: tuple[PyTree, ActorCriticOutput] = jax.eval_shape(unroll, jax.random.key(0))
        return found

    def split(self, obs: PyTree) -> tuple[PyTree, PyTree]:
        """Return the encoded observation without the action mask, and the mask or None."""
        encoded = encode(self.observation_space, obs)
        if self.action_mask is None:
            return encoded, None
        rest = {key: x for key, x in encoded.items() if key != self.action_mask}
        return rest, encoded[self.action_mask]


def build(config: Config, env: Environment) -> Composed:
    """Build the network of `config.network` for `env`; `ConfigError` if it does not fit."""
    names = ("input_layer", *SHARED, *ACTOR, *CRITIC, "critic_head")
    layers = make_layers(config, names, ("input_layer", "critic_head"), MEMORIES)
    actor_head = config.network.actor_head or {"_target_": "jaxppo.networks.heads.follow"}
    network = Layers(
        **layers,
        actor_head=make_layer("actor_head", actor_head, action_space=env.action_space),
        dtype=DTYPES[config.arch.precision],
    )
    composed = Composed(
        network, env.observation_space, env.action_space, find_action_mask(config, env)
    )
    _try_out(config, env, composed)
    return composed


def _try_out(config: Config, env: Environment, composed: Composed) -> None:
    """Raise `ConfigError` if layers and spaces do not fit."""

    def read(output: ActorCriticOutput, key: jax.Array) -> Any:
        distribution = output.distribution
        raw, log_prob = distribution.sample_and_log_prob(seed=key)
        to_action(distribution, distribution.mode())
        distribution.entropy()
        return to_action(distribution, raw), log_prob, output.value.mean()

    action, log_prob, value = try_out(config, env, composed, read, lambda: _culprit(composed))
    check_one_number("actor_head", log_prob.shape)
    check_one_number("critic_head", value.shape)
    wanted = jax.eval_shape(lambda: zeros(env.action_space, log_prob.shape))
    if jax.tree.map(jnp.shape, action) != jax.tree.map(jnp.shape, wanted):
        raise ConfigError(
            f"network.actor_head: gives actions {jax.tree.map(jnp.shape, action)}, but "
            f"{env.name} takes {env.action_space}; network/actor_head=auto follows it"
        )


def _culprit(composed: Composed) -> str:
    """Return the name of the first layer that does not take its input."""
    network = composed.network
    obs, mask = composed.split(zeros(composed.observation_space, (1, 1)))
    reset = jnp.ones((1, 1), bool)

    def output(name: str, x: Any) -> Any:
        layer = getattr(network, name)
        if layer is None:
            return x

        def start(x: Any) -> Any:
            key = jax.random.key(0)
            if name in MEMORIES:
                _, features = layer.init_with_output(key, layer.initial_carry(1), x, reset)[0]
                return features
            masks = (mask,) if name == "actor_head" and mask is not None else ()
            return layer.init_with_output(key, x, *masks)[0]

        return jax.eval_shape(start, x)

    features = obs
    for path in (("input_layer", *SHARED), (*ACTOR, "actor_head"), (*CRITIC, "critic_head")):
        inner = features
        for name in path:
            try:
                inner = output(name, inner)
            except Exception:  # the caller reports its own error
                return name
        if path[0] == "input_layer":
            features = inner
    return "actor_head"  # its output is no distribution that acting and learning can use


def _cast(tree: PyTree, dtype: Any) -> PyTree:
    return jax.tree.map(lambda x: x.astype(dtype), tree)
