"""Views of a run: MARL-eval's layout, TensorBoard, Weights & Biases, users' sinks, and failures."""

import itertools
import json
import re
import struct
import sys
import time
import types
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import small_config
from events import ABSOLUTE, END, EVAL, LAST_EVAL, MEMBERS, START, TRAIN, write
from killing import Killed
from runs import events_of

from jaxppo.analysis import sweep
from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import Config, LoggerConfig
from jaxppo.config.stored import plain
from jaxppo.config.trust import check_trust
from jaxppo.ops.histograms import NUM_BINS, counts, edges
from jaxppo.runtime import sinks
from jaxppo.runtime.run import loop
from jaxppo.runtime.run.events import command_of
from jaxppo.runtime.run.jobs import Job
from jaxppo.runtime.sinks import Event, Recorder, Scope, View
from jaxppo.runtime.sinks.marl_eval import MarlEval, layout, merge
from jaxppo.runtime.sinks.wandb import send_films
from jaxppo.runtime.store.directories import check_tree

NAMED: Event = {**START, "suite": "gymnax", "algorithm": "ff_ppo"}
OFF = {"console": False, "json": False, "plot": False}
SEEDED = {"seed": 3}


def document(run_dir: Path) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    return json.loads((run_dir / "marl_eval.json").read_text(), parse_constant=refuse)


def scores(raw: Any) -> dict[str, np.ndarray]:
    """Absolute metrics `[seeds, tasks]` of each algorithm, as MARL-eval takes them.

    Its create_matrices_for_rliable needs the absolute metrics as the last key of a seed.
    """
    (tasks,) = raw.values()
    found = {}
    for algorithm, seeds in next(iter(tasks.values())).items():
        every = [[task[algorithm][seed] for task in tasks.values()] for seed in seeds]
        assert all(list(run)[-1] == "absolute_metrics" for runs in every for run in runs)
        metrics = [[run["absolute_metrics"]["mean_episode_return"] for run in row] for row in every]
        found[algorithm] = np.mean(metrics, axis=-1)
    return found


def test_marl_eval_reads_one_run_and_all_members_of_one(tmp_path: Path) -> None:
    evaluations = [{**EVAL, **SEEDED}, {**LAST_EVAL, **SEEDED, "episode_return": 200.0}]
    end = {**ABSOLUTE, **SEEDED, "episode_return": 190.0}
    write(MarlEval(tmp_path), NAMED, TRAIN, *evaluations, end, END)
    first = {"step_count": 2048, "elapsed_time": 1.75, "mean_episode_return": [123.456]}
    last = {"step_count": 5120, "elapsed_time": 1.75, "mean_episode_return": [200.0]}
    seed = {"step_0": first, "step_1": last, "absolute_metrics": {"mean_episode_return": [190.0]}}
    assert document(tmp_path) == {"gymnax": {"CartPole-v1": {"ff_ppo": {"seed_3": seed}}}}
    assert [path.name for path in tmp_path.iterdir()] == ["marl_eval.json"]
    write(MarlEval(tmp_path), NAMED, {**EVAL, **MEMBERS}, {**ABSOLUTE, **MEMBERS})
    np.testing.assert_array_equal(scores(document(tmp_path))["ff_ppo"], [[1.0], [2.5], [4.0]])
    members = document(tmp_path)["gymnax"]["CartPole-v1"]["ff_ppo"]
    assert list(members) == ["seed_1", "seed_2", "seed_3"]


def test_marl_eval_of_scores_that_json_lacks_and_of_a_run_that_stopped() -> None:
    events = [{**EVAL, **SEEDED, "episode_return": value} for value in (float("nan"), None, 1.0)]
    (run,) = layout(events).values()
    assert [run[f"step_{i}"]["mean_episode_return"] for i in range(3)] == [[None], [None], [1.0]]
    assert run["absolute_metrics"] == {}


def test_marl_eval_merges_runs_of_several_seeds_and_settings() -> None:
    def one(seed: int, score: float) -> dict[str, Any]:
        end = {**ABSOLUTE, "seed": seed, "episode_return": score}
        return {"gymnax": {"a": {"ff_ppo": layout([{**EVAL, "seed": seed}, end])}}}

    merged = merge([("", one(1, 1.0)), ("", one(2, 2.0)), ("lr=1", one(1, 3.0))])
    assert {name: found.tolist() for name, found in scores(merged).items()} == {
        "ff_ppo": [[1.0], [2.0]],
        "ff_ppo lr=1": [[3.0]],
    }
    with pytest.raises(ValueError, match="seed_1"):
        merge([("", one(1, 1.0)), ("", one(1, 2.0))])


def test_marl_eval_of_a_sweep(tmp_path: Path) -> None:
    for job, (gamma, seed) in enumerate([("0.9", 1), ("0.9", 2), ("[1,2]", 1)]):
        (tmp_path / str(job) / ".hydra").mkdir(parents=True)
        overrides = tmp_path / str(job) / ".hydra" / "overrides.yaml"
        overrides.write_text(f"- arch.seed={seed}\n- system.gamma={gamma}\n")
        events = [{**e, "seed": seed} for e in (NAMED, EVAL, ABSOLUTE)]
        write(MarlEval(tmp_path / str(job)), *events)
    sweep.report(tmp_path, console=False)
    runs = document(tmp_path)["gymnax"]["CartPole-v1"]
    assert {name: list(found) for name, found in runs.items()} == {
        "ff_ppo system.gamma=0.9": ["seed_1", "seed_2"],
        "ff_ppo system.gamma=[1;2]": ["seed_1"],
    }


def points(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """(step, value) of each tag, as TensorBoard reads a folder: a START drops later steps."""
    from tensorboardX.proto.event_pb2 import Event as Message
    from tensorboardX.record_writer import masked_crc32c

    found: dict[str, list[tuple[int, float]]] = {}
    for file in sorted(folder.iterdir()):
        data, version = file.read_bytes(), None
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            body, rest = data[12 : 12 + length], data[12 + length :]
            assert struct.unpack("<I", data[8:12]) == (masked_crc32c(data[:8]),)
            assert struct.unpack("<I", rest[:4]) == (masked_crc32c(body),)
            message, data = Message.FromString(body), rest[4:]
            version = version or message.file_version
            if message.session_log.status == 1:
                found = {t: [p for p in row if p[0] < message.step] for t, row in found.items()}
            for value in message.summary.value:
                shown = value.tensor.string_val[0] if value.tensor.string_val else None
                point = value.simple_value if shown is None else shown.decode()
                point = value.histo if value.HasField("histo") else point
                found.setdefault(value.tag, []).append((message.step, point))
        assert version == "brain.Event:2"
    return found


def opened(run_dir: Path, position: int | None = None) -> Callable[..., None]:
    """`(*events)` writes to metrics.jsonl and to TensorBoard's files."""
    config = LoggerConfig(console=False, plot=False, tensorboard=True)
    scope = Scope(settings={"system": {"gamma": 0.5}})
    outputs = sinks.make(config, run_dir, position, scope)

    def take(*events: Event) -> None:
        for event in events:
            for sink in outputs:
                sink.write(event)

    return take


def test_tensorboard_has_every_number_against_steps(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="pip install '.[tensorboard]'")
    late = {**TRAIN, "steps": 5120, "episode_return": None, "total_loss": float("nan")}
    opened(tmp_path)(NAMED, TRAIN, EVAL, late, LAST_EVAL, {**ABSOLUTE, "steps": 2048}, END)
    found = points(tmp_path / "tensorboard")
    assert found["train/episode_return"] == [(2048, 21.5)]
    assert found["train/entropy"] == [(s, pytest.approx(0.693)) for s in (2048, 5120)]
    assert np.isnan(found["train/total_loss"][1][1])
    assert found["eval/episode_return"] == [(s, pytest.approx(123.456)) for s in (2048, 5120)]
    assert found["absolute/episode_return"] == [(5120, pytest.approx(123.456))]
    ((step, text),) = found["settings/text_summary"]
    assert step == 0
    assert '"gamma": 0.5' in str(text)
    assert not [tag for tag in found if tag.rpartition("/")[2] in ("steps", "seed", "last")]


def test_tensorboard_of_a_resumed_run_has_each_point_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it goes on where the clock is behind."""
    pytest.importorskip("tensorboardX", reason="pip install '.[tensorboard]'")
    clock = itertools.count(2_000_000_000, -1)
    monkeypatch.setattr(time, "time", lambda: next(clock))
    train, evaluation = ([{**e, "steps": s} for s in (10, 20, 30)] for e in (TRAIN, EVAL))
    take = opened(tmp_path)
    take(NAMED, train[0], evaluation[0])
    kept = sinks.position(tmp_path)
    take(train[1], evaluation[1])  # after the checkpoint
    take = opened(tmp_path, kept)
    take(NAMED, *(e for pair in zip(train[1:], evaluation[1:], strict=True) for e in pair))
    kept = sinks.position(tmp_path)
    take(ABSOLUTE, END)
    opened(tmp_path, kept)(NAMED, ABSOLUTE, END)  # a finished run
    found = points(tmp_path / "tensorboard")
    for tag in ("train/entropy", "eval/episode_return"):
        assert [step for step, _ in found[tag]] == [10, 20, 30]
    assert [step for step, _ in found["absolute/episode_return"]] == [30]
    opened(tmp_path, 0)(NAMED)  # begins anew
    assert not any(points(tmp_path / "tensorboard")["train/entropy"])
    later = tmp_path / "later"  # switched on by a resume: it has the past
    later.mkdir()
    for sink in sinks.make(LoggerConfig(console=False, plot=False), later):
        write(sink, *train[:2])
    opened(later, sinks.position(later))(train[2])
    assert [step for step, _ in points(later / "tensorboard")["train/entropy"]] == [10, 20, 30]


COUNTS = counts(np.float32([-3.0, -2.9, 0.5, 40.0]))
DETAILED = {**TRAIN, "advantage_histogram": COUNTS.tolist(), "value_histogram": [0] * NUM_BINS}


def test_tensorboard_draws_histograms(tmp_path: Path) -> None:
    """Its buckets are between the edges, with moments as near as bins are narrow."""
    pytest.importorskip("tensorboardX", reason="pip install '.[tensorboard]'")
    opened(tmp_path)(NAMED, DETAILED, END)
    found = points(tmp_path / "tensorboard")
    ((step, drawn),) = found["train/advantage"]
    assert step == 2048
    histogram: Any = drawn
    assert (histogram.num, sum(histogram.bucket)) == (4, 4)
    assert len(histogram.bucket) == len(histogram.bucket_limit) == NUM_BINS
    assert histogram.min <= -3.0
    assert histogram.max >= 40.0
    np.testing.assert_allclose(histogram.sum, -3.0 - 2.9 + 0.5 + 40.0, rtol=0.3)
    empty: Any = found["train/value"][0][1]
    assert (empty.num, empty.min, empty.max) == (0, 0, 0)


class FakeRun:
    """What of a W&B run is used."""

    exit_code: int | None = None

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.summary: dict[str, Any] = {}
        self.media: dict[str, Any] = {}

    def log(self, row: dict[str, Any], step: int | None = None) -> None:
        if step is None:
            self.media |= row
        else:
            self.rows.append((step, row))

    def finish(self, exit_code: int | None = None) -> None:
        self.exit_code = exit_code


@pytest.fixture
def fake_wandb(monkeypatch: pytest.MonkeyPatch) -> list[FakeRun]:
    """The runs that a stand-in for wandb has been asked for."""
    runs: list[FakeRun] = []

    def init(**arguments: Any) -> FakeRun:
        runs.append(FakeRun(**arguments))
        return runs[-1]

    module = types.ModuleType("wandb")
    module.init = init  # type: ignore[attr-defined]
    module.Histogram = lambda np_histogram: np_histogram  # type: ignore[attr-defined]
    module.Image = Path  # type: ignore[attr-defined]
    module.Video = lambda path, format: Path(path)  # type: ignore[attr-defined]
    module.Html = str  # type: ignore[attr-defined]
    module.__spec__ = ModuleSpec("wandb", None, origin="here")  # what find_spec returns
    monkeypatch.setitem(sys.modules, "wandb", module)
    return runs


def test_wandb_gets_numbers_settings_and_the_end(tmp_path: Path, fake_wandb: Any) -> None:
    settings = {"wandb": True, "wandb_project": "p", "wandb_entity": "e", "wandb_tags": ["a", "b"]}
    config = LoggerConfig(**OFF, **settings, wandb_mode="offline")
    scope = Scope(settings={"system": {"gamma": 0.5}}, name="run", group="sweep")
    (sink,) = sinks.make(config, tmp_path, None, scope)
    write(sink, NAMED, DETAILED, EVAL, {**TRAIN, "steps": 5120}, LAST_EVAL, ABSOLUTE, END)
    (run,) = fake_wandb
    drawn, bounds = run.rows[0][1]["train/advantage"]
    np.testing.assert_array_equal(drawn, COUNTS)
    np.testing.assert_array_equal(bounds, edges())
    wanted = {
        **{"project": "p", "entity": "e", "tags": ["a", "b"], "mode": "offline", "group": "sweep"},
        **{"name": "run", "config": scope.settings, "dir": tmp_path, "resume": "allow"},
    }
    assert run.arguments.items() >= wanted.items()
    assert [step for step, _ in run.rows] == [2048, 2048, 5120, 5120]
    assert run.rows[1][1]["eval/episode_return"] == 123.456
    assert run.summary["absolute/episode_return"] == 123.456
    assert (run.summary["status"], run.exit_code) == ("finished", 0)


def test_wandb_run_that_did_not_finish_is_failed_and_goes_on_as_itself(
    tmp_path: Path, fake_wandb: Any
) -> None:
    for position in (None, 0, 0):
        config = LoggerConfig(**OFF, wandb=True, wandb_group="mine")
        (sink,) = sinks.make(config, tmp_path, position, Scope(group="sweep", name="ff_ppo"))
        write(sink, NAMED, TRAIN)
    assert [run.exit_code for run in fake_wandb] == [1, 1, 1]
    # A resume leaves the name, which may have been changed by hand
    assert [run.arguments["name"] for run in fake_wandb] == ["ff_ppo", None, None]
    assert len({run.arguments["id"] for run in fake_wandb}) == 1
    assert {run.arguments["group"] for run in fake_wandb} == {"mine"}
    (sink,) = sinks.make(config, tmp_path, None)
    (tmp_path / "other").mkdir()
    sinks.make(config, tmp_path / "other", None)
    assert fake_wandb[-1].arguments["id"] != fake_wandb[0].arguments["id"]


def test_wandb_gets_pictures_and_films(tmp_path: Path, fake_wandb: Any) -> None:
    """Those of the run at its end; films when they are made, in the same W&B run."""
    config = LoggerConfig(**{**OFF, "plot": True}, wandb=True)
    every = sinks.make(config, tmp_path)
    for event in (NAMED, TRAIN, EVAL, LAST_EVAL, ABSOLUTE, END):
        for sink in every:
            sink.write(event)
    for sink in every:
        sink.close()
    assert fake_wandb[0].media == {"learning_curve": tmp_path / "learning_curve.png"}
    (tmp_path / "best.gif").touch()
    (tmp_path / "worst.svg").write_text("<svg/>", "utf-8")
    names = ("best.gif", "worst.svg", "strip.png")
    send_films(config, tmp_path, [tmp_path / name for name in names])
    first, other = fake_wandb
    assert other.arguments["id"] == first.arguments["id"]
    found = {"best": tmp_path / "best.gif", "worst": "<svg/>"}
    assert other.media == found  # there is no strip
    with pytest.raises(ConfigError, match="wandb=true"):
        send_films(config, tmp_path / "other", [])


def test_wandb_run_of_an_agent_has_the_id_that_the_agent_chose(
    tmp_path: Path, fake_wandb: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not its members, nor the jobs of a command; nor runs outside of a sweep."""
    config = LoggerConfig(**OFF, wandb=True)
    monkeypatch.setenv("WANDB_RUN_ID", "chosen")
    folders = [tmp_path / name for name in ("alone", "agent", "agent/seed_1", "job")]
    for number, folder in enumerate(folders):
        folder.mkdir()
        if number == 1:
            monkeypatch.setenv("WANDB_SWEEP_ID", "sweep")
        sinks.make(
            config, folder, None, Scope(is_member=number == 2, group=[None, "swept"][number == 3])
        )
    found = [run.arguments["id"] == "chosen" for run in fake_wandb]
    assert found == [False, True, False, False]


def test_a_run_is_named_by_its_command(tmp_path: Path) -> None:
    typed = ["env=cartpole", "++system.gamma=0.9", "logger.wandb=true", "hydra.run.dir=x"]
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "overrides.yaml").write_text("".join(f"- {x}\n" for x in typed))
    assert command_of(Job(small_config(), tmp_path)) == "ff_ppo env=cartpole system.gamma=0.9"
    assert command_of(Job(small_config(), tmp_path / "of_python")) is None


@pytest.mark.slow
def test_wandb_itself_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="pip install '.[wandb]'")
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    config = LoggerConfig(**OFF, wandb=True, wandb_mode="offline", wandb_tags=["t"])
    for position, steps in ((None, (10, 20)), (0, (20, 30))):
        (sink,) = sinks.make(config, tmp_path, position, Scope(name="n", group="g"))
        assert isinstance(sink, View)
        write(sink, NAMED, *({**TRAIN, "steps": s} for s in steps), ABSOLUTE, END)
        assert sink.sink is not None  # nothing failed
    check_tree("resume", tmp_path)  # W&B's links to its logs in the home would fail it
    ids = {file.stem for file in tmp_path.glob("wandb/offline-run-*/*.wandb")}
    assert ids == {f"run-{(tmp_path / 'wandb' / 'run_id').read_text().strip()}"}


@pytest.fixture
def my_sinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The module of docs/sinks.md, with sinks that fail."""
    folder = tmp_path / "modules"
    folder.mkdir()
    page = (Path(__file__).parents[2] / "docs" / "sinks.md").read_text("utf-8")
    (best,) = re.findall(r"```python[^\n]*\n(.*?)```", page, re.S)
    failing = """

class Fails:
    def __init__(self, run_dir: Path, where: str) -> None:
        self.where, self.run_dir = where, run_dir
        self.may_fail("__init__")

    def may_fail(self, where: str) -> None:
        if where == self.where:
            raise RuntimeError(f"in {where}\\nof {self.run_dir.name}")

    def write(self, event: dict[str, Any]) -> None:
        event.clear()
        self.may_fail("write")

    def close(self) -> None:
        self.may_fail("close")
"""
    (folder / "my_sinks.py").write_text(best + failing)
    monkeypatch.syspath_prepend(folder)
    yield folder
    sys.modules.pop("my_sinks", None)


def viewed() -> Config:
    """Two seeds of four blocks, each saved, with everything that a view may do."""
    own = [{"_target_": "my_sinks.Best", "file": "top.txt"}]
    own += [{"_target_": "my_sinks.Fails", "where": x} for x in ("__init__", "write", "close")]
    return small_config(
        arch={"num_seeds": 2, "num_evaluation": 4, "num_eval_episodes": 5},
        env={"target": "envs.Coin"},
        checkpoint={"share": 1},
        logger={"console": False, "marl_eval": True, "wandb": True, "sinks": own},
    )


@pytest.mark.long
def test_views_of_a_run_that_is_stopped_and_goes_on(
    tmp_path: Path, my_sinks: Path, fake_wandb: Any, kill: Any, capsys: Any
) -> None:
    """Members' and the run's own; failures are said once, and stop nothing."""
    folder = tmp_path / "run"
    folder.mkdir()
    kill(2)
    with pytest.raises(Killed):
        loop.run(viewed(), folder)
    result = loop.run(viewed(), folder, resume=True)
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(" ")[0] for line in said] == 2 * [
        f"logger.sinks[{number}]" for number in (1, 2, 3)
    ]
    for run_dir in (folder, folder / "seed_42", folder / "seed_43"):
        best = max(event["episode_return"] for event in events_of(run_dir, "eval"))
        assert (run_dir / "top.txt").read_text().startswith(f"{best} at step ")

    for name, run in document(folder)["envs"]["envs.Coin"]["ff_ppo"].items():
        *evaluations, absolute = [e for e in events_of(folder / name) if e["event"] != "train"]
        for i, event in enumerate(evaluations):
            assert run[f"step_{i}"]["step_count"] == event["steps"]
            assert run[f"step_{i}"]["elapsed_time"] == pytest.approx(event["seconds"], abs=1)
            assert run[f"step_{i}"]["mean_episode_return"] == [event["episode_return"]]
        assert run["absolute_metrics"]["mean_episode_return"] == [absolute["episode_return"]]
    assert np.mean(scores(document(folder))["ff_ppo"]) == pytest.approx(result)
    assert not (folder / "seed_42" / "marl_eval.json").exists()

    before, after = fake_wandb[:3], fake_wandb[3:]
    assert [run.arguments["name"] for run in before] == ["run", "run/seed_42", "run/seed_43"]
    assert [run.arguments["config"]["arch"]["seed"] for run in before] == [42, 42, 43]
    assert [r.arguments["id"] for r in before] == [r.arguments["id"] for r in after]
    assert {run.arguments["group"] for run in fake_wandb} == {"run"}
    assert [run.exit_code for run in fake_wandb] == [1, 1, 1, 0, 0, 0]
    for one, other in zip(before, after, strict=True):
        assert [s for s, _ in one.rows + other.rows] == [32, 32, 64, 64, 96, 96, 128, 128]


@pytest.mark.parametrize("where", ["__init__", "write", "close"])
def test_failure_of_a_view_is_said_once_and_ends_it(
    tmp_path: Path, my_sinks: Path, capsys: Any, where: str
) -> None:
    config = LoggerConfig(**OFF, sinks=[{"_target_": "my_sinks.Fails", "where": where}])
    scope = Scope()
    (first,), (second,) = (sinks.make(config, tmp_path, None, scope) for _ in range(2))
    event = dict(EVAL)
    for sink in (first, second, first):
        write(sink, event, event)
    assert event == EVAL
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("logger.sinks[0] (my_sinks.Fails)")


def test_a_view_that_fails_where_standard_error_is_closed_ends_no_run(
    tmp_path: Path, my_sinks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", None)  # as Python has it after `2>&-`
    config = LoggerConfig(**OFF, sinks=[{"_target_": "my_sinks.Fails", "where": "write"}])
    (sink,) = sinks.make(config, tmp_path, None, Scope())
    write(sink, dict(EVAL), dict(EVAL))
    assert not sink.sink


def test_a_picture_that_cannot_be_drawn_is_a_view_and_the_log_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (tmp_path / "learning_curve.png").mkdir()
    log, plot = sinks.make(LoggerConfig(console=False), tmp_path)
    write(plot, *(NAMED, EVAL))
    assert "logger.plot: IsADirectoryError" in capsys.readouterr().err
    (tmp_path / "metrics.jsonl").unlink()
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(IsADirectoryError):
        log.write(EVAL)


def test_a_stored_run_imports_its_sinks_only_where_they_are_trusted(my_sinks: Path) -> None:
    config = small_config(
        logger={"sinks": [{"_target_": "my_sinks.Best"}]}, env={"name": "x", "target": None}
    )
    with pytest.raises(ConfigError, match=r"logger\.sinks\._target_=my_sinks\.Best"):
        check_trust(plain(config), [])
    assert "my_sinks" not in sys.modules
    check_trust(plain(config), ["my_sinks"])


def test_a_sink_of_ones_own_is_told_the_progress_until_it_fails() -> None:
    class Ticking(Recorder):
        def tick(self, steps: int, speed: float) -> None:
            self.events.append({"steps": steps})
            if steps == 2:
                raise ValueError("broken")

    ticking, failed = Ticking([]), set[str]()
    view = View("sinks[0]", lambda: ticking, failed)
    for steps in (1, 2, 3):
        view.tick(steps, 1.0)
    assert ticking.events == [{"steps": 1}, {"steps": 2}]
    assert failed == {"sinks[0]"}
    View("sinks[1]", lambda: Recorder([]), failed).tick(1, 1.0)
