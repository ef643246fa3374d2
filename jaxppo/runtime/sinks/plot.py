"""Draw the returns of a run against environment steps, and the lineage of a population.

Also what all pictures share: how steps are written, and panels that fill their picture.
"""

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxppo.runtime.programs.population import ancestors, inherited
from jaxppo.runtime.sinks import Event, Recorder, of_environment
from jaxppo.runtime.sinks.bars import short
from jaxppo.runtime.store.facts import judged_by, scores_of_members

EVALUATION, ABSOLUTE, TRAINING, OTHERS = "#0072B2", "#D55E00", "#6B7280", "#B0B8C2"  # colours


def steps_text(steps: float) -> str:
    """Return environment steps as in all pictures: 0, 500, 50k, 1.5M, 2B."""
    return short(steps, 4)


def steps_axis(axes: Any, label: str = "environment steps", ticks: int = 6) -> None:
    """Make the x axis one of environment steps, which begins at 0."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.set_xlim(left=0)
    axes.set_xlabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda steps, _: steps_text(steps)))


def make_panels(
    num: int, columns: int, width: float, height: float, room: float = 0.0
) -> tuple[Any, list[Any]]:
    """Make a figure with `num` panels, as equal as possible a number in each row.

    Every row fills the width. `columns` is the most in a row; `width` and `height` are of a panel
    and `room` is of what stands below them, all in inches.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = -(-num // columns)
    sizes = [num // rows + (row < num % rows) for row in range(rows)]
    figure = Figure(figsize=(width * sizes[0], height * rows + room), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(rows, 1)
    panels = []
    for row, size in enumerate(sizes):
        cells = grid[row].subgridspec(1, size)
        panels += [figure.add_subplot(cells[0, column]) for column in range(size)]
    return figure, panels


class Plot(Recorder):
    """Draws once, when the run ends, from all events."""

    def __init__(self, path: Path, past: Sequence[Event] = ()) -> None:
        super().__init__(list(past))
        self._path = path

    def close(self) -> None:
        """Draw, if there were evaluations."""
        events = of_environment(self.events)
        if any(e["event"] == "selection" for e in events):
            save(draw_population(events), self._path.with_name("population.png"), 110)
        if any(e["event"] == "eval" for e in events):
            save(draw(events), self._path, 130)


def draw(events: Sequence[Event]) -> Any:
    """Return a matplotlib figure of the training and evaluation returns in the events of a run."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.7))  # fixed layout: constrained takes twice the time
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.11, 0.26, 0.86, 0.67))
    evaluations = [e for e in events if e["event"] == "eval"]
    training = [e for e in events if e["event"] == "train" and e["episodes"]]
    judge, what = _judge(evaluations)
    population = any(e.get("population") for e in events)
    _draw_evaluations(axes, evaluations, population)
    if training and not population:
        axes.plot(
            [e["steps"] for e in training],
            _numbers(training, judge),
            color=TRAINING,
            linewidth=1.2,
            label="training, mean of its episodes (sampled actions)",
        )
    for event in events:
        if event["event"] == "absolute" and not population:
            _draw_absolute(axes, event[judge], "mean")
        elif event["event"] == "end" and population:
            _draw_absolute(axes, event["absolute_metric"], f"winner (seed {event.get('seed')}):")
        elif event["event"] == "start":
            who = "members" if population else "seeds"
            of = f"seed {event['seed']}" if "seed" in event else f"{event['members']} {who}"
            axes.set_title(f"{event['environment']}, {of}")
    axes.set_ylabel(what)
    steps_axis(axes)
    axes.grid(alpha=0.3)
    place: dict[str, Any] = dict(loc="upper center", bbox_to_anchor=(0.5, 0.165), borderaxespad=0)
    figure.legend(ncols=2, fontsize=8.5, frameon=False, **place)
    return figure


def _judge(evaluations: Sequence[Event]) -> tuple[str, str]:
    """Return the name of the number by which policies are compared, and it in words."""
    first = evaluations[0] if evaluations else {}
    return judged_by(first), first.get("eval_metric", "episode return")


def _draw_evaluations(axes: Any, evaluations: list[Event], population: bool) -> None:
    """Draw a dot for each evaluation, and a band.

    Of one agent the mean over episodes, with their standard deviation; of several seeds a thin line
    each, their IQM and its interval; of a population, whose settings differ, the best member.
    """
    steps, judge = [e["steps"] for e in evaluations], _judge(evaluations)[0]
    several = any("members" in e for e in evaluations)
    low: Any = None
    if several or population:
        who = "member" if population else "seed"
        for number, (times, scores) in enumerate(_by_seed(evaluations).values()):
            name = None if number else f"evaluation of each {who}"
            axes.plot(times, scores, color=EVALUATION, linewidth=0.6, alpha=0.35, label=name)
    if population:
        label = "evaluation, best member"
        middle = [
            max((x for x in map(_number, _scores(e)) if math.isfinite(x)), default=math.nan)
            for e in evaluations
        ]
    elif several:
        label, of_band = "evaluation, IQM over seeds", "95% interval of the IQM"
        kind = scores_of_members(evaluations[0])
        low, middle, high = (_numbers(evaluations, f"{kind}_{of}") for of in ("low", "iqm", "high"))
    else:
        label, middle = "evaluation, mean of its episodes", _numbers(evaluations, judge)
        if judge == "episode_return":
            std, least, most = (
                np.asarray(_numbers(evaluations, f"{judge}_{of}")) for of in ("std", "min", "max")
            )
            # A bound that is not in the log is ignored
            low, high = np.fmax(middle - std, least), np.fmin(middle + std, most)
            of_band = "± one std of episodes, within their min and max"
    # A dot at step 0 is not cut off
    look: dict[str, Any] = dict(color=EVALUATION, markersize=4, clip_on=False, zorder=3)
    axes.plot(steps, middle, "o-", label=label, **look)
    if low is not None:
        axes.fill_between(steps, low, high, color=EVALUATION, alpha=0.2, linewidth=0, label=of_band)


def _draw_absolute(axes: Any, score: float | None, words: str) -> None:
    if score is not None:
        label = f"absolute metric, {words} {score:.4g}"
        axes.axhline(score, color=ABSOLUTE, linestyle="--", linewidth=1.2, label=label)


def _numbers(events: list[Event], name: str) -> list[float]:
    """Return a number of each event; NaN if it is missing or null, as for non-finite returns."""
    return [_number(event.get(name)) for event in events]


def _number(value: float | None) -> float:
    """Return NaN for null, which stands for it in JSON."""
    return math.nan if value is None else float(value)


def _scores(event: Event) -> list[float | None]:
    """Return the members' scores in an evaluation."""
    found: list[float | None] = event[f"{scores_of_members(event)}s"]
    return found


def _by_seed(evaluations: Sequence[Event]) -> dict[int, tuple[list[int], list[float]]]:
    """Return seed -> steps and scores of its evaluations."""
    curves: dict[int, tuple[list[int], list[float]]] = {}
    for event in evaluations:
        for seed, score in zip(event["seeds"], _scores(event), strict=True):
            steps, scores = curves.setdefault(seed, ([], []))
            steps.append(event["steps"])
            scores.append(_number(score))
    return curves


def draw_population(events: Sequence[Event]) -> Any:
    """Return a figure of each member's returns, parents and hyperparameters over the steps.

    The winner and its ancestors are in colour, up to its best evaluation.
    """
    selections = [e for e in events if e["event"] == "selection"]
    evaluations = [e for e in events if e["event"] == "eval" and "members" in e]
    end = max(event.get("steps", 0) for event in events)
    names = list(selections[0]["hyperparameters"])
    figure, (returns, lineage, *schedules) = make_panels(2 + len(names), 3, 4.4, 3.0, 0.35)
    for axes in (returns, lineage, *schedules):
        axes.grid(alpha=0.25)
    for times, scores in _by_seed(evaluations).values():
        returns.plot(times, scores, color=OTHERS, linewidth=0.8)
    after = [
        *selections[1:],
        {**selections[-1], "sources": selections[-1]["members"], "steps": end},
    ]
    for before, now in zip(selections, after, strict=True):
        _draw_between(lineage, dict(zip(names, schedules, strict=True)), before, now)
    seed, steps = _winner(events, evaluations)
    label = None
    if seed is not None:
        member = evaluations[0]["seeds"].index(seed)
        path = ancestors(selections, member, steps)
        _draw_winner([returns, lineage, *schedules], selections, evaluations, path, steps)
        label = (
            f"winner (member {member}, seed {seed}) and its ancestors, up to its best evaluation"
        )
    for axes, title in zip(
        (returns, lineage, *schedules), (_judge(evaluations)[1], "member", *names), strict=True
    ):
        axes.set_ylabel(title)
        steps_axis(axes, ticks=5)
        axes.set_xlim(0, max(end, 1) * 1.02)
    for axes, name in zip(schedules, names, strict=True):
        values = [_number(x) for event in selections for x in event["hyperparameters"][name]]
        if min(values, default=0.0) > 0:
            axes.set_yscale("log")
    lineage.yaxis.get_major_locator().set_params(integer=True)
    dropped = any(len(e["members"]) < len(selections[0]["members"]) for e in selections)
    _legend(figure, label, dropped, selections[0]["method"] == "pbt")
    return figure


def _draw_between(lineage: Any, schedules: dict[str, Any], before: Event, now: Event) -> None:
    """Draw all members from one selection to the next: who copied whom, and hyperparameters."""
    steps = [before["steps"], now["steps"]]
    for member in set(before["members"]) - set(now["members"]):
        lineage.plot(steps, [member, member], color=OTHERS, linewidth=1)
        lineage.plot(steps[1:], [member], "x", color=TRAINING, markersize=5)
    for member, source in zip(now["members"], now["sources"], strict=True):
        lineage.plot(steps, [source, member], color=OTHERS, linewidth=1)
    for name, axes in schedules.items():
        for value in map(_number, before["hyperparameters"][name]):
            axes.plot(steps, [value, value], color=OTHERS, linewidth=1)


def _winner(events: Sequence[Event], evaluations: Sequence[Event]) -> tuple[int | None, float]:
    """Return the seed of the best member and the step of its best evaluation.

    Before the end of the run that is the best so far; (None, 0) without a finite evaluation.
    """
    for event in events:
        if event["event"] == "end" and None not in (event.get("seed"), event.get("best_steps")):
            return event["seed"], event["best_steps"]
    found = [
        (score, -step, seed)
        for seed, (steps, scores) in _by_seed(evaluations).items()
        for step, score in zip(steps, scores, strict=True)
        if math.isfinite(score)
    ]
    _, step, seed = max(found, default=(0.0, 0, None))
    return seed, -step


def _draw_winner(
    panels: Sequence[Any],
    selections: Sequence[Event],
    evaluations: Sequence[Event],
    path: Sequence[int],
    steps: float,
) -> None:
    """Draw the winner and its ancestors, a member of `path` after each selection, up to `steps`."""
    returns, lineage, *schedules = panels
    look = dict(color=ABSOLUTE, linewidth=2, zorder=3)
    starts = [event["steps"] for event in selections[: len(path)]]
    seeds = evaluations[0]["seeds"]
    line = []
    for event in evaluations:
        if event["steps"] <= steps:
            alive = path[max(0, sum(start < event["steps"] for start in starts) - 1)]
            scores = dict(zip(event["seeds"], _scores(event), strict=True))
            line.append((event["steps"], _number(scores.get(seeds[alive]))))
    returns.plot(*zip(*line, strict=True), "o-", markersize=4, clip_on=False, **look)
    times = [*starts, steps]
    lineage.plot(times, [*path, path[-1]], **look)
    for axes, numbers in zip(schedules, inherited(selections, path).values(), strict=True):
        values = [_number(x) for x in numbers]
        axes.plot(times, [*values, values[-1]], drawstyle="steps-post", **look)


def _legend(figure: Any, winner: str | None, dropped: bool, copies: bool) -> None:
    """Name the lines of a population below its panels."""
    from matplotlib.lines import Line2D

    looks: list[dict[str, Any]] = [
        dict(
            label=("other members" if winner else "members")
            + ("; slanted: it copied another" if copies else ""),
            color=OTHERS,
        )
    ]
    if winner is not None:
        looks.insert(0, dict(label=winner, color=ABSOLUTE, linewidth=2))
    if dropped:
        looks.append(dict(label="dropped", color=TRAINING, marker="x", linestyle=""))
    kinds = [Line2D([], [], **look) for look in looks]
    figure.legend(handles=kinds, loc="outside lower center", ncols=3, fontsize=9, frameon=False)


def save(figure: Any, path: Path, dpi: int, **options: Any) -> None:
    """Write a picture; an `OSError` names its path. `options` are those of `savefig`."""
    try:
        figure.savefig(path, dpi=dpi, **options)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def png(figure: Any) -> bytes:
    """Return a figure as a PNG."""
    file = io.BytesIO()
    figure.savefig(file, dpi=130)
    return file.getvalue()
