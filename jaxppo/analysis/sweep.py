"""Summary of a sweep, from its jobs' directories. It does not depend on the launcher."""

import contextlib
import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxppo.analysis import runs
from jaxppo.analysis.charts import draw_sweep
from jaxppo.analysis.comparison import compare, overall
from jaxppo.config.fields import ConfigError
from jaxppo.config.stored import METRICS, OVERRIDES, SUMMARY, overrides
from jaxppo.runtime.sinks import Event, of_environment
from jaxppo.runtime.sinks.console import print_lines, print_table
from jaxppo.runtime.sinks.marl_eval import MARL_EVAL, merge, save
from jaxppo.runtime.store.facts import judged_by

TABLE = "sweep.csv"
SEED = "arch.seed"
COLUMNS = (
    *("absolute_metric", "final_return", "best_episode_return", "best_steps"),
    *("steps", "seconds", "status"),
)


def report(sweep_dir: Path, *, console: bool) -> None:
    """Write sweep.csv and sweep.png for the jobs in `sweep_dir`; with `console` print a table."""
    jobs = read(sweep_dir)
    if not jobs:
        return
    keys = [key for key in jobs[0]["settings"] if len({_setting(job, key) for job in jobs}) > 1]
    judges = ("eval_metric", "final_score", "best_score")
    judged = [n for n in judges if any(n in j["summary"] for j in jobs)]
    columns = (*COLUMNS[:1], *judged, *COLUMNS[1:])
    rows = [
        {
            "job": job["job"],
            **{key: _setting(job, key) for key in keys},
            **{name: job["summary"].get(name) for name in columns},
        }
        for job in jobs
    ]
    rows.sort(key=_score, reverse=True)
    with (sweep_dir / TABLE).open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    with contextlib.suppress(ConfigError):  # no job wrote its settings
        found, _ = runs.find([str(sweep_dir)])
        draw_sweep(sweep_dir / "sweep.png", compare(found, {}))
    _merge_marl_eval(sweep_dir, jobs, keys)
    if console:
        print_table(f"{len(rows)} jobs in {sweep_dir}", rows)
        if seeds := over_seeds(jobs, [key for key in keys if key != SEED]):
            print_table("absolute metric over the seeds of equal settings", seeds)


def over_seeds(jobs: list[dict[str, Any]], keys: list[str]) -> list[dict[str, Any]]:
    """Return the IQM and 95% interval of agents that differ in their seed only, best first.

    An agent that several jobs trained counts once. The list is empty if no settings have several
    agents with an absolute metric.
    """
    groups: dict[tuple[str, ...], dict[str, float]] = {}
    for job in jobs:
        for seed, score in _agents(job):
            if score is not None:
                groups.setdefault(tuple(_setting(job, k) for k in keys), {})[seed] = score
    if all(len(scores) == 1 for scores in groups.values()):
        return []
    found = []
    for values, scores in groups.items():
        estimate = overall([np.asarray([*scores.values()])])
        ends = estimate.interval
        bounds = f"[{ends[0]:.6g}, {ends[1]:.6g}]" if ends else "-"  # one run has none
        own = dict(zip(keys, values, strict=True))
        found.append({**own, "seeds": len(scores), "IQM": estimate.value, "95%": bounds})
    return sorted(found, key=lambda row: -row["IQM"])


def _agents(job: dict[str, Any]) -> list[tuple[str, float | None]]:
    """Return seed and absolute metric of each agent of a job; a population is one agent."""
    end = job["summary"]
    if "seeds" in end and "seed" not in end:  # a population's has the best member's seed
        return [*zip(map(str, end["seeds"]), end["absolute_metrics"], strict=True)]
    return [(_setting(job, SEED), end.get("absolute_metric"))]


def read(sweep_dir: Path) -> list[dict[str, Any]]:
    """Return the directory name, overrides and summary of each job that began.

    A job with a damaged summary counts as ended early.
    """
    notes: list[str] = []  # not shown
    jobs = []
    for folder in sorted(sweep_dir.iterdir(), key=runs.natural_order):
        if not (folder / OVERRIDES).exists():
            continue
        settings = dict(line.partition("=")[::2] for line in overrides(folder))
        unknown = settings.get("logger.json", "").lower() == "false"
        status = "unknown (logger.json=false)" if unknown else "ended early"
        found, log = runs.summary(folder / SUMMARY, notes), runs.events(folder / METRICS, notes)
        if not found or runs.is_of_before(found, log):
            found = {"status": status, **_reached(log)}
        jobs.append({"job": folder.name, "settings": settings, "summary": found})
    return jobs


def _reached(log: Sequence[Event]) -> dict[str, Any]:
    """Return the steps of an interrupted job, and its best and its last evaluation so far."""
    found = [e for e in of_environment(log) if e["event"] == "eval" and e["steps"] > 0]
    scores = {i: score for i, e in enumerate(found) if (score := runs.score_of(e)) is not None}
    if not scores:
        return {}
    first = max(scores, key=lambda i: scores[i])
    best, score, last = found[first], scores[first], found[-1]
    metric = best.get("eval_metric")
    judged = {"eval_metric": metric, "best_score": score, "final_score": last[judged_by(last)]}
    return {
        **({} if metric is None else judged),
        "final_return": last["episode_return"],
        "best_episode_return": score if metric is None else best["episode_return"],
        "best_steps": best["steps"],
        "steps": max(event["steps"] for event in log),
    }


def has_ended(job: dict[str, Any]) -> bool:
    """Return whether a job of `read` ran to its end, or failed; it was not interrupted."""
    return job["summary"].get("event") == "end"


def _merge_marl_eval(sweep_dir: Path, jobs: list[dict[str, Any]], keys: list[str]) -> None:
    """Merge the jobs' marl_eval.json; the settings that differ name the algorithms."""
    swept = [key for key in keys if key not in (SEED, "env", "env.name")]
    documents = []
    for job in jobs:
        file = sweep_dir / job["job"] / MARL_EVAL
        if file.exists():
            label = " ".join(f"{key}={_setting(job, key)}" for key in swept)
            documents.append((label, json.loads(file.read_text("utf-8"))))
    if documents:
        try:
            save(sweep_dir / MARL_EVAL, merge(documents))
        except ValueError as error:  # several jobs have the same seed
            print_lines(f"{MARL_EVAL} of the sweep: {error}; not written")


def _setting(job: dict[str, Any], key: str) -> str:
    return str(job["settings"].get(key, ""))


def _score(row: dict[str, Any]) -> float:
    """Return the number that jobs are sorted by; failed jobs come last."""
    if row["status"] != "finished":
        return -math.inf
    scores = row["absolute_metric"], row.get("best_score"), row["best_episode_return"]
    return float(next(score for score in scores if score is not None))
