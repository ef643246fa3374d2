"""Facts that a checkpoint stores besides its arrays, and their checks."""

import dataclasses
from typing import Any

from jaxppo.config.fields import ConfigError, setting
from jaxppo.config.parse import parse_as
from jaxppo.config.stored import current
from jaxppo.runtime.programs.evaluating import judged_by
from jaxppo.runtime.store.checkpoint import Checkpoint, CheckpointError


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemberFacts:
    """Facts of a member that a checkpoint stores besides its arrays."""

    best: dict[str, Any] = setting({}, "its best evaluation, or empty")
    last: dict[str, Any] = setting({}, "its last evaluation, or empty")
    history: list[Any] = setting([], "[steps, return] of each evaluation")
    failure: str | None = setting(None, "why it stopped training")
    end: dict[str, Any] = setting({}, "its last event")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFacts:
    """Facts of a run that a checkpoint stores besides its arrays."""

    block: int = setting(0, "evaluations done", low=0)
    updates: int = setting(0, "updates done in the current block", low=0)
    updates_per_block: list[int] = setting([], "lengths of the blocks done and of the current one")
    seconds: float = setting(0.0, "time that the run has taken")
    compile_seconds: float = setting(0.0, "time spent on compiling")
    speeds: list[float] = setting([], "steps per second of each block")
    slots: list[int] = setting([], "numbers of the members in the program")
    members: list[dict[str, Any]] = setting([], "MemberFacts of all members, also of dropped ones")
    numbers: dict[str, Any] = setting(
        {}, "hyperparameters that members differ in, as lists over slots"
    )
    shards: list[int] = setting([], "devices and update batches that split a member's environments")
    members_per_device: int = setting(1, "members in one device's program", low=1)
    positions: dict[str, Any] = setting({}, "bytes of each metric log, by its directory")
    config: dict[str, Any] = setting({}, "all settings")

    @property
    def every(self) -> int | None:
        """Return `logger.every` of the run; older checkpoints have no such setting."""
        return self.config.get("logger", {}).get("every")

    @classmethod
    def of(cls, found: Checkpoint) -> "RunFacts":
        """Read the facts of a checkpoint; `CheckpointError` if they are invalid."""
        raw = {f.name: found.facts.get(f.name) for f in dataclasses.fields(cls)}
        try:
            facts: RunFacts = parse_as(cls, raw)
            facts = dataclasses.replace(facts, config=current(facts.config))
            for member in facts.members:
                parse_as(MemberFacts, member)
            _check_facts(facts)
        except (ConfigError, TypeError, ValueError, KeyError) as error:
            raise CheckpointError(
                f"{found.path}: the facts of the run in its manifest are invalid ({error})"
            ) from error
        return facts


def _check_facts(facts: RunFacts) -> None:
    """Raise `ValueError` or others if parts of the facts do not fit each other."""

    def require(holds: bool, what: str) -> None:
        if not holds:
            raise ValueError(what)

    num = len(facts.slots)
    require(num > 0 and len(set(facts.slots)) == num, f"slots={facts.slots}")
    require(all(0 <= slot < len(facts.members) for slot in facts.slots), f"slots={facts.slots}")
    require(len(facts.shards) == 2 and min(facts.shards) > 0, f"shards={facts.shards}")
    begun = facts.block + (facts.updates > 0)
    require(len(facts.updates_per_block) == begun, f"updates_per_block={facts.updates_per_block}")
    require(all(n > 0 for n in facts.updates_per_block), "updates_per_block below 1")
    for row in facts.numbers.values():
        require(len(row) == num and all(type(x) is float for x in row), "numbers")
    require(all(type(n) is int and n >= 0 for n in facts.positions.values()), "positions")
    for member in facts.members:
        for score in filter(None, (member["best"], member["last"])):
            require(type(score["steps"]) is int, "steps of an evaluation")
            name = judged_by(score)
            require(type(score[name]) is float, f"{name} of an evaluation")
        for steps, score in member["history"]:
            require(type(steps) is int and type(score) is float, "history")
