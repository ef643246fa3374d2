"""Build layers from settings and check that they fit an environment."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxppo.config.fields import ConfigError
from jaxppo.config.messages import brief
from jaxppo.config.schema import Config
from jaxppo.types import Box, Environment, Network, PyTree, describe, is_space

LEAD = (2, 3)  # L, S of `try_out`


def torso_dtype(config: Config) -> Any:
    """Return the number format of torsos, a data type."""
    return jnp.bfloat16 if config.arch.precision == "bf16" else jnp.float32


def make_layer(name: str, settings: dict[str, Any], **arguments: Any) -> Any:
    """Make the layer of a setting `network.NAME`; `ConfigError` if that fails."""
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate

    if "_target_" not in settings:
        raise ConfigError(
            f"network.{name}: has no _target_, the import path of a layer; see configs/network"
        )
    try:
        layer = instantiate({"_convert_": "all", "_partial_": True, **settings})
        return layer(**arguments)
    except (InstantiationException, TypeError, ValueError) as error:
        line = f"network.{name} ({settings['_target_']}): {brief(error.__cause__ or error, 2)}"
        if found := re.search(r"unexpected keyword argument '(\w+)'", line):
            line += f"; leave it out: '~network.{name}.{found[1]}'"
        raise ConfigError(line) from error


def make_layers(
    config: Config, names: Sequence[str], required: Sequence[str], memories: Sequence[str]
) -> dict[str, Any]:
    """Make the layers of `config.network` by name; None for a name without a layer."""
    settings = {name: getattr(config.network, name) for name in names}
    for name in required:
        if not settings[name]:
            raise ConfigError(
                f"network.{name}=null: every network needs one; see configs/network/mlp.yaml"
            )
    layers = {name: make_layer(name, each) if each else None for name, each in settings.items()}
    for name in memories:
        if layers[name] is not None and not hasattr(layers[name], "initial_carry"):
            raise ConfigError(
                f"network.{name} ({settings[name]['_target_']}): is no memory, since it has no "
                "initial_carry; choose one of configs/network/memory, or null"
            )
    return layers


def find_action_mask(config: Config, env: Environment) -> str | None:
    """Return the key of the action mask in the observation, or None if there is none."""
    key, space = config.env.action_mask, env.observation_space
    if key is None or not isinstance(space, dict) or key not in space:
        return None
    leaves = jax.tree.leaves(space[key], is_leaf=is_space)
    if not all(isinstance(x, Box) and x.dtype.startswith(("bool", "int", "uint")) for x in leaves):
        raise ConfigError(
            f"env.action_mask={key}: is {space[key]} in the observation of {env.name}; a mask "
            "holds booleans or integers; null: it is none"
        )
    if len(space) == 1:
        raise ConfigError(
            f"env.action_mask={key}: is all that {env.name} shows; add another entry to the "
            "observation, or env.extras=[step]"
        )
    return key


def try_out(
    config: Config,
    env: Environment,
    network: Network,
    read: Callable[[Any, jax.Array], Any],
    culprit: Callable[[], str],
) -> Any:
    """Return the shapes of `read(output, key)` of a short unroll; `ConfigError` if layers misfit.

    `culprit` returns the name of the layer that does not take its input.
    """

    def unroll(key: jax.Array) -> Any:
        params = network.init(key)
        _, obs = env.reset(key[None])
        obs = jax.tree.map(lambda x: jnp.broadcast_to(x, (*LEAD, *x.shape[1:])), obs)
        carry = network.initial_carry(LEAD[1])
        after, output = network.unroll(params, carry, obs, jnp.ones(LEAD, bool))
        return read(output, key), carry, after, network.empty_masks(obs)

    try:
        found, carry, after, _ = jax.eval_shape(unroll, jax.random.key(0))
    except Exception as error:  # a user's layer may raise anything on shapes it does not take
        name = culprit()
        target = (getattr(config.network, name) or {}).get("_target_", name)
        space = f"observation {describe(env.observation_space)}"
        way_out = "network=mlp, which takes any observation"
        if name in ("actor_head", "q_head"):
            space = f"actions {describe(env.action_space)}"
            way_out = {
                "actor_head": "network/actor_head=auto, which takes any actions",
                "q_head": "network/q_head=scalar",
            }[name]
        raise ConfigError(
            f"network.{name} ({target}): does not fit {env.name} with {space}: "
            f"{brief(error, 2).rstrip('.')}; choose another, or {way_out}"
        ) from error
    _check_carry(carry, after)
    return found


def _check_carry(carry: PyTree, after: PyTree) -> None:
    """Raise `ConfigError` if a memory's carry changes its structure, shape or data type."""
    for name in carry:
        before, then = (
            jax.tree.map(lambda x: f"{x.dtype}{list(x.shape)}", c[name]) for c in (carry, after)
        )
        if (jax.tree.structure(before), before) != (jax.tree.structure(then), then):
            raise ConfigError(
                f"network.{name}: its carry is {before} for {LEAD[1]} episodes at first and {then} "
                "later; let initial_carry give what a call gives"
            )


def check_one_number(name: str, shape: tuple[int, ...]) -> None:
    """Raise `ConfigError` unless a head gives one number per step."""
    if shape != LEAD:
        raise ConfigError(
            f"network.{name}: gives shape {shape} for {LEAD} steps, but must give one number a "
            "step; choose a head that does"
        )
