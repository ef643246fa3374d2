"""What the phases of a run share."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from jaxppo.config.schema import Config
from jaxppo.runtime.hosts import devices
from jaxppo.runtime.programs import compile
from jaxppo.runtime.programs.placement import Layout
from jaxppo.runtime.run.caller import Caller
from jaxppo.runtime.run.compiling import Programs, check_memory, compile_programs
from jaxppo.runtime.run.events import Events
from jaxppo.runtime.run.jobs import Job
from jaxppo.runtime.run.members import Member, Members
from jaxppo.runtime.run.selection import Selection
from jaxppo.runtime.store import checkpoint
from jaxppo.runtime.store.progress import Progress


@dataclasses.dataclass(kw_only=True)
class Run:
    """The parts of a run. Halving, and a resume of it, replace the layout and the programs."""

    jobs: Sequence[Job]
    members: Members
    layout: Layout
    progress: Progress
    selection: Selection
    events: Events
    caller: Caller
    programs: Programs = dataclasses.field(init=False)  # by `compile`
    writers: dict[int, checkpoint.Writer] = dataclasses.field(default_factory=dict)  # by job
    alarmed: frozenset[int] = frozenset()  # members whose loss was too high in the last call

    @property
    def config(self) -> Config:
        """Return the settings of the program: those of the first job."""
        return self.jobs[0].config

    @property
    def configs(self) -> list[Config]:
        """Return the settings of the members in the program, as if each ran alone."""
        return [self.members[i].config for i in self.layout.slots]

    @property
    def active(self) -> list[int]:
        """Return the members in the program that have not failed."""
        return self.members.active(self.layout.slots)

    def compile(self, train: compile.Program | None = None, *, begins: bool = False) -> None:
        """Compile the programs of the present members; arguments as of `compile_programs`."""
        self.programs = compile_programs(self.layout, self.configs, train, begins=begins)
        self.progress.compile_seconds += self.programs.seconds
        values = {**self.programs.describe(), "total_steps": self.layout.plan.total_steps}
        self.events.write(dict.fromkeys(self.active, values), "compile")
        check_memory(self.layout, self.config, self.programs.train, self.programs.evaluate)

    def fail(self, reasons: Mapping[int, str]) -> None:
        """Mark members as failed, and never delete the last checkpoint from before the failure.

        The program continues to compute failed members, but their results are ignored.
        """
        for i, reason in reasons.items():
            member = self.members[i]
            member.end(self.describe_end(member, reason), reason)
        for number, writer in self.writers.items():
            if any(i in self.members.jobs[number] for i in reasons):
                writer.pin()

    def describe_end(self, member: Member, status: str) -> dict[str, Any]:
        """Return the values of a member's `end` event."""
        progress, metric = self.progress, self.config.arch.eval_metric
        judged = {} if metric is None else {"eval_metric": metric, "best_score": member.best_score}
        final = {**({} if metric is None else {"final_score": None}), **member.final}
        return {
            "status": status,
            "environment": self.layout.system.env.name,
            "absolute_metric": member.result if self.config.arch.absolute_metric else None,
            "best_episode_return": member.facts.best.get("episode_return", -math.inf),
            **judged,
            **final,
            "best_steps": member.facts.best.get("steps"),
            "steps": progress.steps,
            "seconds": progress.seconds,
            "compile_seconds": progress.compile_seconds,
            "steps_per_second": progress.median_speed,
            "machine": devices.machine(),
            "versions": checkpoint.versions(),
        }

    def write_selection(self, sources: Any) -> None:
        """Write which member each slot of the program has, and which it continues from."""
        values = self.selection.describe(self.layout.slots, sources, self.progress.steps)
        self.events.write_selection(values)
