"""How far a run is: blocks, updates, steps and seconds, in exact integers."""

import dataclasses
import statistics
import time
from collections.abc import Sequence

from jaxppo.config.plan import Plan
from jaxppo.runtime.facts import RunFacts

CALL_SECONDS = 1.0  # that one call of the training program takes, about: signals wait for it


class Pace:
    """How many updates a call trains, so that it takes about `CALL_SECONDS`."""

    def __init__(self) -> None:
        self._count = 1

    def updates(self, left: int) -> int:
        """Of the next call, where so many are left."""
        return min(self._count, left)

    def took(self, count: int, seconds: float) -> None:
        """Learn from a call; the next is at most four times as long."""
        wanted = count * CALL_SECONDS / max(seconds, 1e-6)
        self._count = int(min(max(wanted, 1), 4 * count))


@dataclasses.dataclass
class Progress:
    """What has been done, and the blocks that there are."""

    updates_per_block: tuple[int, ...]
    steps_per_update: int
    block: int = 0  # evaluations done
    updates: int = 0  # done of the block after them
    steps: int = 0  # of the environments of one member
    speeds: list[float] = dataclasses.field(default_factory=list)  # of each block, steps/s
    compile_seconds: float = 0.0
    started: float = dataclasses.field(default_factory=time.perf_counter)

    def resume(self, facts: RunFacts, steps: int, plan: Plan) -> None:
        """Go on from a checkpoint."""
        self.block, self.updates, self.steps = facts.block, facts.updates, steps
        self.speeds, self.compile_seconds = facts.speeds, facts.compile_seconds
        self.started -= facts.seconds
        self.updates_per_block = blocks_after(facts.updates_per_block, plan)

    @property
    def is_over(self) -> bool:
        """Whether all blocks are done."""
        return self.block == len(self.updates_per_block)

    @property
    def left(self) -> int:
        """Updates that the block still has."""
        return self.updates_per_block[self.block] - self.updates

    @property
    def seconds(self) -> float:
        """Since the run began, without the time between a stop and a resume."""
        return time.perf_counter() - self.started

    def advance(self, updates: int) -> None:
        """Count updates."""
        self.updates += updates
        self.steps += updates * self.steps_per_update

    def end_block(self) -> None:
        """Count the block."""
        self.block, self.updates = self.block + 1, 0

    @property
    def median_speed(self) -> float | None:
        """Steps per second of a block."""
        return statistics.median(self.speeds) if self.speeds else None


def blocks_after(done: Sequence[int], plan: Plan) -> tuple[int, ...]:
    """Block lengths after a resume: as planned, or where the budget has grown, as before it."""
    if tuple(done) == plan.updates_per_block[: len(done)]:
        return plan.updates_per_block
    left = plan.num_updates - sum(done)
    count = -(-left // max(done))
    return (*done, *((i + 1) * left // count - i * left // count for i in range(count)))
