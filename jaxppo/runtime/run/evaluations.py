"""Evaluate the members of a run: after blocks, and the best policies at the end."""

import dataclasses
import time
from collections.abc import Container
from typing import Any

import numpy as np

from jaxppo.algorithms.evaluation import FIRST, Episodes
from jaxppo.runtime.programs.evaluating import evaluate, score
from jaxppo.runtime.programs.placement import State
from jaxppo.runtime.run.parts import Run
from jaxppo.runtime.store.facts import judged_by
from jaxppo.types import Policy


def evaluate_untrained(run: Run, state: State) -> None:
    """Evaluate the policies before training. These scores never count as the best."""
    _evaluate(run, state.learner.agent.policy, FIRST)


def evaluate_block(
    run: Run, state: State, block: int, diverged: Container[int]
) -> tuple[State, dict[int, float]]:
    """Evaluate after a block, and keep the best policies; return the members' scores too.

    Policies of members that have diverged in the block are not evaluated.
    """
    policy = state.learner.agent.policy
    scores, better = _evaluate(run, policy, block, diverged)
    if any(better):
        best = run.layout.choose(better, policy, state.best)
        state = dataclasses.replace(state, best=best)
    return state, scores


def conclude(run: Run, state: State) -> None:
    """Evaluate the best policies again (`arch.absolute_metric`); write the end of every member."""
    what = run.config.arch.eval_metric or "rewards"
    reason = f"no evaluation returned a finite number; look at the environment's {what}"
    run.fail({i: reason for i in run.active if not run.members[i].facts.best})
    scores = {i: run.members[i].facts.best for i in run.active}
    if run.config.arch.absolute_metric and scores:
        played = _play(run, state.best, None)
        scores = {
            i: {
                **_score(run, played, i, run.members[i].facts.best["steps"]),
                **run.members[i].final,
            }
            for i in run.active
        }
        run.events.write(scores, "absolute")
    for i in run.active:
        member = run.members[i]
        member.result = scores[i][judged_by(scores[i])]
        member.end(run.describe_end(member, run.progress.status))
    ends = {i: member.facts.end for i, member in enumerate(run.members.all)}
    overall = None
    if run.config.population.size is not None:
        best = run.members[run.members.best_of(range(len(run.members))) or 0]
        overall = {**best.facts.end, "seed": best.seed}
    run.events.write(ends, "end", overall)


@dataclasses.dataclass(frozen=True)
class _Played:
    episodes: Episodes  # [P, episodes]
    restarts: int  # of simulators
    seconds: float


def _evaluate(
    run: Run, policy: Policy, block: int, diverged: Container[int] = ()
) -> tuple[dict[int, float], np.ndarray]:
    """Evaluate and write; return the members' scores and which slots improved, `[P]` bool."""
    played = _play(run, policy, block)
    common = {"last": run.progress.is_over}
    found = {
        i: {**_score(run, played, i, run.progress.steps), **common}
        for i in run.active
        if i not in diverged
    }
    run.events.write(found, "eval")
    better = np.zeros(len(run.layout.slots), bool)
    for i, evaluation in found.items():
        better[run.layout.row(i)] = run.members[i].score(evaluation, trained=block != FIRST)
    return {i: each[judged_by(each)] for i, each in found.items()}, better


def _play(run: Run, policy: Policy, number: int | None) -> _Played:
    """Play episodes of all members; members fail if an action mask allows no action.

    `number` is that of the evaluation; None: the absolute metric.
    """
    before, began = run.programs.evaluation_restarts, time.perf_counter()
    num, seeds = run.config.arch.num_eval_episodes, [run.members[i].seed for i in run.layout.slots]
    episodes = evaluate(run.layout, run.programs.evaluate, policy, seeds, number, num)
    counts, steps = np.sum(episodes.empty_masks, axis=1), run.progress.steps
    found = {
        i: run.members[i].diagnose_masks(int(counts[run.layout.row(i)]), steps) for i in run.active
    }
    run.fail({i: reason for i, reason in found.items() if reason is not None})
    seconds = time.perf_counter() - began
    return _Played(episodes, run.programs.evaluation_restarts - before, seconds)


def _score(run: Run, played: _Played, i: int, steps: int) -> dict[str, Any]:
    """Return the values of an evaluation's event, of the policy of step `steps`."""
    speed = float(np.sum(played.episodes.lengths)) / played.seconds  # of all members' episodes
    return {
        "steps": steps,
        "seconds": run.progress.seconds,
        **score(
            played.episodes,
            run.layout.row(i),
            run.config.arch.eval_metric,
            run.layout.system.metrics,
        ),
        "max_eval_steps": run.layout.system.max_eval_steps,
        **({"evaluation_steps_per_second": speed} if run.config.logger.details else {}),
        **({"env_restarts": played.restarts} if run.programs.is_simulated else {}),
    }
