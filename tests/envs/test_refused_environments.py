"""Settings of environments that are refused: an error of one line, which names the setting."""

import math
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import spaces

from jaxppo import envs
from jaxppo.config.fields import ConfigError
from jaxppo.config.parse import parse
from jaxppo.config.schema import EnvConfig
from jaxppo.envs.frames import Frames
from jaxppo.types import Box, Discrete, MultiDiscrete


def of(target: str, **settings: Any) -> dict[str, Any]:
    return {"name": None, "target": target, **settings}


def shown(**settings: Any) -> dict[str, Any]:
    return of("envs.Shown", **settings)


def drawn(**bounds: Any) -> dict[str, Any]:
    return shown(randomize=bounds)


def moving(entry: Any, **settings: Any) -> dict[str, Any]:
    return shown(curriculum={"weight": entry}, **settings)


def acts(space: Any) -> dict[str, Any]:
    return of("envs.Takes", kwargs={"space": space})


def given(**part: Any) -> dict[str, Any]:
    return of("own_envs.Given", kwargs=part)


START = {"start": 5, "end": 9}
NAMES: list[tuple[dict[str, Any], str]] = [
    (
        {"name": "CartPoel-v1"},
        "env.name=CartPoel-v1: no such gymnax environment; the nearest: CartPole-v1",
    ),
    ({"name": None}, "env.target"),
    ({"module": "no_such_module"}, "env.module=no_such_module"),
    ({"kwargs": {"rows": 3}}, "env.kwargs={'rows': 3}"),
    ({"resets": "cached"}, "env.resets=cached"),
    (
        {"extras": ["step", "last_obs"]},
        "env.extras=[step, last_obs]: the observation of CartPole-v1 can have last_action, "
        "last_reward, step, agent",
    ),
    ({"mask": [4]}, "env.mask=[4]"),
    ({"name": "Breakout-MinAtar", "mask": [1]}, "env.mask=[1]"),
    ({"action_mask": "legal"}, "env.action_mask=legal: the observation of CartPole-v1"),
    (of("envs.Echo", mask=[0]), "env.mask=[0]"),
    (of("envs.Nothing"), "env.target=envs.Nothing"),
    (of("nowhere.Env"), "env.target=nowhere"),
    (of("envs.Params"), "envs.Params"),
    (of("envs.Remote"), "envs.Remote"),
    (of("envs.Misled"), "action of its space {'move'"),
    (of("envs.Counted", extras=["step"]), "env.extras=[step]"),
    (of("envs.Masked", action_mask="legal"), "(it has observation, action_mask)"),
    (of("jaxppo.envs.t_maze.TMaze", kwargs={"delay": 0}), "delay=0"),
    (of("own_envs.Count", params={"x": 1}), "env.params={'x': 1}"),
    (of("own_envs.Count", kwargs={"x": 1}), "env.kwargs={'x': 1}"),
    (of("envs.Shown", kwargs={"weight": 3.0}), "env.params.weight=3.0"),
    ({"kwargs": {"gravity": 3.0}}, "env.params.gravity=3.0"),
    (of("broken_envs.Forgets", resets="optimistic"), "env.resets=optimistic"),
    (of("broken_envs.Shape"), "env"),
    ({"gymnax_legacy": True}, "env.target"),
    (of("own_envs.Count", gymnax_legacy=True), "gymnax's interface"),
    (of("old_envs.Wrapper", gymnax_legacy=True), "no step_env"),
]
PARAMS: list[tuple[dict[str, Any], str]] = [
    ({"params": {"gravitty": 1}}, "env.params.gravitty"),
    (shown(params={"weigth": 1}), "mean env.params.weight?"),
    (shown(params={"gravity": 1}), "max_steps_in_episode, terminates, weight, count, loud"),
    ({"params": {"gravity": "x"}}, "env.params.gravity=x"),
    ({"params": {"gravity": math.nan}}, "env.params.gravity=nan"),
    ({"params": {"max_steps_in_episode": True}}, "env.params.max_steps_in_episode=True"),
    ({"params": {"max_steps_in_episode": 0}}, "env.params.max_steps_in_episode=0"),
    (shown(params={"count": 2.5}), "env.params.count=2.5"),
    (shown(params={"loud": 1}), "env.params.loud=1"),
    (drawn(wieght=[1, 2]), "env.randomize.wieght"),
    (drawn(weight=3), "env.randomize.weight=3"),
    (drawn(weight=[0.0, math.inf]), "env.randomize.weight=inf"),
    (drawn(weight=[3, 2]), "env.randomize.weight=[3, 2]"),
    (drawn(count=[1.5, 3]), "env.randomize.count=1.5"),
    (drawn(loud=[0, 1]), "env.randomize.loud"),
    (drawn(max_steps_in_episode=[1, 9]), "env.randomize.max_steps_in_episode"),
    ({**drawn(weight=[1, 2]), "params": {"weight": 3.0}}, "env.params.weight=3.0"),
    ({**drawn(weight=[1, 2]), "resets": "cached"}, "env.resets=cached"),
    (
        {**drawn(weight=[1, 2]), "randomize_per": "environment", "resets": "optimistic"},
        "env.randomize_per=environment",
    ),
    (moving(START, params={"weight": 3.0}), "env.params.weight=3.0"),
    (moving(START, randomize={"weight": [8, 12]}), "env.curriculum.weight={"),
    (moving({"start": 3}), "env.curriculum.weight={"),
    (moving(3), "env.curriculum.weight=3"),
    (moving({**START, "share": 2}), "env.curriculum.weight.share=2.0"),
    (shown(curriculum={"wait": START}), "env.curriculum.wait"),
    ({"name": "DeepSea-bsuite", "randomize": {"unscaled_move_cost": [0, 1]}}, "env.randomize"),
    ({"name": "Acrobot-v1", "randomize": {"available_torque": [1, 2]}}, "available_torque"),
    (of("own_envs.Count", randomize={"weight": [1, 2]}), "env.randomize={'weight': [1, 2]}"),
    (of("envs.Sized", randomize={"num_values": [1, 2]}), "envs.Sized"),
]
SPACES: list[tuple[dict[str, Any], str]] = [
    (acts(spaces.Box(1, 3, (2,), jnp.int32)), "start at 0"),
    (acts(SimpleNamespace(nvec=np.array([3]), start=np.array([1]))), "start at 0"),
    (acts(spaces.Box(0, jnp.inf, (2,), jnp.int32)), "finite high"),
    (acts(spaces.Box(jnp.zeros(3), 1.0, (2,))), "envs.Takes"),
    (acts([spaces.Discrete(2)]), "action space"),
    (acts(Discrete(3, start=1)), "start=1"),
    (acts({"a": Discrete(3), "b": spaces.Discrete(2)}), "action space"),
    (given(observation_space=Box((2,), "flot32")), "dtype='flot32'"),
    (given(observation_space=Box((-2,), "float32")), "Box(shape=(-2,), "),
    (given(observation_space=[Box((2,), "float32")]), "observation_space is [Box("),
    (given(action_space=MultiDiscrete((2, 3), 2)), "shape=2)"),  # type: ignore[arg-type]
    (given(action_space=MultiDiscrete(3, (1,))), "num_values"),  # type: ignore[arg-type]
    (given(action_space={"a": Box((), "float64")}), "action_space"),
    (given(action_space=Discrete(2.0)), "num_values=2.0"),  # type: ignore[arg-type]
    (given(time_limit=True), "time_limit=True"),
    (given(time_limit=jnp.int32(5)), "time_limit=Array(5"),
]


@pytest.mark.parametrize("settings, key", [*NAMES, *PARAMS, *SPACES])
def test_what_cannot_be_made_is_refused_in_one_line(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as error:
        envs.make(EnvConfig(**settings))
    assert key in str(error.value)
    assert "\n" not in str(error.value)


def test_what_cannot_be_stacked_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"env\.frame_stack=0"):
        parse({"env": {"frame_stack": 0}})
    one: Any = SimpleNamespace(name="one", observation_space=Discrete(3))
    with pytest.raises(ConfigError, match=r"env\.frame_stack=2"):
        Frames(one, 2, None)
