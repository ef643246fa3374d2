"""Runs that were stopped end where they would have ended, bit for bit."""

import dataclasses
import itertools
import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import NETWORK, on_devices
from killing import Killed
from runs import MEMORY, VARIANTS, assert_equal, coin, logged

from jaxppo.analysis import runs
from jaxppo.config.fields import ConfigError
from jaxppo.config.plan import plan
from jaxppo.config.schema import Config
from jaxppo.config.stored import plain
from jaxppo.runtime.hosts.signals import Interrupted, Signals
from jaxppo.runtime.programs import compile
from jaxppo.runtime.run import loop, saving
from jaxppo.runtime.run.jobs import Job, TrainingError
from jaxppo.runtime.run.members import Member
from jaxppo.runtime.store import checkpoint
from jaxppo.runtime.store.checkpoint import CheckpointError
from jaxppo.runtime.store.progress import Pace, Progress, blocks_after


def slow(variant: str) -> Any:
    return pytest.param(variant, marks=pytest.mark.slow)


@pytest.fixture
def whole(tmp_path: Path) -> Callable[[Config], tuple[float, Path]]:
    """`whole(config)`: the result and directory of a run that nothing stops."""

    def call(config: Config) -> tuple[float, Path]:
        folder = tmp_path / "whole"
        folder.mkdir()
        return loop.run(config, folder), folder

    return call


def stopped(config: Config, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    with pytest.raises(Killed):
        loop.run(config, folder, resume=(folder / "config.yaml").exists())


@pytest.mark.long
@pytest.mark.parametrize(
    "variant",
    [
        "memory",
        "pbt",
        "halving",
        "randomized",
        *map(slow, ("one", "warm-up and skipping", "seeds")),
    ],
)
def test_a_run_that_was_stopped_ends_as_if_nothing_had_happened(
    tmp_path: Path, kill: Any, whole: Any, variant: str
) -> None:
    result, reference = whole(coin(variant))
    halves = tmp_path / "halves"
    for block in (1, 3):
        kill(block)
        stopped(coin(variant), halves)
    assert loop.run(coin(variant), halves, resume=True) == result
    assert_equal(reference, halves)
    end = json.loads((halves / "summary.json").read_text())
    assert end["status"] == "finished"


@pytest.mark.long
def test_halving_with_a_larger_budget_selects_later(tmp_path: Path, kill: Any) -> None:
    """Of four members half stay after 2 of 8 updates; of 32 updates they stay until the 16th."""
    kill(1)
    stopped(coin("halving"), tmp_path)
    loop.run(coin("halving", num_updates=32), tmp_path, resume=True)
    events = logged(tmp_path)["metrics.jsonl"]
    found = [(e["steps"], len(e["members"])) for e in events if e["event"] == "selection"]
    steps = max(e["steps"] for e in events) // 32  # of an update
    assert found == [(0, 4), (2 * steps, 2), (16 * steps, 1)]


@pytest.mark.long
def test_a_run_that_was_stopped_before_its_first_checkpoint_begins_anew(
    tmp_path: Path, kill: Any, whole: Any
) -> None:
    result, reference = whole(coin())
    kill(0)
    stopped(coin(), tmp_path / "again")
    assert loop.run(coin(), tmp_path / "again", resume=True) == result
    assert_equal(reference, tmp_path / "again")


def test_what_was_logged_after_the_checkpoint_is_logged_anew(
    tmp_path: Path, kill: Any, whole: Any
) -> None:
    """A checkpoint of block 1, a log that goes on, a line that was cut: no hole, no duplicate."""
    result, reference = whole(coin())
    folder = tmp_path / "log"
    kill(3)
    stopped(coin(), folder)
    for steps in checkpoint.steps_in(folder / "checkpoints")[1:]:
        (folder / "checkpoints" / f"{steps:012}" / "manifest.json").unlink()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"event": "tra')
    assert loop.run(coin(), folder, resume=True) == result
    assert_equal(reference, folder)
    assert list((folder / "checkpoints").glob("*.damaged"))


@pytest.mark.long
def test_a_finished_run_ends_again_as_it_did(tmp_path: Path, whole: Any) -> None:
    result, reference = whole(coin())
    before = logged(reference)
    assert loop.run(coin(), reference, resume=True) == result
    assert logged(reference) == before


def test_a_larger_budget_goes_on_in_blocks_of_the_same_length(tmp_path: Path, whole: Any) -> None:
    _, folder = whole(coin())
    first = logged(folder)["metrics.jsonl"]
    loop.run(coin(num_updates=13), folder, resume=True)
    events = logged(folder)["metrics.jsonl"]
    assert events[:8] == first[:8]
    updates = [event["updates"] for event in events if event["event"] == "train"]
    assert updates == [2, 4, 6, 8, 9, 11, 13]
    rates = [event["learning_rate"] for event in events if event["event"] == "train"]
    assert rates[4] > rates[3]  # they decay over the new budget


@pytest.mark.parametrize(
    "done, updates, evaluations, blocks",
    [
        ((), 8, 4, (2, 2, 2, 2)),
        ((2, 2), 8, 4, (2, 2, 2, 2)),
        ((2, 2), 12, 4, (2, 2, 2, 2, 2, 2)),
        ((2, 3), 6, 4, (2, 3, 1)),
        ((2, 3), 5, 5, (2, 3)),
        ((20,), 50, 2, (20, 15, 15)),  # begun, and to be ended, before the budget grew
        ((20,), 12, 1, (12,)),  # begun before the budget shrank
        ((2, 5), 4, 2, (2, 2)),
    ],
)
def test_blocks_after_those_that_are_done(
    done: Any, updates: int, evaluations: int, blocks: Any
) -> None:
    planned = plan(coin(num_updates=updates, num_evaluation=evaluations), 1)
    assert blocks_after(done, planned) == blocks


@pytest.mark.parametrize(
    "variant, evaluations, length, stop, shorter, blocks",
    [
        ("one", 2, 5, 6, 8, [5, 8]),
        pytest.param("seeds", 2, 5, 6, 8, [5, 8], marks=pytest.mark.long),
        # Of the shorter budget the rungs ended after 4 and 8 updates
        pytest.param("halving", 14, 4, 9, 14, [4, 8, 12, 14], marks=pytest.mark.long),
    ],
)
def test_a_smaller_budget_ends_the_block_that_was_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    variant: str, evaluations: int, length: int, stop: int, shorter: int, blocks: list[int],
) -> None:  # fmt: skip
    """Stopped after `stop` updates, in the middle of a block, a run does at least one more."""
    monkeypatch.setattr(Pace, "updates", lambda *_: 1)
    calls = itertools.count(1)  # one after each update and each block
    last = stop + stop // length
    begun = coin(variant, num_updates=length * evaluations, num_evaluation=evaluations)
    with monkeypatch.context() as patch:
        agreed = lambda _: signal.SIGTERM if next(calls) == last else None  # noqa: E731
        patch.setattr(Signals, "agreed", agreed)
        with pytest.raises(Interrupted, match=f"at step {64 * stop}, saved"):
            loop.run(begun, tmp_path)
    before = contents(tmp_path)
    for key, unit in (("num_updates", 1), ("total_timesteps", 64)):
        arch = {"num_evaluation": 2, "num_updates": None, key: unit * stop}
        least = rf"arch\.{key}={unit * stop}: .* at least {unit * (stop + 1)}$"
        with pytest.raises(ConfigError, match=least):
            loop.run(coin(variant, **arch), tmp_path, resume=True)
        assert contents(tmp_path) == before
    loop.run(coin(variant, num_updates=shorter, num_evaluation=evaluations), tmp_path, resume=True)
    events = max(logged(tmp_path).values(), key=len)
    assert [e["updates"] for e in events if e["event"] == "train"] == blocks
    evaluated = [e["steps"] for e in events if e["event"] == "eval"]
    assert evaluated == [64 * updates for updates in blocks]
    if variant == "halving":
        assert [len(e["members"]) for e in events if e["event"] == "selection"] == [4, 1]


def test_blocks_are_the_same_after_each_resume_with_a_larger_budget() -> None:
    for evaluations in (1, 2, 3, 5):
        done = plan(coin(num_updates=20, num_evaluation=evaluations), 1).updates_per_block
        for num_updates in range(21, 99):
            planned = plan(coin(num_updates=num_updates, num_evaluation=evaluations), 1)
            blocks = blocks_after(done, planned)
            assert sum(blocks) == num_updates
            assert 0 < min(blocks) <= max(blocks) <= max(done)
            for num in range(len(done), len(blocks)):
                assert blocks_after(blocks[:num], planned) == blocks


@pytest.mark.long
def test_another_number_of_evaluations_is_refused_unless_it_is_kept(
    tmp_path: Path, whole: Any
) -> None:
    """The blocks of a checkpoint stay; as many more updates and evaluations agree with them."""
    _, folder = whole(coin())
    for changes in ({"num_evaluation": 2}, {"num_updates": 16, "num_evaluation": 16}):
        with pytest.raises(ConfigError, match=r"arch.num_evaluation=.* keep arch.num_evaluation=4"):
            loop.run(coin(**changes), folder, resume=True)
    loop.run(coin(num_updates=16, num_evaluation=8), folder, resume=True)


def test_how_simulators_are_run_is_no_other_environment() -> None:
    config = coin()
    stored = plain(config)
    for changes, other in (({"processes": 8, "on_error": "restart"}, False), ({"mask": [1]}, True)):
        changed = dataclasses.replace(config, env=dataclasses.replace(config.env, **changes))
        assert saving.has_other_env(stored, changed) == other


@pytest.mark.long
def test_another_number_of_members_is_refused(tmp_path: Path, whole: Any) -> None:
    _, folder = whole(coin("seeds"))
    with pytest.raises(ConfigError, match="holds 3 members, and 2 are asked for"):
        loop.run(coin(num_seeds=2), folder, resume=True)


def contents(folder: Path) -> dict[str, bytes]:
    """Of every file but the lock."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.long
@pytest.mark.parametrize(
    "change",
    [
        {"network": {**NETWORK, "actor_torso": {**NETWORK["actor_torso"], "layer_sizes": [8]}}},
        {"env": {"target": "envs.Aim"}},
        {"arch": {"total_num_envs": 16}},
        {"system__normalize_values": False, "network": MEMORY, "system__sequence_length": 4},
    ],
)
def test_what_does_not_fit_is_refused_before_anything_changes(
    tmp_path: Path, kill: Any, whole: Any, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    """And before anything compiles; with its own settings the run goes on as if nothing was."""
    folder = tmp_path / "run"
    kill(2)
    stopped(coin(), folder)
    before = contents(folder)
    with monkeypatch.context() as patch:
        patch.setattr(compile, "compile_program", lambda *_, **__: pytest.fail("late"))
        variant = VARIANTS.setdefault("changed", {})
        variant.clear()
        variant.update(change)
        for _ in range(2):
            with pytest.raises(
                (CheckpointError, ConfigError), match=r"in the checkpoint and|keep that product"
            ):
                loop.run(coin("changed"), folder, resume=True)
            assert contents(folder) == before
    if "env" in change:  # once is enough
        result, reference = whole(coin())
        assert loop.run(coin(), folder, resume=True) == result
        assert_equal(reference, folder)


@pytest.mark.long
def test_settings_that_were_allowed_are_kept_once_the_run_goes_on(
    tmp_path: Path, kill: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    kill(1)
    stopped(coin(), folder)
    before = contents(folder)

    def too_large(*_: Any, **__: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(compile, "compile_program", too_large)
        with pytest.raises(MemoryError):
            loop.run(coin(num_updates=16), folder, resume=True)
    assert contents(folder)["config.yaml"] == before["config.yaml"]
    loop.run(coin(num_updates=16), folder, resume=True)
    assert "num_updates: 16" in (folder / "config.yaml").read_text()


@pytest.mark.long
def test_in_another_environment_the_best_policy_is_one_of_that_environment(tmp_path: Path) -> None:
    config = coin(num_updates=4, num_evaluation=2)
    config = dataclasses.replace(
        config,
        env=dataclasses.replace(config.env, target="envs.Clock"),
        logger=dataclasses.replace(config.logger, marl_eval=True),
    )
    loop.run(config, tmp_path)  # 15 in every episode: 1 + 2 + ... + 5
    short = dataclasses.replace(config.env, params={"max_steps_in_episode": 3})
    arch = dataclasses.replace(config.arch, num_updates=8)
    changed = dataclasses.replace(config, env=short, arch=arch, resume_allow=["env"])
    assert loop.run(changed, tmp_path, resume=True) == 6.0
    found, _ = checkpoint.newest(tmp_path)
    assert found is not None
    (member,) = found.facts["members"]
    steps_before = 4 * config.arch.total_num_envs * config.system.rollout_length
    assert member["best"]["episode_return"] == 6.0
    assert member["best"]["steps"] > steps_before
    for _ in range(2):  # also after another resume
        ((run,), notes) = runs.find([str(tmp_path)])
        assert min(run.evaluations) > steps_before
        assert set(run.evaluations.values()) == {6.0}
        (note,) = notes
        assert f"changed the environment at step {steps_before}" in note
        document = json.loads((tmp_path / "marl_eval.json").read_text())
        assert "15.0" not in json.dumps(document)
        loop.run(changed, tmp_path, resume=True)


@pytest.mark.long
def test_in_an_environment_with_other_state_episodes_start_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The state of `Shown` gets parameters with `env.randomize`; a schedule has new metrics.

    Half of the run is over, so the weight begins at 4 + (8 - 4) 0.5 / 0.8 = 6.5.
    """
    config = coin(num_updates=2, num_evaluation=2)
    shown = dataclasses.replace(config.env, target="envs.Shown", extras=["step"])
    config = dataclasses.replace(config, env=shown)
    loop.run(config, tmp_path)
    random = dataclasses.replace(
        config.env,
        randomize={"count": [1, 5]},
        curriculum={"weight": {"start": 4, "end": 8, "share": 0.8}},
    )
    changed = dataclasses.replace(
        config,
        env=random,
        arch=dataclasses.replace(config.arch, num_updates=4),
        system=dataclasses.replace(
            config.system, schedules={"ent_coef": {"kind": "linear", "end": 0.0}}
        ),
        logger=dataclasses.replace(config.logger, console=True),
        resume_allow=["env", "system.schedules"],
    )
    weights: list[np.ndarray] = []
    place = saving.place_state

    def placed(*given: Any) -> Any:
        state = place(*given)
        weights.append(np.asarray(state.learner.acting.env_state.inner.values["weight"]))
        return state

    monkeypatch.setattr(saving, "place_state", placed)
    loop.run(changed, tmp_path, resume=True)
    assert "its episodes start anew" in capsys.readouterr().out
    log = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["updates"] for row in log if row["event"] == "train"] == [1, 2, 3, 4]
    np.testing.assert_allclose(weights[0], 6.5, 1e-6)


def test_a_resume_keeps_the_steps_of_an_update(tmp_path: Path) -> None:
    config = coin(num_updates=2, num_evaluation=1)
    loop.run(config, tmp_path)
    system = dataclasses.replace(config.system, rollout_length=2 * config.system.rollout_length)
    with pytest.raises(ConfigError, match=r"128 steps per update, and .* 8 x 8 = 64; keep that"):
        loop.run(dataclasses.replace(config, system=system), tmp_path, resume=True)


@pytest.mark.long
def test_the_last_checkpoint_before_a_member_diverged_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others go on, over more checkpoints than are kept."""
    real = Member.diagnose

    def diagnose(member: Member, totals: Any, steps: int) -> str | None:
        ill = (member.seed, steps) == (43, 2 * 64)
        return "NaN or infinity in a test" if ill else real(member, totals, steps)

    monkeypatch.setattr(Member, "diagnose", diagnose)
    with pytest.raises(TrainingError, match="in a test"):
        loop.run(coin("seeds", num_updates=6, num_evaluation=6), tmp_path)
    steps = checkpoint.steps_in(tmp_path / "checkpoints")
    assert steps[0] == 64  # of one update, when all were well
    assert steps[-2:] == [5 * 64, 6 * 64]
    assert len(list((tmp_path / "checkpoints").glob("*.pinned"))) == 1


@pytest.mark.long
def test_saving_takes_its_share_of_the_time(tmp_path: Path) -> None:
    """A run of a second is saved at its end alone, and where a milestone says so."""
    config = coin()
    settings = {"share": 0.001, "milestones": [200]}
    (tmp_path / "run").mkdir()
    loop.run(small_with(config, settings), tmp_path / "run")
    assert checkpoint.steps_in(tmp_path / "run" / "checkpoints") == [256, 512]
    (tmp_path / "none").mkdir()
    loop.run(small_with(config, {"enabled": False}), tmp_path / "none")
    assert not (tmp_path / "none" / "checkpoints").exists()


def small_with(config: Config, settings: dict[str, Any]) -> Config:
    return dataclasses.replace(
        config, checkpoint=dataclasses.replace(config.checkpoint, **settings)
    )


SCRIPT = """
import sys
from pathlib import Path
from killing import asked
from runs import coin
from jaxppo.runtime.run import loop
from jaxppo.runtime.store.progress import Progress

folder, variant, last = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

def act(block):
    if block == last:
        raise KeyboardInterrupt

Progress.left = asked(act)
folder.mkdir(exist_ok=True)
try:
    loop.run(coin(variant), folder, resume=(folder / "config.yaml").exists())
except KeyboardInterrupt:
    pass
"""


@pytest.mark.long
@pytest.mark.parametrize("variant", ["seeds", slow("pbt"), "halving"])
def test_a_run_goes_on_with_other_devices(tmp_path: Path, variant: str) -> None:
    """On one, on four, on one: three seeds share four devices, four members have one each.

    Members that halving left use as many devices as they can.
    """
    folder = tmp_path / "run"
    for num, block in ((1, 1), (4, 2), (1, -1)):
        on_devices(num, SCRIPT, str(folder), variant, str(block))
    events = logged(folder)["metrics.jsonl"]
    assert [e["steps"] for e in events if e["event"] == "eval"] == [128, 256, 384, 512]
    if variant == "halving":  # four devices may keep more members
        return
    reference = tmp_path / "reference"
    on_devices(1, SCRIPT, str(reference), variant, "-1")
    expected = logged(reference)["metrics.jsonl"]
    if variant == "seeds":  # their environments are sharded anew, with new random streams
        assert events[:2] == expected[:2]
        assert events[2:] != expected[2:]
    else:  # each goes on as it was, on a device of its own
        assert len(events) == len(expected)
        for one, other in zip(events, expected, strict=True):
            assert one["event"] == other["event"]
            if one["event"] == "eval":
                np.testing.assert_allclose(one["episode_return"], other["episode_return"], 1e-4)


@pytest.mark.long
def test_jobs_of_one_program_keep_checkpoints_of_their_own(tmp_path: Path, kill: Any) -> None:
    """As if each had run alone; and alone each goes on."""
    configs = [coin(seed=1), coin(seed=2)]
    jobs = [Job(config, tmp_path / str(i)) for i, config in enumerate(configs)]
    for job in jobs:
        job.run_dir.mkdir()
    kill(2)
    with pytest.raises(Killed):
        loop.run_together(jobs)
    for job in jobs:
        alone = tmp_path / "alone" / job.run_dir.name
        alone.mkdir(parents=True)
        loop.run(job.config, alone)
        loop.run(job.config, job.run_dir, resume=True)
        found, expected = (checkpoint.newest(folder)[0] for folder in (job.run_dir, alone))
        assert found is not None
        assert expected is not None
        assert found.steps == expected.steps
        for name, array in expected.arrays.items():
            np.testing.assert_allclose(found.arrays[name], array, 1e-3, 1e-5, err_msg=name)


@pytest.mark.long
def test_a_failed_job_does_not_hold_back_the_others(
    tmp_path: Path, kill: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs go on together after one of them failed; alone, that one goes on before its failure."""
    real = Member.diagnose

    def diagnose(member: Member, totals: Any, steps: int) -> str | None:
        fails = member.seed == 7 and steps >= 256
        return "NaN" if fails else real(member, totals, steps)

    def train(name: str) -> list[Any]:
        folders = [tmp_path / name / str(number) for number in range(2)]
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        jobs = [Job(coin(seed=s), f, True) for s, f in zip((3, 7), folders, strict=True)]
        return loop.run_together(jobs)

    started: list[int] = []
    place = saving.place_state

    def placed(state: Any, resumed: Any, *rest: Any) -> Any:
        started.append(resumed.steps)
        return place(state, resumed, *rest)

    monkeypatch.setattr(saving, "place_state", placed)
    monkeypatch.setattr(Member, "diagnose", diagnose)
    whole = train("whole")
    kill(3)
    with pytest.raises(Killed):
        train("halves")
    halves = train("halves")
    assert started == [384]
    assert halves[0] == whole[0]
    assert str(halves[1]) == str(whole[1]) == "NaN"
    assert_equal(tmp_path / "whole" / "0", tmp_path / "halves" / "0")
    assert not list((tmp_path / "halves").glob("*/checkpoints/*.damaged"))
    failed = tmp_path / "halves" / "1"
    found, lines = checkpoint.newest(failed)
    assert found is not None
    assert found.steps == 128
    assert all(line.endswith("was saved after the run failed; skipped") for line in lines)
    monkeypatch.setattr(Member, "diagnose", real)
    assert np.isfinite(loop.run(coin(seed=7), failed, resume=True))
    assert started == [384, 128]


@pytest.mark.long
def test_jobs_without_a_common_step_are_refused(tmp_path: Path) -> None:
    """Nothing is deleted, and nothing starts anew."""
    jobs = [Job(coin(seed=s, num_updates=n), tmp_path / str(s), True) for s, n in ((1, 4), (2, 40))]
    for job in jobs:
        assert job.run_dir is not None
        job.run_dir.mkdir()
        loop.run(job.config, job.run_dir)
    before = sorted(tmp_path.glob("*/checkpoints/*"))
    together = [dataclasses.replace(job, config=coin(seed=i)) for i, job in enumerate(jobs, 1)]
    with pytest.raises(CheckpointError, match="have no step in common; resume each run alone"):
        loop.run_together(together)
    assert sorted(tmp_path.glob("*/checkpoints/*")) == before


@pytest.mark.long
def test_what_is_not_of_this_run_is_not_resumed(tmp_path: Path) -> None:
    """Neither another run's checkpoint, nor a run that ended and has lost its own."""
    for seed in (1, 2):
        (tmp_path / str(seed)).mkdir()
        loop.run(coin(seed=seed), tmp_path / str(seed))
    mine, theirs = (tmp_path / str(seed) / "checkpoints" for seed in (1, 2))
    shutil.rmtree(mine)
    typed = dataclasses.replace(coin(seed=1), resume=str(tmp_path / "1"))
    with pytest.raises(ConfigError, match="is of a run that ended, and has no checkpoints"):
        loop.run(typed, tmp_path / "1", resume=True)
    shutil.copytree(theirs, mine)
    with pytest.raises(CheckpointError, match=r"has arch\.seed=2, but the run has arch\.seed=1"):
        loop.run(typed, tmp_path / "1", resume=True)


def without_checkpoint(run_dir: Path) -> None:
    shutil.rmtree(run_dir / "checkpoints")


def with_damaged_last(run_dir: Path) -> None:
    last = checkpoint.steps_in(run_dir / "checkpoints")[-1]
    (checkpoint.path_of(run_dir, last) / "manifest.json").unlink()


@pytest.mark.long
@pytest.mark.parametrize(
    "damage, start", [(without_checkpoint, []), (lambda _: None, [256]), (with_damaged_last, [128])]
)
def test_jobs_of_one_program_resume_together(
    tmp_path: Path, kill: Any, monkeypatch: pytest.MonkeyPatch, damage: Any, start: list[int]
) -> None:
    """Bit for bit, from the newest step that all have; anew if one of them has none."""
    configs = [coin(seed=1), coin("seeds", seed=5, num_seeds=2), coin(seed=9)]
    resumed: list[int] = []
    real = Progress.resume

    def resume(progress: Progress, facts: Any, steps: int, plan: Any) -> None:
        resumed.append(steps)
        real(progress, facts, steps, plan)

    def train(name: str) -> list[Any]:
        folders = [tmp_path / name / str(number) for number in range(len(configs))]
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        jobs = [Job(config, folder, True) for config, folder in zip(configs, folders, strict=True)]
        return loop.run_together(jobs)

    monkeypatch.setattr(Progress, "resume", resume)
    result = train("whole")
    kill(2)
    with pytest.raises(Killed):
        train("halves")
    damage(tmp_path / "halves" / "1")
    assert train("halves") == result
    assert resumed == start
    put_aside = list((tmp_path / "halves" / "0" / "checkpoints").glob("*.damaged"))
    assert bool(put_aside) == (start != [256])  # those that are not resumed from
    for number in range(len(configs)):
        assert_equal(tmp_path / "whole" / str(number), tmp_path / "halves" / str(number))
