"""Wrong settings of what is around a run: each is refused in one line that names the key."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import refused, small_config

from jaxppo import render, report
from jaxppo.config.importing import is_installed
from jaxppo.extras.chips import targets
from jaxppo.extras.tuning import tune
from jaxppo.runtime.hosts import devices
from jaxppo.runtime.run import loop
from jaxppo.runtime.run.jobs import prepare


class NoClose:
    def __init__(self, run_dir: Path) -> None: ...

    def write(self, event: dict[str, Any]) -> None: ...


class Asks(NoClose):
    def __init__(self, run_dir: Path, where: str) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize(
    "module, arguments, key",
    [
        (render, ["episodes=4"], "run="),
        (render, ["run=.", "episodes=0"], "episodes=0"),
        (render, ["run=.", "frames=3"], "max_frames"),
        (render, ["run=.", "env=acrobot"], "write env.KEY=VALUE"),
        (render, ["run=.", "system.gamma=0.5"], "system.gamma: no such key"),
        (report, ["nowhere"], "nowhere"),
        (report, ["out=x"], "DIR"),
        (report, ["oot=x", "."], "did you mean out"),
    ],
)
def test_a_command_ends_with_status_2(
    module: Any, arguments: list[str], key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["command", *arguments])
    with pytest.raises(SystemExit) as stopped:
        module.main()
    error = capsys.readouterr().err
    assert (stopped.value.code, error.count("\n")) == (2, 1)
    assert key in error


@pytest.mark.parametrize(
    "arguments, key",
    [
        (["budget=1e3"], "budget=1000"),
        (["buget=1e6"], "did you mean budget?"),
        (["seeds=1"], "seeds=1"),
        (["name=a/b"], "name=a/b"),
        (["env=cartpole", "name=cartpole"], "name=cartpole"),
        (["arch.num_seeds=4"], "arch.num_seeds=4"),
        (["arch.absolute_metric=false"], "arch.absolute_metric=false"),
        (["population=pbt"], "population"),
        (["network/torso@network.critic_torso=mlp"], "network=NAME"),
    ],
)
def test_a_search_is_refused_before_anything_is_written(
    arguments: list[str], key: str, tmp_path: Path
) -> None:
    with refused(re.escape(key)):
        tune([*arguments, f"out={tmp_path / 'out'}"])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "sink, word",
    [
        ({"_target_": "no_such_module.Sink"}, "ModuleNotFoundError"),
        ({"_target_": "test_mistakes.Nothing"}, "Nothing"),
        ({"_target_": "test_mistakes.Asks"}, "where"),
        ({"_target_": "test_mistakes.NoClose"}, "close"),
        ({"_target_": "Best"}, "_target_"),
    ],
)
def test_a_sink_is_refused_before_anything_compiles(
    tmp_path: Path, sink: dict[str, Any], word: str
) -> None:
    with refused(rf"^logger\.sinks.*{word}"):
        loop.run(small_config(logger={"console": False, "plot": False, "sinks": [sink]}), tmp_path)
    assert not (tmp_path / "config.yaml").exists()


@pytest.mark.parametrize(
    "settings, key",
    [
        ({"logger": {"tensorboard": True}}, "logger.tensorboard=true"),
        ({"logger": {"wandb": True}}, "logger.wandb=true"),
        ({"logger": {"marl_eval": True, "json": False}}, "logger.marl_eval=true"),
    ],
)
def test_what_is_not_there_is_named(
    settings: dict[str, Any], key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(devices, "COMPILERS", dict.fromkeys(("gpu", "tpu"), "no_such.module"))
    with refused(f"^{re.escape(key)}"):
        prepare(small_config(**settings))


@pytest.mark.parametrize("target", ["h300", "h200", "h200:x", "h200:0", "h100:12"])
def test_a_chip_that_cannot_be_is_named(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "COMPILERS", dict.fromkeys(("gpu", "tpu"), "no_such.module"))
    with refused(rf"^target={target}: "), targets.compiling(target):
        pass


def test_compilers_refuse_in_one_line() -> None:
    if not all(map(is_installed, devices.COMPILERS.values())):
        pytest.skip("pip install '.[aot-cuda,aot-tpu]'")
    with refused(r"^target=v5e:7x9"):
        targets.devices_of("v5e:7x9")
