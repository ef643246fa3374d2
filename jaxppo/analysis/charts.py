"""Pictures of a report. Each has one panel and can be read on a phone, in print, without colour."""

import dataclasses
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxppo.analysis.comparison import Estimate, text

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
class Line:
    """A curve with a band. Points after the first `num_whole` are pale."""

    label: str
    x: Sequence[float]  # [S]
    y: Sequence[float]  # [S]
    low: Sequence[float] = ()  # of the band, at the first points
    high: Sequence[float] = ()
    num_whole: int
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


def draw_curves(
    path: Path,
    lines: Sequence[Line],
    faint: Sequence[tuple[Sequence[float], Sequence[float]]],
    *,
    title: str,
    ylabel: str,
) -> None:
    """Draw learning curves. The curves `faint`, given as x and y, are grey and have no names."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    figure, axes = _figure(title, legend=[line.label for line in lines])
    for x, y in faint:
        axes.plot(x, y, color="#B0B8C2", linewidth=0.5, zorder=1)
    for line in lines:
        color, dashes, marker = STYLES[line.style]
        split, dots = line.num_whole, dict(color=color, marker=marker, markersize=4)
        _band(axes, line)
        solid = dict(linestyle=dashes, linewidth=1.5, label=line.label)
        axes.plot(line.x[:split], line.y[:split], **solid, **dots)
        rest = slice(max(0, split - 1), None)
        if split < len(line.x):
            axes.plot(line.x[rest], line.y[rest], linestyle=":", linewidth=0.9, alpha=0.6, **dots)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # thousands or millions
    axes.set(xlabel="environment steps", ylabel=ylabel)
    _widen(axes, "y")
    _finish(figure, axes, path)


def draw_profiles(path: Path, lines: Sequence[Line], *, title: str, xlabel: str) -> None:
    """Draw performance profiles: the share of runs that score above each level."""
    figure, axes = _figure(title, legend=[line.label for line in lines])
    for line in lines:
        color, dashes, _ = STYLES[line.style]
        _band(axes, line)
        axes.plot(line.x, line.y, color=color, linestyle=dashes, linewidth=1.6, label=line.label)
    axes.set(xlabel=xlabel, ylabel="share of runs above it", ylim=(-0.03, 1.03))
    _finish(figure, axes, path)


def draw_bars(
    path: Path, bars: Sequence[Bar], *, title: str, xlabel: str, even: float | None = None
) -> None:
    """Draw a row for each bar: a mark at its value, a line over its interval.

    `even` draws a vertical line at this value and sets the axis to the range 0 to 1.
    """
    from matplotlib.ticker import MaxNLocator

    labels = [_wrapped(bar.label, _LEGEND) for bar in bars]
    rows = [0.17 * (label.count("\n") + 1) + 0.3 for label in labels]  # inches
    figure, axes = _figure(title, height=0.95 + sum(rows))
    if even is not None:
        axes.axvline(even, color=PLAIN, linewidth=1, linestyle=":")
    top = 0.0
    for label, height, bar in zip(labels, rows, bars, strict=True):
        color, _, marker = STYLES[bar.style]
        axes.text(
            *(0.01, top, label),
            fontsize=8.5,
            va="top",
            transform=axes.get_yaxis_transform(),
            bbox=dict(facecolor="white", edgecolor="none", pad=1, alpha=0.8),
        )
        y = top + height - 0.14
        if bar.estimate.interval is not None:
            axes.plot(bar.estimate.interval, [y, y], color=color, linewidth=5, alpha=0.35)
        axes.plot([bar.estimate.value], [y], color=color, marker=marker, markersize=7)
        top += height
    axes.set(xlabel=xlabel, ylim=(top + 0.05, -0.05), yticks=[])
    axes.spines["left"].set_visible(False)
    if even is not None:
        axes.set(xlim=(-0.03, 1.03))
    _widen(axes, "x")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    _finish(figure, axes, path, axis="x")


def draw_setting(
    path: Path, columns: Sequence[Points], *, title: str, xlabel: str, ylabel: str
) -> None:
    """Draw scores against the values of a setting: on a number axis, or in one strip per value."""
    numeric = len(columns) > 1 and all(isinstance(column.value, float) for column in columns)
    names = [str(column.value) for column in columns]
    turned = not numeric and max(map(len, names)) > 8
    figure, axes = _figure(title, turned=turned)
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
        look = dict(rotation=25, ha="right") if turned else dict(rotation=0, ha="center")
        axes.set_xticks(places, [_wrapped(name, 18) for name in names], **look)
        axes.set_xlim(-0.6, len(columns) - 0.4)
    elif len(columns) <= 6:
        axes.set_xticks(places, [text(place) for place in places])
        axes.minorticks_off()
    axes.set(xlabel=xlabel, ylabel=ylabel)
    _widen(axes, "y")
    _finish(figure, axes, path)


_LEGEND = 56  # letters per line


def _figure(
    title: str, *, legend: Sequence[str] = (), height: float = HEIGHT, turned: bool = False
) -> tuple[Any, Any]:
    """Make a figure of one panel, with space below it for a legend or for turned tick labels."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = sum(_wrapped(label, _LEGEND).count("\n") + 1 for label in legend)
    room = 0.2 * rows + (0.08 if rows else 0) + (0.3 if turned else 0)
    figure = Figure(figsize=(WIDTH, height + room), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    figure.suptitle("\n".join(textwrap.wrap(title, 56)), fontsize=10.5, x=0.02, ha="left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _band(axes: Any, line: Line) -> None:
    """Fill between `low` and `high`, if the line has them."""
    if len(line.low):
        color, x = STYLES[line.style][0], line.x[: len(line.low)]
        axes.fill_between(x, line.low, line.high, color=color, alpha=0.16, linewidth=0)


def _wrapped(label: str, width: int) -> str:
    """Break a label into lines of at most `width` letters, between settings if possible."""
    lines: list[str] = []
    for start in label.split("\n"):
        lines.append("")
        for part in start.split(", "):
            if lines[-1] and len(lines[-1]) + len(part) + 2 <= width:
                lines[-1] += f", {part}"
            elif lines[-1]:
                lines[-1:] = [f"{lines[-1]},", part]
            else:
                lines[-1] = part
    return "\n".join(short for line in lines for short in textwrap.wrap(line, width))


def _widen(axes: Any, axis: str) -> None:
    """Widen the axis to at least 2% of its numbers, so that noise does not fill the picture."""
    low, high = getattr(axes, f"get_{axis}lim")()
    least = 0.02 * max(abs(low), abs(high))
    if high - low < least:
        middle = (low + high) / 2
        getattr(axes, f"set_{axis}lim")(middle - least / 2, middle + least / 2)
    getattr(axes, f"{axis}axis").get_major_formatter().set_useOffset(False)


def _finish(figure: Any, axes: Any, path: Path, axis: str = "both") -> None:
    """Write the picture; an `OSError` names the file."""
    axes.grid(alpha=0.25, axis=axis)
    handles, labels = axes.get_legend_handles_labels()
    if labels:
        figure.legend(
            handles,
            [_wrapped(label, _LEGEND) for label in labels],
            loc="outside lower left",
            fontsize=8.5,
            frameon=False,
            handlelength=3.4,
            borderpad=0.2,
        )
    try:
        figure.savefig(path, dpi=DPI, metadata={"Software": None})
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def rounded(value: float, beside: float | None = None) -> str:
    """Return a score with sensible digits, or with as many as `beside` would have."""
    size = abs(value if beside is None else beside)
    return f"{value:.{1 if size >= 100 else 2 if size >= 1 else 3}f}"
