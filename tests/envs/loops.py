"""Loops of other libraries over one environment, as their pages write them, without jaxppo.

Those in JAX take the environment's name, its time limit and other arguments. They return
`start(key)`, which gives (state, observation), and `advance(key, state, action)`, which gives
(state, observation, reward, over).
"""

import dataclasses
import importlib
from typing import Any

import jax
import numpy as np

Loop = tuple[Any, Any]


def gymnax(name: str, limit: int, **kwargs: Any) -> Loop:
    library = importlib.import_module("gymnax")
    env, params = library.make(name, **kwargs)
    params = params.replace(max_steps_in_episode=limit)

    def advance(key: jax.Array, state: Any, action: Any) -> Any:
        _, state, reward, terminated, truncated, info = env.step(key, state, action, params)
        return state, info["final_observation"], reward, terminated | truncated

    return lambda key: env.reset(key, params)[::-1], advance


def brax(name: str, limit: int, **kwargs: Any) -> Loop:
    library = importlib.import_module("brax.envs")
    return _of_brax(library.create(name, episode_length=limit, auto_reset=False, **kwargs))


def playground(name: str, limit: int, **kwargs: Any) -> Loop:
    library = importlib.import_module("mujoco_playground")
    env = library.registry.load(name, config_overrides={"impl": "jax", **kwargs})
    wrappers = importlib.import_module("brax.envs.wrappers.training")
    return _of_brax(wrappers.EpisodeWrapper(env, limit, kwargs.get("action_repeat", 1)))


def _of_brax(env: Any) -> Loop:
    def start(key: jax.Array) -> Any:
        state = env.reset(jax.random.key_data(key))
        return state, state.obs

    def advance(key: jax.Array, state: Any, action: Any) -> Any:
        state = env.step(state, action)
        return state, state.obs, state.reward, state.done

    return start, advance


def craftax(name: str, limit: int) -> Loop:
    library = importlib.import_module("craftax.craftax_env")
    env = library.make_craftax_env_from_name(name, auto_reset=False)
    params = env.default_params.replace(max_timesteps=limit)

    def advance(key: jax.Array, state: Any, action: Any) -> Any:
        obs, state, reward, over, _ = env.step(jax.random.split(key)[0], state, action, params)
        return state, obs, reward, over

    return lambda key: env.reset(key, params)[::-1], advance


def jumanji(name: str, limit: int | None, **kwargs: Any) -> Loop:
    env = importlib.import_module("jumanji").make(name, **kwargs)

    def advance(key: jax.Array, state: Any, action: Any) -> Any:
        state, step = env.step(state, action)
        return state, _by_name(step.observation), step.reward, step.last()

    def start(key: jax.Array) -> Any:
        state, step = env.reset(key)
        return state, _by_name(step.observation)

    return start, advance


def _by_name(obs: Any) -> Any:
    """Return named tuples as dicts, without the mask, where jaxppo allows all if nothing is."""
    if not hasattr(obs, "_asdict") and not dataclasses.is_dataclass(obs):
        return obs
    entries = obs._asdict() if hasattr(obs, "_asdict") else vars(obs)
    return {key: _by_name(x) for key, x in entries.items() if key != "action_mask"}


def navix(name: str, limit: int, **kwargs: Any) -> Loop:
    env = importlib.import_module("navix").make(name, max_steps=limit, **kwargs)

    def seen(step: Any) -> Any:
        return step, step.observation

    def advance(key: jax.Array, state: Any, action: Any) -> Any:
        step = env.step(state, action)
        return *seen(step), step.reward, step.is_done()

    return lambda key: seen(env.reset(key)), advance


def xminigrid(name: str, limit: int, **kwargs: Any) -> Loop:
    env, params = importlib.import_module("xminigrid").make(name, max_steps=limit, **kwargs)

    def advance(key: jax.Array, state: Any, action: Any) -> Any:
        step = env.step(params, state, action)
        return step, step.observation, step.reward, step.last()

    def start(key: jax.Array) -> Any:
        step = env.reset(params, key)
        return step, step.observation

    return start, advance


def pgx(name: str, limit: None) -> Loop:
    """Of a game for one player."""
    env = importlib.import_module("pgx").make(name)

    def seen(state: Any) -> Any:
        return state, {"observation": state.observation}

    def advance(key: jax.Array, state: Any, action: Any) -> Any:
        key = jax.random.split(jax.random.split(key)[0])[0]
        state = env.step(state, action, key)
        return *seen(state), state.rewards[0], state.terminated | state.truncated

    return lambda key: seen(env.init(jax.random.split(key)[0])), advance


def fixed(space: Any, number: int) -> Any:
    """Return the action with a number."""
    draw, shape = np.random.default_rng(number), getattr(space, "shape", ())
    if hasattr(space, "low"):
        return draw.uniform(-1, 1, shape).astype(np.float32)
    return draw.integers(0, np.reshape(space.num_values, shape)).astype(np.int32)


Step = tuple[Any, float, bool, bool, Any]  # final observation, reward, ends, next observation


def gymnasium(name: str, seed: int, actions: Any, **kwargs: Any) -> list[Step]:
    """Return the steps that Gymnasium takes by `actions` `[T, A...]`, over several episodes."""
    env = importlib.import_module("gymnasium").make(name, **kwargs)
    obs, _ = env.reset(seed=seed)
    steps = []
    for action in actions:
        final, reward, terminated, truncated, _ = env.step(action)
        obs = env.reset()[0] if terminated or truncated else final
        steps.append((final, reward, terminated, truncated, obs))
    return steps


def envpool(name: str, seed: int, actions: Any, **kwargs: Any) -> list[Step]:
    """Return the steps of a pool of one environment, which starts an episode after each end."""
    pool = importlib.import_module("envpool").make_gymnasium(
        name, num_envs=1, seed=[seed], **kwargs
    )
    pool.reset()
    steps = []
    for action in actions:
        final, reward, terminated, truncated, _ = pool.step(action[None])
        obs = pool.step(action[None])[0] if terminated[0] or truncated[0] else final
        steps.append((final[0], reward[0], terminated[0], truncated[0], obs[0]))
    return steps
