"""Members of a program: their evaluations, failures and results."""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from jaxppo.algorithms.report import Metrics
from jaxppo.config.fields import as_override
from jaxppo.config.plan import num_members
from jaxppo.config.schema import Config
from jaxppo.config.stored import plain
from jaxppo.runtime.programs.population import members
from jaxppo.runtime.run.jobs import Job, TrainingError
from jaxppo.runtime.store.facts import MemberFacts, judged_by


class Member:
    """One agent. Steps are Python integers, which are exact at any size."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.facts = MemberFacts()  # stored in checkpoints; replaced, never modified
        self.result: float | None = None

    @property
    def seed(self) -> int:
        """Return its seed."""
        return self.config.arch.seed

    @property
    def best_score(self) -> float:
        """Return the score of its best evaluation; -inf before any finite one."""
        best = self.facts.best
        return float(best[judged_by(best)]) if best else -math.inf

    @property
    def final(self) -> dict[str, Any]:
        """Return what the current policy scored in the last evaluation; None before there is one.

        With `arch.eval_metric` this is also that number.
        """
        last = self.facts.last if self.facts.last.get("steps") else {}
        judged = {"final_score": last.get(judged_by(last))} if "eval_metric" in last else {}
        return {"final_return": last.get("episode_return"), **judged}

    def score(self, evaluation: dict[str, Any], *, trained: bool = True) -> bool:
        """Record an evaluation; return whether it is the best so far, of a trained policy."""
        score, facts = evaluation[judged_by(evaluation)], self.facts
        history = [*facts.history, (evaluation["steps"], score)]
        self.facts = dataclasses.replace(facts, last=evaluation, history=history)
        better = trained and math.isfinite(score) and score > self.best_score
        if better:
            self.facts = dataclasses.replace(self.facts, best=evaluation)
        return better

    def end(self, event: dict[str, Any], failure: str | None = None) -> None:
        """Record its last event, and why it failed, if it did."""
        self.facts = dataclasses.replace(self.facts, end=event, failure=failure)

    def diagnose(self, totals: Metrics, steps: int) -> str | None:
        """Return in one line why training cannot go on after a block; None if it can."""
        rollout, learn = totals.rollout, totals.learn
        found = {
            "reward": rollout.nonfinite_reward,
            "observation": rollout.nonfinite_observation,
            "loss or gradient": learn.nonfinite_loss,
            "parameter": totals.nonfinite_parameter,
        }
        way_out = "try lower learning rates"
        if rollout.nonfinite_observation or rollout.nonfinite_reward:
            source = "observations" if rollout.nonfinite_observation else "rewards"
            way_out = f"look at the environment's {source}"
        if self.config.arch.on_nonfinite == "skip":
            found = {"parameter": totals.nonfinite_parameter}
            if learn.skipped_steps and not learn.gradient_steps:
                return (
                    f"all {learn.skipped_steps} gradient steps of the block that ended at step "
                    f"{steps} were NaN or infinite and skipped; stopped; {way_out}"
                )
        bad = ", ".join(f"{what} ({count})" for what, count in found.items() if count)
        if bad:
            return (
                f"NaN or infinity in {bad} in the block that ended at step {steps}; stopped; "
                f"{way_out}"
            )
        return self.diagnose_masks(int(rollout.empty_mask), steps)

    def diagnose_masks(self, num_empty: int, steps: int) -> str | None:
        """Return the same line for action masks that allow no action."""
        if not num_empty:
            return None
        return (
            f"no legal action: in {num_empty} observations up to step {steps} all entries of "
            f"{self.config.env.action_mask} are false; stopped; correct the environment's mask, or "
            "set env.action_mask=null to ignore it"
        )


class Members:
    """All members of a program, by number, and their jobs."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.all = [Member(config) for job in jobs for config in members(job.config)]
        self.jobs: list[range] = []  # the members of each job
        for job in jobs:
            start = self.jobs[-1].stop if self.jobs else 0
            self.jobs.append(range(start, start + num_members(job.config)))
        self._of_jobs = differences([job.config for job in jobs])
        self._is_population = jobs[0].config.population.size is not None

    def __getitem__(self, number: int) -> Member:
        return self.all[number]

    def __len__(self) -> int:
        return len(self.all)

    def active(self, slots: Iterable[int]) -> list[int]:
        """Return the members in these slots that have not failed."""
        return [i for i in slots if self.all[i].facts.failure is None]

    def best_of(self, own: Sequence[int]) -> int | None:
        """Return the member with the best evaluation, of those that have a result."""
        finished = [i for i in own if self.all[i].result is not None]
        return max(finished, key=lambda i: self.all[i].best_score, default=None)

    def labels(self) -> list[str]:
        """Return the settings of each member, without its seed, as far as members differ in them.

        They are empty if all members are seeds of the same settings. A member of a population is
        named by its seed, since its hyperparameters may change.
        """
        if self._is_population:
            return [f"seed {member.seed}" for member in self.all]
        return [label for label, own in zip(self._of_jobs, self.jobs, strict=True) for _ in own]

    def results(self) -> list[float | TrainingError]:
        """Return each job's result: the mean over its seeds, or the error of a failed one.

        For a population it is the result of the member with the best evaluation.
        """
        return [self._result(own) for own in self.jobs]

    def _result(self, own: Sequence[int]) -> float | TrainingError:
        group = [self.all[i] for i in own]
        best = self.best_of(own)
        if self._is_population and best is not None:
            group = [self.all[best]]
        failures = [member for member in group if member.facts.failure is not None]
        if failures:
            seed = f"seed {failures[0].seed}: " if len(group) > 1 else ""
            more = f" ({len(failures)} of {len(group)} seeds failed)" if len(group) > 1 else ""
            return TrainingError(f"{seed}{failures[0].facts.failure}{more}")
        found = [m.result for m in group if m.result is not None]
        if group[0].config.arch.eval_metric is not None:  # NaN: no episode reported it
            found = [x for x in found if not math.isnan(x)] or found
        return statistics.fmean(found)


def differences(configs: Sequence[Config]) -> list[str]:
    """Return the settings of each job that change its agents and differ, such as a sweep's.

    Seeds are not among them.
    """
    rows = [
        {
            f"{group}.{key}": value
            for group in ("arch", "system", "env", "network")
            for key, value in settings[group].items()
            if f"{group}.{key}" not in ("arch.seed", "arch.num_seeds")
        }
        for settings in map(plain, configs)
    ]
    keys = list(dict.fromkeys(key for row in rows for key in row))
    swept = [key for key in keys if any(row.get(key) != rows[0].get(key) for row in rows)]
    return [" ".join(as_override(key, row.get(key)) for key in swept) for row in rows]
