"""Facts that a checkpoint stores besides its arrays."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxppo.config.fields import ConfigError, setting
from jaxppo.config.parse import parse_as
from jaxppo.config.schema import key_of
from jaxppo.config.stored import current
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
        stored = {f.name: found.facts.get(f.name) for f in dataclasses.fields(cls)}
        try:
            facts: RunFacts = parse_as(cls, stored)
            for member in facts.members:
                parse_as(MemberFacts, member)
            if not _fit(facts):
                raise ValueError("they do not fit each other")
            return dataclasses.replace(facts, config=current(facts.config))
        except (ConfigError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{found.path}: the facts of the run in its manifest are invalid ({error})"
            ) from error


def _fit(facts: RunFacts) -> bool:
    """Return whether parts of the facts, which a stranger may have written, fit each other."""
    num = len(facts.slots)
    return (
        0 < num == len({*facts.slots} & {*range(len(facts.members))})
        and len(facts.shards) == 2
        and min(facts.shards) > 0
        and len(facts.updates_per_block) == facts.block + (facts.updates > 0)
        and min(facts.updates_per_block, default=1) > 0
        and all(len(row) == num and {*map(type, row)} == {float} for row in facts.numbers.values())
        and all(type(size) is int and size >= 0 for size in facts.positions.values())
    )


def judged_by(event: Mapping[str, Any]) -> str:
    """Return the name of the number in an evaluation's event by which policies are compared.

    It is the mean return, or that of `arch.eval_metric`.
    """
    metric = event.get("eval_metric")
    return "episode_return" if metric is None else key_of(metric)


def scores_of_members(event: Mapping[str, Any]) -> str:
    """Return the prefix of the keys of members' scores: member_return, or member_score."""
    return "member_return" if event.get("eval_metric") is None else "member_score"
