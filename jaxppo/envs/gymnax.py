"""Adapter of gymnax: its registered environments and any class of its contract."""

import dataclasses
import difflib
import importlib
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.config import ConfigError, EnvConfig
from jaxppo.envs.later import imported_later
from jaxppo.types import Box, Discrete, MultiDiscrete, PyTree, TimeStep, zeros

with imported_later("seaborn", "matplotlib.pyplot"):  # with which gymnax draws: 1.2 of 1.7 seconds
    import gymnax
    from gymnax.environments import spaces
    from gymnax.environments.environment import Environment


class GymnaxEnvironment:
    """`B` environments of gymnax's six-value contract, with bound parameters.

    Attributes are those of `types.Environment`; `env` and `params` are gymnax's own. Actions reach
    the environment as int32 (`Discrete`, `MultiDiscrete`) or as float32 within bounds (`Box`).
    """

    def __init__(self, name: str, env: Any, params: Any) -> None:
        self.name = name
        self.env = env
        self.params = params
        example = jax.eval_shape(env.reset, jax.random.key(0), params)[0]
        self.observation_space = _observation_space(env.observation_space(params), example)
        self.action_space = _action_space(env.action_space(params))
        limit = getattr(params, "max_steps_in_episode", None)
        if limit is not None and (limit < 1 or limit != int(limit)):
            raise ConfigError(
                f"env.params.max_steps_in_episode={limit}: must be an integer, at least 1"
            )
        self.time_limit = None if limit is None else int(limit)

    def reset(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        """`[B]` keys to (state `[B, ...]`, observation `[B, O...]`)."""
        obs, state = jax.vmap(self.env.reset, (0, None))(key, self.params)
        return state, obs

    def step(self, key: jax.Array, state: PyTree, action: PyTree) -> tuple[PyTree, TimeStep]:
        """One auto-reset step of `B` environments; rewards become float32.

        Where auto-reset is gymnax's own, with its keys, fresh episodes are made only in a branch
        that runs when some episode ended.
        """
        if (
            getattr(type(self.env), "step", None) is not Environment.step
        ):  # a class that resets in its own way
            obs, state, reward, terminated, truncated, info = jax.vmap(
                self.env.step, (0, 0, 0, None)
            )(key, state, action, self.params)
            return state, _time_step(obs, info["final_observation"], reward, terminated, truncated)
        final_observation, after, reward, terminated, _ = jax.vmap(
            self.env.step_env, (0, 0, 0, None)
        )(_part(key, 0), state, action, self.params)
        truncated = jax.vmap(self.env.is_truncated, (0, None))(after, self.params)
        done = jnp.logical_or(terminated, truncated)

        def renew() -> tuple[PyTree, PyTree]:
            fresh = jax.vmap(self.env.reset_env, (0, None))(_part(key, 1), self.params)
            return jax.tree.map(
                lambda new, old: jnp.where(done.reshape(-1, *[1] * (old.ndim - 1)), new, old),
                fresh,
                (final_observation, after),
            )

        obs, state = jax.lax.cond(_anywhere(done), renew, lambda: (final_observation, after))
        return state, _time_step(obs, final_observation, reward, terminated, truncated)


@jax.custom_batching.custom_vmap
def _anywhere(flags: jax.Array) -> jax.Array:
    """Whether any flag is set, of all that are mapped too: a `cond` on it stays a branch."""
    return jnp.any(flags)


@_anywhere.def_vmap
def _(_size: int, _batched: list[bool], flags: jax.Array) -> tuple[jax.Array, bool]:
    return _anywhere(flags), False


def _part(key: jax.Array, number: int) -> jax.Array:
    """One of the two keys `[B]` that gymnax splits keys `[B]` into: of a step, of a reset."""
    return jax.vmap(jax.random.split)(key)[:, number]


def _time_step(
    obs: PyTree,
    final_observation: PyTree,
    reward: jax.Array,
    terminated: jax.Array,
    truncated: jax.Array,
) -> TimeStep:
    return TimeStep(
        obs=obs,
        final_observation=final_observation,
        reward=jnp.asarray(reward, jnp.float32),
        terminated=jnp.asarray(terminated, bool),
        truncated=jnp.asarray(truncated, bool),
    )


def make(config: EnvConfig) -> GymnaxEnvironment:
    """Build by gymnax id or import path, with `env.kwargs` and `env.params` applied."""
    if config.module is not None:
        _load("env.module", config.module)
    name = config.name if config.name is not None else config.target
    assert name is not None
    if config.target is not None:
        factory = _attribute(config.target)
    elif name in gymnax.registered_envs:
        factory = partial(gymnax.make, name)
    else:
        raise ConfigError(_unknown(name))
    try:
        made = factory(**config.kwargs)
        env = made[0] if isinstance(made, tuple) else made
        params = _replace_params(name, env.default_params, config.params)
        environment = GymnaxEnvironment(name, env, params)
    except ConfigError:
        raise
    except OSError as error:  # URLError is one
        raise ConfigError(
            f"{name}: needs a file that could not be downloaded or read ({_line(error)}); make it "
            "once where there is a network and copy the file from there (gymnax keeps MNIST in "
            "/tmp/mnist), or choose another environment"
        ) from error
    except Exception as error:  # whatever a constructor raises is the user's to read
        raise ConfigError(
            f"{name}: cannot be made with env.kwargs={config.kwargs}, env.params={config.params}: "
            f"{_line(error)}"
        ) from error
    _check_contract(environment)
    return environment


def _replace_params(name: str, params: Any, changes: dict[str, Any]) -> Any:
    known = [field.name for field in dataclasses.fields(params)]
    for key in changes:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1, 0.0)
            raise ConfigError(
                f"env.params.{key}: {name} has no such parameter; did you mean "
                f"env.params.{near[0]}?"
            )
    return dataclasses.replace(params, **changes)


def _unknown(name: str) -> str:
    known = gymnax.registered_envs
    lower = {env.lower(): env for env in known}
    near = [
        lower[match] for match in difflib.get_close_matches(name.lower(), list(lower), 3, 0.3)
    ] or sorted(known)[:3]
    return (
        f"env.name={name}: no such gymnax environment; the nearest: {', '.join(near)} "
        f"(of {len(known)}; a module that registers yours goes into env.module)"
    )


def _load(key: str, name: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception as error:  # a user's module may raise anything
        raise ConfigError(
            f"{key}={name}: cannot be imported ({type(error).__name__}: {error}); "
            "is it on PYTHONPATH, and does it run?"
        ) from error


def _attribute(target: str) -> Any:
    module, _, attribute = target.rpartition(".")
    if not module:
        raise ConfigError(f"env.target={target}: an import path such as my_package.MyEnv is needed")
    found = getattr(_load("env.target", module), attribute, None)
    if found is None:
        raise ConfigError(f"env.target={target}: module {module} has no {attribute}")
    return found


def _observation_space(space: Any, example: Any) -> PyTree:
    """A gymnax space as ours; `example` (shapes) corrects the data type that a space claims."""
    if isinstance(space, spaces.Dict):
        return {key: _observation_space(part, example[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map(_observation_space, space.spaces, example))
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n))
    if isinstance(space, spaces.Box):
        return Box(
            tuple(example.shape),
            jnp.dtype(example.dtype).name,
            _bound(space.low),
            _bound(space.high),
        )
    raise _unknown_space("observation", "Discrete, Box, Dict, Tuple", space)


def _action_space(space: Any) -> PyTree:
    """A gymnax space as ours: an integer Box and anything with `nvec` are `MultiDiscrete`."""
    if isinstance(space, spaces.Dict):
        return {key: _action_space(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map(_action_space, space.spaces))
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n))
    if isinstance(space, spaces.Box):
        shape = tuple(space.shape)
        low, high = (np.broadcast_to(bound, shape) for bound in (space.low, space.high))
        if jnp.issubdtype(space.dtype, jnp.floating):
            return Box(shape, "float32", _bound(low), _bound(high))
        return _multi_discrete(space, low, high)
    if hasattr(space, "nvec"):
        size = np.asarray(space.nvec)
        low = np.broadcast_to(getattr(space, "start", 0), size.shape)
        return _multi_discrete(space, low, low + size - 1)
    raise _unknown_space("action", "Discrete, MultiDiscrete, Box, Dict, Tuple", space)


def _multi_discrete(space: Any, low: np.ndarray, high: np.ndarray) -> MultiDiscrete:
    if np.any(low != 0):
        raise ConfigError(
            f"env: the action space {_line(space)} does not start at 0; let it start there in a "
            "wrapper, and add its low to the action in step"
        )
    if not np.all(np.isfinite(high) & (high >= 0)):
        raise ConfigError(
            f"env: the action space {_line(space)} needs a finite high of at least 0 for every "
            "integer; give the number of choices less one"
        )
    return MultiDiscrete(tuple(int(x) + 1 for x in high.ravel()), high.shape)


def _unknown_space(what: str, known: str, space: Any) -> ConfigError:
    return ConfigError(
        f"env: the {what} space {_line(space)} is not one of {known}; wrap the environment so "
        "that it offers one of these"
    )


def _line(x: Any) -> str:
    """An object or an error on one line; an error's first line, with its kind."""
    if isinstance(x, BaseException):
        return f"{type(x).__name__}: {str(x).partition(chr(10))[0]}"
    return " ".join(repr(x).split())


def _bound(bound: Any) -> Any:
    """A bound as a number, or nested tuples that can be hashed."""
    values = np.asarray(bound, np.float64)
    if np.all(values == values.flat[0]):
        return float(values.flat[0])

    def freeze(x: Any) -> Any:
        return tuple(map(freeze, x)) if isinstance(x, list) else x

    return freeze(values.tolist())


def _check_contract(made: GymnaxEnvironment) -> None:
    """That reset and step agree in structure, so that a scan can carry the state."""

    def one_step(key: jax.Array) -> Any:
        state, obs = made.reset(key)
        action = zeros(made.action_space, (1,))
        next_state, step = made.step(key, state, action)
        return (state, obs, obs), (next_state, step.obs, step.final_observation)

    try:
        before, after = jax.eval_shape(one_step, jax.random.split(jax.random.key(0), 1))
    except Exception as error:  # an environment may raise anything while it is traced
        raise ConfigError(
            f"env.name={made.name}: does not step under jax with an action of its space "
            f"{made.action_space}: {_line(error)}; it has to follow gymnax's six-value contract"
        ) from error
    for what, one, other in zip(
        ("state", "observation", "final_observation"), before, after, strict=True
    ):
        if _form(one) != _form(other):
            raise ConfigError(
                f"env.name={made.name}: {what} after a step is {_form(other)}, after reset "
                f"{_form(one)}; both have to have one structure, shape and data type"
            )


def _form(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: (x.shape, x.dtype.name), tree)
