"""Build layers from settings and check that they fit an environment."""

import dataclasses
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.config.fields import ConfigError
from jaxppo.config.given import shown
from jaxppo.config.messages import explained
from jaxppo.config.schema import Config
from jaxppo.ops.actions import empty_masks
from jaxppo.types import Box, Environment, Network, PyTree, describe, is_space, zeros

PRIVILEGED = "privileged_state"
LEAD = (2, 3)  # L, S of what is tried out before a run


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
        kind, why = shown(settings["_target_"]), explained(error.__cause__ or error)
        line = f"network.{name} ({kind}): {why}"
        if found := re.search(r"unexpected keyword argument '(\w+)'", line):
            line += f"; leave it out: '~network.{name}.{found[1]}'"
        raise ConfigError(line) from error


def make_layers(config: Config, names: Sequence[str], required: Sequence[str]) -> dict[str, Any]:
    """Make the layers of `config.network` by name; None for a name without a layer."""
    settings = {name: getattr(config.network, name) for name in names}
    for name in required:
        if not settings[name]:
            raise ConfigError(
                f"network.{name}=null: every network needs one; see configs/network/mlp.yaml"
            )
    layers = {name: make_layer(name, each) if each else None for name, each in settings.items()}
    for name, layer in layers.items():
        if name.endswith("_memory") and layer is not None:
            try:
                jax.eval_shape(partial(layer.initial_carry, 1))
            except Exception as error:  # a user's memory may raise anything
                kind = shown(settings[name]["_target_"])
                raise ConfigError(
                    f"network.{name} ({kind}): has no initial_carry of one episode, as memories "
                    f"have: {explained(error)}"
                ) from error
    return layers


def find_action_mask(config: Config, env: Environment) -> str | None:
    """Return the key of the action mask in the observation, or None if there is none."""
    key, space = config.env.action_mask, env.observation_space
    if key is None or not isinstance(space, dict) or key not in space:
        return None
    leaves = jax.tree.leaves(space[key], is_leaf=is_space)
    if not all(isinstance(x, Box) and jnp.dtype(x.dtype).kind in "biu" for x in leaves):
        raise ConfigError(
            f"env.action_mask={key}: is {space[key]} in the observation of {env.name}; a mask "
            "holds booleans or integers; null: it is none"
        )
    if len(space) == 1:
        raise ConfigError(
            f"env.action_mask={key}: is all that {env.name} shows; add another entry to the "
            "observation (of an environment in JAX: env.extras=[step])"
        )
    try:
        jax.eval_shape(partial(empty_masks, env.action_space), zeros(space[key], LEAD))
    except ValueError as error:
        raise ConfigError(f"env.action_mask={key}: {error}; null: it is none") from error
    return key


def hide_privileged(config: Config, env: Environment) -> Config:
    """Return settings with which only the critic reads `privileged_state` of the observation.

    Brax and Playground have the true state in this entry. Settings stay as they are if the input
    layer names its entries. A critic that shares layers with the actor does not read it either.
    """
    space, network = env.observation_space, config.network
    everything = {"_target_": "jaxppo.networks.inputs.Flatten"}
    entries = set(space) if isinstance(space, dict) else set()
    seen = sorted(entries - {PRIVILEGED, config.env.action_mask})
    if network.input_layer != everything or PRIVILEGED not in entries or not seen:
        return config
    some = {"_target_": "jaxppo.networks.inputs.Concatenate", "keys": seen}
    shares = network.shared_torso or network.shared_memory
    critic = network.critic_input or (None if shares else everything)
    layers = dataclasses.replace(network, input_layer=some, critic_input=critic)
    return dataclasses.replace(config, network=layers)


def try_out(
    config: Config,
    env: Environment,
    network: Network,
    read: Callable[[Any, jax.Array], Any],
    head: str,
) -> Any:
    """Return the shapes of `read(output, key)` of a short unroll; `ConfigError` if layers misfit.

    `head` is the layer to name if `read` fails.
    """

    def unroll(key: jax.Array) -> Any:
        params = network.init(key)
        _, obs = env.reset(jnp.repeat(key[None], env.num_agents))
        obs = jax.tree.map(lambda x: jnp.broadcast_to(x[0], (*LEAD, *x.shape[1:])), obs)
        carry = network.initial_carry(LEAD[1])
        after, output = network.unroll(params, carry, obs, jnp.ones(LEAD, bool))
        return read(output, key), params, carry, after

    failed: list[str] = []  # the layer, then the modules that contain it
    memories: dict[str, tuple[nn.Module, PyTree]] = {}  # those of users, and their features

    def call(method: Callable[..., Any], args: Any, given: Any, context: Any) -> Any:
        try:
            found = method(*args, **given)
            called = context.method_name == "__call__" and context.module.scope is not None
            if called and len(context.module.path) == 1:
                name = context.module.path[0]
                _check_result(name, args, found)
                own = not type(context.module).__module__.startswith("jaxppo.")
                if own and name.endswith("_memory"):
                    memories[name] = context.module.clone(parent=None), args[1]
            return found
        except Exception:
            if context.module.scope is not None:
                failed.extend(context.module.path[:1])
            raise

    try:
        with nn.intercept_methods(call):
            found, params, carry, after = jax.eval_shape(unroll, jax.random.key(0))
    except Exception as error:  # a user's layer may raise anything on shapes it does not take
        raise ConfigError(_misfit(config, env, (failed or [head])[0], error)) from error
    _check_params(params)
    _check_carry(carry, after)
    for name, (memory, features) in memories.items():
        if _ignores_reset(memory, features):
            kind = shown(getattr(config.network, name)["_target_"])
            raise ConfigError(
                f"network.{name} ({kind}): ignores reset: its output at the start of an episode "
                "depends on the steps before; let it begin there with initial_carry, as the "
                "example in docs/networks.md does"
            )
    return found


def _misfit(config: Config, env: Environment, layer: str, error: Exception) -> str:
    """Say that a layer does not fit an environment, and what does."""
    target = (getattr(config.network, layer) or {}).get("_target_", layer)
    ways_out = {"actor_head": "auto, which takes any actions", "q_head": "scalar"}
    if layer in ways_out:
        space = f"actions {describe(env.action_space)}"
        way_out = f"network/{layer}={ways_out[layer]}"
    else:
        space = f"observation {describe(env.observation_space)}"
        way_out = "network=mlp, which takes any observation"
    return (
        f"network.{layer} ({shown(target)}): does not fit {env.name} with {space}: "
        f"{explained(error).rstrip('.')}; choose another, or {way_out}"
    )


def _check_result(layer: str, args: Any, found: Any) -> None:
    """Raise `ValueError` if a torso or a memory returns a wrong result."""
    if layer.endswith("memory") and not (isinstance(found, tuple) and len(found) == 2):
        raise ValueError(f"a memory must return (carry, features), not a {type(found).__name__}")
    if layer.endswith("torso"):
        shape, given = getattr(found, "shape", ()), jax.tree.leaves(args)[0].shape
        if len(shape) < 3 or shape[:2] != given[:2]:
            raise ValueError(
                f"a torso must return [steps, episodes, features], not {[*shape]} of {[*given]}"
            )


def _check_params(params: PyTree) -> None:
    """Raise `ConfigError` if a parameter is not float32, the type of gradients."""
    for path, x in jax.tree.leaves_with_path(params):
        if x.dtype != jnp.float32:
            layer, _, name = jax.tree_util.keystr(path, simple=True, separator=".").partition(".")
            raise ConfigError(
                f"network.{layer}: its parameter {name} is {x.dtype.name}; parameters are float32 "
                "(torsos may compute in bfloat16: arch.precision=bf16), so make it that or a "
                "constant"
            )


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


def _ignores_reset(memory: Any, features: PyTree) -> bool:
    """Return whether the output of a memory from a `reset` on depends on what was before.

    It runs on random parameters and features, of the shapes `[L, S, ...]` of `features`. False if
    it does not run by itself.
    """
    random = np.random.default_rng(0)

    def draw(tree: PyTree, scale: float = 1.0) -> PyTree:
        return jax.tree.map(lambda x: (scale * random.normal(size=x.shape)).astype(x.dtype), tree)

    def is_float(x: Any) -> bool:
        return jnp.issubdtype(x.dtype, jnp.inexact)

    def alike(x: Any, y: Any) -> bool:
        return not is_float(x) or np.allclose(x, y, 1e-4, 1e-5, equal_nan=True)

    at_first = np.arange(LEAD[0] * LEAD[1]).reshape(LEAD) < LEAD[1]  # [L, S]
    x, other = draw(features), draw(features)
    other = jax.tree.map(lambda x, y: np.concatenate([y[:-1], x[-1:]]), x, other)
    try:
        with jax.ensure_compile_time_eval():  # numbers also where a caller is traced
            start = memory.initial_carry(LEAD[1])
        shapes = jax.eval_shape(memory.init, jax.random.key(0), start, x, at_first)
        variables = {"params": draw(shapes.get("params", {}), 0.1)}
        compiled = jax.jit(memory.apply).lower(variables, start, x, at_first).compile()
        call = partial(compiled, variables)
        after, y = call(start, x, at_first)
        # Integers stay, since they may be the key of a memory with random numbers
        carry = jax.tree.map(lambda x, y: x if is_float(x) else y, after, start)
        outputs = [(y, call(carry, x, at_first)[1])]
        ends = [call(start, each, ~at_first)[1] for each in (x, other)]
    except Exception:  # such as of a module that needs its parent
        return False
    one, another = jax.tree.map(lambda y: np.asarray(y)[-1], ends)
    outputs.append((one, another))
    is_finite = all(np.isfinite(x).all() for x in jax.tree.leaves(carry) if is_float(x))
    return is_finite and not all(jax.tree.all(jax.tree.map(alike, *pair)) for pair in outputs)


def check_stored(key: str, distribution: Any, way_out: str = "") -> None:
    """Raise `ConfigError` if a distribution for `LEAD` steps cannot be stored step by step.

    `key` is the setting that stores it, and `way_out` a further way out.
    """
    shapes = [x.shape for x in jax.tree.leaves(distribution)]
    if any(shape[:2] != LEAD for shape in shapes):
        raise ConfigError(
            f"{key}: stores the distribution of each step, but network.actor_head gives arrays "
            f"{shapes} for {LEAD} steps; let the head broadcast them to [L, S, ...]{way_out}"
        )


def check_shape(
    head: str, found: Any, wanted: Any = LEAD, way_out: str = "choose a head that does"
) -> None:
    """Raise `ConfigError` unless a head gives these shapes for `LEAD` steps."""
    if found != wanted:
        raise ConfigError(
            f"network.{head}: gives {found} for {LEAD} steps, but must give {wanted}; {way_out}"
        )
