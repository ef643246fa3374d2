"""Train, evaluate and select members block by block, and compute the absolute metric."""

import dataclasses
import time
from collections.abc import Callable, Container
from typing import Any

import jax
import numpy as np

from jaxppo.algorithms.evaluation import FIRST, Episodes, evaluation_streams
from jaxppo.algorithms.report import Metrics
from jaxppo.config.fields import MAX_INT
from jaxppo.config.schema import Config
from jaxppo.runtime.hosts import devices, processes
from jaxppo.runtime.hosts.signals import PATIENCE, Signals
from jaxppo.runtime.programs import build, compile
from jaxppo.runtime.programs.evaluating import evaluate, score
from jaxppo.runtime.programs.placement import Layout, State
from jaxppo.runtime.run.compiling import Programs, check_memory, compile_programs
from jaxppo.runtime.run.events import Events, of_training
from jaxppo.runtime.run.members import Member, Members
from jaxppo.runtime.run.saving import Saver
from jaxppo.runtime.run.selection import Selection
from jaxppo.runtime.store import checkpoint
from jaxppo.runtime.store.progress import Pace, Progress
from jaxppo.simulators.faults import SimulatorError
from jaxppo.types import Policy


class Blocks:
    """Trains and evaluates the members in the program, and writes the results."""

    def __init__(
        self,
        config: Config,
        members: Members,
        layout: Layout,
        progress: Progress,
        selection: Selection,
        events: Events,
        saver: Saver,
        signals: Signals,
    ) -> None:
        self.layout = layout
        self.programs: Programs
        self.close: Callable[[], None] = lambda: None  # ends what the programs have started
        self._config, self._members, self._progress = config, members, progress
        self._selection, self._events = selection, events
        self._saver, self._signals = saver, signals
        self._pace = Pace()
        self._began = 0.0, 0  # time and steps at the last train event
        self._restarts = 0  # of simulators in the last evaluation

    @property
    def _active(self) -> list[int]:
        return self._members.active(self.layout.slots)

    def compile(self, train: compile.Program | None = None) -> None:
        """Compile the programs of the current members; `train` may be compiled already."""
        configs = self._members.configs(self.layout.slots)
        self.close()
        self.programs = compile_programs(self.layout, configs, train)
        self.close = self.programs.close
        self._progress.compile_seconds += self.programs.seconds
        values = {**self.programs.describe(), "total_steps": self.layout.plan.total_steps}
        self._events.write(dict.fromkeys(self._active, values), "compile")
        check_memory(self.layout, self._config, self.programs.train, self.programs.evaluate)

    def evaluate_untrained(self, state: State) -> None:
        """Evaluate the policies before training. They are never the best ones."""
        self._evaluate(state.learner.agent.policy, FIRST, ())

    def train(self, state: State) -> State:
        """Run the remaining updates of a block, in calls of about a second.

        All calls use one program and pass the metrics on: calls of any length give the same bits.
        With `logger.every` a call ends where a train event is due.
        """
        progress, done, start = self._progress, 0, time.perf_counter()
        self._began = start, progress.steps
        every = self._config.logger.every
        if self.programs.is_simulated:  # whose rollouts may take long
            self.programs.train.call.while_collecting = lambda: self._signals.ending(
                lambda: self._saver.pending(state, self.layout)(), PATIENCE
            )
        while progress.left:
            before, called = progress.steps, time.perf_counter()
            left = min(progress.left, every - progress.updates % every if every else MAX_INT)
            # A simulator that fails leaves the state of the last update, which is then saved
            count = 1 if self.programs.is_simulated else processes.agree(self._pace.updates(left))
            try:
                learner, total = self.programs.train.call(
                    state.learner, state.total, self.layout.place_count(count)
                )
            except SimulatorError:
                self._saver.save_fault(self._saver.pending(state, self.layout), state, self.layout)
                raise
            state = State(learner, state.best, jax.block_until_ready(total), state.earlier)
            seconds = time.perf_counter() - called
            self._pace.took(count, seconds)
            progress.advance(count)
            done += count
            if not progress.left:
                steps = done * progress.steps_per_update
                progress.speeds.append(steps / (time.perf_counter() - start))
            elif count == left:
                self._write_training(state.total)
                earlier, total = self.layout.next_window(state.earlier, state.total)
                state = dataclasses.replace(state, total=total, earlier=earlier)
            else:
                self._events.tick(progress.steps, count * progress.steps_per_update / seconds)
            received = self._signals.agreed()
            if progress.left or received is not None:
                self._saver.save_within(state, self.layout, before, received)
        return state

    def end(self, state: State) -> tuple[State, dict[int, float]]:
        """Finish a block: write metrics, evaluate, keep the best policies and select.

        Return the state and the scores.
        """
        progress, selection = self._progress, self._selection
        block, num_blocks = progress.block, len(progress.updates_per_block)
        rows = self._write_training(state.total)
        if state.earlier is not None:
            total, _ = self.layout.next_window(state.earlier, state.total)
            rows = self.layout.gather_numbers(total, self._active)
        found = {i: self._members[i].diagnose(one, progress.steps) for i, one in rows.items()}
        diverged = {i: reason for i, reason in found.items() if reason is not None}
        progress.end_block()
        exploits = selection.exploits(block, num_blocks)
        if not exploits or len(diverged) == len(self._active):
            self._fail(diverged)
        if not self._active:
            return state, {}
        scores, better = self._evaluate(state.learner.agent.policy, block, diverged)
        if any(better):
            best = self.layout.choose(better, state.learner.agent.policy, state.best)
            state = dataclasses.replace(state, best=best)
        if self._active and exploits:
            learner, sources = selection.exploit(
                self.layout, state.learner, scores, block, self._active
            )
            state = dataclasses.replace(state, learner=learner)
            self._write_selection([self.layout.slots[slot] for slot in sources])
        elif self._active and (
            kept := selection.survivors(self.layout, scores, block, progress.updates_per_block)
        ):
            state = self._narrow(state, kept)
        zero, earlier = self.layout.no_metrics(), self.layout.no_earlier(self._config)
        return dataclasses.replace(state, total=zero, earlier=earlier), scores

    def _write_training(self, total: Metrics) -> dict[int, Metrics]:
        """Write the metrics of training since the last train event; return those of members."""
        progress, now = self._progress, time.perf_counter()
        start, steps = self._began
        common = {
            "steps": progress.steps,
            "updates": progress.steps // progress.steps_per_update,
            "seconds": progress.seconds,
            "steps_per_second": (progress.steps - steps) / (now - start),
        }
        num_updates = progress.updates
        if every := self._config.logger.every:
            num_updates -= (progress.updates - 1) // every * every
        found = self.layout.gather_numbers(total, self._active)
        common |= self.programs.report()
        rows = {i: {**common, **of_training(one, num_updates)} for i, one in found.items()}
        self._events.write(rows, "train")
        self._began = time.perf_counter(), progress.steps
        return found

    def _evaluate(
        self, policy: Policy, block: int, diverged: Container[int]
    ) -> tuple[dict[int, float], np.ndarray]:
        """Evaluate and write; return the members' scores and which slots improved, `[P]` bool."""
        seeds = [self._members[i].seed for i in self.layout.slots]
        keys = build.random_streams(seeds)[2]
        keys = evaluation_streams(keys, block)
        episodes = self._play(policy, keys)
        last = {"last": self._progress.is_over}
        found = {
            i: {**self._score(episodes, i, self._progress.steps), **last}
            for i in self._active
            if i not in diverged
        }
        self._events.write(found, "eval")
        better = np.zeros(len(self.layout.slots), bool)
        for i, evaluation in found.items():
            better[self.layout.row(i)] = self._members[i].score(evaluation, trained=block != FIRST)
        return {i: each["episode_return"] for i, each in found.items()}, better

    def _play(self, policy: Policy, keys: jax.Array, times: int = 1) -> Episodes:
        """Play episodes of all members; members fail if an action mask allows no action."""
        num = self._config.arch.num_eval_episodes
        before = self.programs.evaluation_restarts
        episodes = evaluate(self.layout, self.programs.evaluate, policy, keys, num, times)
        self._restarts = self.programs.evaluation_restarts - before
        counts, steps = np.sum(episodes.empty_masks, axis=1), self._progress.steps
        found = {
            i: self._members[i].diagnose_masks(int(counts[self.layout.row(i)]), steps)
            for i in self._active
        }
        self._fail({i: reason for i, reason in found.items() if reason is not None})
        return episodes

    def _score(self, episodes: Episodes, i: int, steps: int) -> dict[str, Any]:
        return {
            "steps": steps,
            "seconds": self._progress.seconds,
            **score(episodes, self.layout.row(i)),
            "max_eval_steps": self.layout.system.max_eval_steps,
            **({"env_restarts": self._restarts} if self.programs.is_simulated else {}),
        }

    def _narrow(self, state: State, kept: list[int]) -> State:
        """Continue with the members in the slots `kept`, in a smaller program."""
        steps = self._progress.steps
        for slot in set(range(len(self.layout.slots))) - set(kept):
            member = self._members[self.layout.slots[slot]]
            if member.facts.failure is None:
                member.end(
                    self._describe_end(member, f"dropped by successive halving at step {steps}")
                )
        learner, best = self.layout.take((state.learner, state.best), kept)
        self.layout = self.layout.narrow(kept)
        self._selection.narrow(kept)
        self._write_selection(self.layout.slots)
        self.compile()
        return State(learner, best, state.total, state.earlier)

    def _write_selection(self, sources: Any) -> None:
        slots, steps = self.layout.slots, self._progress.steps
        self._events.write_selection(self._selection.describe(slots, sources, steps))

    def conclude(self, state: State) -> None:
        """Evaluate the best policies again, and write the end of every member."""
        reason = "no evaluation returned a finite number; look at the environment's rewards"
        hopeless = [i for i in self._active if not self._members[i].facts.best]
        self._fail(dict.fromkeys(hopeless, reason))
        scores = {i: self._members[i].facts.best for i in self._active}
        if self._config.arch.absolute_metric and scores:
            seeds = [self._members[i].seed for i in self.layout.slots]
            episodes = self._play(state.best, build.random_streams(seeds)[3], 10)
            scores = {
                i: self._score(episodes, i, self._members[i].facts.best["steps"])
                for i in self._active
            }
            self._events.write(scores, "absolute")
        for i in self._active:
            member = self._members[i]
            member.result = scores[i]["episode_return"]
            member.end(self._describe_end(member, self._progress.status))
        ends = {i: self._members[i].facts.end for i in range(len(self._members))}
        overall = None
        if self._config.population.size is not None:
            number = self._members.best_of(range(len(self._members)))
            member = self._members[0 if number is None else number]
            overall = {**member.facts.end, "seed": member.seed}
        self._events.write(ends, "end", overall)

    def _fail(self, reasons: dict[int, str]) -> None:
        """Mark members as failed, and never delete the last checkpoint from before the failure.

        The program continues to compute failed members, but their results are ignored.
        """
        for i, reason in reasons.items():
            member = self._members[i]
            member.end(self._describe_end(member, reason), reason)
        self._saver.pin(list(reasons))

    def _describe_end(self, member: Member, status: str) -> dict[str, Any]:
        progress = self._progress
        return {
            "status": status,
            "environment": self.layout.system.env.name,
            "absolute_metric": member.result if self._config.arch.absolute_metric else None,
            "best_episode_return": member.best_return,
            "best_steps": member.facts.best.get("steps"),
            "steps": progress.steps,
            "seconds": progress.seconds,
            "compile_seconds": progress.compile_seconds,
            "steps_per_second": progress.median_speed,
            "machine": devices.machine(),
            "versions": checkpoint.versions(),
        }
