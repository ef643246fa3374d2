"""Errors in a user's code: one line that names the user's own line, and what to write instead."""

import json
from pathlib import Path
from typing import Any

import broken_code
import pytest
from conftest import small_config

from jaxppo.config.messages import where
from jaxppo.envs import contract
from jaxppo.runtime.run import jobs

LAYER = {"_target_": "broken_code.Layer"}
CODE: dict[str, tuple[dict[str, Any], str]] = {  # whose code -> settings, and part of the way out
    "Env": ({"env": {"target": "broken_code.Env"}}, "jnp.where"),
    "OfGymnax": ({"env": {"target": "broken_code.OfGymnax"}}, "jax.numpy"),
    "Layer": ({"network__actor_torso": LAYER}, "network.actor_torso"),
    "objective": ({"system__objective": "broken_code.objective"}, "jnp.where(mask"),
    "optimizer": ({"system__optimizer": "broken_code.optimizer"}, ".astype"),
    "player": (
        {
            "env": {"target": "own_games.Nim", "evaluation_opponent": "broken_code.player"},
            "arch__max_eval_steps": 9,
        },
        "jnp.where",
    ),
    "Algorithm": ({"system__algorithm": "broken_code.Algorithm"}, "index arrays of jax.numpy"),
}


def line_of(name: str) -> int:
    lines = Path(broken_code.__file__).read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if line.endswith(f"# {name}"))


@pytest.mark.parametrize("name", CODE)
def test_the_line_that_failed_is_named(name: str) -> None:
    settings, words = CODE[name]
    with pytest.raises(Exception) as error:
        jobs.prepare(small_config(**settings))
    assert f"broken_code.py, line {line_of(name)}" in str(error.value)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_the_line_of_a_simulator_is_named() -> None:
    env = {"library": "gymnasium", "target": "broken_code.OfGymnasium"}
    (found,) = (x for each in contract.check(small_config(env=env).env, 4) for x in each.findings)
    assert f"broken_code.py, line {line_of('OfGymnasium')}" in found


def test_what_jaxppo_raises_itself_has_no_line_of_a_user() -> None:
    error = None
    try:
        json.loads("x")
    except ValueError as caught:
        error = caught.with_traceback(caught.__traceback__ and caught.__traceback__.tb_next)
    assert error is not None
    assert where(error) == ""
    assert where(error.with_traceback(None)) == ""
