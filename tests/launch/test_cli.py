"""The command line as a person meets it: runs, resumed runs, sweeps and output that is gone."""

import contextlib
import dataclasses
import fcntl
import functools
import importlib.metadata
import importlib.util
import json
import math
import os
import pty
import re
import runpy
import shlex
import shutil
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnax.registration
import jax
import jax.numpy as jnp
import pytest
from cli import BY_ID, CARTPOLE, ROOT, SMALL, Outcome
from hydra.core.override_parser.overrides_parser import OverridesParser
from killing import Killed
from omegaconf import OmegaConf
from runs import assert_equal, coin

import jaxppo
from jaxppo import __main__
from jaxppo.config.fields import MAX_FLOAT, ConfigError, as_argument, as_override, quoted
from jaxppo.config.schema import Config
from jaxppo.config.stored import keep_config
from jaxppo.deploy.evaluation import Evaluation
from jaxppo.deploy.export import Export
from jaxppo.extras.films import Rendering
from jaxppo.extras.report import Reporting
from jaxppo.extras.tournament import Tournament
from jaxppo.extras.tuning import split
from jaxppo.launch import command_line, composing, sweeping
from jaxppo.launch.composing import compose
from jaxppo.launch.continuing import continue_sweep
from jaxppo.launch.errors import explain
from jaxppo.launch.resuming import compose_run, resume_overrides, resumed_here
from jaxppo.runtime.run.compiling import TooLargeError
from jaxppo.runtime.run.jobs import Job, TrainingError
from jaxppo.runtime.store.directories import only_run_in
from jaxppo.runtime.store.progress import CALL_SECONDS, Pace


def in_a_terminal(arguments: list[str], cwd: Path, env: dict[str, str]) -> Outcome:
    """What a command ends with whose standard output is a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    command = [sys.executable, "-m", "jaxppo.ff_ppo", *arguments]
    received = b""
    with subprocess.Popen(
        command, cwd=cwd, env=env, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, text=True
    ) as process:
        os.close(theirs)
        with contextlib.suppress(OSError):  # the end of a terminal is an error on Linux
            while chunk := os.read(ours, 4096):
                received += chunk
        err = process.communicate()[1]
    os.close(ours)
    return Outcome(process.returncode, received.decode(), err)


def events(run_dir: Path) -> list[dict[str, Any]]:
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(x).items() if k != "steps_per_second"} for x in lines]


def summary(run_dir: Path) -> dict[str, Any]:
    return dict(json.loads((run_dir / "summary.json").read_text()))


@pytest.mark.long
def test_a_run_from_an_empty_directory_and_its_resume(
    command: Any, shell: dict[str, str], cwd: Path, home: Path
) -> None:
    """The whole way, as a person types it."""
    shell = {name: v for name, v in shell.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    more = ["arch.evaluate_first=true", "checkpoint.share=1", "arch.compiler=quick"]
    more += ["system.critic_lr=${system.actor_lr}", "hydra.run.dir=run"]
    outcome = in_a_terminal([*CARTPOLE, *more], cwd, shell)
    assert (outcome.status, outcome.err) == (0, "")
    assert "\x1b[2K" in outcome.out, "no progress was ever drawn again"
    run_dir = cwd / "run"
    assert {path.name for path in run_dir.iterdir()} == {
        *(".hydra", ".lock", "checkpoints", "config.yaml"),
        *("learning_curve.png", "metrics.jsonl", "summary.json"),
    }
    config = OmegaConf.load(run_dir / "config.yaml")
    assert (config.env.name, config.arch.num_updates) == ("CartPole-v1", 2)
    assert config.system.critic_lr == config.system.actor_lr

    found = events(run_dir)
    assert [(event["event"], event["steps"]) for event in found[:5]] == [
        ("eval", 0), ("train", 32), ("eval", 32), ("train", 64), ("eval", 64),
    ]  # fmt: skip
    (absolute,) = found[5:]
    best = max(found[2:5:2], key=lambda event: event["episode_return"])
    assert (absolute["event"], absolute["steps"]) == ("absolute", best["steps"])
    assert [event["episodes"] for event in found if event["event"] != "train"] == [2, 2, 2, 20]
    assert [event["seconds"] for event in found] == sorted(event["seconds"] for event in found)
    end = summary(run_dir)
    assert (end["status"], end["steps"]) == ("finished", 64)
    assert end["absolute_metric"] == absolute["episode_return"]
    assert end["versions"]["jax"] == importlib.metadata.version("jax")
    assert (end["best_episode_return"], end["best_steps"]) == (
        best["episode_return"], best["steps"],
    )  # fmt: skip
    last = found[4]["episode_return"]
    assert end["final_return"] == absolute["final_return"] == last
    assert f"{absolute['episode_return']:.2f}" in outcome.out
    assert f"final policy: {last:.2f}" in outcome.out
    assert list((home / ".cache" / "jaxppo").iterdir()), "no compiled program was kept"

    manifest = run_dir / "checkpoints" / f"{64:012}" / "manifest.json"
    manifest.write_text(manifest.read_text()[:200])  # as a full disk might leave it
    (run_dir / "summary.json").unlink()
    outcome = command("resume=run")
    assert (outcome.status, outcome.err) == (0, "")
    assert "manifest.json cannot be read" in outcome.out
    for one, other in zip(events(run_dir), found, strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}
    assert summary(run_dir)["absolute_metric"] == end["absolute_metric"]


def test_calls_of_a_long_block_grow_to_a_fixed_duration() -> None:
    """So that a signal is answered soon, though a block of 5e9 steps takes hours."""
    pace, counts = Pace(), []
    for _ in range(12):
        counts.append(pace.updates(10**6))
        pace.took(counts[-1], counts[-1] * CALL_SECONDS / 1000)
    assert counts[:5] == [1, 4, 16, 64, 256]
    assert counts[5:] == [1000] * 7
    assert pace.updates(7) == 7
    pace.took(1000, 10 * CALL_SECONDS)
    assert pace.updates(10**6) == 100


@pytest.mark.long
def test_a_sweep_over_seeds_trains_each_until_a_reward_turns_nan(
    launch: Any, shell: dict[str, str], cwd: Path
) -> None:
    """In an environment that a user's module registers."""
    typed = ["arch.num_updates=2", "arch.num_evaluation=2", "arch.max_eval_steps=5"]
    outcome = launch("-m", *BY_ID, *SMALL, *typed, "arch.seed=1,2", "hydra.sweep.dir=sweep")
    del sys.modules["corridor"]
    gymnax.registration.registered_envs.remove("Corridor-of-mine")
    del gymnax.registration._registry["Corridor-of-mine"]
    assert outcome.status == 1
    assert "Traceback" not in outcome.err
    losses = []
    for seed in (1, 2):
        job = cwd / "sweep" / str(seed - 1)
        assert OmegaConf.load(job / "config.yaml").arch.seed == seed
        end, found = summary(job), events(job)
        assert [event["event"] for event in found] == ["train", "eval", "train"]
        assert (found[1]["episode_return"], found[1]["unfinished"]) == (5.0, 2)
        losses.append(found[0]["total_loss"])
        assert found[2]["total_loss"] is None  # JSON has no NaN
        assert (end["seed"], end["absolute_metric"]) == (seed, None)
        assert (end["best_episode_return"], end["best_steps"]) == (5.0, 32)
        assert end["status"] in outcome.err
        assert "reward" in end["status"]
        assert "step 64" in end["status"]
        assert (job / "learning_curve.png").is_file()
    assert losses[0] != losses[1]


@pytest.mark.long
def test_a_device_that_a_machine_has_not_is_refused(
    command: Any, cwd: Path, shell: dict[str, str]
) -> None:
    shell["JAX_PLATFORMS"] = "gpuu"
    outcome = command(*CARTPOLE, limit=30)  # about 5 seconds on a core that is free
    assert outcome.status == 2
    (line,) = outcome.err.splitlines()
    assert line.startswith("JAX_PLATFORMS=gpuu")
    assert list(cwd.iterdir()) == []


@pytest.mark.parametrize("name", ["jax_enable_x64", "jax_disable_jit"])
def test_a_jax_that_computes_otherwise_is_refused(launch: Any, name: str) -> None:
    jax.config.update(name, True)
    try:
        outcome = launch(*CARTPOLE)
    finally:
        jax.config.update(name, False)
    assert outcome.status == 2
    assert outcome.err.startswith(f"{name.upper()}: ")


@pytest.mark.parametrize(
    "error, words",
    [
        (MemoryError(), "arch.total_num_envs"),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 9 bytes\nat x"), "arch.total_num_envs"),
        (FileNotFoundError(2, "No such file or directory", "x.csv"), "x.csv: cannot be read"),
        (FileNotFoundError(2, "No such", "no/x.csv"), "no/x.csv: there is no directory no"),
        (OSError(28, "No space left on device", "x.csv"), "x.csv: cannot be written"),
        (FileNotFoundError(2, "No such file or directory"), "working directory"),
    ],
)
def test_what_the_system_refuses_is_one_line(
    monkeypatch: pytest.MonkeyPatch, error: OSError, words: str
) -> None:
    def gone() -> str:
        raise FileNotFoundError

    if getattr(error, "filename", error) is None:
        monkeypatch.setattr(os, "getcwd", gone)
    line = str(explain(error))
    assert words in line
    assert "\n" not in line


def test_running_out_of_memory_is_what_it_is_taken_for() -> None:
    with pytest.raises(jax.errors.JaxRuntimeError) as error:
        jnp.zeros(2**45).block_until_ready()
    assert "lower arch.total_num_envs" in str(explain(error.value))


def test_what_to_type_is_quoted_for_shell_and_hydra() -> None:
    for folder in ("my runs/a(b)", "it's", "a=b,c", "back\\slash", "end\\", "${x}", "ü"):
        (typed,) = shlex.split(as_argument("resume", Path(folder)))
        override = OverridesParser.create().parse_override(typed)
        assert (override.key_or_group, override.value()) == ("resume", folder)


def recorder(seen: list[Config]) -> Callable[..., float]:
    """In place of a run: keeps its settings."""

    def run(config: Config, run_dir: Path, **_: Any) -> float:
        assert run_dir.is_dir()
        seen.append(config)
        return 0.0

    return run


TAKEN = {  # in one composition: what is typed -> the value
    "arch.total_timesteps=3e9": 3_000_000_000,
    "arch.num_updates=1_000": 1_000,
    "arch.compile_cache=null": None,
    "system.max_grad_norm=.inf": float("inf"),
    "+env.kwargs.rows=6": {"rows": 6},
    "env.params.gravity=20": {"gravity": 20},
    "population.hyperparameters={gamma:[0.9,0.99]}": {"gamma": [0.9, 0.99]},
    "system.algorithm=reinforce.Reinforce": "reinforce.Reinforce",
    "+system.policy_lr=0.1": 0.1,
    "env.extras=[last_reward,step]": ["last_reward", "step"],
}


def test_settings_are_taken() -> None:
    config = compose("ff_ppo", ["env=catch", "network=mlp_shared", *TAKEN])
    assert config.network.actor_torso is None
    for typed, value in TAKEN.items():
        group, name = typed.partition("=")[0].lstrip("+").split(".")[:2]
        taken = getattr(getattr(config, group), name)
        assert (taken, type(taken)) == (value, type(value))


def test_an_output_that_is_full_is_no_traceback(cwd: Path, shell: dict[str, str]) -> None:
    line = f"{sys.executable} -m jaxppo.ff_ppo --help > /dev/full"
    done = subprocess.run(line, shell=True, cwd=cwd, env=shell, capture_output=True, text=True)
    assert done.returncode != 0
    (said,) = done.stderr.splitlines()
    assert "standard output" in said


@pytest.mark.parametrize(
    "overrides, key",
    [
        (["hydra.run.dir={place}"], "hydra.run.dir"),
        (["-m", "arch.seed=1,2", "hydra.sweep.dir={place}/below"], "hydra.sweep.dir"),
        (["arch.compile_cache={place}/below"], "arch.compile_cache"),
    ],
)
def test_a_file_in_the_place_of_a_directory_is_refused(
    launch: Any, cwd: Path, tmp_path: Path, overrides: list[str], key: str
) -> None:
    (place := tmp_path / "file").write_text("not a directory")
    place.chmod(0o755)
    outcome = launch(*(o.format(place=place) for o in overrides))
    assert outcome.status == 2
    assert f"{key}={place}" in outcome.err
    assert place.read_text() == "not a directory"
    assert list(cwd.iterdir()) == []


@pytest.mark.parametrize("file", ["metrics.jsonl", "checkpoints/000000000064"])
def test_a_directory_that_holds_a_run_is_refused(launch: Any, cwd: Path, file: str) -> None:
    earlier = cwd / "earlier"
    (earlier / file).parent.mkdir(parents=True)
    (earlier / file).write_text("{}\n")
    outcome = launch(f"hydra.run.dir={earlier}")
    assert outcome.status == 2
    assert f"hydra.run.dir={earlier}: holds a run already" in outcome.err
    assert [str(p.relative_to(earlier)) for p in earlier.rglob("*") if p.is_file()] == [file]


def test_a_directory_that_another_process_holds_is_refused(launch: Any, cwd: Path) -> None:
    for typed in (("-m", "arch.seed=1,2", "hydra.sweep.dir=held"), ("hydra.run.dir=held",)):
        (cwd / "held").mkdir(exist_ok=True)
        with only_run_in(cwd / "held"):
            outcome = launch(*typed)
            assert (outcome.status, outcome.out) == (2, "")
            assert f"held: process {os.getpid()} is writing there" in outcome.err
            assert [path.name for path in (cwd / "held").iterdir()] == [".lock"]


@functools.cache
def cartpole(*typed: str) -> Config:
    return compose("ff_ppo", ["env=cartpole", *typed])


@pytest.fixture
def earlier(cwd: Path) -> Path:
    """The directory of a run that was stopped before its first checkpoint."""
    run_dir = cwd / "earlier run"
    run_dir.mkdir()
    keep_config(cartpole("system.gamma=0.9", "arch.total_timesteps=400000"), run_dir)
    return run_dir


RESUMED = {  # what is typed together with resume= -> what is said, or what the run is told
    "env=cartpole system.gamma=0.9": {},  # as it was typed the first time
    "arch.total_timesteps=5e5": {"arch.total_timesteps": 500_000},
    "system.gamma=0.99": "system.gamma=0.99 (was 0.9)|resume_allow=[system.gamma]",  # the default
    "system.gamma=0.99 system.epochs=1 'resume_allow=[system]'": {
        "system.gamma": 0.99, "system.epochs": 1,
    },
    "system.epochs=1 logger.plot=false 'resume_allow=[logger]'": "system.epochs=1",
    "arch.total_timesteps=35e4": "arch.total_timesteps=350000|400000, 13 updates",
    "arch.num_updates=12": "arch.num_updates=12|null, 13 updates",  # of 1024 x 32 steps
    "arch.num_updates=13": {"arch.num_updates": 13},
    "arch.total_timesteps=8e5 arch.num_evaluation=20": {
        "arch.total_timesteps": 800_000, "arch.num_evaluation": 20,
    },
    "arch.num_evaluation=20": "resume_allow=[arch.num_evaluation]",
    "arch.num_updates=12 'resume_allow=[arch]'": {"arch.num_updates": 12},
    "'resume_allow=[nonsense]'": "resume_allow: nonsense",
    "'resume_allow=[log,env.params.gravity,network.actor_torso.layer_sizes]'": {},
    "arch.total_num_envs=512": "rollout_length=32: a resumed run|1024 x 32 = 32,768",
    "arch.total_num_envs=512 system.rollout_length=64": "resume_allow=[arch.total_num_envs,system",
    "env=catch": "env.name=Catch-bsuite (was CartPole-v1)",
    "env.name=null env.target=corridor.Corridor 'resume_allow=[env]'": "trust=[corridor]",
    "~system.gamma": "~system.gamma",
}  # fmt: skip


@pytest.mark.parametrize("typed", RESUMED)
def test_a_resumed_run_keeps_its_settings(
    earlier: Path, monkeypatch: pytest.MonkeyPatch, shell: dict[str, str], typed: str
) -> None:
    monkeypatch.syspath_prepend(earlier.parents[1])
    expected, words = RESUMED[typed], [f"resume='{earlier}'", *shlex.split(typed)]
    if isinstance(expected, str):
        with pytest.raises(ConfigError) as refusal:
            compose_run("ff_ppo", words)
        assert all(key in str(refusal.value) for key in expected.split("|"))
        return
    config = compose_run("ff_ppo", words)
    told = {"system.gamma": 0.9, "arch.total_timesteps": 400_000, "env.name": "CartPole-v1"}
    for key, value in {**told, **expected}.items():
        group, name = key.split(".")
        assert getattr(getattr(config, group), name) == value
    assert config.resume == str(earlier)


def test_the_budget_of_a_run_by_updates_only_grows(earlier: Path) -> None:
    keep_config(cartpole("arch.num_updates=16"), earlier)
    resume = f"resume='{earlier}'"
    for typed, line in (
        (["arch.total_timesteps=5e5"], "arch.num_updates=16"),
        (["arch.total_timesteps=1e4", "arch.num_updates=null"], "arch.num_updates=null (was 16)"),
        (["arch.num_updates=15"], "arch.num_updates=15 (was 16)"),
    ):
        with pytest.raises(ConfigError, match=re.escape(line)):
            compose_run("ff_ppo", [resume, *typed])
    assert compose_run("ff_ppo", [resume, "arch.num_updates=17"]).arch.num_updates == 17


@pytest.mark.parametrize(
    "typed, key",
    [
        ("++resume=nowhere", "resume=nowhere"),
        ("-m resume={earlier}", "-m"),
        ("resume={earlier} hydra.run.dir=other", "hydra.run.dir=other"),
    ],
)
def test_what_cannot_be_resumed_is_refused(earlier: Path, typed: str, key: str) -> None:
    words = [word.format(earlier=earlier) for word in typed.split()]
    with pytest.raises(ConfigError, match=re.escape(key)):
        resume_overrides(words)


@pytest.mark.long_but(1)
@pytest.mark.parametrize("name, others", [("pqn", 2), ("reinforce.Reinforce", 0)])
def test_the_command_of_another_algorithm_does_not_resume(
    launch: Any, earlier: Path, name: str, others: int
) -> None:
    """Python's default command resumes any run, and any command an algorithm of one's own."""
    keep_config(compose("ff_ppo", ["env=cartpole", f"system.algorithm={name}"]), earlier)
    resume = as_override("resume", str(earlier))
    assert compose_run("ff_ppo", [resume, "trust=[reinforce]"]).system.algorithm == name
    for typed, status in (([], others), ([f"system.algorithm={name}"], 0)):
        outcome = launch(resume, "trust=[reinforce]", *typed, run=recorder([]))
        assert outcome.status == status
        assert (f"python -m jaxppo.ff_pqn {resume} does" in outcome.err) == (status == 2)


def test_resume_true_begins_and_then_goes_on(earlier: Path, cwd: Path) -> None:
    """A run keeps the settings that are typed, so that others are refused; a sweep's are equal."""
    run, new = [f"hydra.run.dir='{earlier}'"], ["hydra.run.dir=new"]
    assert resumed_here(["a=1", *new, "resume=true"]) == ["a=1", *new]
    assert resumed_here(["a=1", *run, "resume=true"]) == [
        "a=1",
        as_override("resume", str(earlier)),
    ]
    assert resumed_here(["a=1", "resume=other", *run]) == ["a=1", "resume=other", *run]
    sweep = ["-m", "env=cartpole", "system.gamma=0.9,0.99", f"hydra.sweep.dir='{cwd}/swept'"]
    sweep.insert(2, "~population.hyperparameters")
    assert resumed_here([*sweep, "resume=true"]) == sweep
    (cwd / "swept").mkdir()
    task = [
        "env=cartpole",
        "~population.hyperparameters",
        "++system.gamma=0.9,0.99",
    ]  # as the command line hands it to Hydra
    OmegaConf.save({"hydra": {"overrides": {"task": task}}}, cwd / "swept" / "multirun.yaml")
    assert resumed_here([*sweep, "resume=true"]) == [as_override("resume", f"{cwd}/swept")]
    for words, message in (
        ([*sweep, "system.epochs=1", "resume=true"], r"other settings \(system.epochs=1\)"),
        (["-m", "env=cartpole", "resume=true", *new], "add hydra.sweep.dir=DIR"),
        (["env=cartpole", "resume=true"], "add hydra.run.dir=DIR"),
    ):
        with pytest.raises(ConfigError, match=message):
            resumed_here(words)


def test_a_refused_sweep_says_and_changes_nothing_else(
    cwd: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = cwd / "swept"
    (folder / "0" / ".hydra").mkdir(parents=True)
    (folder / "0" / ".hydra" / "overrides.yaml").write_text("- env=cartpole\n")
    keep_config(cartpole(), folder / "0")
    hydra = {"job": {"config_name": "ff_ppo"}, "sweeper": {"_target_": "basic"}}
    OmegaConf.save({"hydra": hydra}, folder / "multirun.yaml")
    before = sorted(folder.rglob("*"))
    with pytest.raises(ConfigError, match=r"system\.epochs=1"):
        continue_sweep("ff_ppo", folder, [f"resume={folder}", "system.epochs=1"])
    with (folder / ".lock").open() as lock:  # the directory is free again
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert capsys.readouterr().out == ""
    assert [each for each in sorted(folder.rglob("*")) if each.name != ".lock"] == before


def test_a_run_is_resumed_only_where_it_is(launch: Any, cwd: Path, earlier: Path) -> None:
    """Not in another directory with its settings."""
    before = sorted(cwd.rglob("*"))
    outcome = launch(f"++resume='{earlier}'", run=recorder(seen := []))
    assert (outcome.status, outcome.err) == (0, "")
    assert seen[0].resume == str(earlier)
    assert {path.name for path in {*cwd.rglob("*")} - {*before}} <= {".lock"}
    (cwd / "own.yaml").write_text(f"defaults: [ff_ppo, _self_]\nresume: '{earlier}'\n")
    outcome = launch(f"--config-dir={cwd}", "--config-name=own", run=recorder(seen := []))
    assert (outcome.status, seen) == (2, [])
    assert "resume=DIR" in outcome.err


# Of directories, which Hydra or YAML would take for something else
NAMES = ('lr=0.1,a(1)[2]{3}#4 #5 it\'s "tëst"', "1.10", "back\\${x}")


@pytest.mark.parametrize("name", NAMES)
def test_a_path_is_text_in_every_command(
    cwd: Path, earlier: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(cwd)
    earlier.rename(cwd / name)
    seen: list[Any] = []
    assert compose_run("ff_ppo", [f"resume={name}"]).resume == name
    settings = [as_override("resume", name)]  # as jaxppo.train(resume=name) has it
    assert jaxppo.compose("ff_ppo", settings).resume == name
    for kind in (Evaluation, Rendering, Export, Reporting):
        for field in {"run", "out", "record"} & set(kind.__dataclass_fields__):
            for typed in (name, quoted(name)):
                monkeypatch.setattr(sys, "argv", ["", f"{field}={typed}"])
                command_line.command(kind, seen.append)
                assert getattr(seen[-1], field) == name
    assert split([f"out={name}"])[0].out == name
    monkeypatch.setattr(sys, "argv", ["", name, f"{name}/", "out=x"])
    command_line.command(Reporting, seen.append, places="runs")
    assert seen[-1].runs == [name, f"{name}/"]


def test_the_directory_of_a_command_is_text(launch: Any, cwd: Path, earlier: Path) -> None:
    earlier.rename(cwd / NAMES[0])
    assert launch(f"resume={NAMES[0]}", run=recorder(seen := [])) == Outcome(0, "", "")
    typed = [f"{key}={NAMES[0]}/new" for key in ("hydra.run.dir", "arch.profile")]
    assert launch(*typed, run=recorder(seen)).status == 0
    assert (cwd / NAMES[0] / "new").is_dir()
    assert (seen[0].resume, seen[1].arch.profile) == (NAMES[0], f"{NAMES[0]}/new")


def test_a_directory_is_named_by_what_was_typed(
    launch: Any, cwd: Path, programs: list[list[Config]]
) -> None:
    typed = ("arch.seed=1", "system.gamma=0.9")
    for place in ("run.dir", "sweep.subdir"):
        name = f"hydra.{place}=${{hydra.job.override_dirname}}"
        more = ("-m", "hydra.sweep.dir=sweep") if place == "sweep.subdir" else ()
        assert launch(*more, name, *typed, run=recorder([])).status == 0
        assert (cwd / ("sweep" if more else ".") / "system.gamma=0.9,arch.seed=1").is_dir()


def test_jobs_without_a_directory_begin_when_their_sweep_goes_on(
    launch: Any, cwd: Path, programs: list[list[Config]]
) -> None:
    """Their sweep was killed before it made all of them; a name follows from the overrides.

    A sweep that was refused has none.
    """
    typed = ["-m", "hydra.sweep.dir=swept", "resume=true", "arch.seed=range(3)", *CARTPOLE]
    typed += ["hydra.sweep.subdir=n${hydra.job.num}_${arch.seed}", "system.gamma=0.9"]
    assert launch(*typed, run=recorder([])).status == 0
    names = [f"n{n}_{n}" for n in range(3)]
    shutil.rmtree(cwd / "swept" / names[0])
    (cwd / "swept" / names[2] / ".hydra" / "overrides.yaml").write_text("")
    outcome = launch(*typed, run=recorder([]))
    assert (outcome.status, outcome.err) == (0, "")
    assert "resume=swept: 3 of 3 jobs" in outcome.out
    first, again = ({config.arch.seed: config for config in each} for each in programs)
    assert {n: dataclasses.replace(config, resume=None) for n, config in again.items()} == first
    assert sorted(each.name for each in (cwd / "swept").iterdir() if each.is_dir()) == names
    shutil.rmtree(cwd / "swept" / names[1])
    assert "3 jobs did not end: resume=swept continues" in launch(*typed, run=recorder([])).out
    typed = ["-m", "hydra.sweep.dir=other", "hydra.sweep.subdir=0", "arch.seed=1,2", "resume=true"]
    for words in ("two jobs would have the directory", "gives several jobs one directory"):
        outcome = launch(*typed, *CARTPOLE, run=recorder([]))
        assert (outcome.status, "did not end" in outcome.out) == (2, False)
        assert words in outcome.err


def test_a_plugin_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(composing, "is_installed", lambda _: False)
    for typed, package in (("sweeper=optuna", "optuna"), ("launcher=jaxppo_slurm", "submitit")):
        with pytest.raises(ConfigError, match=rf"hydra/{typed}: .*hydra-{package}"):
            composing.check_plugin([f"hydra/{typed}"])


def test_every_command_is_listed_and_says_its_version(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [*(ROOT / "jaxppo").glob("*.py"), ROOT / "jaxppo" / "envs" / "__main__.py"]
    files = [file for file in files if "    main()" in file.read_text()]
    for file in files:
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        monkeypatch.setattr(sys, "argv", ["", "--version"])
        importlib.import_module(module).main()
        expected = f"jaxppo {jaxppo.__version__}, jax {jax.__version__}\n"
        assert capsys.readouterr() == (expected, ""), module
    monkeypatch.setattr(sys, "argv", [""])
    importlib.import_module("jaxppo.__main__").main()
    listed = re.findall(r"^  (\w+)  ", capsys.readouterr().out, re.MULTILINE)
    assert sorted(listed) == sorted({*(file.stem for file in files), "envs"} - {"__main__"})


@pytest.mark.parametrize(
    "typed, seeds",
    [
        ("env=cartpole -m arch.seed=1,2 hydra/launcher=basic", [1, 2]),
        ("arch.seed=3 --config-name ff_pqn system.gamma=0.9", [3]),
    ],
)
def test_flags_stand_anywhere(launch: Any, typed: str, seeds: list[int]) -> None:
    outcome = launch(*typed.split(), "hydra.sweep.dir=sweep", run=recorder(seen := []))
    assert (outcome.status, outcome.err) == (0, "")
    assert [config.arch.seed for config in seen] == seeds


@pytest.mark.long
def test_a_used_directory_of_a_sweep_is_refused(launch: Any, cwd: Path) -> None:
    """Before anything in it changes; job 0 once kept its log and got the new settings."""
    typed = ["-m", "arch.seed=1,2", "system.gamma=0.9,0.99", "hydra.sweep.dir=sweep"]
    outcome = launch(*typed, "hydra/launcher=basic", run=recorder(seen := []))
    assert (outcome.status, outcome.err) == (0, "")
    combinations = [(1, 0.9), (1, 0.99), (2, 0.9), (2, 0.99)]
    assert [(config.arch.seed, config.system.gamma) for config in seen] == combinations
    jobs = sorted(path.name for path in (cwd / "sweep").iterdir() if path.is_dir())
    assert jobs == ["0", "1", "2", "3"]
    before = {path: path.read_bytes() for path in cwd.rglob("*") if path.is_file()}
    outcome = launch("-m", "arch.seed=5,6", "hydra.sweep.dir=sweep", "hydra/launcher=basic")
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.startswith("hydra.sweep.dir=sweep: holds a sweep already (")
    assert before == {path: path.read_bytes() for path in cwd.rglob("*") if path.is_file()}


def test_swept_hyperparameters_are_checked_by_their_rule_alone(
    launch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first job is built before a sweep over traced numbers begins, of lists each."""
    prepared: list[Any] = []

    def prepare(config: Config) -> None:
        prepared.append((config.system.gamma, config.env.mask, config.system.optimizer_kwargs))
        if len(prepared) == 3:
            raise ConfigError("seen: enough")

    monkeypatch.setattr("jaxppo.launch.sweeping.prepare", prepare)
    assert launch("-m", "system.gamma=0.95,0.99,2").status == 2  # before any job is built
    assert prepared == []
    swept = "env.mask=[1],[3]", "system.optimizer_kwargs={b1: 0.5},{b1: 0.9}"
    assert "seen: enough" in launch("-m", "system.gamma=0.9,0.95", *swept).err
    assert prepared == [
        (0.9, [1], {"b1": 0.5}), (0.9, [3], {"b1": 0.5}), (0.9, [1], {"b1": 0.9}),
    ]  # fmt: skip


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[list[Config]]:
    """The jobs that are trained together, which return their seed."""
    seen: list[list[Config]] = []

    def run_together(jobs: list[Job], *, fit: bool) -> list[float | TrainingError]:
        assert fit == (len(jobs) > 1)
        if fit and len(jobs) > 4:
            raise TooLargeError
        seen.append([job.config for job in jobs])
        special = {13: TrainingError("diverged"), 14: math.nan}
        seeds = [job.config.arch.seed for job in jobs]
        return [special.get(seed, float(seed)) for seed in seeds]

    monkeypatch.setattr(sweeping, "run_together", run_together)
    return seen


def test_a_sweep_is_one_program_for_each_shape() -> None:
    seeds = [coin(seed=1), coin(seed=2)]
    other = [coin(seed=1, num_updates=4), coin("memory", seed=2), coin("memory", seed=1)]
    found = [coin("pbt", seed=1), coin("pbt", seed=2)]  # of which each is a program
    assert sweeping.groups([seeds[0], *other, *found, seeds[1]]) == [[0, 6], [1], [2, 3], [4], [5]]


def test_a_sweep_that_does_not_fit_is_split(programs: list[list[Config]]) -> None:
    outcomes = sweeping.train([Job(coin(seed=seed), None) for seed in range(1, 10)])
    assert [[c.arch.seed for c in jobs] for jobs in programs] == [[1, 2, 3, 4], [5, 6], [7, 8, 9]]
    assert outcomes == list(range(1, 10))


def test_failed_job_of_a_sweep_is_reported(
    launch: Any, cwd: Path, programs: list[list[Config]]
) -> None:
    outcome = launch("-m", "arch.seed=1,13,2", "hydra.sweep.dir=sweep")
    assert outcome.status == 1
    assert outcome.err.splitlines()[-1] == "diverged"
    assert "arch.seed=13" in outcome.err
    assert "3 jobs as 1 program" in outcome.out
    assert [[c.arch.seed for c in jobs] for jobs in programs] == [[1, 13, 2]]
    assert len((cwd / "sweep" / "sweep.csv").read_text().splitlines()) == 1 + 3


def test_a_sweep_that_is_interrupted_has_its_report(launch: Any, cwd: Path) -> None:
    """And its directory is free for another process."""

    def run(config: Config, run_dir: Path) -> float:
        if config.arch.seed == 2:
            raise KeyboardInterrupt
        return 0.0

    sweep = ("-m", "arch.seed=1,2", "hydra.sweep.dir=sweep", "hydra/launcher=basic")
    assert launch(*sweep, run=run).status == 130
    assert len((cwd / "sweep" / "sweep.csv").read_text().splitlines()) == 1 + 2
    with only_run_in(cwd / "sweep"):
        pass


@pytest.mark.long
def test_a_sweep_resumes_as_a_sweep(launch: Any, cwd: Path, kill: Any) -> None:
    """With the bits of one that was not stopped, also in jobs that had not begun."""
    sweep = ("-m", *CARTPOLE, "arch.seed=1,2", "network.actor_torso.layer_sizes=[4],[8]")
    sweep += ("arch.compiler=quick", "checkpoint.share=1", "logger.plot=false")
    assert launch(*sweep, "hydra.sweep.dir=whole").status == 0
    kill(1)
    with pytest.raises(Killed):
        launch(*sweep, "hydra.sweep.dir=cut")
    begun = [(cwd / "cut" / str(job) / "config.yaml").exists() for job in range(4)]
    assert begun == [True, False, True, False]
    outcome = launch("resume=cut")
    assert (outcome.status, outcome.err) == (0, "")
    assert "4 of 4 jobs, as 2 programs" in outcome.out
    for job in range(4):
        assert_equal(cwd / "whole" / str(job), cwd / "cut" / str(job))
        end = summary(cwd / "cut" / str(job))
        assert end["absolute_metric"] == summary(cwd / "whole" / str(job))["absolute_metric"]
    for typed in ([], ["arch.profile=null"]):  # a setting about this machine changes no job
        assert "0 of 4 jobs" in launch("resume=cut", *typed).out
    more = launch("resume=cut", "arch.num_updates=4", "resume_allow=[arch]")
    assert more.status == 0
    assert {summary(cwd / "cut" / str(job))["steps"] for job in range(4)} == {128}
    for typed in (["-m"], ["arch.total_num_envs=8"]):
        refused = launch("resume=cut", *typed)
        assert refused.status == 2
        assert typed[0].partition("=")[0] in refused.err


def test_the_script_runs_the_command_that_comes_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in __main__.NAMES:
        assert importlib.util.find_spec(f"jaxppo.{name}")
    ran: list[Any] = []
    monkeypatch.setattr(runpy, "run_module", lambda name, **_: ran.append((name, sys.argv[1:])))
    monkeypatch.setattr(sys, "argv", ["jaxppo", "envs", "catch"])
    __main__.main()
    assert ran == [("jaxppo.envs", ["catch"])]
    for typed, line in (("reprot", "did you mean report?"), ("env=catch", "a command comes first")):
        monkeypatch.setattr(sys, "argv", ["jaxppo", typed, "x"])
        with pytest.raises(SystemExit):
            __main__.main()
        assert line in capsys.readouterr().err


def test_the_run_of_a_command_needs_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(sys, "argv", ["evaluate.py", "runs/first one", "episodes=5"])
    command_line.command(Evaluation, seen.append, places="run")
    assert (seen[0].run, seen[0].episodes) == ("runs/first one", 5)
    monkeypatch.setattr(sys, "argv", ["evaluate.py", "one", "two"])
    with pytest.raises(SystemExit):
        command_line.command(Evaluation, seen.append, places="run")
    (tmp_path / "system.gamma=0.9").mkdir()
    typed = [f"{tmp_path}/system.gamma=0.9@128", "one", "games=4"]
    monkeypatch.setattr(sys, "argv", ["tournament.py", *typed])
    command_line.command(Tournament, seen.append, places="runs")
    assert (seen[1].runs, seen[1].games) == (typed[:2], 4)


def test_a_run_that_fails_is_one_line(launch: Any) -> None:
    def run(*args: Any, **given: Any) -> float:
        raise TrainingError("diverged")

    assert launch(run=run) == Outcome(1, "", "diverged\n")


@pytest.mark.filterwarnings("ignore")  # of Optuna's own
@pytest.mark.parametrize("seed", [13, 14])
def test_a_study_of_optuna_goes_on_past_a_failed_trial(
    launch: Any, cwd: Path, programs: list[list[Config]], seed: int
) -> None:
    """Its batches are programs; a failure, or NaN, is the worst of all finite scores."""
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="pip install '.[optuna]'")
    study = ("hydra.sweeper.direction=maximize", "hydra.sweeper.n_trials=6")
    outcome = launch(
        *("-m", "hydra/sweeper=optuna", *study, "hydra.sweeper.n_jobs=3"),
        *(f"arch.seed=choice({seed})", "hydra.sweep.dir=sweep"),
    )
    assert outcome.status == 0
    assert [len(jobs) for jobs in programs] == [3, 3]
    found = OmegaConf.load(cwd / "sweep" / "optimization_results.yaml")
    assert found.best_value == -MAX_FLOAT


@pytest.mark.long
def test_jobs_of_a_sweep_have_directories_of_their_own(
    launch: Any, cwd: Path, programs: list[list[Config]]
) -> None:
    """Also those of a later batch; what Hydra recorded of the earlier job stays."""
    sweep = ("-m", "arch.seed=1,2", "hydra.sweep.dir=sweep")
    outcome = launch(*sweep, "hydra.sweep.subdir=x")
    assert (outcome.status, outcome.out, programs) == (2, "", [])
    assert outcome.err.startswith("hydra.sweep.subdir=x")
    shutil.rmtree(cwd / "sweep")
    (cwd / "sweep" / "1").mkdir(parents=True)
    (cwd / "sweep" / "1" / "metrics.jsonl").write_text("")
    outcome = launch(*sweep, "hydra.sweeper.max_batch_size=1")
    assert outcome.status == 2
    assert outcome.err.startswith("hydra.sweep.subdir=${hydra.job.num}")
    assert [job.name for job in (cwd / "sweep" / "1").iterdir()] == ["metrics.jsonl"]
    assert len(programs) == 1
