"""Pictures of a report and of a sweep, which can be read on a phone, in print, without colour."""

import dataclasses
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxppo.analysis.comparison import Comparison, Curve, Estimate, curve, text
from jaxppo.runtime.sinks.plot import make_panels, save, steps_axis

# Colours of Okabe and Ito that are dark enough for lines on white; each with a line and a marker
STYLES: tuple[tuple[str, Any, str], ...] = (
    ("#0072B2", "-", "o"),
    ("#D55E00", "--", "s"),
    ("#009E73", "-.", "^"),
    ("#CC79A7", (0, (1, 1.2)), "D"),
    ("#E69F00", (0, (7, 2)), "v"),
    ("#56B4E9", (0, (3, 1, 1, 1, 1, 1)), "P"),
    ("#000000", (0, (2, 1)), "X"),
    ("#8C510A", (0, (9, 2, 2, 2)), "*"),
)
PLAIN = "#4A5568"  # for what belongs to no group
WIDTH, HEIGHT, DPI = 4.8, 3.5, 180  # inches, inches, pixels an inch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line(Curve):
    """A curve as it is drawn. Its `partial` points are pale."""

    label: str
    style: int  # index into STYLES


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bar:
    """An estimate with its name."""

    label: str
    estimate: Estimate
    style: int  # index into STYLES


@dataclasses.dataclass(frozen=True, kw_only=True)
class Points:
    """Scores of the runs with one value of a setting."""

    value: float | str
    scores: Sequence[float]  # [N]
    styles: Sequence[int | None]  # [N] indices into STYLES; None: the group has no style
    estimate: Estimate  # of their IQM


def styles(comparison: Comparison) -> dict[str, int]:
    """Return the style of each group by its label, the same in all pictures, best groups first."""
    return {group.label: style for style, group in enumerate(comparison.groups)}


def lines_of(comparison: Comparison, task: str, until: float = math.inf) -> list[Line]:
    """Return learning curves of the groups that have runs of a task, up to a step."""
    return [
        Line(label=group.label, style=style, **vars(curve(group.runs[task], until)))
        for style, group in enumerate(comparison.groups)
        if task in group.runs
    ]


def draw_sweep(path: Path, comparison: Comparison) -> None:
    """Draw a panel of learning curves for each task; without evaluations, nothing."""
    panels = [(task, lines_of(comparison, task)) for task in comparison.tasks]
    panels = [(task, lines) for task, lines in panels if any(line.x for line in lines)]
    if panels:
        draw_curves([path], comparison, panels, 110)


def draw_curves(
    paths: Sequence[Path],
    comparison: Comparison,
    panels: Sequence[tuple[str, Sequence[Line]]],
    dpi: int = DPI,
) -> None:
    """Draw a panel of learning curves for each task, the first ones in colour.

    Curves for which there is no style are grey and have no names.
    """
    labels = dict.fromkeys(line.label for _, lines in panels for line in _styled(lines))
    columns = min(len(panels), 3)
    letters = 2 * _LEGEND if columns > 1 else _LEGEND
    room = 0.25 + _height([*labels], letters)
    width = WIDTH if columns < 3 else 4.0
    figure, places = make_panels(len(panels), columns, width, HEIGHT, room)
    for axes, (task, lines) in zip(places, panels, strict=True):
        _draw_lines(axes, lines, f"evaluation {comparison.judge(task)}")
        _widen(axes, "y")
        axes.grid(alpha=0.25)
        axes.set_title(literal(textwrap.fill(task, 44)), fontsize=10.5)
    _legend(figure, places, letters, _key(max((lines for _, lines in panels), key=len)))
    _save(figure, paths, dpi)


def _key(lines: Sequence[Line]) -> str:
    """Return what lines, dots and bands are."""
    more = len(lines) - len(_styled(lines))
    grey = f"; {more} more in grey" if more else ""
    return f"line: IQM over runs, dots: evaluations, band: 95% interval{grey}"


def _draw_lines(axes: Any, lines: Sequence[Line], ylabel: str) -> None:
    for line in lines[::-1]:
        if line.style >= len(STYLES):
            axes.plot(line.x, line.y, color="#B0B8C2", linewidth=0.5, zorder=1)
    for line in _styled(lines):
        color, dashes, marker = STYLES[line.style]
        dots = dict(color=color, marker=marker, markersize=4, clip_on=False)
        _band(axes, line)
        solid = dict(linestyle=dashes, linewidth=1.5, label=literal(line.label))
        pale = np.isin(line.x, line.partial)
        axes.plot(line.x, np.where(pale, np.nan, line.y), **solid, **dots)
        if pale.any():
            near = np.convolve(pale, [True, True, True])[1:-1]  # with the points beside them
            y = np.where(near, line.y, np.nan)
            axes.plot(line.x, y, linestyle=":", linewidth=0.9, alpha=0.6, **dots)
    steps_axis(axes)
    axes.set_ylabel(ylabel)


def _styled(lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if line.style < len(STYLES)]


def draw_lines(
    paths: Sequence[Path], lines: Sequence[Line], *, dots: bool = False, **labels: Any
) -> None:
    """Draw lines; `labels` are the title and those of `Axes.set`; without an xlabel, over steps."""
    figure, axes = _figure(labels.pop("title"), legend=[line.label for line in lines])
    for line in lines:
        color, dashes, marker = STYLES[line.style]
        _band(axes, line)
        look = dict(linestyle=dashes, linewidth=1.6, marker=marker if dots else "", markersize=4)
        axes.plot(line.x, line.y, color=color, label=literal(line.label), **look)
    if "xlabel" not in labels:
        steps_axis(axes)
    axes.set(**labels)
    _finish(figure, axes, paths)


def draw_bars(
    paths: Sequence[Path],
    bars: Sequence[Bar],
    *,
    title: str,
    xlabel: str,
    even: float | None = None,
) -> None:
    """Draw a row for each bar: a mark at its value, a line over its interval.

    `even` draws a vertical line at this value and sets the axis to the range 0 to 1.
    """
    from matplotlib.ticker import MaxNLocator

    labels = [literal(textwrap.fill(bar.label, _LEGEND // 2)) for bar in bars]
    height = 0.95 + sum(0.17 * (label.count("\n") + 1) + 0.1 for label in labels)  # inches
    figure, axes = _figure(title, height=height)
    for y, bar in enumerate(bars):
        color, _, marker = STYLES[bar.style]
        if bar.estimate.interval is not None:
            axes.plot(bar.estimate.interval, [y, y], color=color, linewidth=5, alpha=0.35)
        axes.plot([bar.estimate.value], [y], color=color, marker=marker, markersize=7)
    axes.set(xlabel=xlabel, ylim=(len(bars) - 0.5, -0.5))
    axes.set_yticks(range(len(bars)), labels, fontsize=8.5)
    if even is not None:
        axes.axvline(even, color=PLAIN, linewidth=1, linestyle=":")
        axes.set(xlim=(-0.03, 1.03))
    _widen(axes, "x")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    _finish(figure, axes, paths, axis="x")


def draw_setting(
    paths: Sequence[Path], columns: Sequence[Points], *, title: str, xlabel: str, ylabel: str
) -> None:
    """Draw scores against the values of a setting: on a number axis, or in one strip per value."""
    numeric = len(columns) > 1 and all(isinstance(column.value, float) for column in columns)
    figure, axes = _figure(title)
    places = [float(column.value) for column in columns] if numeric else [*range(len(columns))]
    if numeric and min(places) > 0 and max(places) / min(places) >= 20:
        axes.set_xscale("log")
    for place, column in zip(places, columns, strict=True):
        num = len(column.scores)
        shift = np.zeros(num) if numeric else (np.arange(num) - (num - 1) / 2) * 0.4 / max(num, 8)
        for x, score, style in zip(place + shift, column.scores, column.styles, strict=True):
            color, _, marker = (PLAIN, "", "o") if style is None else STYLES[style]
            axes.plot([x], [score], marker, color=color, markersize=4.5, alpha=0.75, mew=0.6)
    if any(len(column.scores) > 1 for column in columns):
        estimates = [column.estimate for column in columns]
        if numeric:
            values = [estimate.value for estimate in estimates]
            axes.plot(places, values, color=PLAIN, linewidth=1.2, zorder=1)
        for place, estimate in zip(places, estimates, strict=True):
            if estimate.interval is not None:
                axes.plot([place, place], estimate.interval, color=PLAIN, linewidth=4, alpha=0.3)
            axes.plot([place], [estimate.value], "_", color=PLAIN, markersize=16, mew=2)
    if not numeric:
        names = [literal(textwrap.fill(str(column.value), 18)) for column in columns]
        axes.set_xticks(places, names, rotation=25, ha="right")
        axes.set_xlim(-0.6, len(columns) - 0.4)
    elif len(columns) <= 6:
        axes.set_xticks(places, [text(place) for place in places])
        axes.minorticks_off()
    axes.set(xlabel=xlabel, ylabel=ylabel)
    _widen(axes, "y")
    _finish(figure, axes, paths)


_LEGEND = 56  # letters per line


def literal(text: str) -> str:
    """Escape $, which begins a formula in matplotlib, and a first _, which hides a label."""
    shown = text.replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


def _figure(title: str, *, legend: Sequence[str] = (), height: float = HEIGHT) -> tuple[Any, Any]:
    """Make a figure of one panel, with space below it for a legend."""
    figure, (axes,) = make_panels(1, 1, WIDTH, height, _height(legend, _LEGEND))
    lines = "\n".join(textwrap.wrap(title, 56))
    figure.suptitle(literal(lines), fontsize=10.5, x=0.02, ha="left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _band(axes: Any, line: Line) -> None:
    """Fill between `low` and `high`, if the line has them."""
    if line.low:
        color = STYLES[line.style][0]
        axes.fill_between(line.x, line.low, line.high, color=color, alpha=0.16, linewidth=0)


def _height(labels: Sequence[str], width: int) -> float:
    """Return the inches that labels of at most `width` letters a line need."""
    return 0.2 * sum(len(textwrap.wrap(label, width)) for label in labels)


def _widen(axes: Any, axis: str) -> None:
    """Widen the axis to at least 2% of its numbers, so that noise does not fill the picture."""
    low, high = getattr(axes, f"get_{axis}lim")()
    least = 0.02 * max(abs(low), abs(high))
    if high - low < least:
        middle = (low + high) / 2
        getattr(axes, f"set_{axis}lim")(middle - least / 2, middle + least / 2)
    getattr(axes, f"{axis}axis").get_major_formatter().set_useOffset(False)


def _finish(figure: Any, axes: Any, paths: Sequence[Path], axis: str = "both") -> None:
    """Write the picture; an `OSError` names the file."""
    axes.grid(alpha=0.25, axis=axis)
    _legend(figure, [axes], _LEGEND)
    _save(figure, paths, DPI)


def _legend(figure: Any, panels: Sequence[Any], width: int, key: str | None = None) -> None:
    """Name the lines of all panels, each once, below them; `width` in letters, `key` above."""
    named: dict[str, Any] = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        named = {**dict(zip(labels, handles, strict=True)), **named}
    if named:
        figure.legend(
            named.values(),
            [textwrap.fill(label, width) for label in named],
            title=key,
            loc="outside lower left",
            fontsize=8.5,
            title_fontsize=8.5,
            alignment="left",
            frameon=False,
            handlelength=3.4,
            borderpad=0.2,
        )


def _save(figure: Any, paths: Sequence[Path], dpi: int) -> None:
    """Write the picture in the format of each path, without times and matplotlib's version."""
    for path in paths:
        names = {".png": ("Software",), ".svg": ("Date", "Creator")}.get(
            path.suffix, ("CreationDate", "Creator", "Producer")
        )
        save(figure, path, dpi, metadata=dict.fromkeys(names))


def rounded(value: float, beside: float | None = None) -> str:
    """Return a score with sensible digits, or with as many as `beside` would have."""
    size = abs(value if beside is None else beside)
    return f"{value:.{1 if size >= 100 else 2 if size >= 1 else 3}f}"
