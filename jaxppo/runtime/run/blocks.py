"""Train the members of a run block by block: call the program, check for NaN, evaluate, select."""

import dataclasses
import time
from typing import Any

import jax

from jaxppo.algorithms.report import Metrics
from jaxppo.config.fields import MAX_INT
from jaxppo.runtime.hosts import processes
from jaxppo.runtime.hosts.signals import PATIENCE
from jaxppo.runtime.programs.placement import State
from jaxppo.runtime.run import saving
from jaxppo.runtime.run.evaluations import evaluate_block
from jaxppo.runtime.run.events import of_training
from jaxppo.runtime.run.parts import Run
from jaxppo.simulators.faults import SimulatorError


def train_block(run: Run, state: State) -> State:
    """Run the remaining updates of a block, in calls of about a second; of an update in simulators.

    All calls use one program and pass the metrics on: calls of any length give the same bits. With
    `logger.every` a call ends where a train event is due.
    """
    progress, done, start = run.progress, 0, time.perf_counter()
    progress.mark()
    every = run.config.logger.every
    if run.programs.is_simulated:  # whose rollouts may take long
        run.programs.train.call.while_collecting = lambda: run.caller.signals.ending(
            lambda: saving.pending(run, state)(), PATIENCE
        )
    while progress.left:
        before, called = progress.steps, time.perf_counter()
        losses = _losses(run, state.total)
        left = min(progress.left, every - progress.updates % every if every else MAX_INT)
        # A simulator that fails leaves the state of the last update, which is then saved
        count = 1 if run.programs.is_simulated else processes.agree(progress.pace.updates(left))
        try:
            learner, total = run.programs.train.call(
                state.learner, state.total, run.layout.place_count(count)
            )
        except SimulatorError:
            saving.save_fault(run, state, saving.pending(run, state))
            raise
        state = State(learner, state.best, jax.block_until_ready(total), state.earlier)
        seconds = time.perf_counter() - called
        progress.pace.took(count, seconds)
        progress.advance(count)
        done += count
        _alarm(run, state.total, losses, count)
        if not progress.left:
            steps = done * progress.steps_per_update
            progress.speeds.append(steps / (time.perf_counter() - start))
        elif count == left:
            _write_training(run, state.total)
            earlier, total = run.layout.next_window(state.earlier, state.total)
            state = dataclasses.replace(state, total=total, earlier=earlier)
        else:
            run.events.tick(progress.steps, count * progress.steps_per_update / seconds)
        received = run.caller.signals.agreed()
        if progress.left or received is not None:
            saving.save_within(run, state, before, received)
    return state


def end_block(run: Run, state: State) -> tuple[State, dict[int, float]]:
    """Finish a block: write metrics, evaluate, keep the best policies and select.

    Return the state and the members' scores.
    """
    progress, selection = run.progress, run.selection
    block, num_blocks = progress.block, len(progress.updates_per_block)
    rows = _write_training(run, state.total)
    if state.earlier is not None:
        total, _ = run.layout.next_window(state.earlier, state.total)
        rows = run.layout.gather_numbers(total, run.active)
    found = {i: run.members[i].diagnose(one, progress.steps) for i, one in rows.items()}
    diverged = {i: reason for i, reason in found.items() if reason is not None}
    progress.end_block()
    exploits = selection.exploits(block, num_blocks)  # copies replace members that diverged
    if not exploits or len(diverged) == len(run.active):
        run.fail(diverged)
    if not run.active:
        return state, {}
    state, scores = evaluate_block(run, state, block, diverged)
    if run.active and exploits:
        learner, sources = selection.exploit(run.layout, state.learner, scores, block, run.active)
        state = dataclasses.replace(state, learner=learner)
        if run.programs.is_simulated:
            run.programs.train.call.follow_selection()
        run.write_selection([run.layout.slots[slot] for slot in sources])
    elif run.active and (
        kept := selection.survivors(run.layout, scores, block, progress.updates_per_block)
    ):
        state = _narrow(run, state, kept)
    zero, earlier = run.layout.no_metrics(), run.layout.no_earlier(run.config)
    return dataclasses.replace(state, total=zero, earlier=earlier), scores


def _write_training(run: Run, total: Metrics) -> dict[int, Metrics]:
    """Write the metrics of training since the last train event; return those of members."""
    found = run.layout.gather_numbers(total, run.active)
    common = {**_now(run), **run.programs.report()}
    if run.config.logger.details:
        common["process_peak_bytes"] = processes.peak_bytes()
    num_updates = _updates_in_window(run)
    rows = {i: {**common, **of_training(one, num_updates)} for i, one in found.items()}
    run.events.write(rows, "train")
    run.progress.mark()
    return found


def _now(run: Run) -> dict[str, Any]:
    """Return the values with which events of training begin."""
    progress = run.progress
    return {
        "steps": progress.steps,
        "updates": progress.steps // progress.steps_per_update,
        "seconds": progress.seconds,
        "steps_per_second": progress.speed,
    }


def _updates_in_window(run: Run) -> int:
    """Return the updates since the last train event."""
    done, every = run.progress.updates, run.config.logger.every
    return done - (done - 1) // every * every if every else done


def _losses(run: Run, total: Metrics) -> dict[int, float]:
    """Return the sum of each member's losses in `total`, if alarms are on."""
    if run.config.logger.alarm_loss is None:
        return {}
    found = run.layout.gather_numbers(total.learn.steps.total_loss, run.active)
    return {i: float(loss) for i, loss in found.items()}


def _alarm(run: Run, total: Metrics, before: dict[int, float], count: int) -> None:
    """Write an alarm for members whose mean loss of a call exceeds the limit, or is NaN.

    A member that stays above it gives no other alarm.
    """
    limit = run.config.logger.alarm_loss
    if limit is None:
        return
    means = {i: (loss - before[i]) / count for i, loss in _losses(run, total).items()}
    high = frozenset(i for i, mean in means.items() if not mean <= limit)
    if new := high - run.alarmed:
        found, num = run.layout.gather_numbers(total, sorted(new)), _updates_in_window(run)
        rows = {i: {**_now(run), **of_training(one, num)} for i, one in found.items()}
        rows = {i: {**row, "loss": means[i], "alarm_loss": limit} for i, row in rows.items()}
        run.events.write(rows, "alarm")
    run.alarmed = high


def _narrow(run: Run, state: State, kept: list[int]) -> State:
    """Continue with the members in the slots `kept`, in a smaller program."""
    steps = run.progress.steps
    for slot in set(range(len(run.layout.slots))) - set(kept):
        member = run.members[run.layout.slots[slot]]
        if member.facts.failure is None:
            reason = f"dropped by successive halving at step {steps}"
            member.end(run.describe_end(member, reason))
    learner, best = run.layout.take((state.learner, state.best), kept)
    run.layout = run.layout.narrow(kept)
    run.selection.narrow(kept)
    run.write_selection(run.layout.slots)
    run.programs.close()
    run.compile()
    return State(learner, best, state.total, state.earlier)
