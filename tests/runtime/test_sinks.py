"""What a run leaves behind and shows: JSON lines, the summary, the plot, the console."""

import contextlib
import io
import json
import os
import pty
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from events import ABSOLUTE, COMPILE, END, EVAL, LAST_EVAL, MEMBERS, START, TRAIN, write

from jaxppo.config.schema import LoggerConfig
from jaxppo.runtime import sinks
from jaxppo.runtime.sinks import Event, View, plot
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


@pytest.mark.parametrize(
    "switches, made",
    [
        ({}, [JsonLines, Plot, Console]),
        ({"json": False}, [Plot, Console]),
        ({"plot": False}, [JsonLines, Console]),
        ({"console": False}, [JsonLines, Plot]),
        ({"json": False, "plot": False, "console": False}, []),
    ],
)
def test_switches(tmp_path: Path, switches: dict[str, bool], made: list[type]) -> None:
    found = sinks.make(LoggerConfig(**switches), tmp_path)
    for sink in found:
        sink.close()
    assert [type(getattr(sink, "sink", sink)) for sink in found] == made


def test_lines_are_the_events_of_training_in_order(tmp_path: Path) -> None:
    write(JsonLines(tmp_path), *RUN)
    assert lines(tmp_path) == [e for e in RUN if e["event"] in ("train", "eval", "absolute")]
    assert json.loads((tmp_path / "summary.json").read_text()) == END


def test_line_is_on_disk_before_the_next_event(tmp_path: Path) -> None:
    sink = JsonLines(tmp_path)
    for count, event in enumerate([TRAIN, EVAL, ABSOLUTE], start=1):
        sink.write(event)
        assert len(lines(tmp_path)) == count
    sink.close()


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_numbers_that_json_lacks_become_null(tmp_path: Path, value: float) -> None:
    inner = {"deep": {"loss": value, "steps": 3}}
    write(
        JsonLines(tmp_path),
        {**TRAIN, "total_loss": value, **inner},
        {**END, "best_episode_return": value},
    )
    (train,) = lines(tmp_path)
    assert train == {**TRAIN, "total_loss": None, "deep": {"loss": None, "steps": 3}}
    assert json.loads((tmp_path / "summary.json").read_text())["best_episode_return"] is None


def test_large_counts_and_small_numbers_stay_exact(tmp_path: Path) -> None:
    event = {**TRAIN, "steps": 2**53 + 1, "total_loss": 5e-324, "value_loss": 0.1}
    write(JsonLines(tmp_path), event)
    assert lines(tmp_path) == [event]


def test_an_earlier_runs_lines_are_not_touched(tmp_path: Path) -> None:
    write(JsonLines(tmp_path), TRAIN)
    with pytest.raises(FileExistsError, match=r"metrics\.jsonl"):
        JsonLines(tmp_path)
    assert lines(tmp_path) == [TRAIN]


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


def is_picture(path: Path) -> bool:
    return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    "events",
    [
        RUN,
        [START, COMPILE, TRAIN, EVAL],  # stopped early
        [EVAL],
        [START, {**TRAIN, "episodes": 0, "episode_return": None}, EVAL, ABSOLUTE],
        [START, {**TRAIN, "episode_return": NAN}, {**EVAL, "episode_return": NAN}],
        [START, TRAIN, NULL, EVAL, {**ABSOLUTE, "episode_return": None}],  # as a log gives it back
        [{**START, "environment": "of $mine_{x}$ \\ 50%"}, EVAL],
    ],
    ids=["a run", "stopped", "one evaluation", "no episode ended", "nan", "null", "odd name"],
)
def test_plot_is_drawn(tmp_path: Path, events: list[Event]) -> None:
    path = tmp_path / "curve.png"
    write(Plot(path), *events)
    assert is_picture(path)


@pytest.mark.parametrize("events", [[], [START, COMPILE], [START, COMPILE, TRAIN]])
def test_nothing_to_draw_is_no_file(tmp_path: Path, events: list[Event]) -> None:
    write(Plot(tmp_path / "curve.png"), *events)
    assert list(tmp_path.iterdir()) == []


def test_plot_leaves_no_figure_open(tmp_path: Path) -> None:
    from matplotlib import pyplot

    write(Plot(tmp_path / "curve.png"), *RUN)
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
    named = [text.get_text() for text in figure.legends[0].get_texts()]
    assert [name.partition(",")[0] for name in named] == ["evaluation", "± one std of episodes"]


@pytest.mark.parametrize(
    "steps, words",
    [(0, "0"), (500, "500"), (50_000, "50k"), (327_680, "327.7k"), (1.5e6, "1.5M"), (2e9, "2B")],
)
def test_steps_are_written_in_one_style(steps: float, words: str) -> None:
    assert plot.steps_text(steps) == words


@pytest.mark.parametrize("num, columns, rows", [(1, 3, [1]), (5, 3, [3, 2]), (16, 5, [4] * 4)])
def test_panels_fill_every_row(num: int, columns: int, rows: list[int]) -> None:
    figure, panels = plot.make_panels(num, columns, 2.0, 2.0)
    figure.canvas.draw()
    assert len(panels) == num
    places = [axes.get_position() for axes in panels]
    tops = sorted({round(place.y0, 6) for place in places}, reverse=True)
    found = [[place for place in places if round(place.y0, 6) == top] for top in tops]
    assert [len(row) for row in found] == rows
    assert all(row[-1].x1 > 0.9 for row in found)


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """`printed(*events)`: the lines of a console that is no terminal."""

    def call(*events: Event) -> list[str]:
        write(Console(), *events)
        out, err = capsys.readouterr()
        assert err == ""
        assert "\x1b" not in out
        assert "\r" not in out
        return [str(line) for line in out.splitlines()]

    return call


def test_plain_lines_tell_the_run(printed: Any) -> None:
    text = printed(*RUN)
    assert text[-1].startswith("absolute metric: 123.46 ")
    for line, words in zip(
        text,
        [
            ["CartPole-v1", "1 cpu device,", "seed 3", "9,155 parameters"],
            ["2 update batches", "16 environments", "32 steps", "1,024 steps", "minibatches of 64"],
            ["5 updates", "5,120 steps", "5000 asked for|5,000 asked for", "rounded up"],
            ["evaluations: 2", "2 or 3 updates", "8 episodes", "500 steps"],
            ["12.0 s", "train 10.5", "evaluate 1.5", "0.25 GFLOP", "7 MiB"],
            ["2,048 steps", "12.3k steps/s", "train return", "21.50", "0.693", "0.0125", "1.25"],
            ["2,048 steps", "evaluation", "123.46", "std 7.50", "123.4"],
            ["5,120 steps", "train return"],
            ["5,120 steps", "evaluation"],
            ["absolute metric", "std 7.50", "80 episodes", "step 5,120"],
        ],
        strict=True,
    ):
        for word in words:
            assert any(choice in line for choice in word.split("|")), line


@pytest.mark.parametrize(
    "event, words",
    [
        ({**START, "num_devices": 4}, "4 cpu devices"),
        ({**START, "requested_steps": 5120}, "= 5,120 steps"),
        ({**START, "requested_steps": None}, "= 5,120 steps"),
        ({**START, "sequence_length": 16}, "batch, in sequences of 16 steps"),
        ({**START, "warmup_steps": 2048}, "2,048 steps of warm-up"),
        ({**START, "updates_per_block": (2, 2)}, "one every 2 updates"),
        ({**TRAIN, "steps_per_second": 87.25}, " 87.2 steps/s"),
        ({**TRAIN, "steps_per_second": 1.5e6}, " 1.5M steps/s"),
        ({**TRAIN, "steps_per_second": 2.25e9}, "2.25G steps/s"),
        ({**TRAIN, "steps_per_second": 999.7}, " 1k steps/s"),
        ({**TRAIN, "steps_per_second": 999_700.0}, " 1M steps/s"),
        ({**TRAIN, "steps": 10**12}, "1,000,000,000,000 steps"),
        ({**TRAIN, "episode_return": NAN}, "train return      nan"),
        ({**EVAL, "episode_return": -0.5}, "return -0.50"),
    ],
)
def test_line_says(printed: Any, event: Event, words: str) -> None:
    assert words in "\n".join(printed(event))


def test_rounding_is_not_spoken_of_where_there_is_none(printed: Any) -> None:
    for requested in (5120, None):
        assert "asked for" not in "\n".join(printed({**START, "requested_steps": requested}))


def test_training_shows_the_headlines_of_its_algorithm(printed: Any) -> None:
    start = {**START, "headlines": {"td_error": "td error {:.1f}"}}
    *_, line = printed(start, {**TRAIN, "td_error": 3.14})
    assert line.endswith("  td error 3.1")
    assert "entropy" not in line


def test_train_return_is_a_dash_when_no_episode_ended(printed: Any) -> None:
    none = {"episodes": 0, "episode_return": None, "episode_length": None}
    *_, line = printed(START, {**TRAIN, **none})
    assert re.search(r"train return +- ", line)


@pytest.mark.parametrize("event", [EVAL, ABSOLUTE], ids=["eval", "absolute"])
def test_unfinished_episodes_are_said(printed: Any, event: Event) -> None:
    (line,) = printed({**event, "unfinished": 3})
    assert f"3 of {event['episodes']} episodes unfinished after 500 steps" in line
    (line,) = printed(event)
    assert "unfinished" not in line


@pytest.mark.parametrize("event", [TRAIN, EVAL, ABSOLUTE], ids=["train", "eval", "absolute"])
def test_restarts_of_simulators_are_said(printed: Any, event: Event) -> None:
    *_, line = printed(START, {**event, "env_restarts": 1})
    assert "  1 restart of environments" in line.replace(";", " ")
    *_, line = printed(START, {**event, "env_restarts": 0})
    assert "restart" not in line


def test_every_event_of_a_run_is_known(printed: Any) -> None:
    for event in RUN:
        printed(event)
    with pytest.raises(KeyError):
        printed({"event": "no such event"})


Show = Callable[..., str]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Show:
    """`terminal(*events)`: what a terminal receives from a console."""

    def show(*events: Event) -> str:
        ours, theirs = pty.openpty()
        received = bytearray()

        def receive() -> None:
            with contextlib.suppress(OSError):  # the end of a terminal is an error on Linux
                while chunk := os.read(ours, 4096):
                    received.extend(chunk)

        reader = threading.Thread(target=receive)
        reader.start()
        with os.fdopen(theirs, "w", encoding="utf-8") as stdout, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stdout)
            write(Console(), *events)
        reader.join()
        os.close(ours)
        return received.decode()

    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    return show


def plain(received: str) -> list[str]:
    """Lines without control sequences."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", received)
    return [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]


@pytest.mark.parametrize(
    "variables",
    [
        {"TERM": "xterm-256color"},
        {"TERM": "xterm-256color", "NO_COLOR": "1"},
        {"TERM": "xterm", "COLUMNS": "20"},
        {"TERM": "linux", "COLUMNS": "400"},
        {"TERM": "dumb"},
        {"TERM": ""},
    ],
    ids=lambda variables: " ".join(f"{k}={v}" for k, v in variables.items()),
)
def test_terminal_gets_every_line_whole(
    terminal: Show, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    text = plain(terminal(*RUN))
    assert text[-1].startswith("absolute metric: 123.46 (std 7.50")
    assert text[-1].endswith(")")
    assert sum("evaluation: return 123.46" in line for line in text) == 2


def test_terminal_shows_a_bar_that_moves(terminal: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    received = terminal(*RUN)
    bars = [line for line in plain(received) if "%" in line]
    assert "0%" in bars[0]
    assert re.search(r"━ +100% +5\.12k steps +12\.3k steps/s +return 21\.50 ", bars[-1])


def test_plan_needs_no_bar(terminal: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "%" not in terminal(START, {**COMPILE, "plan_only": True})


@pytest.mark.parametrize("num_events", range(2, len(RUN) + 1))
def test_cursor_comes_back_however_the_run_ends(
    terminal: Show, monkeypatch: pytest.MonkeyPatch, num_events: int
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    received = terminal(*RUN[:num_events])
    assert received.count("\x1b[?25l") == received.count("\x1b[?25h") > 0
    assert received.rindex("\x1b[?25h") > received.rindex("\x1b[?25l")


SELECTION: Event = {
    "event": "selection",
    "method": "pbt",
    "steps": 64,
    "members": [0, 1, 2],
    "sources": [2, 1, 2],
    "hyperparameters": {"actor_lr": [0.1, 0.2, NAN], "gamma": [0.0, 0.9, 0.99]},
}


@pytest.mark.parametrize(
    "event, words",
    [
        ({**EVAL, **MEMBERS}, "mean 2.50, IQM 2.25 [1.50, 3.75], from 1.00 to 4.00 over 3 members"),
        ({**ABSOLUTE, **MEMBERS}, "absolute metric: mean 2.50, IQM 2.25"),
        (
            {**EVAL, **MEMBERS, "member_return_low": None, "member_return_high": None},
            "mean 2.50, IQM 2.25, from 1.00 to 4.00 over 3 members",
        ),
        (SELECTION, "64 steps  selection: 3 members, 1 copied a better one"),
        ({**SELECTION, "method": "halving"}, "selection: the best 3 members go on"),
        (
            {**SELECTION, "method": "halving", "members": [2], "sources": [0]},
            "selection: only the best member goes on",
        ),
        (
            {**EVAL, **MEMBERS, "members": 1, "seeds": [7], "episode_return": 2.5},
            "evaluation of seed 7: return 2.50 (std ",
        ),
        (
            {**EVAL, **MEMBERS, "returns_by_settings": {"seed 1": [1.0], "seed 2": [2.5]}},
            "evaluation: best seed 2 (2.50), from 1.00 to 4.00 over 3 members of 2 settings",
        ),
        (
            {**EVAL, **MEMBERS, "returns_by_settings": {"a=1": [NAN, 1.0], "a=2": [2.5, 4.0]}},
            "evaluation: best a=2 (IQM 3.25 over 2 seeds), from 1.00 to 4.00 over",
        ),
        (
            {**EVAL, **MEMBERS, "returns_by_settings": {"a=1": [None], "a=2": [NAN], "a=3": [1]}},
            "evaluation: best a=3 (1.00), from 1.00 to 4.00 over 3 members",
        ),
        (
            {**TRAIN, **MEMBERS, "returns_by_settings": {"a=1": [NAN, 1.0], "a=2": [None, 4.0]}},
            "train returns 1.00 to 4.00",
        ),
        (
            {**TRAIN, **MEMBERS, "returns_by_settings": {"a=1": [None], "a=2": [None]}},
            "no episode ended yet",
        ),
    ],
)
def test_line_of_several_members_says(printed: Any, event: Event, words: str) -> None:
    assert words in "\n".join(printed(event))


def test_no_mean_over_settings_is_printed(printed: Any) -> None:
    own = {**TRAIN, **MEMBERS, "returns_by_settings": {"a=1": [1.0], "a=2": [4.0]}}
    start = {**START, "headlines": {"entropy": "entropy {:.3f}"}}
    assert "entropy" in printed(start, TRAIN)[-1]
    line = printed(start, own)[-1]
    assert "entropy" not in line
    assert "2.50" not in line


def test_no_iqm_is_printed_for_members_that_are_not_seeds_of_one_agent(printed: Any) -> None:
    event = {**EVAL, **MEMBERS, "returns_by_settings": {"a=1": [1.0], "a=2": [2.5], "a=3": [4.0]}}
    assert "IQM" not in "\n".join(printed(event))


def test_console_names_the_directory_first_and_last(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end: Event = {"event": "end"}
    monkeypatch.chdir(tmp_path)
    write(Console([tmp_path / "runs" / "a"]), *RUN)
    lines = capsys.readouterr().out.splitlines()
    assert [i for i, line in enumerate(lines) if line == "run directory: runs/a"] == [
        4,
        len(lines) - 1,
    ]
    write(Console([tmp_path]), START)  # Hydra can change the working directory to it
    assert capsys.readouterr().out.splitlines()[-1] == f"run directory: {tmp_path}"
    write(Console([Path(f"/far/{i}") for i in range(2)]), START, end)
    assert capsys.readouterr().out.splitlines()[-1] == "run directories: 0, 1 in /far"
    write(Console(), START, end)
    assert "director" not in capsys.readouterr().out


def test_start_of_several_members_says_how_many(printed: Any) -> None:
    start = {name: value for name, value in START.items() if name != "seed"}
    text = "\n".join(printed({**start, "members": 4, "num_members": 4}))
    assert "1 cpu device, 4 members, " in text
    assert "an update of each of 4 members: " in text


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
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "evaluation of each member",
        "evaluation, best member",
        "absolute metric, winner (seed 3): 2.75",
    ]


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
    (legend,) = figure.legends
    assert "winner (member 0, seed 1)" in legend.get_texts()[0].get_text()


def test_selections_are_kept_in_json(tmp_path: Path) -> None:
    write(JsonLines(tmp_path), SELECTION)
    (event,) = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert event["sources"] == [2, 1, 2]
    assert event["hyperparameters"]["actor_lr"] == [0.1, 0.2, None]


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
    with pytest.raises(FileExistsError):
        JsonLines(tmp_path)


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
