"""The table of results: its rows, their commands, and what is written of runs that are done."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from files import CONFIGS

from benchmarks import results
from benchmarks.results import Published, Row
from jaxppo.launch.composing import compose
from jaxppo.runtime.run.events import aggregate

HERE = {"machine": "2 cores of a processor", "jax": "0.0.0", "commit": "abc"}
# A run that notes its arguments, and ends as the first file `end` of its directory says.
STUB = """
import json, signal, sys, time
from pathlib import Path
given = dict(argument.split("=", 1) for argument in sys.argv[1:])
folder = Path(given.get("hydra.run.dir") or given["resume"])
with (folder.parent / "told.jsonl").open("a") as file:
    print(json.dumps(sys.argv[1:]), file=file)
(folder / "config.yaml").write_text("arch: {num_seeds: 3}")
if "resume" not in given:
    def end(number, _):
        (folder / "summary.json").write_text(json.dumps({"status": "interrupted"}))
        sys.exit(128 + number)
    signal.signal(signal.SIGTERM, end)
    (folder / "ready").touch()
    time.sleep(30)
(folder / "summary.json").write_text(json.dumps(json.loads(%r)))
(folder / "metrics.jsonl").write_text(%r)
"""
SUMMARY = {
    **{"status": "finished", "environment": "Catch-bsuite", "steps": 100352, "seconds": 123.4},
    **{"compile_seconds": 5.6, "members": 3, "seeds": [42, 43, 44], "absolute_metric": 0.5},
    **{"absolute_metrics": [0.25, 0.25, 1.0], "absolute_metric_iqm": 0.456},
    **{"absolute_metric_low": -0.001, "absolute_metric_high": 1.0},
    **{"absolute_metric_min": 0.25, "absolute_metric_max": 1.0},
}
EVENTS = [
    {"event": "train", "steps": 50_000},
    *(
        aggregate(
            [
                {"event": "eval", "seed": seed, "steps": steps, "episode_return": score}
                for seed, score in ((42, 0.2), (43, 0.5), (44, last))
            ]
        )
        for steps, last in ((50_000, 0.8), (100_352, 0.5))
    ),
]
METRICS = "\n".join(map(json.dumps, EVENTS))


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Row:
    (tmp_path / "stub_ppo.py").write_text(STUB % (json.dumps(SUMMARY), METRICS))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    return Row("catch", "stub_ppo", ("network=lru",), Published(1, "https://example.org", 100_000))


def canned(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps({**SUMMARY, **changes}))
    (folder / "where.json").write_text(json.dumps([{**HERE, "command": "-m jaxppo.ff_ppo"}]))
    (folder / "metrics.jsonl").write_text(METRICS)
    return folder


def test_rows_name_files_and_sources() -> None:
    assert len(results.SMALL) >= 15
    every = (*results.SMALL, *results.LARGE, *results.LONGER)
    assert len(results.ROWS) == len(every)
    assert all((CONFIGS / "env" / f"{row.env}.yaml").is_file() for row in results.ROWS.values())
    published = [row.published for row in results.ROWS.values() if row.published]
    assert all(found.source.startswith("https://") for found in published)


@pytest.mark.parametrize(
    "executable, overrides",
    sorted({(row.executable, row.overrides) for row in results.ROWS.values()}),
)
def test_rows_settings_compose(executable: str, overrides: tuple[str, ...]) -> None:
    of = executable.removeprefix("jaxppo.")
    config = compose(of, ["env=catch", *overrides])
    memories = (config.network.actor_memory, config.network.critic_memory)
    assert of.startswith("rec_") == any(memories)


def test_an_interrupted_row_goes_on_and_a_finished_one_is_left(stub: Row, tmp_path: Path) -> None:
    folder = tmp_path / "catch"
    program = (
        "import sys; from benchmarks import results; from pathlib import Path;"
        f"row = results.Row('catch', 'stub_ppo', ('network=lru',));"
        f"sys.exit(results.run(row, Path({str(folder)!r}), 3, {HERE!r}, ['arch.seed=1']))"
    )
    process = subprocess.Popen([sys.executable, "-c", program])
    while not (folder / "ready").exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    assert not results.finished(folder)
    assert results.collect(stub, folder) is None
    assert results.run(stub, folder, 3, {**HERE, "machine": "another"}) == 0
    assert results.finished(folder)
    assert results.run(stub, folder, 3, HERE) == 0
    told = [json.loads(line) for line in (tmp_path / "told.jsonl").read_text().splitlines()]
    first = ["env=catch", "network=lru", "arch.num_seeds=3", "arch.seed=1"]
    assert told == [[*first, f"hydra.run.dir={folder}"], [f"resume={folder}"]]
    found = results.collect(stub, folder)
    assert found is not None
    assert [part["machine"] for part in found["where"]] == [HERE["machine"], "another"]
    assert all(0 < part["cpu_seconds"] < 10 for part in found["where"])


def test_table_says_what_the_runs_say(tmp_path: Path) -> None:
    published = Published(1, "https://example.org", 100_000)
    rows = (
        Row("catch", published=published),
        Row("deep_sea", overrides=("network=lru",)),
        Row("acrobot"),
        Row("catch", "jaxppo.rec_pqn", ("network=gru",)),
    )
    canned(tmp_path / "catch")
    canned(tmp_path / "pqn" / "catch")
    canned(tmp_path / "deep_sea", absolute_metric=-123.45, seconds=59.6)
    canned(tmp_path / "acrobot", status="interrupted")
    unfinished = [{"name": "acrobot", "steps": 7, "last_return": None, "reason": "why"}]
    results.write(rows, tmp_path, unfinished)
    page = (tmp_path / "results.md").read_text()
    assert all(word in page for word in (*(f"`{row.name}`" for row in rows), HERE["machine"]))
    same, other = page.split("## ")[1:]
    assert "| `catch` | 100,352 | 0.46 [0.00, 1.00] | 0.25 |" in same
    assert "`deep_sea`" in other
    assert "`deep_sea`" not in same
    whole = json.loads((tmp_path / "results.json").read_text())
    assert whole["left"] == unfinished
    written = whole["rows"]
    assert [found["name"] for found in written] == ["catch", "deep_sea", "pqn/catch"]
    assert written[0]["absolute_metrics"] == {"42": 0.25, "43": 0.25, "44": 1.0}
    assert written[0]["interval"] == [-0.001, 1.0]
    assert (tmp_path / "results.png").stat().st_size > 1_000


@pytest.mark.parametrize(
    "arguments",
    [["cathc"], ["--seeds=1"], ["catch", "--seeds=4"], ["--seconds=0"], ["--wheels=nowhere"]],
)
def test_what_cannot_be_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, arguments: list[str]
) -> None:
    (canned(tmp_path / "catch") / "config.yaml").write_text("arch: {num_seeds: 3}")
    monkeypatch.setattr(sys, "argv", ["results", *arguments, f"--out={tmp_path}"])
    with pytest.raises(SystemExit) as refusal:
        results.main()
    assert refusal.value.code == 2
    assert arguments[-1] in capsys.readouterr().err


def test_a_row_that_fails_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the program's own status says so."""

    def run(row: Row, folder: Path, *_: Any) -> int:
        if row.env != "catch":
            canned(folder)
        return int(row.env == "catch")

    monkeypatch.setattr(results, "run", run)
    monkeypatch.setattr(results, "machine", lambda: HERE)
    monkeypatch.setattr(sys, "argv", ["results", "catch", "deep_sea", f"--out={tmp_path}"])
    assert results.main() == 1
    output = capsys.readouterr()
    assert "catch" in output.err
    assert "`deep_sea`" in output.out
    assert "| `catch`" not in output.out
    assert "- `catch`: failed" in output.out


def of_rows(monkeypatch: pytest.MonkeyPatch, *rows: Row) -> None:
    """Have these rows only, for an accelerator."""
    monkeypatch.setattr(results, "ROWS", {row.name: row for row in rows})
    monkeypatch.setattr(results, "ACCELERATOR", rows)
    monkeypatch.setattr(results, "machine", lambda: HERE)


def call(monkeypatch: pytest.MonkeyPatch, out: Path, *arguments: str) -> dict[str, Any]:
    """Run the command; what it wrote."""
    monkeypatch.setattr(sys, "argv", ["results", "--accelerator", *arguments, f"--out={out}"])
    assert results.main() == 0
    written: dict[str, Any] = json.loads((out / "results.json").read_text())
    return written


class FakeTrial:
    """Says at once what a row needs."""

    needs: float | None = 1e6

    def __init__(self, *_: Any) -> None:
        pass

    def seconds(self, limit: float | None = None) -> float | None:
        return self.needs

    def close(self) -> None:
        pass


@pytest.mark.long
def test_seconds_end_a_run_that_can_go_on(
    stub: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run gets SIGTERM, no other begins, and the same command goes on with both."""
    following = Row("deep_sea", "stub_ppo")
    of_rows(monkeypatch, stub, following)
    monkeypatch.setattr(results, "Trial", FakeTrial)
    start = time.monotonic()
    written = call(monkeypatch, tmp_path, "--seconds=2")
    assert 2 <= time.monotonic() - start < 15
    assert [row["name"] for row in written["left"]] == ["catch", "deep_sea"]
    assert json.loads((tmp_path / "catch" / "summary.json").read_text())["status"] == "interrupted"
    assert not (tmp_path / "deep_sea").exists()
    written = call(monkeypatch, tmp_path, "--seconds=4")
    assert [row["name"] for row in written["rows"]] == ["catch"]
    assert [row["name"] for row in written["left"]] == ["deep_sea"]
    told = [json.loads(line) for line in (tmp_path / "told.jsonl").read_text().splitlines()]
    assert told[1] == [f"resume={tmp_path / 'catch'}"]


@pytest.mark.parametrize("needs, begun", [(1e6, False), (None, False), (1.0, True)])
def test_a_row_that_needs_more_than_is_left_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needs: float | None, begun: bool
) -> None:
    """And the rows after it run."""
    of_rows(monkeypatch, Row("catch", whole=True), Row("deep_sea"))
    monkeypatch.setattr(FakeTrial, "needs", needs)
    monkeypatch.setattr(results, "Trial", FakeTrial)
    ran = []

    def run(row: Row, folder: Path, *_: Any) -> int:
        ran.append(row.name)
        canned(folder)
        return 0

    monkeypatch.setattr(results, "run", run)
    written = call(monkeypatch, tmp_path, "--seconds=100")
    assert ran == ["catch"] * begun + ["deep_sea"]
    assert [row["reason"] != "" for row in written["left"]] == [True] * (not begun)
    if begun:  # all rows are done
        assert call(monkeypatch, tmp_path, "--seconds=100") == written
        assert ran == ["catch", "deep_sea"]


def test_a_run_that_was_killed_is_as_far_as_its_last_evaluation(tmp_path: Path) -> None:
    """Its summary is that of an earlier stop."""
    folder = canned(tmp_path / "catch", status="interrupted", steps=7)
    event = {"event": "eval", "steps": 9, "episode_return": 0.5}
    (folder / "metrics.jsonl").write_text(json.dumps(event))
    (found,) = results.left([Row("catch")], tmp_path, {})
    assert (found["steps"], found["last_return"]) == (9, 0.5)


def test_a_trial_says_how_long_a_row_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """0.002 s a step of both seeds, 2 s an evaluation, and 17.8 s for all else."""
    (tmp_path / "trial_ppo.py").write_text(
        """
import json, sys
from pathlib import Path
if "--cfg" in sys.argv:
    print("arch: {total_timesteps: 1e5, num_evaluation: 10, absolute_metric: true}")
else:
    folder = Path(sys.argv[-1].partition("=")[2])
    summary = {"steps_per_second": 1000, "seconds": 20, "steps": 100}
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "metrics.jsonl").write_text('{"seconds": 0}\\n{"seconds": 17}\\n{"seconds": 19}')
"""
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    trial = results.Trial(Row("catch", "trial_ppo"), 2)
    assert trial.seconds(30) == pytest.approx(17.8 + 0.002 * 1e5 + 2 * (10 + 10))
    trial.close()
