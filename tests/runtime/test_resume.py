"""Runs that were stopped end where they would have ended, bit for bit."""

import dataclasses
import itertools
import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from conftest import NETWORK, build, on_devices, small_config
from killing import Killed
from runs import QUIET, VARIANTS, assert_equal, coin, jobs_of, logged, newest

from jaxppo.analysis import runs
from jaxppo.config.fields import ConfigError
from jaxppo.config.plan import plan
from jaxppo.config.schema import OF_GAMES, Config
from jaxppo.config.stored import plain
from jaxppo.runtime.hosts.signals import Interrupted, Signals
from jaxppo.runtime.programs import compile, population
from jaxppo.runtime.programs.placement import Layout, reshard
from jaxppo.runtime.run import loop, parts, resuming
from jaxppo.runtime.run.jobs import TrainingError
from jaxppo.runtime.run.members import Member
from jaxppo.runtime.run.selection import Selection
from jaxppo.runtime.store import checkpoint
from jaxppo.runtime.store.checkpoint import CheckpointError
from jaxppo.runtime.store.facts import RunFacts
from jaxppo.runtime.store.progress import Pace, Progress, blocks_after

pytestmark = pytest.mark.usefixtures("share_programs")

PBT, HALVING = "pbt of two", "halving of two"  # of one program


@pytest.fixture(scope="module")
def whole(share_programs: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """`whole(variant)`: the result and directory of a run that nothing stops."""
    known: dict[str, tuple[float, Path]] = {}

    def call(variant: str = "one") -> tuple[float, Path]:
        if variant not in known:
            folder = tmp_path_factory.mktemp("whole")
            known[variant] = loop.run(coin(variant), folder), folder
        return known[variant]

    return call


def stopped(config: Config, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    with pytest.raises(Killed):
        loop.run(config, folder, resume=(folder / "config.yaml").exists())


def contents(folder: Path) -> dict[str, bytes]:
    """Of every file but the lock."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    "variant",
    [
        "one",
        *(pytest.param(v, marks=pytest.mark.long) for v in ("everything", "games", PBT, HALVING)),
    ],
)
def test_a_run_that_was_stopped_ends_as_if_nothing_had_happened(
    tmp_path: Path, kill: Any, whole: Any, variant: str
) -> None:
    """Before its first checkpoint, after it, twice; and a run that has ended ends again."""
    result, reference = whole(variant)
    for block in (0, 1, 3):
        kill(block)
        stopped(coin(variant), tmp_path / "parts")
    for _ in range(2):
        assert loop.run(coin(variant), tmp_path / "parts", resume=True) == result
        assert_equal(reference, tmp_path / "parts")
        end = json.loads((tmp_path / "parts" / "summary.json").read_text())
        assert end["status"] == "finished"
    if variant == "one":  # its best policy is the one of its best evaluation
        best = checkpoint.read(checkpoint.path_of(reference, end["best_steps"])).arrays
        last = newest(reference).arrays
        assert end["best_steps"] < end["steps"]
        kept = {n.removeprefix("[1]"): x for n, x in last.items() if n.startswith("[1].params")}
        assert kept
        for name, array in kept.items():
            np.testing.assert_array_equal(array, best[f"[0].agent.policy{name}"])


def test_what_was_logged_after_the_checkpoint_is_logged_anew(
    tmp_path: Path, kill: Any, whole: Any
) -> None:
    """A checkpoint of block 1, a log that goes on, a line that was cut: no hole, no duplicate."""
    result, reference = whole()
    kill(3)
    stopped(coin(), tmp_path)
    for steps in checkpoint.steps_in(tmp_path / "checkpoints")[1:]:
        (tmp_path / "checkpoints" / f"{steps:012}" / "manifest.json").unlink()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"event": "tra')
    assert loop.run(coin(), tmp_path, resume=True) == result
    assert_equal(reference, tmp_path)
    assert list((tmp_path / "checkpoints").glob("*.damaged"))


OTHER_TORSO = {**NETWORK, "actor_torso": {**NETWORK["actor_torso"], "layer_sizes": [8]}}
SHOWN = {"target": "envs.Shown", "metrics": ["time"]}
UNFIT: list[tuple[dict[str, Any], dict[str, Any], str]] = [  # variant, more of arch, words
    ({"network": OTHER_TORSO}, {}, "in the checkpoint and"),
    ({"system__rollout_length": 16}, {}, r"128 steps per update, and .* 8 x 8 = 64; keep that"),
    ({}, {"seed": 2}, r"has arch\.seed=42, but the run has arch\.seed=2"),
    ({}, {"num_seeds": 2}, "holds 1 members, and 2 are asked for"),
    ({}, {"num_evaluation": 2}, "arch.num_evaluation=.* keep arch.num_evaluation=4"),
    ({"env": SHOWN}, {"eval_metric": "time"}, "^arch.eval_metric=time: .* arch.eval_metric=null;"),
]


@pytest.mark.parametrize(
    "changes, key",
    [
        ({"logger": {"every": 1}}, "logger.every=1"),
        ({"logger": {"details": True}}, "logger.details=true"),
        ({"env": SHOWN}, "env.metrics=[time]"),
    ],
)
def test_metrics_of_a_block_that_has_begun_keep_their_shape(
    changes: dict[str, Any], key: str
) -> None:
    config = small_config(**{"logger": QUIET, **changes})
    stored = plain(small_config(logger=QUIET))
    facts = RunFacts(members=[{}], updates=1, updates_per_block=[2], config=stored)
    (line,) = resuming._misfits(config, Path("there"), facts, (2, 2))
    assert line.startswith(key)
    facts = dataclasses.replace(facts, block=1, updates=0)  # between blocks there are none
    assert list(resuming._misfits(config, Path("there"), facts, (2, 2))) == []


@pytest.mark.long
def test_what_does_not_fit_is_refused_before_anything_changes(
    tmp_path: Path, kill: Any, whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And before anything compiles; with its own settings the run goes on as if nothing was."""
    kill(2)
    stopped(coin(), tmp_path)
    before = contents(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(compile, "compile_program", lambda *_, **__: pytest.fail("late"))
        patch.setattr(parts.Run, "compile", lambda *_: pytest.fail("late"))
        for variant, arch, words in UNFIT:
            patch.setitem(VARIANTS, "changed", variant)
            with pytest.raises((CheckpointError, ConfigError), match=words):
                loop.run(coin("changed", **arch), tmp_path, resume=True)
            assert contents(tmp_path) == before
        patch.setitem(VARIANTS, "changed", {"network": OTHER_TORSO})
        allowed = dataclasses.replace(coin("changed"), resume_allow=["network"])
        with pytest.raises(ConfigError, match=rf"^resume={tmp_path}: .*init_from"):
            loop.run(allowed, tmp_path, resume=True)
    result, reference = whole()
    assert loop.run(coin(), tmp_path, resume=True) == result
    assert_equal(reference, tmp_path)
    shutil.rmtree(tmp_path / "checkpoints")
    typed = dataclasses.replace(coin(), resume=str(tmp_path))
    with pytest.raises(ConfigError, match="is of a run that ended, and has no checkpoints"):
        loop.run(typed, tmp_path, resume=True)


@pytest.mark.long
def test_a_larger_budget_goes_on_in_blocks_of_the_same_length(
    tmp_path: Path, whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new settings are kept once the run goes on; as many more evaluations agree with them."""
    shutil.copytree(whole()[1], tmp_path, dirs_exist_ok=True)
    first, config = logged(tmp_path)["metrics.jsonl"], (tmp_path / "config.yaml").read_text()

    def too_large(*_: Any, **__: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(compile, "compile_program", too_large)
        with pytest.raises(MemoryError):
            loop.run(coin(num_updates=16), tmp_path, resume=True)
    assert (tmp_path / "config.yaml").read_text() == config
    loop.run(coin(num_updates=16), tmp_path, resume=True)
    assert "num_updates: 16" in (tmp_path / "config.yaml").read_text()
    events = logged(tmp_path)["metrics.jsonl"]
    assert events[:8] == first[:8]
    trained = [event for event in events if event["event"] == "train"]
    assert [event["updates"] for event in trained] == [2, 4, 6, 8, 10, 12, 14, 16]
    rates = [event["learning_rate"] for event in trained]
    assert rates[4] > rates[3]  # they decay over the new budget
    loop.run(coin(num_updates=16, num_evaluation=8), tmp_path, resume=True)


@pytest.mark.parametrize(
    "done, updates, evaluations, blocks",
    [
        ((), 8, 4, (2, 2, 2, 2)),
        ((2, 2), 8, 4, (2, 2, 2, 2)),
        ((2, 2), 12, 4, (2, 2, 2, 2, 2, 2)),
        ((2, 2, 2, 2), 13, 4, (2, 2, 2, 2, 1, 2, 2)),
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
def test_a_smaller_budget_ends_the_block_that_was_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after 6 updates, in the middle of a block, a run does at least one more."""
    monkeypatch.setattr(Pace, "updates", lambda *_: 1)
    calls = itertools.count(1)  # one after each update and each block
    with monkeypatch.context() as patch:
        agreed = lambda _: signal.SIGTERM if next(calls) == 7 else None  # noqa: E731
        patch.setattr(Signals, "agreed", agreed)
        with pytest.raises(Interrupted, match=f"at step {64 * 6}, saved"):
            loop.run(coin(num_updates=16), tmp_path)
    before = contents(tmp_path)
    for key, unit in (("num_updates", 1), ("total_timesteps", 64)):
        arch = {"num_evaluation": 2, "num_updates": None, key: unit * 6}
        with pytest.raises(ConfigError, match=rf"arch\.{key}={unit * 6}: .* at least {unit * 7}$"):
            loop.run(coin(**arch), tmp_path, resume=True)
        assert contents(tmp_path) == before
    loop.run(coin(num_updates=8), tmp_path, resume=True)
    events = logged(tmp_path)["metrics.jsonl"]
    assert [e["updates"] for e in events if e["event"] == "train"] == [4, 8]
    assert [e["steps"] for e in events if e["event"] == "eval"] == [64 * 4, 64 * 8]


def test_a_run_that_stops_after_its_last_update_ends(
    tmp_path: Path, whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last evaluation is missing, and no update."""
    result, reference = whole()
    monkeypatch.setattr(Pace, "updates", lambda *_: 2)
    calls = itertools.count(1)  # two of each block: after its updates, and at its end
    with monkeypatch.context() as patch:
        agreed = lambda _: signal.SIGTERM if next(calls) == 7 else None  # noqa: E731
        patch.setattr(Signals, "agreed", agreed)
        with pytest.raises(Interrupted, match=f"at step {64 * 8}, saved"):
            loop.run(coin(), tmp_path)
    with pytest.raises(ConfigError, match=r"arch\.num_updates=7: .* set at least 8$"):
        loop.run(coin(num_updates=7), tmp_path, resume=True)
    assert loop.run(coin(), tmp_path, resume=True) == result
    assert_equal(reference, tmp_path)


def test_a_run_that_stops_within_a_block_keeps_its_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those since the last train event, and those of the block before it."""
    monkeypatch.setattr(Pace, "updates", lambda *_: 1)
    logger = dataclasses.replace(coin().logger, every=2)
    config = dataclasses.replace(coin(num_evaluation=1), logger=logger)
    for name, stops in (("once", (5,)), ("twice", (3, 2))):
        folder = tmp_path / name
        folder.mkdir()
        for number in stops:  # of updates
            calls = itertools.count(1)
            agreed = lambda _, n=number, c=calls: signal.SIGTERM if next(c) == n else None  # noqa: E731
            monkeypatch.setattr(Signals, "agreed", agreed)
            with pytest.raises(Interrupted):
                loop.run(config, folder, resume=(folder / "config.yaml").exists())
    assert_equal(tmp_path / "once", tmp_path / "twice")


def test_halving_follows_the_budget_of_a_resume() -> None:
    """Of four members half stay after 2 of 8 updates; of 32 updates they stay until the 16th.

    Of 14 updates the rungs have ended after 4 and 8, before 9 of 56 were done.
    """
    config = small_config(
        population={"size": 4, "selection": "halving"}, arch={"num_updates": 8, "num_evaluation": 4}
    )
    system, _, planned = build(config)
    layout = Layout(planned, system, (0, 1, 2, 3))
    selection = Selection(config, population.members(config), layout)

    def kept(layout: Layout, blocks: tuple[int, ...]) -> list[int]:
        scores = dict(enumerate([1.0, 4.0, 2.0, 3.0]))
        found = [selection.survivors(layout, scores, i, blocks) for i in range(len(blocks))]
        return [len(layout.slots if each is None else each) for each in found]

    assert selection.survivors(layout, {0: 1.0, 1: 4.0, 2: 2.0, 3: 3.0}, 0, (2,) * 4) == [1, 3]
    later = Layout(dataclasses.replace(planned, num_members=2), system, (1, 3))
    assert kept(later, (2,) * 16) == [2] * 7 + [1] * 8 + [2]  # the last block ends the run
    assert kept(layout, (4, 4, 4, 2)) == [2, 1, 1, 4]


def test_how_simulators_are_run_is_no_other_environment() -> None:
    config = coin()
    stored = plain(config)
    for changes, other in (({"processes": 8, "on_error": "restart"}, False), ({"mask": [1]}, True)):
        changed = dataclasses.replace(config, env=dataclasses.replace(config.env, **changes))
        assert resuming.has_other_env(stored, changed) == other
    for name in OF_GAMES:  # which an older version did not store
        del stored["env"][name]
    assert not resuming.has_other_env(stored, config)
    changed = dataclasses.replace(config, env=dataclasses.replace(config.env, opponent="self"))
    assert resuming.has_other_env(stored, changed)


@pytest.mark.long
def test_another_number_of_environments_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With episodes that start anew, and as many steps in an update; returns still compare."""
    loop.run(coin(num_updates=4, num_evaluation=2), tmp_path)
    monkeypatch.setitem(VARIANTS, "changed", {"system__rollout_length": 16})
    longer = coin("changed", total_num_envs=4, num_updates=6, num_evaluation=3)
    loop.run(longer, tmp_path, resume=True)
    events = logged(tmp_path)["metrics.jsonl"]
    assert [e["steps"] for e in events if e["event"] == "eval"] == [128, 256, 384]
    assert not any("new_environment" in event for event in events)


@pytest.mark.long
def test_in_another_environment_episodes_and_the_best_policy_start_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The state of `Shown` gets parameters with `env.randomize`; a schedule has new metrics.

    Half of the run is over, so the weight begins at 0.2 + (0.4 - 0.2) 0.5 / 0.8 = 0.325.
    """
    sizes = {"num_updates": 4, "num_evaluation": 2}
    monkeypatch.setitem(VARIANTS, "shown", {"env": {"target": "envs.Shown", "extras": ["step"]}})
    config = coin("shown", **sizes)
    logger = dataclasses.replace(config.logger, marl_eval=True)
    config = dataclasses.replace(config, logger=logger)
    loop.run(config, tmp_path)  # 6 in every episode: 2 + 2 + 2
    random = dataclasses.replace(
        config.env,
        randomize={"count": [1, 5]},
        curriculum={"weight": {"start": 0.2, "end": 0.4, "share": 0.8}},
    )
    changed = dataclasses.replace(
        config,
        env=random,
        arch=dataclasses.replace(config.arch, num_updates=8),
        system=dataclasses.replace(
            config.system, schedules={"ent_coef": {"kind": "linear", "end": 0.0}}
        ),
        logger=dataclasses.replace(logger, console=True),
        resume_allow=["env", "system.schedules"],
    )
    weights: list[np.ndarray] = []
    place = resuming.place_state

    def placed(*given: Any) -> Any:
        state = place(*given)
        weights.append(np.asarray(state.learner.acting.env_state.inner.values["weight"]))
        return state

    monkeypatch.setattr(resuming, "place_state", placed)
    assert loop.run(changed, tmp_path, resume=True) <= 2.0
    assert "its episodes start anew" in capsys.readouterr().out
    np.testing.assert_allclose(weights[0], 0.325, 1e-6)
    log = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["updates"] for row in log if row["event"] == "train"] == [2, 4, 6, 8]
    (member,) = newest(tmp_path).facts["members"]
    assert member["best"]["episode_return"] <= 2.0
    assert member["best"]["steps"] > 4 * 64
    for _ in range(2):  # also after another resume
        ((run,), notes) = runs.find([str(tmp_path)])
        assert min(run.evaluations) > 4 * 64
        assert max(run.evaluations.values()) <= 2.0
        (note,) = notes
        assert f"changed the environment at step {4 * 64}" in note
        assert "[6.0" not in json.dumps(json.loads((tmp_path / "marl_eval.json").read_text()))
        loop.run(changed, tmp_path, resume=True)


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
        loop.run(coin("everything", num_evaluation=8), tmp_path)
    steps = checkpoint.steps_in(tmp_path / "checkpoints")
    assert steps[0] == 64  # of one update, when all were well
    assert steps[-2:] == [7 * 64, 8 * 64]
    assert len(list((tmp_path / "checkpoints").glob("*.pinned"))) == 1


def test_saving_takes_its_share_of_the_time(tmp_path: Path) -> None:
    """A run of a second is saved at its end alone, and where a milestone says so."""
    for name, settings in (
        ("run", {"share": 0.001, "milestones": [200]}),
        ("none", {"enabled": False}),
    ):
        saved = dataclasses.replace(coin().checkpoint, **settings)
        (tmp_path / name).mkdir()
        loop.run(dataclasses.replace(coin(), checkpoint=saved), tmp_path / name)
    assert checkpoint.steps_in(tmp_path / "run" / "checkpoints") == [256, 512]
    assert not (tmp_path / "none" / "checkpoints").exists()


SCRIPT = """
import sys
from pathlib import Path
from killing import asked
from programs import share_programs
from runs import coin
from jaxppo.runtime.hosts import devices
from jaxppo.runtime.run import loop
from jaxppo.runtime.store.progress import Progress

shared, real = share_programs._get_wrapped_function()(), Progress.left
next(shared)

def run(folder, variant, num, last):
    def act(block):
        if block == last:
            raise KeyboardInterrupt

    devices.count = lambda members: num
    Progress.left = real
    Progress.left = asked(act)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        loop.run(coin(variant), folder, resume=(folder / "config.yaml").exists())
    except KeyboardInterrupt:
        pass

for variant, *stops in (
    ("one", (1, 1), (2, 2), (1, -1)),
    ("pbt of two", (1, 1), (2, -1)),
):
    for num, last in stops:
        run(Path(sys.argv[1]) / variant, variant, num, last)
"""


def test_environments_that_are_split_anew_keep_their_order_and_get_streams_of_their_own() -> None:
    acting = build(small_config())[1].acting  # [D, P, U, B, ...], each of one but B
    found = reshard(acting, (2, 2))
    np.testing.assert_array_equal(found.obs.reshape(acting.obs.shape), acting.obs)
    assert found.obs.shape[:4] == (1, 2, 2, 1)
    streams = jax.random.key_data(found.key).reshape(4, -1)
    assert len(np.unique(streams, axis=0)) == 4


@pytest.mark.long
def test_a_run_goes_on_with_other_devices(tmp_path: Path, whole: Any) -> None:
    """On one, on two, on one: an agent is split over them, two members have one each."""
    on_devices(2, SCRIPT, str(tmp_path))
    for variant in ("one", PBT):
        found, expected = (
            logged(folder)["metrics.jsonl"] for folder in (tmp_path / variant, whole(variant)[1])
        )
        assert [e["event"] for e in found] == [e["event"] for e in expected]
        assert [e["steps"] for e in found] == [e["steps"] for e in expected]
        if variant == "one":  # its environments are split anew, with new random streams
            assert found[:2] == expected[:2]
            assert found[2:] != expected[2:]
            continue
        for one, other in zip(found, expected, strict=True):  # each goes on as it was
            if one["event"] == "eval":
                np.testing.assert_allclose(one["episode_return"], other["episode_return"], 1e-4)
            if one["event"] == "train":
                np.testing.assert_allclose(one["total_loss"], other["total_loss"], 1e-2, 1e-3)


@pytest.mark.long
def test_jobs_of_one_program_resume_together(
    tmp_path: Path, kill: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, from the newest step that all have; anew if one of them has none."""
    configs = [coin(seed=42), coin("seeds", seed=5, num_seeds=2), coin(seed=9)]
    resumed: list[int] = []
    real = Progress.resume

    def resume(progress: Progress, facts: Any, steps: int, plan: Any) -> None:
        resumed.append(steps)
        real(progress, facts, steps, plan)

    def train(name: str) -> list[Any]:
        return loop.run_together(jobs_of(tmp_path / name, configs, resume=True))

    monkeypatch.setattr(Progress, "resume", resume)
    result = train("whole")
    kill(2)
    with pytest.raises(Killed):
        train("halves")

    def damaged(name: str, *lost: str) -> Path:
        shutil.copytree(tmp_path / "halves", tmp_path / name)
        for each in lost:
            path = tmp_path / name / each
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return tmp_path / name

    last = checkpoint.path_of(Path("1"), 256)
    for name, lost, start in (
        ("as it was", (), 256),
        ("without the last of one", (f"{last}/manifest.json",), 128),
        ("without any of one", ("1/checkpoints",), None),
    ):
        folder = damaged(name, *lost)
        resumed.clear()
        assert train(name) == result
        assert resumed == ([] if start is None else [start])
        put_aside = list((folder / "0" / "checkpoints").glob("*.damaged"))
        assert bool(put_aside) == (start != 256)  # those that are not resumed from
        for number in range(len(configs)):
            assert_equal(tmp_path / "whole" / str(number), folder / str(number))

    folder = damaged("nothing in common", str(last), str(checkpoint.path_of(Path("0"), 128)))
    before = sorted(folder.glob("*/checkpoints/*"))
    with pytest.raises(CheckpointError, match="have no step in common; resume each run alone"):
        train(folder.name)
    assert sorted(folder.glob("*/checkpoints/*")) == before  # nothing is deleted, or starts anew


@pytest.mark.long
def test_a_job_of_a_program_goes_on_alone(tmp_path: Path, kill: Any, whole: Any) -> None:
    """Each has checkpoints of its own, as if it had run alone."""
    jobs: Any = jobs_of(tmp_path, [coin(seed=seed) for seed in (42, 5, 6, 9)])
    kill(2)
    with pytest.raises(Killed):
        loop.run_together(jobs)
    loop.run(coin(seed=42), jobs[0].run_dir, resume=True)
    found, expected = newest(jobs[0].run_dir), newest(whole()[1])
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
        configs = [coin(seed=seed) for seed in (3, 7, 8, 9)]
        return loop.run_together(jobs_of(tmp_path / name, configs, resume=True))

    started: list[int] = []
    place = resuming.place_state

    def placed(state: Any, resumed: Any, *rest: Any) -> Any:
        started.append(resumed.steps)
        return place(state, resumed, *rest)

    monkeypatch.setattr(resuming, "place_state", placed)
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
    (found,), lines = checkpoint.newest_of_all([failed])
    assert found.steps == 128
    assert all(line.endswith("was saved after the run failed; skipped") for line in lines)
    monkeypatch.setattr(Member, "diagnose", real)
    assert np.isfinite(loop.run(coin(seed=7), failed, resume=True))
    assert started == [384, 128]
