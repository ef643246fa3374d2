"""Draw returns against environment steps, the lineage of a population, and sweeps."""

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxppo.ops.aggregates import interval, iqm
from jaxppo.runtime.sinks import Event


class Plot:
    """Draws once, when the run ends, from all events."""

    def __init__(self, path: Path, past: Sequence[Event] = ()) -> None:
        self._path = path
        self._events: list[Event] = list(past)

    def write(self, event: Event) -> None:
        """Keep the event."""
        self._events.append(event)

    def close(self) -> None:
        """Draw, if there were evaluations."""
        selections = [e for e in self._events if e["event"] == "selection"]
        if selections:
            end = max(event.get("steps", 0) for event in self._events)
            _draw_population(self._path.with_name("population.png"), selections, end)
        if any(e["event"] == "eval" for e in self._events):
            _save(draw(self._events), self._path, 130)


def draw(events: Sequence[Event]) -> Any:
    """Return a matplotlib figure of the training and evaluation returns in the events of a run."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2))  # fixed layout: constrained takes twice the time
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.11, 0.13, 0.86, 0.79))
    evaluations = [e for e in events if e["event"] == "eval"]
    training = [e for e in events if e["event"] == "train" and e["episodes"]]
    axes.plot(
        [e["steps"] for e in training],
        _numbers(training, "episode_return"),
        color="tab:gray",
        linewidth=1.2,
        label="training episodes (sampled actions)",
    )
    if evaluations and "members" in evaluations[0]:
        _draw_members(axes, evaluations)
    else:
        _draw_one(axes, evaluations)
    for event in events:
        if event["event"] == "absolute" and event["episode_return"] is not None:
            axes.axhline(
                event["episode_return"],
                color="tab:orange",
                linestyle="--",
                label=f"absolute metric {event['episode_return']:.4g}",
            )
        elif event["event"] == "start":
            of = f"seed {event['seed']}" if "seed" in event else f"{event['members']} seeds"
            axes.set_title(f"{event['environment']}, {of}")
    axes.set(xlabel="environment steps", ylabel="episode return")
    axes.grid(alpha=0.3)
    axes.legend(loc="best", frameon=False)
    return figure


def _draw_one(axes: Any, evaluations: list[Event]) -> None:
    steps = [e["steps"] for e in evaluations]
    mean = _numbers(evaluations, "episode_return")
    std = _numbers(evaluations, "episode_return_std")
    _band(
        axes,
        steps,
        [m - s for m, s in zip(mean, std, strict=True)],
        [m + s for m, s in zip(mean, std, strict=True)],
    )
    axes.plot(steps, mean, "o-", color="tab:blue", markersize=4, label="evaluation, mean and std")


def _draw_members(axes: Any, evaluations: list[Event]) -> None:
    """Draw the IQM and its interval, and a thin line per seed."""
    curves: dict[int, tuple[list[int], list[float]]] = {}
    for event in evaluations:
        for seed, score in zip(event["seeds"], event["member_returns"], strict=True):
            steps, scores = curves.setdefault(seed, ([], []))
            steps.append(event["steps"])
            scores.append(math.nan if score is None else score)
    for steps, scores in curves.values():
        axes.plot(steps, scores, color="tab:blue", linewidth=0.6, alpha=0.35)
    steps = [e["steps"] for e in evaluations]
    _band(
        axes,
        steps,
        _numbers(evaluations, "member_return_low"),
        _numbers(evaluations, "member_return_high"),
    )
    axes.plot(
        steps,
        _numbers(evaluations, "member_return_iqm"),
        "o-",
        color="tab:blue",
        markersize=4,
        label="evaluation, IQM over seeds and its 95% interval",
    )


def _numbers(events: list[Event], name: str) -> list[float]:
    """Return a number of each event; NaN if it is missing or null, as for non-finite returns."""
    found = (event.get(name) for event in events)
    return [math.nan if value is None else float(value) for value in found]


def _band(axes: Any, steps: list[int], low: list[float], high: list[float]) -> None:
    axes.fill_between(steps, low, high, color="tab:blue", alpha=0.2, linewidth=0)


def _draw_population(path: Path, selections: list[Event], end: int) -> None:
    """Draw each member's parents, and the hyperparameters that members differ in, up to `end`.

    Lines go from one selection to the next. A member has the same colour in all panels; a cross
    marks its end.
    """
    from matplotlib import colormaps

    figure, panels = _panels(1 + len(selections[0]["hyperparameters"]))
    lineage, *schedules = panels
    num = len(selections[0]["members"])
    colors = colormaps["turbo"]([0.5] if num == 1 else [i / (num - 1) for i in range(num)])
    last = selections[-1]
    after = [*selections[1:], {**last, "sources": last["members"], "steps": end}]
    for before, now in zip(selections, after, strict=True):
        steps = [before["steps"], now["steps"]]
        for member in set(before["members"]) - set(now["members"]):
            lineage.plot(steps, [member, member], color=colors[member], linewidth=1)
            lineage.plot(steps[1:], [member], "x", color=colors[member])
        for member, source in zip(now["members"], now["sources"], strict=True):
            lineage.plot(steps, [source, member], color=colors[source], linewidth=1)
        for axes, row in zip(schedules, before["hyperparameters"].values(), strict=True):
            for member, value in zip(before["members"], row, strict=True):
                axes.plot(steps, [value, value], color=colors[member], linewidth=1)
    lineage.set(title="lineage", xlabel="environment steps", ylabel="member")
    for axes, name in zip(schedules, selections[0]["hyperparameters"], strict=True):
        if all(min(event["hyperparameters"][name]) > 0 for event in selections):
            axes.set_yscale("log")
        axes.set(title=name, xlabel="environment steps")
    _save(figure, path, 110)


def _save(figure: Any, path: Path, dpi: int) -> None:
    """Write a picture; errors name its path."""
    try:
        figure.savefig(path, dpi=dpi)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def png(figure: Any) -> bytes:
    """Return a figure as a PNG."""
    file = io.BytesIO()
    figure.savefig(file, dpi=130)
    return file.getvalue()


def _panels(num: int) -> tuple[Any, list[Any]]:
    """Make a figure with `num` axes in rows of three."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(num, 3)
    lines = -(-num // columns)
    figure = Figure(figsize=(5.2 * columns, 3.8 * lines), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(lines, columns, squeeze=False).flat)
    for unused in axes[num:]:
        unused.set_axis_off()
    return figure, axes[:num]


def draw_sweep(path: Path, panels: dict[str, dict[str, dict[int, list[float]]]]) -> None:
    """Draw one panel per swept key, with the IQM of the scores at each step for each value.

    `panels`: key -> value -> steps -> scores of jobs and seeds with that value.
    """
    if not panels:
        return
    figure, places = _panels(len(panels))
    for axes, (key, curves) in zip(places, panels.items(), strict=True):
        for number, (value, curve) in enumerate(curves.items()):
            steps = sorted(step for step, scores in curve.items() if scores)
            bounds = [interval([curve[step]]) for step in steps]
            color = f"C{number % 10}"
            axes.plot(steps, [iqm(curve[s]) for s in steps], color=color, label=value)
            if len(curves) <= 10:
                axes.fill_between(
                    steps,
                    [low for low, _ in bounds],
                    [high for _, high in bounds],
                    color=color,
                    alpha=0.15,
                    linewidth=0,
                )
        axes.set(title=key, xlabel="environment steps", ylabel="episode return, IQM and 95%")
        axes.grid(alpha=0.3)
        if len(curves) <= 10:
            axes.legend(loc="best", frameon=False, fontsize="small")
    _save(figure, path, 110)
