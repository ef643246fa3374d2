"""Write marl_eval.json: the evaluations of a run in the format of MARL-eval.

`{environment: {task: {algorithm: {seed_k: {step_i: {...}, "absolute_metrics": {...}}}}}}`, after
Gorsane et al. 2022 (arXiv 2209.10485) and the README of github.com/instadeepai/marl-eval: a step
holds `step_count`, an integer, and lists of a metric's values; `absolute_metrics`, the last key,
holds the same metrics. Its JsonLogger adds `elapsed_time`, in seconds, and writes means as lists of
one number.
"""

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jaxppo.config.stored import write_atomically
from jaxppo.runtime.sinks import Event, Recorder, of_environment
from jaxppo.runtime.store.facts import judged_by

MARL_EVAL = "marl_eval.json"
Document = dict[str, Any]


class MarlEval(Recorder):
    """Writes once, when the run ends, from all events, including those before a resume."""

    def __init__(self, run_dir: Path, past: Sequence[Event] = ()) -> None:
        super().__init__(list(past))
        self._path = run_dir / MARL_EVAL

    def close(self) -> None:
        """Write the file atomically, if there were evaluations."""
        runs = layout(of_environment(self.events))
        start = next((event for event in self.events if event["event"] == "start"), None)
        if runs and start is not None:
            save(self._path, {start["suite"]: {start["environment"]: {start["algorithm"]: runs}}})


def layout(events: Iterable[Event]) -> Document:
    """Convert events of one or several members to `{seed_k: {step_i, "absolute_metrics"}}`.

    Metrics that are NaN or infinite are null, as in metrics.jsonl. Without an absolute metric,
    `absolute_metrics` is empty.
    """
    steps: dict[str, Document] = {}
    absolute: dict[str, Document] = {}
    for event in events:
        if event["event"] not in ("eval", "absolute"):
            continue
        seeds = event["seeds"] if "members" in event else [event["seed"]]
        values = {"mean_episode_return": _values(event, "episode_return", "member_return")}
        if (metric := event.get("eval_metric")) is not None:
            values[f"mean_{metric}"] = _values(event, judged_by(event), "member_score")
        for row, seed in enumerate(seeds):
            name = f"seed_{seed}"
            metrics = {what: [each[row]] for what, each in values.items()}
            if event["event"] == "absolute":
                absolute[name] = metrics
                continue
            rows = steps.setdefault(name, {})
            rows[f"step_{len(rows)}"] = {
                "step_count": event["steps"],
                "elapsed_time": event["seconds"],
                **metrics,
            }
    return {
        name: {**rows, "absolute_metrics": absolute.get(name, {})} for name, rows in steps.items()
    }


def _values(event: Event, one: str, several: str) -> list[float | None]:
    """Return a number of each member; None where it is not finite."""
    found = event[f"{several}s"] if "members" in event else [event[one]]
    return [float(x) if x is not None and math.isfinite(x) else None for x in found]


def merge(documents: Iterable[tuple[str, Document]]) -> Document:
    """Merge the documents of several runs; labels that are not empty extend algorithm names.

    MARL-eval accepts no commas in names: they become semicolons. `ValueError` if an algorithm has a
    seed twice.
    """
    merged: Document = {}
    for label, document in documents:
        for environment, tasks in document.items():
            for task, algorithms in tasks.items():
                for algorithm, runs in algorithms.items():
                    name = f"{algorithm} {label.replace(',', ';')}".strip()
                    there = merged.setdefault(environment, {}).setdefault(task, {})
                    there = there.setdefault(name, {})
                    twice = there.keys() & runs.keys()
                    if twice:
                        raise ValueError(f"{task}, {name}: has {min(twice)} already")
                    there |= runs
    return merged


def save(path: Path, document: Document) -> None:
    """Write a document atomically."""
    write_atomically(path, json.dumps(document, indent=1, allow_nan=False) + "\n")
