"""What a run leaves behind and shows: JSON lines, the summary, the plot, the console."""

import contextlib
import io
import json
import os
import pty
import re
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from events import ABSOLUTE, COMPILE, END, EVAL, LAST_EVAL, MEMBERS, START, TRAIN, write

from jaxppo.algorithms.metrics import headlines
from jaxppo.config.parse import algorithm_class, parse
from jaxppo.config.schema import LoggerConfig
from jaxppo.runtime import sinks
from jaxppo.runtime.sinks import Event, View, bars, console, plot
from jaxppo.runtime.sinks.console import Console
from jaxppo.runtime.sinks.json_lines import JsonLines
from jaxppo.runtime.sinks.plot import Plot

NAN, INF = float("nan"), float("inf")

RUN = [START, COMPILE, TRAIN, EVAL, {**TRAIN, "steps": 5120}, LAST_EVAL, ABSOLUTE, END]


def lines(run_dir: Path) -> list[Any]:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    text = (run_dir / "metrics.jsonl").read_text()
    assert text == "" or text.endswith("\n")
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def test_lines_are_the_events_of_training_each_on_disk_before_the_next(tmp_path: Path) -> None:
    sink, logged = JsonLines(tmp_path), []
    for event in RUN:
        sink.write(event)
        logged += [event] if event["event"] in ("train", "eval", "absolute") else []
        assert lines(tmp_path) == logged
    sink.close()
    assert json.loads((tmp_path / "summary.json").read_text()) == END


def test_numbers_that_json_lacks_become_null_and_others_stay_exact(tmp_path: Path) -> None:
    exact = {**TRAIN, "steps": 2**53 + 1, "total_loss": 5e-324, "value_loss": 0.1}
    wrong = {"entropy": NAN, "deep": {"loss": INF, "steps": [3, -INF]}}
    write(JsonLines(tmp_path), {**exact, **wrong}, {**END, "best_episode_return": -INF})
    assert lines(tmp_path) == [
        {**exact, "entropy": None, "deep": {"loss": None, "steps": [3, None]}}
    ]
    assert json.loads((tmp_path / "summary.json").read_text())["best_episode_return"] is None


def test_summary_is_there_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "summary.json"
    sink = JsonLines(tmp_path)

    def killed(path: Path, target: Path) -> None:
        assert json.loads(path.read_text()) == END
        assert target == summary
        assert not summary.exists()
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        sink.write(END)
    assert not summary.exists()
    monkeypatch.undo()
    write(sink, END)
    assert json.loads(summary.read_text()) == END
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "summary.json"]


NULL = {**EVAL, **dict.fromkeys(("episode_return", "episode_return_std"))}


@pytest.mark.parametrize(
    "events",
    [
        RUN,
        [START, {**TRAIN, "episodes": 0, "episode_return": None}, NULL, EVAL, NULL],
        [{**START, "environment": "of $mine_{x}$ \\ 50%"}, {**EVAL, "episode_return": NAN}, EVAL],
    ],
)
def test_plot_is_drawn(tmp_path: Path, events: list[Event]) -> None:
    from matplotlib import pyplot

    write(Plot(tmp_path / "curve.png"), *events)
    assert (tmp_path / "curve.png").read_bytes()[:4] == b"\x89PNG"
    assert pyplot.get_fignums() == []


def test_curve_begins_at_step_0_and_its_band_stays_within_the_returns() -> None:
    bounds = {"episode_return_min": 0.0, "episode_return_max": 500.0}
    events = [
        {**EVAL, **bounds, "steps": steps, "episode_return": mean, "episode_return_std": 100.0}
        for steps, mean in ((1000, 30.0), (2000, 250.0), (3000, 480.0))
    ]
    figure = plot.draw([START, *events])
    (axes,) = figure.axes
    (band,) = axes.collections
    points = band.get_paths()[0].vertices
    assert (points[:, 1].min(), points[:, 1].max()) == (0.0, 500.0)
    assert {150.0, 350.0} <= set(points[:, 1])  # where neither bound is near
    assert axes.get_xlim()[0] == 0.0


def printed(capsys: pytest.CaptureFixture[str], *events: Event) -> str:
    """What a console that is no terminal prints of events."""
    write(Console(), *events)
    out, err = capsys.readouterr()
    assert err == ""
    assert "\x1b" not in out
    return str(out)


def test_numbers_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, *RUN)
    for number in ("9,155", "5,120", "12.3k", "21.50", "0.693", "0.0125", "7.50", "80"):
        assert number in text
    assert text.count("123.46") == 3
    for event, number in (
        ({**EVAL, "unfinished": 3}, "3 of 8"),
        ({**TRAIN, "steps_per_second": 999_700.0}, "1M"),
        ({**TRAIN, "episodes": 0, "episode_return": None, "episode_length": None}, " - "),
        ({**EVAL, **MEMBERS}, "2.25 [1.50, 3.75]"),
        ({**EVAL, **MEMBERS, "member_return_low": None, "member_return_high": None}, "2.25"),
        ({**EVAL, **MEMBERS, "members": 1, "seeds": [7]}, "seed 7"),
        (SELECTION, "1 copied"),
        ({**SELECTION, "method": "halving"}, "3 members"),
    ):
        assert number in printed(capsys, START, event)


@pytest.mark.parametrize(
    "event, returns, words",
    [
        (EVAL, {"a=1": [NAN, 1.0], "a=2": [2.5, 4.0]}, "a=2 (IQM 3.25 over 2 seeds)"),
        (TRAIN, {"a=1": [NAN, 1.0], "a=2": [None, 4.0]}, "1.00 to 4.00"),
    ],
)
def test_settings_are_not_averaged(
    capsys: pytest.CaptureFixture[str], event: Event, returns: Any, words: str
) -> None:
    text = printed(capsys, {**event, **MEMBERS, "returns_by_settings": returns})
    assert words in text
    assert "IQM 2.25" not in text
    assert "0.693" not in text


def received(monkeypatch: pytest.MonkeyPatch, *events: Event) -> str:
    """What a terminal receives from a console."""
    ours, theirs = pty.openpty()
    found = bytearray()

    def receive() -> None:
        with contextlib.suppress(OSError):  # the end of a terminal is an error on Linux
            while chunk := os.read(ours, 4096):
                found.extend(chunk)

    reader = threading.Thread(target=receive)
    reader.start()
    with os.fdopen(theirs, "w", encoding="utf-8") as stdout, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stdout)
        write(Console(), *events)
    reader.join()
    os.close(ours)
    return found.decode()


@pytest.mark.parametrize("term, columns", [("xterm-256color", "120"), ("dumb", "")])
def test_terminal_gets_every_line_whole_and_its_cursor_back(
    monkeypatch: pytest.MonkeyPatch, term: str, columns: str
) -> None:
    for name in ("LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLUMNS", columns)
    text = received(monkeypatch, *RUN)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert sum("return 123.46" in line for line in re.split(r"[\r\n]+", plain)) == 3
    assert (columns == "120") <= (" 100% " in plain)
    for num_events in (2, 5, len(RUN)):  # however the run ends
        text = received(monkeypatch, *RUN[:num_events])
        assert text.count("\x1b[?25l") == text.count("\x1b[?25h")
        assert text.rfind("\x1b[?25h") >= text.rfind("\x1b[?25l")


SELECTION: Event = {
    "event": "selection",
    "method": "pbt",
    "steps": 64,
    "members": [0, 1, 2],
    "sources": [2, 1, 2],
    "hyperparameters": {"actor_lr": [0.1, 0.2, NAN], "gamma": [0.0, 0.9, 0.99]},
}


def test_populations_have_pictures_of_scores_lineage_and_schedules(tmp_path: Path) -> None:
    first = {**SELECTION, "steps": 0, "sources": [0, 1, 2]}
    start = {name: value for name, value in START.items() if name != "seed"} | {"members": 3}
    halved = {
        **SELECTION,
        "steps": 128,
        "members": [0, 2],
        "sources": [0, 2],
        "hyperparameters": {"actor_lr": [0.1, 0.3], "gamma": [0.0, 0.5]},
    }
    events = [start, first, {**EVAL, **MEMBERS}, SELECTION, halved, {**ABSOLUTE, **MEMBERS}]
    write(Plot(tmp_path / "curve.png"), *events)
    for name in ("curve.png", "population.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_a_band_is_drawn_where_there_is_an_interval(tmp_path: Path) -> None:
    """With one score there is none, which is null in the event."""
    none = {"member_return_low": None, "member_return_high": None}
    whole, single = ({**EVAL, **MEMBERS, **own} for own in ({}, none))
    for number, evaluations in enumerate(([single], [whole, {**single, "steps": 128}])):
        figure = plot.draw([{**START, "members": 3}, *evaluations])
        (band,) = figure.axes[0].collections
        drawn = {y for path in band.get_paths() for _, y in path.vertices}
        assert drawn == ({1.5, 3.75} if number else set())
        plot.save(figure, tmp_path / "curve.png", 130)


def test_the_curve_of_a_population_is_its_best_member() -> None:
    """Members have settings of their own, so neither means nor intervals over them say much."""
    returns = {0: [0.0, 2.0, 1.0], 64: [1.0, NAN, 3.0]}
    evaluations = [
        {**EVAL, **MEMBERS, "steps": steps, "member_returns": own} for steps, own in returns.items()
    ]
    end = {"event": "end", "seed": 3, "absolute_metric": 2.75}
    absolute = {**ABSOLUTE, **MEMBERS}
    start = {**START, "members": 3, "population": True}
    figure = plot.draw([start, TRAIN, *evaluations, absolute, end])
    (axes,) = figure.axes
    (best,) = [line for line in axes.lines if line.get_marker() == "o"]
    assert best.get_xydata().tolist() == [[0.0, 2.0], [64.0, 3.0]]
    assert not axes.collections  # no band


def test_the_winner_is_drawn_with_its_ancestors() -> None:
    """Member 0 copied member 2 after 64 steps, and is best after 128."""
    first = {**SELECTION, "steps": 0, "sources": [0, 1, 2]}
    returns = {0: [0.0, 0.0, 1.0], 64: [1.0, 2.0, 3.0], 128: [9.0, 2.0, 3.0]}
    evaluations = [
        {**EVAL, **MEMBERS, "steps": steps, "member_returns": own} for steps, own in returns.items()
    ]
    selections = [first, SELECTION]
    assert plot.ancestors(selections, 0, 128) == [2, 0]
    assert plot.ancestors(selections, 1, 128) == [1, 1]
    assert plot.ancestors(selections, 0, 64) == [0]  # the selection at 64 comes after it
    figure = plot.draw_population([*selections, *evaluations])
    returns_of, lineage, _, gamma = [
        next(line for line in axes.lines if line.get_color() == plot.ABSOLUTE)
        for axes in figure.axes
    ]
    assert returns_of.get_xydata().tolist() == [[0.0, 1.0], [64.0, 3.0], [128.0, 9.0]]
    assert lineage.get_xydata().tolist() == [[0.0, 2.0], [64.0, 0.0], [128.0, 0.0]]
    assert gamma.get_ydata().tolist() == [0.99, 0.0, 0.0]


def test_a_resumed_log_goes_on_where_the_checkpoint_was(tmp_path: Path) -> None:
    sink = JsonLines(tmp_path)
    sink.write(TRAIN)
    position = sinks.position(tmp_path)
    sink.write({**TRAIN, "steps": 7})
    sink.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"event": "tr')
    again = JsonLines(tmp_path, position)
    again.write({**TRAIN, "steps": 8})
    again.close()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["steps"] for line in lines] == [TRAIN["steps"], 8]


def test_a_resumed_plot_shows_the_whole_run(tmp_path: Path) -> None:
    every = LoggerConfig(console=False)
    first = sinks.make(every, tmp_path)
    for sink in first:
        sink.write(TRAIN)
        sink.close()
    again = sinks.make(every, tmp_path, sinks.position(tmp_path))
    for sink in again:
        sink.close()
    (plot,) = [s.sink for s in again if isinstance(s, View) and isinstance(s.sink, Plot)]
    assert [event["event"] for event in plot.events] == ["train"]


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the file, for the one line that a user sees."""
    sink = JsonLines(tmp_path)
    sink.write(TRAIN)

    class Full(io.FileIO):
        def write(self, line: Any) -> int:
            return super().write(line[:10])  # as much as there was room for

    monkeypatch.setattr(Path, "open", lambda path, *args, **kwargs: Full(path, "a"))
    with pytest.raises(OSError, match="No space left") as error:
        sink.write(TRAIN)
    assert error.value.filename.endswith("metrics.jsonl")
    monkeypatch.undo()
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["event"] == "train"


@pytest.mark.parametrize("name", ["ppo", "pqn", "reppo"])
def test_settings_of_exploration_exist(name: str) -> None:
    algorithm = algorithm_class(name)
    shown = headlines(algorithm.loss_metrics)
    setting = next(console.EXPLORATION[each] for each in console.EXPLORATION if each in shown)
    for each in setting.split(", "):
        parse({"system": {"algorithm": name, each.removeprefix("system."): 0.5}})


def test_equal_evaluations_are_told_once_with_the_setting_that_the_algorithm_has(
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = {**EVAL, "episode_return": EVAL["episode_return"] + 1}
    for events, times in (
        ([EVAL] * 4 + [other] + [EVAL] * 4, 0),
        ([EVAL] * 5, 1),
        ([other] + [EVAL] * 12 + [other] * 7, 1),
    ):
        for headline, name in (("entropy", "system.ent_coef"), ("q_loss", "system.epsilon_end")):
            start = {**START, "headlines": {headline: "{}"}}
            assert printed(capsys, start, *events).count(name) == times


def test_an_earlier_runs_lines_are_not_touched(tmp_path: Path) -> None:
    write(JsonLines(tmp_path), TRAIN)
    with pytest.raises(FileExistsError, match=r"metrics\.jsonl"):
        JsonLines(tmp_path)
    assert lines(tmp_path) == [TRAIN]


def test_no_bar_is_shown_where_a_standard_stream_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)  # as Python has it after `2>&-`
    assert bars.bar() is None
    monkeypatch.setattr(sys, "stdout", None)  # a bar on a terminal then has no output to redirect
    shown = bars.TerminalBar(io.StringIO())
    shown.open()
    shown.close()
