"""The policies that checkpoints hold."""

import contextlib
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxppo.config.fields import ConfigError
from jaxppo.config.stored import CONFIG
from jaxppo.runtime.store import checkpoint
from jaxppo.runtime.store.checkpoint import Checkpoint, CheckpointWarning
from jaxppo.runtime.store.facts import RunFacts, judged_by
from jaxppo.types import Opponents, Policy


def find(run_dir: Path, which: str | int, key: str = "run", key_which: str = "which") -> Checkpoint:
    """Return the checkpoint to read; warn about newer ones that cannot be used.

    `which` is a number of steps, or best or latest: the newest checkpoint has both policies. `key`
    and `key_which` name the arguments in errors.
    """
    folder = run_dir / checkpoint.FOLDER
    existing = checkpoint.steps_in(folder)
    if not existing:
        raise ConfigError(f"{key}={run_dir}: {_why_none(run_dir)}")
    if isinstance(which, str | float):
        with contextlib.suppress(ValueError):  # best and latest are no numbers
            number = float(which)
            which = int(number) if number.is_integer() else which  # such as 1e6
    if isinstance(which, int | np.integer):
        if which not in existing:
            raise ConfigError(
                f"{key_which}={which}: {folder} has no checkpoint of that step; it has "
                f"{', '.join(map(str, existing))}, and best and latest"
            )
        return checkpoint.read(checkpoint.path_of(run_dir, which))
    if which not in ("best", "latest"):
        raise ConfigError(f"{key_which}={which}: must be best, latest or a number of steps")
    found, lines = checkpoint.newest(run_dir)
    assert found is not None  # since there are some
    for message in lines:
        warnings.warn(message, CheckpointWarning, stacklevel=3)
    return found


def _why_none(run_dir: Path) -> str:
    """Return why a path has no checkpoints, and what to give instead."""
    if not run_dir.is_dir():
        return "is not a directory" if run_dir.exists() else "no such directory"
    is_run = (run_dir / CONFIG).is_file()
    if not is_run and (run_dir.parent / CONFIG).exists():
        return f"has no checkpoints; give the run, {run_dir.parent}"
    below = sorted(file.parent for file in run_dir.glob(f"*/{CONFIG}"))
    if below and not is_run:  # a sweep; below a run there may be its seeds
        return f"has no checkpoints; name one of its runs, such as {below[0]}"
    return (
        "has no checkpoints; wait for the first, or give the directory of a run that was trained "
        "with checkpoint.enabled=true"
    )


def row_of(facts: RunFacts, seeds_of_all: Sequence[int] = (), seed: int | None = None) -> int:
    """Return the row of a member in a checkpoint; `seed` None: of the one that evaluated best."""
    slots = facts.slots
    if seed is not None:
        seeds = [seeds_of_all[i] for i in slots]
        if seed not in seeds:
            raise ConfigError(f"seed={seed!r}: is none of {', '.join(map(str, seeds))}")
        return seeds.index(seed)

    def score(row: int) -> tuple[bool, float]:
        member = facts.members[slots[row]]
        best = member["best"]
        found = best[judged_by(best)] if best else None
        return member["failure"] is None, float(found) if found is not None else -math.inf

    return max(range(len(slots)), key=score)


def steps_of(found: Checkpoint, facts: RunFacts, row: int, which: str | int) -> int | None:
    """Return the steps of the policy in a row; None if none is best, as no score was finite."""
    if which != "best":
        return found.steps
    steps: int | None = facts.members[facts.slots[row]]["best"].get("steps")
    return steps


def read(found: Checkpoint, shapes: Any, num: int, which: str | int, where: str = "") -> Any:
    """Return the policies of `num` members, `[num, ...]`; `shapes` are those of one.

    `where` is the path of a part of the policy, if only that is wanted. `CheckpointError` if
    the checkpoint has other shapes.
    """
    several = jax.tree.map(lambda x: jax.ShapeDtypeStruct((num, *x.shape), x.dtype), shapes)
    # Paths in what `saving.snapshot` stores: (learner, best, total, earlier)
    prefix = "[1]" if which == "best" else "[0].agent.policy"
    return checkpoint.unflatten(several, found.arrays, prefix + where)


def read_pool(found: Checkpoint, policy: Policy, row: int) -> Opponents | None:
    """Return a member's pool, whose policies are like `policy`; None if the run has none."""
    where = "[0].agent.opponents"
    since = found.arrays.get(f"{where}.since")
    if since is None:
        return None
    like: Any = jax.ShapeDtypeStruct((), since.dtype)
    one = Opponents(policies=policy, since=like)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct((*since.shape, *x.shape), x.dtype), one)
    pools: Opponents = checkpoint.unflatten(shapes, found.arrays, where)
    return jax.tree.map(lambda x: x[row], pools)
