"""Build the events of a run and send them to sinks."""

import dataclasses
import math
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxppo.algorithms.metrics import MEAN, headlines, leaves
from jaxppo.algorithms.report import Metrics
from jaxppo.config.plan import num_members
from jaxppo.config.schema import TOLD, Config, LoggerConfig, key_of
from jaxppo.config.stored import overrides, plain
from jaxppo.kernels.platforms import forms
from jaxppo.ops.aggregates import interval, iqm
from jaxppo.runtime import sinks
from jaxppo.runtime.programs.placement import Layout
from jaxppo.runtime.run.caller import Caller
from jaxppo.runtime.run.jobs import Job, algorithm_name
from jaxppo.runtime.run.members import Members
from jaxppo.runtime.sinks.console import Console
from jaxppo.runtime.store.facts import judged_by

SUMS = ("steps_per_second", "episodes", "unfinished")  # summed over members
SCORES = ("absolute_metric", "final_score")  # of `arch.eval_metric`, if there is one


@dataclasses.dataclass(frozen=True)
class Report:
    """Sends the events of its members to sinks; several members are aggregated into one event."""

    outputs: list[sinks.Sink]
    members: range
    folder: Path | None  # None: the screen only
    labels: Sequence[str] = ()  # of all members, if they are not seeds of the same settings

    def write(self, events: Mapping[int, sinks.Event], overall: dict[str, Any]) -> None:
        """Send the events of members, given by number; `overall` is added for several members."""
        own = [events[i] for i in self.members if i in events]
        if own:
            event = own[0] if len(self.members) == 1 else {**aggregate(own), **overall}
            if self.labels and event["event"] in ("train", "eval", "absolute"):
                event["returns_by_settings"] = self._by_settings(events)
            self.send(event)

    def _by_settings(self, events: Mapping[int, sinks.Event]) -> dict[str, list[Any]]:
        """Return the scores of the seeds of each label."""
        found: dict[str, list[Any]] = {}
        for i, event in events.items():
            found.setdefault(self.labels[i], []).append(event[judged_by(event)])
        return found

    def send(self, event: sinks.Event) -> None:
        """Send one event unchanged."""
        for sink in self.outputs:
            sink.write(event)


class Events:
    """The sinks of all jobs and members of a program."""

    def __init__(self, jobs: Sequence[Job], members: Members, caller: Caller) -> None:
        self._jobs, self._members, self._caller = jobs, members, caller
        self._reports: list[Report] = []
        self._failed: set[str] = set()  # settings of views that have failed

    def open(self, positions: Sequence[Mapping[str, int] | None]) -> None:
        """Open the sinks of each job and of each member, and one console for all.

        Each job and each member has its files in its own directory. `positions` holds, for each
        job, how many bytes of each of its metric logs to keep, or None if it is not resumed.
        """
        one = len(self._members) == 1
        for job, own, position in zip(self._jobs, self._members.jobs, positions, strict=True):
            console = job.config.logger.console and one and self._caller.console
            config = dataclasses.replace(job.config.logger, console=console)
            self._open(config, job, own, "", position)
            if len(own) > 1:
                few = len(own) <= config.wandb_members
                config = dataclasses.replace(
                    config, plot=False, marl_eval=False, wandb=config.wandb and few
                )
                for i in own:
                    name = f"seed_{self._members[i].seed}"
                    if job.run_dir is not None:
                        (job.run_dir / name).mkdir(exist_ok=job.resume)
                    self._open(config, job, range(i, i + 1), name, position)
        screens: list[sinks.Sink] = [*self._caller.screens]
        console = self._caller.console and any(j.config.logger.console for j in self._jobs)
        if console and not one:
            screens.append(Console([job.run_dir for job in self._jobs if job.run_dir]))
        labels = self._members.labels()
        labels = labels if len(set(labels)) > 1 else []
        self._reports.append(Report(screens, range(len(self._members)), None, labels))

    def _open(
        self,
        config: LoggerConfig,
        job: Job,
        own: range,
        name: str,
        positions: Mapping[str, int] | None,
    ) -> None:
        """Open the sinks of the members `own` in a folder of the job, after any earlier events."""
        if job.run_dir is None:
            self._reports.append(Report(self._caller.recorder(name, None, None), own, None))
            return
        folder = job.run_dir / name
        settings = self._members[own.start].config if len(own) == 1 else job.config
        several = job.run_dir.name if num_members(job.config) > 1 else None
        scope = sinks.Scope(
            settings=plain(settings),
            name="/".join(filter(None, (command_of(job) or job.run_dir.name, name))),
            is_member=bool(name),
            group=job.group or several,
            failed=self._failed,
        )
        position = None if positions is None else positions.get(name or ".", 0)
        outputs = sinks.make(config, folder, position, scope)
        outputs += self._caller.recorder(name, folder, position)
        self._reports.append(Report(outputs, own, folder))

    def close(self, kind: Any, *_: object) -> None:
        """Close all sinks, then raise the first error of a sink unless the run raised one."""
        failures = []
        for report in self._reports:
            for sink in report.outputs:
                try:
                    sink.close()
                except OSError as error:
                    failures.append(error)
        if failures and kind is None:
            raise failures[0]

    def positions(self, job: Job) -> dict[str, int]:
        """Return the bytes written to each metric log of a job, by folder in the run directory."""
        return {
            str(report.folder.relative_to(job.run_dir)): sinks.position(report.folder)
            for report in self._reports
            if report.folder is not None
            and job.run_dir is not None
            and report.folder.is_relative_to(job.run_dir)
        }

    def write(
        self, events: Mapping[int, dict[str, Any]], kind: str, overall: dict[str, Any] | None = None
    ) -> None:
        """Write one event per member; `overall` is added to the event of several members."""
        rows = {
            i: {"event": kind, "seed": self._members[i].seed, **values}
            for i, values in events.items()
        }
        for report in self._reports:
            report.write(rows, overall or {})

    def replay(self, records: Mapping[str, Sequence[sinks.Event]], run_dir: Path) -> None:
        """Write stored events of one job again, by folder, to the sinks of each folder."""
        for report in self._reports:
            name = "" if report.folder == run_dir else report.folder and report.folder.name
            for event in records.get(name or "", ()) if report.folder else ():
                report.send(event)

    def tick(self, steps: int, speed: float) -> None:
        """Show progress between two events on screens; it is not logged."""
        for report in self._reports:
            for sink in report.outputs:
                if isinstance(sink, sinks.Screen):
                    sink.tick(steps, speed)

    def write_to_all(self, kind: str, **values: Any) -> None:
        """Write one event to every sink."""
        for report in self._reports:
            report.send({"event": kind, **values})

    def write_selection(self, values: dict[str, Any]) -> None:
        """Write a `selection` event to the sinks of several members."""
        for report in self._reports:
            if len(report.members) > 1:
                report.send({"event": "selection", **values})


def command_of(job: Job) -> str | None:
    """Return the command of a run, such as `ff_ppo env=cartpole`; None if Python started it."""
    typed = overrides(job.run_dir) if job.run_dir is not None else []
    how = ("hydra", "logger.", "checkpoint.", "resume")  # these change no result
    told = [line for line in typed if not line.lstrip("+~").startswith(how)]
    words = " ".join([algorithm_name(job.config), *told])
    return textwrap.shorten(words, 120, placeholder=" ...") if typed else None


def aggregate(events: Sequence[sinks.Event]) -> sinks.Event:
    """Aggregate the events of several members into one.

    Numbers are means over members, except sums (`SUMS` and histograms), minima (`_min`) and maxima
    (`_max`). Evaluations also have all scores as `member_returns`, and statistics over members:
    `member_return_iqm` and so on; with `arch.eval_metric` also `member_scores` and so on.
    """

    judged = "eval_metric" in events[0]

    def merge(name: str, values: list[Any]) -> Any:
        if name.endswith("_histogram") and None not in values:
            return [sum(counts) for counts in zip(*values, strict=True)]
        found = [value for value in values if isinstance(value, int | float)]
        if name.startswith(TOLD) or (name in SCORES and judged):
            found = [
                value for value in found if not math.isnan(value)
            ]  # where no episode reported it
        if not found or all(value == values[0] for value in values):
            return values[0]
        if name.endswith("_min"):
            return min(found)
        return max(found) if name.endswith("_max") else statistics.fmean(found)

    merged: sinks.Event = {
        name: merge(name, [event.get(name) for event in events])  # ends of older versions lack some
        for name in events[0]
        if name not in ("seed", *SUMS)
    }
    merged |= {name: sum(event[name] for event in events) for name in SUMS if name in events[0]}
    merged |= {"members": len(events), "seeds": [event["seed"] for event in events]}
    kind = merged["event"]
    if kind in ("eval", "absolute"):
        returns = [event["episode_return"] for event in events]
        merged |= _member_statistics("member_return", returns, nan=True)
        if judged:
            scores = [event[judged_by(event)] for event in events]
            merged |= _member_statistics("member_score", scores, nan=False)
    elif kind == "end":
        failures = [event for event in events if event["status"] != "finished"]
        merged["status"] = "; ".join(f"seed {e['seed']}: {e['status']}" for e in failures) or (
            "finished"
        )
        merged["steps"] = max(event["steps"] for event in events)  # a failed member stops counting
        scores = [event["absolute_metric"] for event in events]
        merged |= _member_statistics("absolute_metric", scores, nan=not judged)
    return merged


def _member_statistics(name: str, values: Sequence[float | None], *, nan: bool) -> dict[str, Any]:
    """Return all values of a score, and statistics over the members that have it.

    Without `nan`, NaN is the score of a member whose episodes did not tell the number. One member
    has no interval.
    """
    scores = [value for value in values if value is not None and (nan or not math.isnan(value))]
    if not scores:
        return {f"{name}s": list(values)}
    low, high = interval([scores]) if len(scores) > 1 else (None, None)
    with np.errstate(invalid="ignore"):  # infinite scores
        return {
            f"{name}s": list(values),
            f"{name}_std": float(np.std(scores)),
            f"{name}_min": min(scores),
            f"{name}_max": max(scores),
            f"{name}_iqm": float(iqm(scores)),
            f"{name}_low": low,
            f"{name}_high": high,
        }


def of_start(config: Config, layout: Layout, updates_per_block: Sequence[int]) -> dict[str, Any]:
    """Return the values of a `start` event."""
    system, env = layout.system, config.env
    params = jax.eval_shape(system.algorithm.init, jax.eval_shape(jax.random.key, 0))
    return {
        "environment": system.env.name,
        "suite": (env.target or env.library).partition(".")[0],
        "algorithm": algorithm_name(config),
        "platform": layout.devices[0].platform,
        "precision": precision(config),
        "num_parameters": sum(math.prod(x.shape) for x in jax.tree.leaves(params)),
        "num_eval_episodes": config.arch.num_eval_episodes,
        "max_eval_steps": system.max_eval_steps,
        "warmup_steps": layout.plan.warmup_steps,
        "population": config.population.size is not None,
        "headlines": headlines(system.algorithm.loss_metrics),
        **dataclasses.asdict(layout.plan),
        "updates_per_block": list(updates_per_block),
    }


def precision(config: Config) -> str:
    """Return the precision of matrix products, chosen or that of the platform."""
    return config.arch.precision or forms().precision


def of_training(totals: Metrics, num_updates: int) -> dict[str, Any]:
    """Return the values of a block's `train` event: means over updates and ended episodes.

    Means over gradient steps, of targets and of `finish` leave out updates that skipped all steps;
    without any other update, they are None.
    """
    rollout, learn = totals.rollout, totals.learn
    num_learnt: Any = num_updates - learn.skipped_updates
    episodes: Any = rollout.num_episodes
    return {
        "episodes": episodes,
        "episode_return": rollout.episode_return / episodes if episodes else None,
        "episode_length": rollout.episode_length / episodes if episodes else None,
        **{
            key_of(name): rollout.metrics[name] / told if told else None
            for name, told in rollout.told.items()
        },
        **{name: value / num_updates for name, value in rollout.reused_starts.items()},
        **{
            name: value / num_updates if how == MEAN else value
            for name, how, value in leaves(learn)
            if not name.startswith("nonfinite")
        },
        **{
            name: (value / num_learnt if how == MEAN else value) if num_learnt else None
            for part in (learn.steps, learn.targets, learn.finish)
            for name, how, value in leaves(part)
        },
    }
