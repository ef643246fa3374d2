"""Checkpoints: what is kept, what is found damaged, and what is said of it."""

import dataclasses
import itertools
import json
import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_config
from runs import QUIET, jobs_of, newest

from jaxppo.config import stored
from jaxppo.config.parse import parse
from jaxppo.runtime.hosts import devices
from jaxppo.runtime.hosts.signals import Interrupted, Signals
from jaxppo.runtime.run import loop, saving
from jaxppo.runtime.run.caller import Caller
from jaxppo.runtime.run.jobs import TrainingError
from jaxppo.runtime.store import checkpoint
from jaxppo.runtime.store.checkpoint import Checkpoint, CheckpointError, Writer
from jaxppo.runtime.store.facts import MemberFacts, RunFacts
from jaxppo.runtime.store.progress import Pace

TREE = {
    "weights": [np.arange(6, dtype=np.float32).reshape(2, 3), np.full((), 0.5, np.float32)],
    "count": np.array(7, np.int32),
    "flags": (np.array([True, False]), np.zeros((0, 4), np.float32)),
    "half": np.asarray(jnp.ones(3, jnp.bfloat16)),
    "key": jax.random.key(3),
}


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.fixture
def write(tmp_path: Path, threads: ThreadPoolExecutor) -> Callable[..., Writer]:
    """`write({steps: score})`: checkpoints in `tmp_path`, whose numbers are their steps."""

    def call(scores: dict[int, float | None], keep: int = 2, milestones: Any = ()) -> Writer:
        writer = Writer(tmp_path, threads, keep, list(milestones))
        for steps, score in scores.items():
            writer.save(steps, {"x": np.full(3, steps, np.float32)}, {"block": steps}, score)
        writer.wait()
        return writer

    return call


def test_settings_of_earlier_runs_are_read_as_they_were_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a run is resumed, and where its policy is loaded."""
    config = small_config()
    kept = stored.plain(config)
    kept["arch"] |= {"plan_only": False, "target": None}
    del kept["system"]["obs_norm_share"]  # which was 1
    monkeypatch.setattr(stored, "plain", lambda _: kept)
    stored.keep_config(config, tmp_path)
    assert parse(stored.read_config(tmp_path)) == config
    facts = RunFacts(
        slots=[0], members=[dataclasses.asdict(MemberFacts())], shards=[1, 1], config=kept
    )
    found = Checkpoint(tmp_path, 0, dataclasses.asdict(facts), {})
    assert parse(RunFacts.of(found).config) == config


def there(run_dir: Path) -> list[int]:
    return checkpoint.steps_in(run_dir / "checkpoints")


def test_a_tree_comes_back_as_it_was(
    tmp_path: Path, threads: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    """Below a directory that has the signs of patterns; the manifest says what wrote it."""
    run_dir = tmp_path / "run[1]*"
    run_dir.mkdir()
    writer = Writer(run_dir, threads, 1, [])
    writer.save(5, devices.host(TREE), {"note": "as it is"}, None)
    writer.wait()
    (found,), lines = checkpoint.newest_of_all([run_dir])
    assert (found.steps, found.facts["note"], lines) == (5, "as it is", [])
    assert found.facts["format"] == checkpoint.FORMAT
    assert found.facts["versions"]["jax"] == jax.__version__
    assert {"orbax-checkpoint", "optax", "flax", "jaxppo"} <= set(found.facts["versions"])
    assert not caplog.records
    shapes = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, TREE))
    back = checkpoint.unflatten(shapes, found.arrays)
    assert jax.tree.structure(back) == jax.tree.structure(TREE)
    for one, other in zip(*(jax.tree.leaves(devices.host(x)) for x in (back, TREE)), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(jax.random.normal(back["key"]), jax.random.normal(TREE["key"]))


def test_scores_that_do_not_compare_protect_nothing(
    tmp_path: Path, threads: ThreadPoolExecutor, write: Any
) -> None:
    write({10: 9.0, 20: 1.0})
    writer = Writer(tmp_path, threads, 1, [], compares=lambda manifest: manifest["block"] > 10)
    for steps, score in ((30, 2.0), (40, 0.0)):
        writer.save(steps, {"x": np.zeros(3)}, {"block": steps}, score)
    writer.wait()
    assert there(tmp_path) == [30, 40]


def test_arrays_of_another_program_are_refused(tmp_path: Path, write: Any) -> None:
    write({1: None})
    found = newest(tmp_path)
    for shapes, words in (
        ({"x": jax.ShapeDtypeStruct((4,), jnp.float32)}, r"\['x'\] is float32\[3\] .*float32\[4\]"),
        ({"x": jax.ShapeDtypeStruct((3,), jnp.int32)}, r"float32\[3\] .* int32\[3\]"),
        ({"y": jax.ShapeDtypeStruct((3,), jnp.float32)}, r"\['y'\] is nothing"),
    ):
        with pytest.raises(CheckpointError, match=words):
            checkpoint.unflatten(shapes, found.arrays)


@pytest.mark.parametrize(
    "scores, keep, milestones, stay",
    [
        ({1: 5.0, 2: 9.0, 3: 1.0, 4: 2.0, 5: 3.0}, 2, (), [2, 4, 5]),
        ({1: 5.0, 2: float("nan"), 3: float("inf"), 4: None, 5: 3.0}, 1, (), [1, 5]),
        ({1: None, 2: float("-inf"), 3: None}, 1, (), [3]),
        ({1: 4.0, 2: 4.0, 3: 4.0}, 1, (), [1, 3]),
        ({10: 1.0, 20: 2.0, 30: 3.0, 40: 4.0, 50: 5.0}, 1, (15, 30), [20, 30, 50]),
    ],
)
def test_the_latest_the_best_and_milestones_stay(
    tmp_path: Path, write: Any, scores: Any, keep: int, milestones: Any, stay: list[int]
) -> None:
    write(scores, keep, milestones)
    assert there(tmp_path) == stay
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        f"{steps:012}" for steps in stay
    ]


def test_a_milestone_is_due_at_its_step_and_once(write: Any) -> None:
    writer = write({}, milestones=(16, 30))
    assert [s for s in range(8, 48, 8) if writer.is_milestone(s, s - 8)] == [16, 32]


def test_jobs_of_one_program_keep_two_checkpoints(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    """So that a kill while they write leaves a step that all have."""
    for num in (1, 2):
        jobs = jobs_of(tmp_path / str(num), [small_config(checkpoint={"keep": 1})] * num)
        run: Any = SimpleNamespace(jobs=jobs, caller=Caller(), writers={})
        saving.open_writers(run, threads)
        for writer in run.writers.values():
            for steps in (1, 2, 3):
                writer.save(steps, {"x": np.zeros(1)}, {}, None)
            writer.wait()
        kept = [3] if num == 1 else [2, 3]
        assert [there(folder) for folder in sorted((tmp_path / str(num)).iterdir())] == [kept] * num


def test_what_was_pinned_stays_also_in_the_next_process(tmp_path: Path, write: Any) -> None:
    writer = write({1: 1.0, 2: 0.0}, keep=1)
    writer.pin()
    writer.save(3, {"x": np.ones(3)}, {}, 0.0)
    writer.save(4, {"x": np.ones(3)}, {}, 0.0)
    writer.wait()
    assert there(tmp_path) == [1, 2, 4]
    write({5: 0.0, 6: 0.0}, keep=1)
    assert there(tmp_path) == [1, 2, 6]


def test_what_a_killed_process_left_is_taken_away(tmp_path: Path, write: Any) -> None:
    write({1: 1.0})
    for name in ("000000000002.begun", "000000000000.dropped"):
        (tmp_path / "checkpoints" / name / "arrays").mkdir(parents=True)
    (found,), lines = checkpoint.newest_of_all([tmp_path])
    assert (found.steps, lines) == (1, [])
    write({})
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [f"{1:012}"]


def a_file(path: Path) -> Path:
    return next(f for f in sorted((path / "arrays").rglob("*")) if f.is_file())


def flip(path: Path) -> None:
    """One bit of the arrays' data."""
    file = max((path / "arrays").rglob("*"), key=lambda f: f.stat().st_size if f.is_file() else 0)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def edit(path: Path, **changes: Any) -> None:
    file = path / "manifest.json"
    facts = {**json.loads(file.read_text()), **changes}
    kept = {k: v for k, v in facts.items() if k != "sha256" and v is not None}
    file.write_text(checkpoint.sealed(kept))


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a flipped bit": (flip, "SHA-256"),
    "a lost file": (lambda path: a_file(path).unlink(), "SHA-256"),
    "a file too many": (lambda path: (path / "arrays" / "new").touch(), "new is not as"),
    "no manifest": (lambda path: (path / "manifest.json").unlink(), "manifest.json"),
    "half a manifest": (lambda path: os.truncate(path / "manifest.json", 100), "manifest.json"),
    "another format": (lambda path: edit(path, format=99), "format 99"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_is_named_and_the_one_before_it_read(
    tmp_path: Path, write: Any, damage: str
) -> None:
    write({10: 1.0, 20: 1.0})
    harm, words = DAMAGES[damage]
    harm(tmp_path / "checkpoints" / f"{20:012}")
    (found,), (line,) = checkpoint.newest_of_all([tmp_path])
    assert found.steps == 10
    np.testing.assert_array_equal(found.arrays["['x']"], np.full(3, 10))
    assert words in line
    assert f"{20:012}" in line
    assert line.endswith("skipped")
    assert "\n" not in line
    checkpoint.put_aside(tmp_path, found.steps)
    assert there(tmp_path) == [10]
    write({20: 2.0})  # it can be written again
    assert newest(tmp_path).steps == 20


@pytest.mark.parametrize("reads", ["_digest", "_restore"])
def test_one_that_a_run_drops_while_it_is_read_is_not_damaged(
    tmp_path: Path, write: Any, monkeypatch: pytest.MonkeyPatch, reads: str
) -> None:
    """The run that trains there has written another one."""
    write({10: 1.0}, keep=1)
    read = getattr(checkpoint, reads)

    def read_late(path: Path) -> Any:
        monkeypatch.setattr(checkpoint, reads, read)
        write({20: 1.5}, keep=1)
        return read(path)

    monkeypatch.setattr(checkpoint, reads, read_late)
    (found,), lines = checkpoint.newest_of_all([tmp_path])
    assert (found.steps, lines) == (20, [])


def test_a_checkpoint_of_format_3_has_the_names_of_today(tmp_path: Path, write: Any) -> None:
    """There `agent.algorithm_state` was `agent.algorithm`."""
    write({10: 1.0})
    path = tmp_path / "checkpoints" / f"{10:012}"
    old = ".learner.agent.algorithm"
    edit(path, format=3, layout={f"{old}.factor": ["float32", [2]], f"{old}s": ["float32", [1]]})
    arrays = checkpoint.read(path).arrays
    assert list(arrays) == [f"{old}_state.factor", f"{old}s"]
    np.testing.assert_array_equal(arrays[f"{old}_state.factor"], [10, 10])


def test_every_flipped_bit_of_a_manifest_is_noticed(tmp_path: Path, write: Any) -> None:
    write({10: 1.0})
    file = tmp_path / "checkpoints" / f"{10:012}" / "manifest.json"
    whole = file.read_bytes()
    for bit in np.random.default_rng(0).choice(8 * len(whole), 20, replace=False):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        file.write_bytes(data)
        with pytest.raises(CheckpointError, match=r"manifest\.json|format"):
            checkpoint.read(file.parent)
    file.write_bytes(whole)
    assert checkpoint.read(file.parent).steps == 10


def test_files_of_others_among_checkpoints_are_left_alone(tmp_path: Path, write: Any) -> None:
    write({10: 1.0})
    folder = tmp_path / "checkpoints"
    (folder / "x.pinned").touch()
    for name in ("99999999", "\u0663" * 12):  # without leading zeros, and in other digits
        shutil.copytree(folder / f"{10:012}", folder / name)
    (found,), lines = checkpoint.newest_of_all([tmp_path])
    assert (found.steps, lines) == (10, [])
    checkpoint.put_aside(tmp_path, 10)
    write({20: 1.0})
    assert there(tmp_path) == [10, 20]
    assert {"x.pinned", "99999999"} <= {path.name for path in folder.iterdir()}


def test_one_that_was_complete_gets_its_name(tmp_path: Path, write: Any) -> None:
    """As after a kill between the two renames; incomplete ones do not."""
    write({10: 1.0, 20: 1.0})
    folder = tmp_path / "checkpoints"
    for steps in (10, 20):
        (folder / f"{steps:012}").rename(folder / f"{steps:012}.begun")
    (folder / f"{20:012}.begun" / "manifest.json").unlink()
    checkpoint.recover(tmp_path)
    assert there(tmp_path) == [10]
    checkpoint.read(checkpoint.path_of(tmp_path, 10))


def test_a_step_that_is_saved_again_keeps_its_score(tmp_path: Path, write: Any) -> None:
    writer = write({10: 3.0, 20: 1.0}, keep=1)
    writer.save(10, {"x": np.ones(3)}, {}, None)
    writer.save(30, {"x": np.ones(3)}, {}, 1.0)
    writer.wait()
    assert there(tmp_path) == [10, 30]
    assert checkpoint.read_manifest(checkpoint.path_of(tmp_path, 10))["score"] == 3.0


def test_where_none_is_whole_the_error_says_so(tmp_path: Path, write: Any) -> None:
    assert checkpoint.newest(tmp_path) == (None, [])  # none at all is no error
    write({10: 1.0, 20: 1.0})
    for steps in (10, 20):
        flip(tmp_path / "checkpoints" / f"{steps:012}")
    with pytest.raises(
        CheckpointError, match=r"none of 2 checkpoints can be used.*SHA-256"
    ) as error:
        checkpoint.newest(tmp_path)
    assert "\n" not in str(error.value)


def test_a_full_disk_is_said_once(
    tmp_path: Path, write: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """orbax would also log the tracebacks of its threads."""
    writer = write({10: 1.0})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        writer.save(20, {"x": np.random.default_rng(0).random(5000)}, {}, 1.0)
        with pytest.raises(CheckpointError, match="20: cannot be written"):
            writer.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not any(record.exc_info for record in caplog.records)
    assert newest(tmp_path).steps == 10


@pytest.mark.long
def test_after_a_nan_nothing_is_saved(
    tmp_path: Path, share_programs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints within the block, after the fault, would have replaced all from before it."""
    monkeypatch.setattr(saving, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(Pace, "updates", lambda *_: 1)
    settings = small_config(
        env={"target": "envs.Faulty"},
        arch={"total_num_envs": 8, "num_updates": 40, "num_evaluation": 2, "seed": 1},
        system={"num_minibatches": 2},
        checkpoint={"share": 1.0},
        logger=QUIET,
    )
    for every in (None, 1):
        logger = dataclasses.replace(settings.logger, every=every)
        (tmp_path / str(every)).mkdir()
        with pytest.raises(TrainingError, match="NaN or infinity"):
            loop.run(dataclasses.replace(settings, logger=logger), tmp_path / str(every))
        assert_finite(tmp_path / str(every))
    calls = itertools.count()
    agreed = lambda _: signal.SIGTERM if next(calls) == 30 else None  # noqa: E731
    monkeypatch.setattr(Signals, "agreed", agreed)
    arch = dataclasses.replace(settings.arch, num_evaluation=1)
    with pytest.raises(Interrupted, match="not saved: it has met a NaN or infinity since"):
        loop.run(dataclasses.replace(settings, arch=arch), tmp_path)
    assert_finite(tmp_path)


@pytest.mark.long_but(1)
@pytest.mark.parametrize("every, times", [(None, [32 * 4]), (1e-9, [32, 64, 96, 128])])
def test_checkpoints_by_the_clock_ask_for_no_share(
    every: float | None,
    times: list[int],
    tmp_path: Path,
    share_programs: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of four calls, two of which end a block."""
    monkeypatch.setattr(Pace, "updates", lambda *_: 1)
    saved, save = [], checkpoint.Writer.save

    def note(self: Any, steps: int, *rest: Any) -> None:
        saved.append(steps)
        save(self, steps, *rest)

    monkeypatch.setattr(checkpoint.Writer, "save", note)
    limits = {"share": 0.0, "every_seconds": every}
    loop.run(small_config(checkpoint=limits, logger={**QUIET, "json": False}), tmp_path)
    assert saved == times


def assert_finite(run_dir: Path) -> None:
    steps = checkpoint.steps_in(run_dir / "checkpoints")
    assert 0 < max(steps) < 20 * 64
    for step in steps:
        arrays = checkpoint.read(checkpoint.path_of(run_dir, step)).arrays
        params = [x for name, x in arrays.items() if ".agent.policy.params" in name]
        assert all(np.isfinite(x).all() for x in params)
