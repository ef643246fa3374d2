"""Track the progress of a run: blocks, updates, steps and seconds."""

import dataclasses
import statistics
import time
from collections.abc import Sequence

from jaxppo.config.plan import Plan
from jaxppo.runtime.store.facts import RunFacts

STOPPED = "stopped at step"  # status of a run that its caller stopped
CALL_SECONDS = 1.0  # aimed duration of a call of the training program; signals wait for it


class Pace:
    """Chooses the number of updates per call, so that a call takes about `CALL_SECONDS`."""

    def __init__(self) -> None:
        self._count = 1

    def updates(self, left: int) -> int:
        """Return the updates of the next call, at most `left`."""
        return min(self._count, left)

    def took(self, count: int, seconds: float) -> None:
        """Adapt to the duration of a call; the next call has at most four times its updates."""
        wanted = count * CALL_SECONDS / max(seconds, 1e-6)
        self._count = int(min(max(wanted, 1), 4 * count))


@dataclasses.dataclass
class Progress:
    """Counts of what is done, and the lengths of all blocks."""

    updates_per_block: tuple[int, ...]
    steps_per_update: int
    block: int = 0  # evaluations done
    updates: int = 0  # done in the current block
    steps: int = 0  # per member
    speeds: list[float] = dataclasses.field(default_factory=list)  # of each block, steps/s
    compile_seconds: float = 0.0
    pace: Pace = dataclasses.field(default_factory=Pace)
    started: float = dataclasses.field(default_factory=time.perf_counter)
    ended: float | None = None
    marked: tuple[int, float] = (0, 0.0)  # steps and clock when the block or a part of it began

    def resume(self, facts: RunFacts, steps: int, plan: Plan) -> None:
        """Continue from a checkpoint."""
        self.block, self.updates, self.steps = facts.block, facts.updates, steps
        self.speeds, self.compile_seconds = facts.speeds, facts.compile_seconds
        self.started -= facts.seconds
        self.updates_per_block = blocks_after(facts.updates_per_block, plan)

    @property
    def is_over(self) -> bool:
        """Return whether all blocks are done."""
        return self.block == len(self.updates_per_block)

    @property
    def status(self) -> str:
        """Return "finished", or where the run was stopped on purpose."""
        return "finished" if self.is_over else f"{STOPPED} {self.steps}"

    @property
    def left(self) -> int:
        """Return the updates left in the current block."""
        return self.updates_per_block[self.block] - self.updates

    @property
    def seconds(self) -> float:
        """Return the time since the start, without the time between a stop and a resume."""
        return (self.ended or time.perf_counter()) - self.started

    def freeze(self) -> None:
        """Stop the clock: the run has ended, and its process goes on."""
        self.ended = time.perf_counter()

    def advance(self, updates: int) -> None:
        """Count updates."""
        self.updates += updates
        self.steps += updates * self.steps_per_update

    def end_block(self) -> None:
        """Count the block."""
        self.block, self.updates = self.block + 1, 0

    def mark(self) -> None:
        """Begin a block, or its next part, which ends with a train event."""
        self.marked = self.steps, time.perf_counter()

    @property
    def speed(self) -> float:
        """Return the environment steps per second since `mark`."""
        steps, seconds = self.marked
        return (self.steps - steps) / (time.perf_counter() - seconds)

    @property
    def median_speed(self) -> float | None:
        """Return the median over blocks of the steps per second."""
        return statistics.median(self.speeds) if self.speeds else None


def blocks_after(done: Sequence[int], plan: Plan) -> tuple[int, ...]:
    """Return the block lengths after a resume.

    They are as planned. If the budget has grown, the new blocks are about as long as the old ones:
    each is the floor of an equal part of what is left, so a later resume finds the same lengths. If
    the budget ends within the last of the blocks `done`, which is not over, that block is shorter.
    """
    blocks = tuple(done)
    if blocks == plan.updates_per_block[: len(blocks)]:
        return plan.updates_per_block
    left = plan.num_updates - sum(blocks)
    if left < 0:
        return (*blocks[:-1], blocks[-1] + left)
    for count in range(-(-left // max(blocks)), 0, -1):
        blocks = (*blocks, left // count)
        left -= blocks[-1]
    return blocks
