"""A stranger's run directory executes nothing and writes nowhere else, whatever its files hold."""

import copy
import dataclasses
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli import CARTPOLE
from conftest import refused, small_config
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf
from runs import coin

import jaxppo
from jaxppo import report
from jaxppo.config.fields import ConfigError
from jaxppo.config.parse import parse
from jaxppo.config.stored import plain, read_config
from jaxppo.config.trust import check_trust, remember
from jaxppo.launch.command_line import main
from jaxppo.runtime.run import loop
from jaxppo.runtime.store import checkpoint
from jaxppo.runtime.store.checkpoint import CheckpointError
from jaxppo.runtime.store.directories import check_tree

OF_RUN = [*CARTPOLE, "hydra.run.dir=run", "checkpoint.share=1", "arch.absolute_metric=false"]
EVIL = "from pathlib import Path\nPath(__file__).with_name('pwned').touch()\n"
TAG = '!!python/object/apply:os.system ["touch pwned"]\n'


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, made as a person makes it, in the same process."""
    place, before, typed = tmp_path_factory.mktemp("original"), Path.cwd(), sys.argv
    os.chdir(place)
    try:
        GlobalHydra.instance().clear()
        sys.argv = ["ff_ppo.py", *OF_RUN, "logger.console=false", "arch.compile_cache=null"]
        main("ff_ppo", loop.run)
    finally:
        GlobalHydra.instance().clear()
        sys.argv = typed
        os.chdir(before)
    return place / "run"


@pytest.fixture
def run_dir(original: Path, cwd: Path) -> Path:
    """A copy of it below the working directory, beside a module that must not be imported."""
    shutil.copytree(original, cwd / "run")
    (cwd / "evil.py").write_text(EVIL)
    return cwd / "run"


def files_of(folder: Path) -> list[str]:
    found = [path for path in folder.rglob("*") if path.is_file()]
    return sorted(str(path.relative_to(folder)) for path in found)


def assert_clean(cwd: Path, victim: str = "") -> None:
    """Nothing was executed, and what lies outside of the run is as it was."""
    assert sorted(path.name for path in cwd.iterdir()) == sorted(
        ["evil.py", "run", *([victim] if victim else [])]
    )
    if victim:
        assert (cwd / victim).read_text() == "precious"


@pytest.mark.long
def test_no_file_can_be_a_link_or_a_pipe(launch: Any, run_dir: Path, cwd: Path) -> None:
    """Through a link a lock, a log or a picture would be written elsewhere; a pipe hangs."""
    (cwd / "precious").write_text("precious")
    names = files_of(run_dir)
    (stored, *_) = (name for name in names if name.startswith("checkpoints/"))
    for name in ("config.yaml", "metrics.jsonl", ".lock", ".hydra/overrides.yaml", stored):
        kept = (run_dir / name).read_bytes()
        (run_dir / name).unlink()
        (run_dir / name).symlink_to(cwd / "precious")
        with pytest.raises(ConfigError, match=f"{name} is a link to {cwd}/precious"):
            check_tree("resume", run_dir)
        (run_dir / name).unlink()
        os.mkfifo(run_dir / name)
        with pytest.raises(ConfigError, match=f"{name} is neither a file nor a directory"):
            check_tree("resume", run_dir)
        (run_dir / name).unlink()
        (run_dir / name).write_bytes(kept)
    (run_dir / "inside.txt").symlink_to(run_dir / "config.yaml")
    check_tree("resume", run_dir)
    (run_dir / "inside.txt").unlink()
    (run_dir / "wandb").symlink_to(cwd)
    assert "wandb is a link to" in launch("resume=run").err
    with pytest.raises(ConfigError, match="wandb is a link to"):
        loop.run(parse(read_config(run_dir)), run_dir, resume=True)
    (run_dir / "wandb").unlink()
    assert_clean(cwd, "precious")
    assert files_of(run_dir) == names


def change_config(run_dir: Path, changes: dict[str, Any]) -> None:
    """Settings as a stranger would write them, with the SHA-256 that belongs to them."""
    settings = copy.deepcopy(read_config(run_dir))
    for key, value in changes.items():
        group, _, name = key.partition(".")
        settings[group][name] = value
    text = OmegaConf.to_yaml(OmegaConf.create(settings))
    seal = f"# SHA-256 of the lines below: {hashlib.sha256(text.encode()).hexdigest()}"
    (run_dir / "config.yaml").write_text(f"{seal}\n{text}")


@pytest.mark.long
def test_what_belongs_to_a_machine_is_not_taken_from_a_run(
    launch: Any, run_dir: Path, cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is anything of Hydra's: with all of that turned hostile, the run goes on as it would."""
    change_config(
        run_dir,
        {
            "arch.compile_cache": "cache_of_a_stranger",
            "arch.profile": "profile_of_a_stranger",
            "logger.sinks": [{"_target_": "evil.Sink"}],
            "logger.wandb": True,
            "logger.wandb_entity": "stranger",
        },
    )
    lines = ["hydra.searchpath=[pkg://evil]", "env.target=evil.Env", "hydra/launcher=evil", TAG]
    (run_dir / ".hydra" / "overrides.yaml").write_text("".join(f"- {x}\n" for x in lines[:3]))
    (run_dir / ".hydra" / "hydra.yaml").write_text(f"hydra: {TAG}")
    (run_dir / ".hydra" / "config.yaml").write_text(TAG)
    (run_dir / "checkpoints" / "x.pinned").touch()
    (run_dir / "summary.json").write_text(TAG)
    outcome = launch("resume=run", run=loop.run)
    assert outcome.status == 0, outcome.err
    assert [line.partition(" is not")[0] for line in outcome.err.splitlines()] == [
        "resume=run: logger.wandb", "resume=run: logger.sinks",
    ]  # fmt: skip
    assert json.loads((run_dir / "summary.json").read_text())["status"] == "finished"
    assert_clean(cwd)
    assert "evil" not in (run_dir / "config.yaml").read_text()
    composed = "hydra: {job: {config_name: ff_ppo}, runtime: {choices: {}}}"
    (run_dir / ".hydra" / "hydra.yaml").write_text(composed)
    monkeypatch.setattr(sys, "argv", ["report", "run", "out=run/page"])
    report.main()
    assert "searchpath" not in (run_dir / "page" / "index.html").read_text()
    assert_clean(cwd)


def layer(target: str, **arguments: Any) -> dict[str, Any]:
    return {"actor_torso": {"_target_": target, **arguments}}


ATTACKS: dict[str, tuple[str, dict[str, Any], str]] = {
    "a class of the environment": ("env", {"target": "evil.Env"}, "env.target=evil.Env"),
    "a module": ("env", {"module": "evil"}, "env.module=evil"),
    "an objective": ("system", {"objective": "evil.loss"}, "system.objective=evil.loss"),
    "an algorithm": ("system", {"algorithm": "evil.Alg"}, "system.algorithm=evil.Alg"),
    "a function of jaxppo as an algorithm": (
        "system", {"algorithm": "jaxppo.envs.registered"}, "=jaxppo.envs.registered",
    ),
    "a class of another package": (
        "system", {"algorithm": "subprocess.Popen"}, "=subprocess.Popen",
    ),
    "a layer": ("network", layer("os.system", command="touch pwned"), "=os.system"),
    "what is not there": ("network", layer("jaxppo.networks.nosuch.Evil"), "nosuch.Evil"),
    "a function of jaxppo that imports": (
        "network", layer("jaxppo.envs.registered", library="evil"), "=jaxppo.envs.registered",
    ),
    "what a trusted module imported": (
        "network", layer("jaxppo.networks.torsos.jnp.save", file="x"), "torsos.jnp.save",
    ),
    "jaxppo outside of algorithms, environments and networks": (
        "network", layer("jaxppo.runtime.store.checkpoint._remove", path="x"), "._remove",
    ),
    "inside a layer": (
        "network",
        layer("jaxppo.networks.torsos.MLP", layer_sizes=[{"_target_": "os.system"}]),
        "=os.system",
    ),
    "a name that begins like a trusted one": ("network", layer("optaxes.run"), "=optaxes.run"),
    "an argument of an environment": (
        "env", {"kwargs": {"x": {"_target_": "evil.run"}}}, "=evil.run",
    ),
    "what is looked up": ("env", {"kwargs": {"x": "${oc.env:HOME}"}}, "must not contain ${"),
    "a name that is looked up": ("env", {"kwargs": {"${oc.env:X}": 1}}, "must not contain ${"),
}  # fmt: skip


@pytest.mark.long
def test_what_this_user_has_trained_with_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same settings, wherever the directory is; not others, and not to another user."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "mine"))
    config = coin(absolute_metric=False, num_updates=2, num_evaluation=1)
    jaxppo.train(config, run_dir=tmp_path / "run", progress=False)
    (tmp_path / "run").rename(tmp_path / "moved")
    jaxppo.load(tmp_path / "moved", env={"kwargs": {}})
    more = {"arch.num_updates": 4}
    jaxppo.train(more, resume=tmp_path / "moved", progress=False)
    other = plain(dataclasses.replace(config, env=dataclasses.replace(config.env, params={"x": 1})))
    with pytest.raises(ConfigError, match=r"env\.target=envs\.Coin"):
        check_trust(other, [])
    for elsewhere in ({"target": "own_games.Box"}, {"opponent": "own_games.Discrete"}):
        with pytest.raises(ConfigError, match=r"own_games\."):
            check_trust({"env": elsewhere}, [])
        remember({"env": elsewhere})  # where it is named, and not where it is defined
        check_trust({"env": elsewhere}, [])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    with pytest.raises(ConfigError, match=r"env\.target=envs\.Coin"):
        jaxppo.load(tmp_path / "moved")
    monkeypatch.setenv("JAXPPO_TRUST", "other,envs")
    jaxppo.load(tmp_path / "moved")


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_a_stored_run_may_not_name_is_refused(attack: str) -> None:
    group, changes, words = ATTACKS[attack]
    settings = plain(small_config(env={"target": None, "name": "CartPole-v1"}))
    check_trust(settings, [])
    settings["system"]["optimizer"] = "optax.adabelief"
    check_trust(settings, [])
    settings[group] |= changes
    with refused(re.escape(words)):
        check_trust(settings, [])
    assert "evil" not in sys.modules


def test_settings_of_a_stranger_execute_nothing(launch: Any, run_dir: Path, cwd: Path) -> None:
    change_config(run_dir, {"system.algorithm": "evil.Algorithm"})
    outcome = launch("resume=run")
    assert (outcome.status, outcome.out) == (2, "")
    assert "system.algorithm=evil.Algorithm" in outcome.err
    assert len(outcome.err.splitlines()) == 1
    assert_clean(cwd)


TEXTS: dict[str, Callable[[str], str]] = {
    "a tag of Python": lambda text: TAG + text,
    "a changed number": lambda text: text.replace("gamma: 0.98", "gamma: 0.99"),
    "zeros": lambda text: "\0" * 100,
    "no line of its SHA-256": lambda text: text.partition("\n")[2],
}


@pytest.mark.parametrize("damage", TEXTS)
def test_settings_that_are_damaged_are_named(
    launch: Any, run_dir: Path, cwd: Path, damage: str
) -> None:
    file = run_dir / "config.yaml"
    file.write_text(TEXTS[damage](file.read_text()))
    outcome = launch("resume=run")
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.startswith("run/config.yaml: ")
    assert "SHA-256" in outcome.err
    assert len(outcome.err.splitlines()) == 1
    assert_clean(cwd)


def change_manifest(run_dir: Path, **changes: Any) -> None:
    """Facts of the newest checkpoint as a stranger would write them, under their SHA-256."""
    file = sorted(run_dir.glob("checkpoints/*/manifest.json"))[-1]
    facts = {**json.loads(file.read_text()), **changes}
    file.write_text(checkpoint.sealed({k: v for k, v in facts.items() if k != "sha256"}))


FACTS: dict[str, dict[str, Any]] = {
    "blocks": {"block": -1},
    "text for a number": {"seconds": "9"},
    "no members": {"members": []},
    "a member with more to say": {"members": [{"config": "evil"}]},
    "slots of nobody": {"slots": [7]},
    "shards": {"shards": [0, 0]},
    "too many shards": {"shards": [4, 100]},
    "numbers": {"numbers": {"actor_lr": ["evil"]}},
    "numbers of others": {"numbers": {"__class__": [1.0]}},
    "positions": {"positions": {".": "evil"}},
    "lengths of blocks": {"updates_per_block": ["evil"]},
    "speeds": {"speeds": "evil"},
}


@pytest.mark.long_but(4)
@pytest.mark.parametrize("attack", FACTS)
def test_facts_of_a_stranger_are_checked(
    run_dir: Path, cwd: Path, monkeypatch: pytest.MonkeyPatch, attack: str
) -> None:
    """Before anything is written, and without a traceback of Python."""
    change_manifest(run_dir, **FACTS[attack])
    before = {name: (run_dir / name).read_bytes() for name in files_of(run_dir)}
    settings = parse(read_config(run_dir))
    with refused(".", (CheckpointError, ConfigError)):
        loop.run(settings, run_dir, resume=True)
    after = {name: (run_dir / name).read_bytes() for name in files_of(run_dir)}
    assert {k: v for k, v in after.items() if k != ".lock"} == {
        k: v for k, v in before.items() if k != ".lock"
    }


def test_policies_of_a_stranger_import_nothing(run_dir: Path, cwd: Path) -> None:
    """The settings of a policy are those of its checkpoint."""
    settings = json.loads(next(run_dir.glob("checkpoints/*/manifest.json")).read_text())["config"]
    settings["env"] |= {"target": "evil.Env"}
    change_manifest(run_dir, config=settings)
    with pytest.raises(ConfigError, match=r"env\.target=evil\.Env.*trust=\[evil\]"):
        jaxppo.load(run_dir)
    settings["env"] |= {"target": None}
    for key in ("algorithm", "objective"):
        hostile = {**settings, "system": {**settings["system"], key: "evil.Class"}}
        change_manifest(run_dir, config=hostile)
        with pytest.raises(ConfigError, match=rf"system\.{key}=evil\.Class.*trust=\[evil\]"):
            jaxppo.load(run_dir)
    for key in ("opponent", "evaluation_opponent"):
        for value, home in (("evil.player", "evil"), ("baseline", "pgx")):
            hostile = {**settings, "env": {**settings["env"], key: value}}
            change_manifest(run_dir, config=hostile)
            with pytest.raises(ConfigError, match=rf"env\.{key}=.*trust=\[{home}\]"):
                jaxppo.load(run_dir)
    settings["env"] |= {"params": {"gravity": "${oc.env:HOME}"}}
    change_manifest(run_dir, config=settings)
    with pytest.raises(ConfigError, match="must not contain"):
        jaxppo.load(run_dir)
    assert_clean(cwd)


def test_arrays_that_are_not_those_of_the_manifest_are_not_read(run_dir: Path, cwd: Path) -> None:
    newest = sorted(run_dir.glob("checkpoints/*"))[-1]
    for file in (file for file in (newest / "arrays").rglob("*") if file.is_file()):
        kept = file.read_bytes()
        file.write_bytes(b"\x80\x04cos\nsystem\n(S'touch pwned'\ntR.")
        with pytest.raises(CheckpointError, match="SHA-256 differs"):
            checkpoint.read(newest)
        file.write_bytes(kept)
    checkpoint.read(newest)
    assert_clean(cwd)


LOGS: dict[str, Callable[[bytes], bytes]] = {
    "half": lambda data: data[: len(data) // 2],
    "zeros at its end": lambda data: data[: len(data) // 2].ljust(len(data), b"\0"),
    "another order": lambda data: data.replace(b'"event"', b'"evnet"', 1),
}


@pytest.mark.long
@pytest.mark.parametrize("damage", LOGS)
def test_a_log_that_is_not_what_the_checkpoint_knows_is_refused(run_dir: Path, damage: str) -> None:
    """And not filled up with zero bytes; who wants to goes on with a gap."""
    log = run_dir / "metrics.jsonl"
    log.write_bytes(LOGS[damage](log.read_bytes()))
    damaged = log.read_bytes()
    settings = parse(read_config(run_dir))
    quiet = dataclasses.replace(settings.logger, console=False, plot=False)
    settings = dataclasses.replace(settings, logger=quiet)
    for _ in range(2):  # a refusal changes nothing
        with pytest.raises(ConfigError, match=r"metrics\.jsonl .*'resume_allow=\[log\]'"):
            loop.run(settings, run_dir, resume=True)
        assert log.read_bytes() == damaged
    if damage == "zeros at its end":
        allowed = dataclasses.replace(settings, resume_allow=["log"])
        assert np.isfinite(loop.run(allowed, run_dir, resume=True))
        assert b"\0" not in log.read_bytes()
        for line in log.read_text().splitlines():
            assert json.loads(line)["event"]


def test_a_log_that_is_lost_is_refused(run_dir: Path) -> None:
    (run_dir / "metrics.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"metrics\.jsonl has 0 bytes"):
        loop.run(parse(read_config(run_dir)), run_dir, resume=True)
    assert not (run_dir / "metrics.jsonl").exists()
