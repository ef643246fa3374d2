"""Networks composed of input layer, torsos, memories and heads."""

import dataclasses
from typing import Any, Protocol, Self

import jax
import jax.numpy as jnp

from jaxppo.config.schema import Config
from jaxppo.kernels.platforms import forms
from jaxppo.kernels.precisions import precision
from jaxppo.networks import fused
from jaxppo.networks.building import find_action_mask
from jaxppo.networks.initialization import check_initialization, initialize
from jaxppo.networks.inputs import Image
from jaxppo.networks.torsos import CNN, ResidualCNN
from jaxppo.ops.actions import empty_masks
from jaxppo.types import Discrete, Environment, PyTree, Space, is_space, zeros

SHARED = ("shared_torso", "shared_memory")
ACTOR = ("actor_torso", "actor_memory", "actor_post_torso")
CRITIC = ("critic_torso", "critic_memory", "critic_post_torso")
MEMORIES = tuple(name for name in (*SHARED, *ACTOR, *CRITIC) if name.endswith("_memory"))


class Layers(Protocol):
    """A flax module whose attributes are the layers of a network; None: no layer.

    Torsos compute in `dtype`; the input layer, memories and heads compute in float32.
    """

    dtype: Any

    def __call__(
        self, carry: PyTree, obs: PyTree, mask: PyTree, reset: jax.Array
    ) -> tuple[PyTree, Any]:
        """Return the next carry, and the output of the heads for each step `[L, S]`.

        Takes a carry `[S, ...]`, encoded observations `[L, S, O...]`, an action mask or None, and
        reset `[L, S]`.
        """


def apply_layers(
    layers: Any, names: tuple[str, ...], carry: PyTree, x: Any, reset: jax.Array
) -> tuple[dict[str, PyTree], Any]:
    """Apply the layers `names` to `x` in turn; return the next carries and the output.

    Carries are dicts by memory.
    """
    after = {}
    for name in names:
        layer: Any = getattr(layers, name)
        if name in MEMORIES and layer is not None:
            after[name], x = layer(carry[name], _cast(x, jnp.float32), reset)
        elif layer is not None:
            dtype = layers.dtype
            x = layer(x, dtype) if _takes_bytes(layers, name) else layer(_cast(x, dtype))
    return after, x


def apply_input(layers: Any, obs: PyTree) -> Any:
    """Apply the input layer."""
    if _takes_bytes(layers, "shared_torso"):
        return layers.input_layer(obs, keep_bytes=True)
    return layers.input_layer(obs)


def _takes_bytes(layers: Any, name: str) -> bool:
    """Return whether a torso may get an image as bytes, which are faster to move than floats."""
    # A subclass may read something else
    image = name == "shared_torso" and type(layers.input_layer) is Image
    return image and type(layers.shared_torso) in (CNN, ResidualCNN)


def encode(observation_space: PyTree, obs: PyTree) -> PyTree:
    """Encode `Discrete` leaves one-hot, float32 `[L, S, num_values]`; others are unchanged."""

    def one(space: Space, x: jax.Array) -> jax.Array:
        return jax.nn.one_hot(x, space.num_values) if isinstance(space, Discrete) else x

    return jax.tree.map(one, observation_space, obs, is_leaf=is_space)


@dataclasses.dataclass(frozen=True)
class Composed:
    """Implements `types.Network` with the flax module `network`.

    `action_mask` is the key of the mask in the observation; None: no mask. The carry is a dict of
    the carries of all memories, by name; it is empty without memories.
    """

    network: Any  # Layers
    observation_space: PyTree
    action_space: PyTree
    action_mask: str | None = None
    precision: str | None = None  # `arch.precision`; None: that of the platform
    initialization: dict[str, Any] = dataclasses.field(default_factory=dict)  # see `initialize`
    fused: bool | None = False  # `arch.fused`; None: that of the platform

    @classmethod
    def of(cls, config: Config, env: Environment, layers: Layers) -> Self:
        """Make the network of `env`; `ConfigError` if mask or initialization do not fit."""
        mask = find_action_mask(config, env)
        spaces = env.observation_space, env.action_space
        rules, arch = config.network.initialization, config.arch
        composed = cls(layers, *spaces, mask, arch.precision, fused=arch.fused)
        if rules or arch.fused:
            params = jax.eval_shape(composed.init, jax.random.key(0))
            check_initialization(rules, params)
            if arch.fused:
                fused.check(config, layers, params)
        return dataclasses.replace(composed, initialization=rules)

    def init(self, key: jax.Array) -> PyTree:
        """Return initial float32 parameters, by the name of the layer."""
        obs, mask = self.split(zeros(self.observation_space, (1, 1)))
        reset = jnp.ones((1, 1), bool)
        params = self.network.init(key, self.initial_carry(1), obs, mask, reset)["params"]
        return initialize(self.initialization, params, key)

    def initial_carry(self, num_envs: int) -> PyTree:
        """Return the carry at the start of an episode, `[num_envs, ...]`."""
        memories = {name: getattr(self.network, name, None) for name in MEMORIES}
        return {name: m.initial_carry(num_envs) for name, m in memories.items() if m is not None}

    def prepare(self, params: PyTree) -> PyTree:
        """Return parameters with those of torsos in the type that torsos compute in."""
        dtype = self.network.dtype
        if dtype == jnp.float32:
            return params
        torsos = {name: _cast(params[name], dtype) for name in params if name.endswith("_torso")}
        return {**params, **torsos}

    def unroll(
        self,
        params: PyTree,
        carry: PyTree,
        obs: PyTree,
        reset: jax.Array,
        noise_key: jax.Array | None = None,
    ) -> tuple[PyTree, Any]:
        """Map normalised `obs` `[L, S, O...]` to (carry, output)."""
        params = self.prepare(params)
        noise = None if noise_key is None else {"noise": noise_key}
        obs, mask = self.split(obs)
        chosen = self.precision or forms().precision
        kernels = fused.replacing(self.fused, chosen, self.network, params)
        with precision(chosen), kernels:
            given = carry, obs, mask, reset
            outputs: Any = self.network.apply({"params": params}, *given, rngs=noise)
        return outputs

    def empty_masks(self, obs: PyTree) -> jax.Array:
        """Return where the action mask in raw `obs` `[L, S, O...]` allows nothing, `[L, S]`."""
        if self.action_mask is None:
            return jnp.zeros(jax.tree.leaves(obs)[0].shape[:2], bool)
        return empty_masks(self.action_space, obs[self.action_mask])

    def example(self, lead: tuple[int, int] = (1, 1)) -> tuple[PyTree, Any]:
        """Return the shapes of `unroll`'s results for `lead` `[L, S]` steps."""

        def unroll(key: jax.Array) -> Any:
            obs, carry = zeros(self.observation_space, lead), self.initial_carry(lead[1])
            return self.unroll(self.init(key), carry, obs, jnp.ones(lead, bool))

        return jax.eval_shape(unroll, jax.random.key(0))

    def split(self, obs: PyTree) -> tuple[PyTree, PyTree]:
        """Return the encoded observation without the action mask, and the mask or None."""
        encoded = encode(self.observation_space, obs)
        if self.action_mask is None:
            return encoded, None
        rest = {key: x for key, x in encoded.items() if key != self.action_mask}
        return rest, encoded[self.action_mask]


def _cast(tree: PyTree, dtype: Any) -> PyTree:
    return jax.tree.map(lambda x: x.astype(dtype), tree)
