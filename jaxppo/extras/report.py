"""Comparison of runs on one HTML page."""

import csv
import dataclasses
import itertools
import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxppo.analysis import runs
from jaxppo.analysis.charts import (
    STYLES,
    Bar,
    Line,
    Points,
    draw_bars,
    draw_curves,
    draw_lines,
    draw_setting,
    lines_of,
    rounded,
    styles,
)
from jaxppo.analysis.comparison import (
    FEW,
    Array,
    Comparison,
    Estimate,
    Group,
    better,
    compare,
    overall,
    text,
)
from jaxppo.analysis.runs import UNFINISHED, Run
from jaxppo.config.fields import ConfigError, setting
from jaxppo.config.messages import count
from jaxppo.config.schema import TOLD
from jaxppo.config.stored import CONFIG, TOURNAMENT, overrides
from jaxppo.extras import page
from jaxppo.ops.aggregates import NUM_RESAMPLES, profile, profile_interval, tolerance
from jaxppo.runtime.sinks.console import print_lines
from jaxppo.runtime.store.directories import output_folder

PAGE = "index.html"
SHOWN = 25  # rows of a table that are not folded
MAX_PANELS = 24  # of hyperparameters
ROUNDED = 1.02  # budgets that differ less are the same, rounded up to whole updates
MAX_PAIRED = 4  # with more groups, only the best group is compared with each other group


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reporting:
    """Compare runs on one page: python -m jaxppo.report DIR... [key=value]

    DIR is a run, a sweep, or any directory above them. Runs that differ only in their seed form a
    group; environments are tasks. Writes index.html, which needs no other file, its pictures, and
    its tables as results.csv and runs.csv.
    """

    runs: list[str] = setting([], "directories")
    out: str = setting("report", "the directory to write to")
    formats: list[str] = setting([], "of pictures, besides PNG, such as [pdf,svg]")
    bounds: dict[str, Any] = setting(
        {},
        "returns that become 0 and 1 when tasks are averaged, such as bounds.CartPole-v1=[0,500], "
        "for a task or all tasks of an environment; for others, the lowest and the highest score",
    )


@dataclasses.dataclass(frozen=True)
class Files:
    """The directory that a report writes to."""

    folder: Path
    formats: Sequence[str]
    taken: set[str] = dataclasses.field(default_factory=set)  # names of pictures, in small letters

    def pictures(self, name: str) -> list[Path]:
        """Return the paths of a new picture, the PNG first; a name that is taken gets a number."""
        more = (f"{name}_{number}" for number in itertools.count(2))
        name = next(x for x in itertools.chain([name], more) if x.lower() not in self.taken)
        self.taken.add(name.lower())
        return [self.folder / f"{name}.{kind}" for kind in ("png", *self.formats)]

    def write_table(self, name: str, rows: Sequence[dict[str, Any]]) -> None:
        """Write rows with equal keys as CSV."""
        with (self.folder / name).open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, [*rows[0]])
            table.writeheader()
            table.writerows(rows)


def report(settings: Reporting) -> None:
    """Write the page and print a summary."""
    if not settings.runs:
        raise ConfigError("no directory named: python -m jaxppo.report DIR...")
    if unknown := {*settings.formats} - {"pdf", "svg"}:
        raise ConfigError(
            f"formats=[{','.join(settings.formats)}]: {min(unknown)} is none of pdf and svg; PNGs "
            "are always written"
        )
    found, notes = runs.find(settings.runs)
    comparison = compare(found, settings.bounds)
    out = output_folder(settings.out)
    contents = (
        f"{count(found, 'run')}, {count(comparison.groups, 'group')}, "
        f"{count(comparison.tasks, 'task')}"
    )
    notes = [*cautions(comparison), *notes]
    files = Files(out, settings.formats)
    sections = [make(comparison, files) for make in SECTIONS]
    parts = [
        page.paragraph(f"{contents}, from {', '.join(settings.runs)}"),
        page.contents(sections),
        page.listing(notes),
        *sections,
    ]
    (out / PAGE).write_text(page.page("Comparison of runs", *parts), "utf-8")
    print_lines(f"{out / PAGE}: {contents}", *notes)


def cautions(comparison: Comparison) -> list[str]:
    """Return what a reader should know before reading any number."""
    every, cells = _runs(comparison), _cells(comparison)
    lines = []
    unfinished = [run for run in every if run.status == UNFINISHED]
    if unfinished:
        lines.append(
            f"{len(unfinished)} of {count(every, 'run')} not finished (running, or ended early): "
            "their results so far are used."
        )
    for group, task, own in cells:
        failed = [run for run in own if run.failed]
        if failed:
            lines.append(
                f"{len(failed)} of {count(own, 'run')} failed and left out of scores, which "
                f"flatters the rest: {group.label} on {task}: {failed[0].status}"
            )
        seeds = Counter(run.seed for run in own if run.score is not None)
        if several := [str(seed) for seed, num in seeds.items() if num > 1]:
            lines.append(
                f"{group.label} on {task}: several runs have seed {', '.join(several)}, with "
                "different results; each counts as one."
            )
    best = [run for run in every if run.by_best and run.score is not None]
    if best:
        lines.append(
            f"{count(best, 'run')} without an absolute metric: the score is the best evaluation, "
            "a maximum of several and so too high."
        )
    sizes = [(group.label, len(group.scores(task))) for group, task, _ in cells]
    if single := {label for label, size in sizes if size == 1}:
        lines.append(f"{count(len(single), 'group')} with one run on a task: no interval there.")
    if any(1 < size < FEW for _, size in sizes):
        lines.append(f"Intervals over fewer than {FEW} runs are narrower than they should be.")
    for group in comparison.whole:
        nums = {task: group.scores(task).size for task in comparison.averaged}
        if len({*nums.values()}) > 1:
            most, fewest = max(nums, key=nums.__getitem__), min(nums, key=nums.__getitem__)
            lines.append(
                f"{group.label}: {count(nums[most], 'run')} on {most} and "
                f"{count(nums[fewest], 'run')} on {fewest}; every run has the same weight in "
                "the IQM over all tasks, so tasks with more runs count more."
            )
    for task in comparison.tasks:
        lengths = {run.steps for _, t, own in cells if t == task for run in own}
        if lengths and max(lengths) > ROUNDED * min(lengths):
            lines.append(
                f"{task}: runs trained for different numbers of steps, {min(lengths):,} to "
                f"{max(lengths):,}; each is judged at its own end."
            )
    if len({_versions(run) for run in every if run.versions}) > 1:
        lines.append("Runs have different versions, which are below the first table.")
    return lines


def absolute_metrics(comparison: Comparison, out: Files) -> str:
    """Make the table of results."""
    several = len(comparison.tasks) > 1
    names = ["group", *(["task"] if several else []), "runs", "steps", "mean ± std"]
    names += ["IQM [95% interval]", "all runs (tolerance)", "final mean ± std", "wall time"]
    rows, numbers = [], []
    for group, task, own in _cells(comparison):
        scores = group.scores(task)
        finals = _array(run.final for run in own if run.score is not None)
        estimate = overall([scores]) if scores.size else None
        low, high = (estimate and estimate.interval) or (None, None)
        numbers.append(
            {
                "group": group.label,
                "task": task,
                "runs": len(scores),
                "mean": scores.mean() if scores.size else None,
                "std": scores.std() if scores.size > 1 else None,
                "iqm": estimate and estimate.value,
                **{"iqm_low": low, "iqm_high": high},
                "final_mean": finals.mean() if finals.size else None,
            }
        )
        num = str(len(own)) if len(scores) == len(own) else f"{len(scores)} of {len(own)}"
        rows.append(
            [
                *([group.label, task] if several else [group.label]),
                num,
                _span([run.steps for run in own], "{:,}".format),
                _mean(scores),
                _estimate(estimate),
                _tolerance(scores),
                _mean(finals),
                _span([run.seconds for run in own if run.seconds is not None], _duration),
            ]
        )
    out.write_table("results.csv", numbers)
    right = {*names} - {"group", "task"}
    parts = [page.table(names, rows[:SHOWN], right)]
    if len(rows) > SHOWN:
        rest = page.table(names, rows[SHOWN:], right)
        parts.append(page.folded(f"{len(rows) - SHOWN} more rows", rest))
    every = _runs(comparison)
    versions = "; ".join(sorted({_versions(run) for run in every if run.versions}))
    machines = "; ".join(sorted({run.machine for run in every if run.machine}))
    return page.section(
        "Absolute metrics",
        "The return (or arch.eval_metric) of each run's best policy, evaluated anew over ten times "
        "the episodes. The "
        "best group comes first. The std is over runs. The lowest and the highest run are a "
        "tolerance interval: with 95% confidence, at least the share in brackets of further runs "
        "would lie between them. Final is the last evaluation, of the policy at the end, as most "
        "published figures are. Wall time is that of the whole program, "
        "which may have trained several runs at once.",
        *parts,
        page.paragraph(
            f"Versions: {versions or 'not recorded'}. Machine: {machines or 'not recorded'}."
        ),
    )


def environment_metrics(comparison: Comparison, out: Files) -> str:
    """Make the table of what environments tell besides the score."""
    cells = _cells(comparison)
    names = list(dict.fromkeys(name for *_, own in cells for run in own for name in run.told))
    if names in ([], ["episode_return"]):
        return ""
    rows = [
        [group.label, task, *(_mean(_array(run.told.get(name) for run in own)) for name in names)]
        for group, task, own in cells
    ]
    shown = ["return" if name == "episode_return" else name.removeprefix(TOLD) for name in names]
    return page.section(
        "Metrics of the environment",
        "Mean ± std over runs of what env.metrics asks for, in the episodes of the absolute "
        "metric, or else of the last evaluation.",
        page.table(["group", "task", *shown], rows[:SHOWN], {*shown}),
    )


def _array(values: Iterable[float | None]) -> Array:
    return np.asarray([value for value in values if value is not None], np.float64)


def iqms(comparison: Comparison, out: Files) -> str:
    """Draw the IQM of each group over all tasks, probabilities of improvement, and profiles.

    Groups that lack a task are left out: others have easier or harder ones.
    """
    chosen = styles(comparison)
    groups = [group for group in comparison.whole if chosen[group.label] < len(STYLES)]
    over = "Over all runs" if len(comparison.tasks) == 1 else "Over all tasks"
    intro = f"{_scale(comparison)}{_left_out(comparison)}"
    if not groups:
        return page.section(over, intro) if len(comparison.tasks) > 1 else ""
    bars = [
        Bar(label=g.label, estimate=overall(comparison.strata(g)), style=chosen[g.label])
        for g in groups
    ]
    title = f"IQM, {_tasks(comparison)}"
    paths = out.pictures("iqm")
    draw_bars(paths, bars, title=title, xlabel=_unit(comparison))
    more = len(comparison.whole) - len(groups)
    caption = f"{more} more groups are in the table." if more else ""
    figures = [
        page.figure(paths[0], f"{title}: {_as_text(bars)}", caption=caption),
        improvements(comparison, groups, out),
        profiles(comparison, groups, out),
    ]
    return page.section(over, intro, page.figures(figures))


def improvements(comparison: Comparison, groups: Sequence[Group], out: Files) -> str:
    """Draw the probability that a run of one group scores higher than a run of another."""
    many, chosen = len(groups) > MAX_PAIRED, styles(comparison)
    bars = []
    for first, second in itertools.combinations(groups, 2):
        if many and first is not groups[0]:
            continue
        label = f"{'' if many else first.label} over {second.label}".strip()
        style = chosen[(second if many else first).label]
        bars.append(Bar(label=label, estimate=better(comparison.pairs(first, second)), style=style))
    if not bars:
        return ""
    title = "Probability of improvement" + (f" of {groups[0].label}" if many else "")
    paths = out.pictures("improvement")
    draw_bars(paths, bars, title=title, xlabel="P(first scores higher)", even=0.5)
    caption = "Probability that a run of the first group scores higher; at 0.5 both are equal."
    return page.figure(paths[0], f"{title}: {_as_text(bars)}", caption=caption)


def profiles(comparison: Comparison, groups: Sequence[Group], out: Files) -> str:
    """Draw performance profiles."""
    strata = [comparison.strata(group) for group in groups]
    every = np.concatenate([scores for own in strata for scores in own])
    low, high = float(every.min()), float(every.max())
    if comparison.normalized:
        low, high = min(low, 0.0), max(high, 1.0)
    margin = 0.03 * (high - low) or 0.5
    levels = np.linspace(low - margin, high + margin, 201)
    lines = []
    for group, own in zip(groups, strata, strict=True):
        enough = any(scores.size > 1 for scores in own)
        band = profile_interval(own, levels) if enough else ((), ())
        lines.append(
            Line(
                label=group.label,
                x=levels.tolist(),
                y=profile(own, levels).tolist(),
                low=list(band[0]),
                high=list(band[1]),
                style=styles(comparison)[group.label],
            )
        )
    title = f"Performance profiles, {_tasks(comparison)}"
    paths = out.pictures("profiles")
    ylabel, ylim = "share of runs above it", (-0.03, 1.03)
    draw_lines(paths, lines, title=title, xlabel=_unit(comparison), ylabel=ylabel, ylim=ylim)
    median = float(np.median(every))
    shares = "; ".join(
        f"{line.label}: {profile(own, [median])[0]:.0%}"
        for line, own in zip(lines, strata, strict=True)
    )
    alt = f"{title}. Share of runs above {rounded(median)}: {shares}"
    return page.figure(paths[0], alt, caption="A curve further up and to the right is better.")


def learning_curves(comparison: Comparison, out: Files) -> str:
    """Draw the learning curves of each task, up to the steps that all its groups trained for."""
    figures = []
    for task in comparison.tasks:
        budget = comparison.budget(task)
        lines = lines_of(comparison, task, ROUNDED * budget)
        paths = out.pictures(f"curves_{_slug(task)}")
        draw_curves(paths, comparison, [(task, lines)])
        named = [line for line in lines if line.style < len(STYLES)]
        ends = "; ".join(
            f"{line.label}: {rounded(line.y[-1])} at {line.x[-1]:,.0f} steps"
            for line in named
            if line.x
        )
        longest = max(run.steps for g in comparison.groups for run in g.runs.get(task, []))
        cut = longest > ROUNDED * budget
        caption = [f"Cut at {budget:,} steps, which all groups have."] if cut else []
        if len(lines) > len(named):
            caption.append(f"{len(lines) - len(named)} more groups in grey.")
        alt = f"Learning curves on {task}. {ends}"
        figures.append(page.figure(paths[0], alt, caption=" ".join(caption)))
    return page.section(
        "Learning curves",
        "IQM over runs of the mean score of each evaluation, and its interval. At pale dots, some "
        "runs of the group are missing.",
        page.figures(figures),
    )


def parameters(comparison: Comparison, out: Files) -> str:
    """Draw the scores against each parameter in which alone some tasks differ."""
    figures = []
    for number, (key, tasks) in enumerate(comparison.sweeps()[:MAX_PANELS]):
        lines = []
        for label, style in styles(comparison).items():
            group = next(g for g in comparison.groups if g.label == label)
            found = {x: s for x, task in tasks.items() if (s := group.scores(task)).size}
            if style < len(STYLES) and found:
                estimates = [overall([scores]) for scores in found.values()]
                ends = [estimate.interval or (np.nan, np.nan) for estimate in estimates]
                low, high = zip(*ends, strict=True)
                y = [estimate.value for estimate in estimates]
                line = Line(label=label, style=style, x=[*found], y=y, low=low, high=high)
                lines.append(line)
        names = next(iter(tasks.values())).split(", ")
        title = ", ".join(name for name in names if not name.startswith(f"{key}="))
        ylabel = f"score ({comparison.judge(next(iter(tasks.values())))})"
        paths = out.pictures(f"parameter_{number}_{_slug(key)}")
        draw_lines(paths, lines, title=title, xlabel=f"env.{key}", ylabel=ylabel, dots=True)
        alt = "; ".join(
            f"{line.label}: "
            + ", ".join(f"{rounded(y)} at {text(x)}" for x, y in zip(line.x, line.y, strict=True))
            for line in lines
        )
        figures.append(page.figure(paths[0], f"Scores on {title} against env.{key}. {alt}"))
    if not figures:
        return ""
    return page.section(
        "Parameters of the environment",
        "IQM over runs against a parameter, and its interval. Everything else is the same.",
        page.figures(figures),
    )


def hyperparameters(comparison: Comparison, out: Files) -> str:
    """Draw a panel for each setting that differs and each task."""
    chosen = styles(comparison)
    parts: list[str] = []
    for key, task in itertools.product(comparison.keys, comparison.tasks):
        by_value: dict[Any, list[tuple[float, int | None]]] = {}
        for group in comparison.groups:
            style = chosen[group.label] if chosen[group.label] < len(STYLES) else None
            for run in group.runs.get(task, []):
                if run.score is not None:
                    value = run.settings.get(key, group.values[key])
                    by_value.setdefault(value, []).append((run.score, style))
        if len(by_value) < 2:
            continue
        if len(parts) == MAX_PANELS:
            parts.append(page.paragraph(f"No more than {MAX_PANELS} panels are drawn."))
            break
        numeric = all(type(value) in (int, float) for value in by_value)
        columns = [
            _points(float(value) if numeric else text(value), by_value[value])
            for value in sorted(by_value, key=None if numeric else text)
        ]
        paths = out.pictures(f"setting_{_slug(key)}_{_slug(task)}")
        title = f"{key}, {task}" if len(comparison.tasks) > 1 else key
        draw_setting(paths, columns, title=title, xlabel=key, ylabel="score")
        scores = "; ".join(f"{text(c.value)}: {rounded(c.estimate.value)}" for c in columns[:20])
        parts.append(page.figure(paths[0], f"Scores on {task} against {key}. IQM at {scores}"))
    if not parts:
        return ""
    more = f" and {len(comparison.tied) - 6} more" if len(comparison.tied) > 6 else ""
    tied = f" These settings also differ and follow from them: {', '.join(comparison.tied[:6])}"
    return page.section(
        "Hyperparameters",
        "Each mark is a run, in the colour of its group if that has one. The bar is the IQM at "
        "that value over all other settings, with its interval."
        f"{f'{tied}{more}.' if comparison.tied else ''}",
        page.figures(parts),
    )


def populations(comparison: Comparison, out: Files) -> str:
    """Show the pictures that population-based runs wrote."""
    found = [(run.folder, run.picture) for run in _runs(comparison) if run.picture is not None]
    figures = []
    for number, (folder, picture) in enumerate(found[:4]):
        copy = out.folder / f"population_{number}.png"
        copy.write_bytes(picture.read_bytes())
        alt = f"Lineage and hyperparameters of the population in {folder}"
        figures.append(page.figure(copy, alt, caption=str(folder), wide=True))
    if not figures:
        return ""
    more = f" {len(found) - 4} more are in their runs' directories." if len(found) > 4 else ""
    return page.section(
        "Populations",
        "A population is one run; its score is its best member's. Its learning curve is that of "
        f"the best member at each evaluation.{more}",
        page.figures(figures),
    )


def settings(comparison: Comparison, out: Files) -> str:
    """List the commands that repeat each group, and all runs."""
    parts = []
    for group in comparison.groups[:SHOWN]:
        commands = [line for task in group.runs for line in _commands(group.runs[task])]
        parts += [page.heading(group.label), page.code("\n".join(commands))] if commands else []
    if len(comparison.groups) > SHOWN:
        parts.append(page.paragraph(f"Of the {SHOWN} best groups."))
    cells = [(group, task, run) for group, task, own in _cells(comparison) for run in own]
    names = ["run", "group", "task", "seed", "steps", "score", "final", "status"]
    rows = [
        (run.folder, group.label, task, run.seed, run.steps, run.score, run.final, run.status)
        for group, task, run in cells
    ]
    out.write_table("runs.csv", [dict(zip(names, row, strict=True)) for row in rows])
    shown = [[_cell(value) for value in row] for row in rows]
    every = page.table(names, shown, {"seed", "steps", "score", "final"})
    parts.append(page.folded(f"All runs ({len(rows)})", every))
    intro = f"What a later resume changed is in {CONFIG} of the run alone."
    return page.section("Settings and runs", intro, *parts)


def tournaments(comparison: Comparison, out: Files) -> str:
    """Make a table and a picture of each tournament that `jaxppo.tournament` left in a run."""
    folders = dict.fromkeys(x for run in _runs(comparison) for x in (run.home, run.folder))
    files = [folder / TOURNAMENT for folder in folders if (folder / TOURNAMENT).is_file()]
    parts = []
    for number, file in enumerate(files):
        try:
            found = json.loads(file.read_bytes())
            parts += _tournament(found, out.pictures(f"tournament_{number}"))
        except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError):
            parts.append(page.paragraph(f"{file}: damaged; play the tournament again"))
    if not parts:
        return ""
    return page.section(
        "Tournaments",
        "Elo ratings of policies that played against each other (jaxppo.tournament). The first one "
        "given has 0; 400 more are ten times the odds of a win. Points are the share of games won, "
        "with a draw as half.",
        *parts,
    )


def _tournament(found: dict[str, Any], paths: Sequence[Path]) -> list[str]:
    """Return the table of a tournament, and a picture of the ratings over steps."""
    every = found["policies"]
    rows = []
    for x in sorted(every, key=lambda x: -x["elo"]):
        points = f"{x['points']:.3f} [{x['low']:.3f}, {x['high']:.3f}]"
        rows.append([str(x["run"]), f"{x['steps']:,}", f"{x['elo']:.0f}", points])
    title = f"{found['game']}, {found['games']:,} games of each pair"
    names = ["policy of", "steps", "Elo", "points [95% interval]"]
    parts = [page.heading(title), page.table(names, rows, {*names[1:]})]
    lines = []
    for style, run in enumerate([*dict.fromkeys(str(x["run"]) for x in every)][: len(STYLES)]):
        own = sorted((x["steps"], x["elo"]) for x in every if str(x["run"]) == run)
        steps, ratings = zip(*own, strict=True)
        lines.append(Line(label=run, x=steps, y=ratings, style=style))
    if any(len(line.x) > 1 for line in lines):
        draw_lines(paths, lines, title=f"Elo, {found['game']}", ylabel="Elo", dots=True)
        parts.append(page.figures([page.figure(paths[0], f"Elo over steps, {title}")]))
    return parts


def method(comparison: Comparison, out: Files) -> str:
    """Explain how the numbers are computed."""
    return page.section(
        "How the numbers are computed",
        "IQM is the mean without the lowest and the highest quarter of runs, each rounded down. "
        f"Intervals are 95% percentile bootstrap intervals of {NUM_RESAMPLES:,} resamples of runs, "
        "drawn within each task, with the same draws every time. A performance profile is the "
        "share of runs above each score, averaged over tasks. The probability of improvement is "
        "that a run of one group scores higher than a run of another on the same task, averaged "
        "over tasks; a tie counts as one half (Mann-Whitney). After Agarwal et al. 2021, arXiv "
        "2108.13264; absolute metrics after Gorsane et al. 2022, arXiv 2209.10485; tolerance "
        "intervals after Patterson et al. 2024, arXiv 2304.01315, and Wilks 1941.",
    )


SECTIONS: tuple[Callable[[Comparison, Files], str], ...] = (
    absolute_metrics,
    environment_metrics,
    iqms,
    learning_curves,
    parameters,
    hyperparameters,
    populations,
    tournaments,
    settings,
    method,
)


def _cells(comparison: Comparison) -> list[tuple[Group, str, list[Run]]]:
    """Return each group, best first, with each of its tasks and the runs of both."""
    return [(group, task, own) for group in comparison.groups for task, own in group.runs.items()]


def _runs(comparison: Comparison) -> list[Run]:
    """Return the runs of all groups and tasks."""
    return [run for _, _, own in _cells(comparison) for run in own]


def _left_out(comparison: Comparison) -> str:
    """Name the tasks and the groups that are not compared over all tasks."""
    tasks = [task for task in comparison.tasks if task not in comparison.averaged]
    groups = [group for group in comparison.groups if group not in comparison.whole]
    num, lines = len(comparison.averaged), ""
    if tasks:
        lines += (
            f" Without {', '.join(tasks)}: all runs there have one score, which has no scale "
            "without bounds."
        )
    if num and not comparison.whole:
        lines += " No group has scores on all of these tasks, so nothing is compared here."
    elif groups and num:
        found = [f"{group.label} ({len(comparison.strata(group))} of {num})" for group in groups]
        lines += f" Left out, since they lack scores on some of these tasks: {'; '.join(found)}."
    return lines


def _tasks(comparison: Comparison) -> str:
    tasks = comparison.averaged
    return tasks[0] if len(tasks) == 1 else f"{len(tasks)} tasks"


def _unit(comparison: Comparison) -> str:
    return "normalised score" if comparison.normalized else "score"


def _scale(comparison: Comparison) -> str:
    """Explain how scores are scaled."""
    if not comparison.normalized:
        return "Scores are returns."
    bounds = "; ".join(
        f"{task}: {rounded(low)} to {rounded(high)}{' (given)' if task in comparison.given else ''}"
        for task, (low, high) in comparison.bounds.items()
        if task in comparison.averaged
    )
    return (
        "Scores are normalised: 0 and 1 are the given bounds, or else the lowest and the highest "
        "score of a run on this page. In the IQM, every run has the same weight; in profiles and "
        "probabilities of improvement, every task has. Do not compare these numbers with those of "
        f"another page. 'bounds={{\"TASK\":[low,high]}}' changes them. {bounds}."
    )


def _cell(value: Any) -> str:
    """Return a value of a table as text."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return rounded(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _mean(scores: Array) -> str:
    if not scores.size:
        return "-"
    mean = float(scores.mean())
    if scores.size == 1:
        return rounded(mean)  # one run has no std
    return f"{rounded(mean)} ± {rounded(float(scores.std()), mean)}"


def _points(value: float | str, found: Sequence[tuple[float, int | None]]) -> Points:
    scores = np.asarray([score for score, _ in found])
    styles = [style for _, style in found]
    estimate = overall([scores])
    return Points(value=value, scores=scores.tolist(), styles=styles, estimate=estimate)


def _commands(own: Sequence[Run]) -> list[str]:
    """Return shell commands that train these runs, as typed except for the seed."""
    found: dict[tuple[str, ...], list[Run]] = {}
    for run in own:
        # Hydra's own settings depend on the machine; in a stranger's run they may name code
        typed = (
            line
            for line in overrides(run.home)
            if not line.lstrip("+~").startswith(("arch.seed=", "hydra"))
        )
        found.setdefault(tuple(typed), []).append(run)
    commands = []
    for lines, same in found.items():
        name, _ = runs.composed(same[0].home)
        if name is None:
            continue
        first = {run.home: run.seed for run in reversed(same)}  # the lowest of several seeds
        seeds = ",".join(map(str, sorted(set(first.values()))))
        sweep = ["-m"] if "," in seeds else []
        words = shlex.join([f"jaxppo.{name}", *sweep, *lines, f"arch.seed={seeds}"])
        commands.append(f"python -m {words}")
    return commands


def _versions(run: Run) -> str:
    return ", ".join(f"{name} {run.versions[name]}" for name in run.versions)


def _estimate(estimate: Estimate | None) -> str:
    """Return an estimate as text, with its interval if there is one."""
    if estimate is None:
        return "-"
    value, ends = estimate.value, estimate.interval or ()
    return rounded(value) + (f" [{', '.join(rounded(x, value) for x in ends)}]" if ends else "")


def _as_text(bars: Sequence[Bar]) -> str:
    """Return bars as text: names, values and intervals."""
    return "; ".join(f"{bar.label}: {_estimate(bar.estimate)}" for bar in bars)


def _span(values: Sequence[Any], shown: Callable[[Any], str]) -> str:
    """Return the lowest and the highest value as text; one value if both look the same."""
    if not values:
        return "-"
    low, high = shown(min(values)), shown(max(values))
    return low if low == high else f"{low} to {high}"


def _tolerance(scores: Array) -> str:
    """Return the lowest and the highest score, and the share of further runs between them."""
    between = _span(scores.tolist(), rounded)
    return f"{between} ({tolerance(scores.size):.0%})" if scores.size > 1 else between


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _slug(name: str) -> str:
    """Return a name with only the characters that are safe in file names."""
    return re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")[:80]
