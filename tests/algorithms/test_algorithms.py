"""An algorithm of a user's own does all that PPO does, without a line of the package changed."""

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from conftest import refused, small_config
from hydra.core.global_hydra import GlobalHydra
from reinforce import Reinforce
from runs import events_of

from jaxppo.config.schema import Config
from jaxppo.launch.composing import compose
from jaxppo.runtime.run.jobs import prepare
from jaxppo.runtime.run.loop import run

pytestmark = pytest.mark.usefixtures("share_programs")

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "algorithms.md").read_text()
QUIET = ["arch.compile_cache=null", "logger.console=false", "logger.plot=false"]
TINY = [
    *("arch.total_num_envs=8", "arch.num_updates=6", "arch.num_evaluation=3"),
    *("arch.num_eval_episodes=4", "system.rollout_length=8"),
]


def block(name: str) -> str:
    """The file of that name that the page has the reader make."""
    return re.findall(rf"^```\w+ {re.escape(name)}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[0]


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("configs")
    (folder / "system").mkdir()
    (folder / "system" / "reinforce.yaml").write_text(block("my_configs/system/reinforce.yaml"))
    return folder


def settings(configs: Path, *overrides: str) -> Config:
    GlobalHydra.instance().clear()
    found = [f"hydra.searchpath=[file://{configs}]", "system=reinforce", *QUIET]
    return compose("ff_ppo", [*found, *overrides])


def test_the_page_shows_the_module_that_is_tested() -> None:
    module = (TESTS / "reinforce.py").read_text()
    assert block("reinforce.py") == module
    assert len(module.splitlines()) <= 80


@pytest.mark.long
def test_it_learns(configs: Path, tmp_path: Path) -> None:
    config = settings(
        configs,
        *("arch.total_num_envs=128", "arch.total_timesteps=300000", "arch.num_evaluation=4"),
        *("arch.num_eval_episodes=32", "env=cartpole"),
    )
    assert config.system.gamma == 0.98  # of the environment's file, whose actor_lr is PPO's
    assert run(config, tmp_path) > 450.0  # of 500; a random policy has 22


@pytest.mark.long
def test_its_hyperparameters_evolve_and_go_on_to_a_larger_budget(
    configs: Path, tmp_path: Path
) -> None:
    bounds = "{policy_lr: [1.0e-4, 1.0e-2], entropy_bonus: [1.0e-4, 0.1]}"
    config = settings(
        configs,
        *TINY,
        *("population=pbt", "population.size=5", f"population.hyperparameters={bounds}"),
    )
    assert set(config.population.hyperparameters) == {"policy_lr", "entropy_bonus"}
    run(config, tmp_path)
    arch = replace(config.arch, num_updates=10, num_evaluation=5)
    run(replace(config, arch=arch), tmp_path, resume=True)
    rates = [e["hyperparameters"]["policy_lr"] for e in events_of(tmp_path, "selection")]
    assert len(rates) > 1
    assert rates[0] != rates[-1]
    assert all(1e-4 <= rate <= 1e-2 for row in rates for rate in row)
    assert events_of(tmp_path, "train")[-1]["steps"] == 640


def with_first(change: Any) -> Any:
    """What changes the first of two results."""
    return lambda found: (change(found[0]), found[1])


def with_second(change: Any) -> Any:
    return lambda found: (found[0], change(found[1]), *found[2:])


BROKEN: list[tuple[str, Any, str]] = [  # a method, what changes its result, and the error
    ("groups", lambda found: dict.fromkeys(found, "nobody"), "groups: .*nobody"),
    ("rates", lambda found: {"policy": found["policy"]}, "rates: .*policy, baseline"),
    ("targets", lambda found: found[:2], "targets: "),
    (
        "targets",
        with_second(lambda x: replace(x, actual=jnp.zeros(3))),
        r"targets: actual is \[3\]",
    ),
    ("loss", lambda found: found[0], "loss: "),
    ("loss", with_first(lambda loss: jnp.full(2, loss)), r"loss: .*\[2\]"),
    ("loss", with_second(vars), "loss: .*LossMetrics"),
    ("loss", with_second(lambda x: replace(x, entropy=jnp.zeros(3))), r"loss: entropy is \[3\]"),
    ("act", lambda found: found.action, "act: .*ActorOutput"),
]


@pytest.mark.long
@pytest.mark.parametrize("method, change, words", BROKEN)
def test_an_algorithm_that_breaks_its_contract_is_named(
    method: str, change: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(Reinforce, method)
    parts = {method: lambda *given: change(real(*given)), "__module__": __name__}
    broken = type("Broken", (Reinforce,), parts)
    monkeypatch.setattr(sys.modules[__name__], "Broken", broken, raising=False)
    config = small_config(system__algorithm="test_algorithms.Broken")
    with refused(rf"^system\.algorithm=test_algorithms\.Broken: {words}"):
        prepare(config)
