"""Pictures of a report: one panel each, to be read on a phone, in print and without colour."""

import dataclasses
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

# Okabe and Ito's colours that are dark enough for lines on white, with a line and a marker each
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
PLAIN = "#4A5568"  # of what belongs to no group
WIDTH, HEIGHT, DPI = 4.8, 3.5, 180  # inches, inches, pixels an inch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """A curve with a band; its first `num_whole` points are drawn solid, those after pale."""

    label: str
    x: Sequence[float]  # [S]
    y: Sequence[float]  # [S]
    low: Sequence[float] = ()  # at the first points
    high: Sequence[float] = ()
    num_whole: int
    style: int  # of STYLES


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bar:
    """A number with its interval, if it has one."""

    label: str
    value: float
    interval: tuple[float, float] | None
    style: int  # of STYLES


@dataclasses.dataclass(frozen=True, kw_only=True)
class Points:
    """What the runs of one value of a setting scored."""

    value: float | str
    scores: Sequence[float]  # [N]
    styles: Sequence[int | None]  # [N] of STYLES; None: of no group that has one
    middle: float
    interval: tuple[float, float] | None


def draw_curves(
    path: Path,
    lines: Sequence[Line],
    faint: Sequence[tuple[Sequence[float], Sequence[float]]],
    *,
    title: str,
    ylabel: str,
) -> None:
    """Learning curves; those that are `faint`, of x and y, are grey and have no names."""
    figure, axes = _figure(title, legend=[line.label for line in lines])
    for x, y in faint:
        axes.plot(x, y, color="#B0B8C2", linewidth=0.5, zorder=1)
    for line in lines:
        color, dashes, marker = STYLES[line.style]
        split = line.num_whole
        dots = dict(color=color, marker=marker, markersize=4)
        axes.fill_between(
            line.x[: len(line.low)], line.low, line.high, color=color, alpha=0.16, linewidth=0
        )
        axes.plot(
            line.x[:split],
            line.y[:split],
            linestyle=dashes,
            linewidth=1.5,
            label=line.label,
            **dots,
        )
        rest = slice(max(0, split - 1), None)
        if split < len(line.x):
            axes.plot(line.x[rest], line.y[rest], linestyle=":", linewidth=0.9, alpha=0.6, **dots)
    _steps(axes)
    axes.set_ylabel(ylabel)
    _widen(axes, "y")
    _finish(figure, axes, path)


def draw_profiles(path: Path, lines: Sequence[Line], *, title: str, xlabel: str) -> None:
    """Which share of runs scores more than each score."""
    figure, axes = _figure(title, legend=[line.label for line in lines])
    for line in lines:
        color, dashes, _ = STYLES[line.style]
        if line.low:
            axes.fill_between(line.x, line.low, line.high, color=color, alpha=0.16, linewidth=0)
        axes.plot(line.x, line.y, color=color, linestyle=dashes, linewidth=1.6, label=line.label)
    axes.set(xlabel=xlabel, ylabel="share of runs above it", ylim=(-0.03, 1.03))
    _finish(figure, axes, path)


def draw_bars(
    path: Path, bars: Sequence[Bar], *, title: str, xlabel: str, even: float | None = None
) -> None:
    """A row each: a mark at the number and a line over its interval; `even` is drawn across."""
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
        if bar.interval is not None:
            axes.plot(bar.interval, [y, y], color=color, linewidth=5, alpha=0.35)
        axes.plot([bar.value], [y], color=color, marker=marker, markersize=7)
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
    """Scores against the values of a setting: on an axis of numbers, or in strips."""
    numeric = len(columns) > 1 and all(isinstance(column.value, float) for column in columns)
    names = [str(column.value) for column in columns]
    few = len(columns) <= 6
    figure, axes = _figure(title, turned=not numeric and max(map(len, names)) > 8)
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
        middles = [column.middle for column in columns]
        if numeric:
            axes.plot(places, middles, color=PLAIN, linewidth=1.2, zorder=1)
        for place, column in zip(places, columns, strict=True):
            if column.interval is not None:
                axes.plot([place, place], column.interval, color=PLAIN, linewidth=4, alpha=0.3)
            axes.plot([place], [column.middle], "_", color=PLAIN, markersize=16, mew=2)
    if not numeric:
        turned = max(map(len, names)) > 8
        axes.set_xticks(
            places,
            [_wrapped(name, 18) for name in names],
            rotation=25 if turned else 0,
            ha="right" if turned else "center",
        )
        axes.set_xlim(-0.6, len(columns) - 0.4)
    elif few:
        axes.set_xticks(places, [f"{place:.4g}" for place in places])
        axes.minorticks_off()
    axes.set(xlabel=xlabel, ylabel=ylabel)
    _widen(axes, "y")
    _finish(figure, axes, path)


def _figure(
    title: str, *, legend: Sequence[str] = (), height: float = HEIGHT, turned: bool = False
) -> tuple[Any, Any]:
    """A figure of one panel, with room below it for a legend of these names."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = sum(_wrapped(label, _LEGEND).count("\n") + 1 for label in legend)
    room = 0.2 * rows + (0.08 if rows else 0) + (0.3 if turned else 0)
    figure = Figure(figsize=(WIDTH, height + room), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    lines = textwrap.wrap(title, 56)
    figure.suptitle("\n".join(lines), fontsize=10.5, x=0.02, ha="left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


_LEGEND = 56  # letters a line


def _wrapped(label: str, width: int) -> str:
    """On lines of at most so many letters, broken where one setting ends if possible."""
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


def _steps(axes: Any) -> None:
    """Environment steps along x, in thousands or millions."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel("environment steps")


def _widen(axes: Any, axis: str) -> None:
    """Show no range so small that noise fills it: at least 2% of the numbers on it."""
    low, high = getattr(axes, f"get_{axis}lim")()
    least = 0.02 * max(abs(low), abs(high))
    if high - low < least:
        middle = (low + high) / 2
        getattr(axes, f"set_{axis}lim")(middle - least / 2, middle + least / 2)
    getattr(axes, f"{axis}axis").get_major_formatter().set_useOffset(False)


def _finish(figure: Any, axes: Any, path: Path, axis: str = "both") -> None:
    """Write the picture; the error of one that cannot be written names it."""
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
    """A score with as many digits as tell something, or as many as that of `beside` has."""
    size = abs(value if beside is None else beside)
    return f"{value:.{1 if size >= 100 else 2 if size >= 1 else 3}f}"
