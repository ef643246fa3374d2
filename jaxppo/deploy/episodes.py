"""Whole episodes of a policy: what it saw, did, got and thought at every step."""

import dataclasses
import os
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.algorithms.axes import vmap_members
from jaxppo.algorithms.evaluation import (
    Episodes,
    Progress,
    RecordedStep,
    Watch,
    begin_members,
    record,
    watch_nothing,
)
from jaxppo.config.fields import ConfigError
from jaxppo.envs import is_simulated
from jaxppo.runtime.hosts import devices
from jaxppo.runtime.programs import compile
from jaxppo.runtime.simulated import evaluation
from jaxppo.simulators.faults import RestartWarning
from jaxppo.types import Policy, PyTree, System, counted

CHUNK = 64  # steps that are played before their arrays are copied to the host


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Episode:
    """An episode of `T` steps, as NumPy arrays.

    Fields that the algorithm does not have are None. Log-probabilities and entropies are those of
    the policy that samples, also if the actions are greedy.
    """

    observations: PyTree  # [T, O...] raw, which the actions answer
    final_observation: PyTree  # [O...] after the last step
    actions: PyTree  # [T, A...] as the environment takes and counts them
    raw_actions: PyTree  # [T, A...] of which the actions are a function; None: they are equal
    rewards: np.ndarray  # [T] float32
    terminated: np.ndarray  # [T] bool
    truncated: np.ndarray  # [T] bool; False where terminated
    values: np.ndarray | None  # [T] of the states, in the units in which the critic was trained
    log_probs: np.ndarray | None  # [T] of the actions
    entropies: np.ndarray | None  # [T] in nats
    # [T, ...] parameters by name, such as logits; of a product dicts by part; of PQN q_values
    distribution: dict[str, Any]
    episode_return: float  # undiscounted
    finished: bool  # False if max_eval_steps came first
    # [T] float32 each, of env.metrics; NaN where a step told nothing
    told: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)  # what they add up to
    states: PyTree = ()  # [T + 1] of the environment, if they were asked for

    @property
    def length(self) -> int:
        """Return the number of steps."""
        return len(self.rewards)

    def __repr__(self) -> str:
        late = "" if self.finished else ", unfinished"
        return f"Episode(return {self.episode_return:.2f}, length {self.length:,}{late})"


def play(
    system: System,
    policy: Policy,
    batches: Iterable[tuple[int, jax.Array]],
    *,
    compiler: str,
    watch: Watch = watch_nothing,
) -> Iterator[Episode]:
    """Yield the episodes of each batch: of keys `[D, 1, E]` the first so many.

    `policy` is `[D, 1, ...]`. The episodes are those of `algorithms.evaluation.evaluate`. `watch`
    says which states of the environment to record, see `algorithms.evaluation.record`.
    """
    check_alone(system)
    if is_simulated(system.env):
        yield from _play_simulators(system, policy, batches, compiler)
        return
    advance = partial(record, num_steps=min(CHUNK, system.max_eval_steps), watch=watch)
    start, go_on = None, None
    for num, keys in batches:
        if start is None or go_on is None:
            begin = partial(begin_members, system)
            start = compile.compile_program(begin, keys, compiler=compiler).call
            args = policy, keys, start(keys)
            advance_members = partial(vmap_members(advance), system)
            go_on = compile.compile_program(advance_members, *args, compiler=compiler).call
        chunks = _chunks(partial(go_on, policy, keys), start(keys), system.max_eval_steps, num)
        yield from _cut(chunks, num)


def check_alone(system: System) -> None:
    """Raise `ConfigError` for worlds of several agents, whose rows are no episodes."""
    if system.env.num_agents > 1:
        raise ConfigError(
            f"env={system.env.name}: episodes of worlds with several agents cannot be recorded or "
            "drawn so far; evaluate the policy, or step the world yourself and call its act"
        )


def _chunks(
    go_on: Callable[[Progress], Any], progress: Progress, max_steps: int, num: int
) -> Iterator[tuple[RecordedStep, Episodes]]:
    """Yield steps `[T, num, ...]`, and the episodes after them, until all have ended."""

    def rows(x: Any) -> Any:
        """Map `[D, 1, T, E, ...]` to `[T, num, ...]`."""
        x = (x if devices.is_key(x) else np.asarray(x))[:, 0].swapaxes(0, 1)
        return x.reshape(x.shape[0], -1, *x.shape[3:])[:, :num]

    while True:
        progress, steps = go_on(progress)
        so_far: Episodes
        so_far = jax.tree.map(lambda x: np.asarray(x).reshape(-1)[:num], progress.episodes)
        yield jax.tree.map(rows, steps), so_far
        if so_far.finished.all() or progress.step.max() >= max_steps:
            return


def _cut(chunks: Iterable[tuple[RecordedStep, Episodes]], num: int) -> Iterator[Episode]:
    """Cut chunks into `num` episodes; steps after the end of an episode are dropped."""
    parts: list[list[RecordedStep]] = [[] for _ in range(num)]
    lengths: Any = np.zeros(num, np.int32)
    for steps, so_far in chunks:
        for row in np.flatnonzero(so_far.lengths > lengths).tolist():
            new = int(so_far.lengths[row] - lengths[row])
            parts[row].append(_part(steps, (slice(new), row), (new - 1, row)))
        lengths = so_far.lengths
    for row, part in enumerate(parts):
        parts[row] = []
        yield _episode(part, so_far, row)


def _part(steps: RecordedStep, own: Any, last: Any) -> RecordedStep:
    """Return copies of what steps hold at the index `own`, with the `after` at the index `last`."""
    after = jax.tree.map(lambda x: x[last].copy(), steps.after)
    part = jax.tree.map(lambda x: x[own].copy(), dataclasses.replace(steps, after=()))
    return dataclasses.replace(part, after=after)


def _episode(parts: Sequence[RecordedStep], found: Episodes, row: int) -> Episode:
    """Return an episode of parts `[T, ...]` with the last `after`; its result is in `row`."""
    final_observation, last_state = parts[-1].after
    joined = jax.tree.map(_joined, *(dataclasses.replace(x, after=()) for x in parts))
    return Episode(
        observations=joined.observations,
        final_observation=final_observation,
        actions=joined.actions,
        rewards=joined.rewards,
        terminated=joined.terminated,
        truncated=joined.truncated,
        **vars(joined.info),
        episode_return=float(found.returns[row]),
        finished=bool(found.finished[row]),
        told=joined.metrics,
        metrics={name: float(x[row]) for name, x in found.metrics.items()},
        states=jax.tree.map(lambda x, last: _joined(x, last[None]), joined.states, last_state),
    )


def _play_simulators(
    system: System, policy: Policy, batches: Iterable[tuple[int, jax.Array]], compiler: str
) -> Iterator[Episode]:
    """Yield what `play` does, of environments that step outside of the program."""
    program: Any = None
    try:
        for num, keys in batches:
            if program is None:
                compiled = evaluation.compile_evaluation(
                    system, policy, keys, system.num_envs, compiler, describes=True
                )
                program = compiled.call
            parts: list[list[RecordedStep]] = [[] for _ in range(keys.size)]

            def tell(numbers: np.ndarray, step: RecordedStep, parts: Any = parts) -> None:
                for i, number in enumerate(numbers.tolist()):
                    parts[number].append(_part(step, slice(i, i + 1), i))

            found = jax.tree.map(lambda x: x.reshape(-1), program(policy, keys, tell))
            yield from (_counted(system, _episode(parts[row], found, row)) for row in range(num))
    finally:
        if program is not None:
            close_simulators(program)


def _counted(system: System, episode: Episode) -> Episode:
    """Return an episode with integers as the environment counts them."""
    seen, taken = system.env.observation_space, system.env.action_space
    actions = counted(taken, episode.actions)
    pairs = zip(jax.tree.leaves(actions), jax.tree.leaves(episode.actions), strict=True)
    raw = None if all(x is y for x, y in pairs) else episode.actions
    return dataclasses.replace(
        episode,
        observations=counted(seen, episode.observations),
        final_observation=counted(seen, episode.final_observation),
        actions=actions,
        raw_actions=raw if episode.raw_actions is None else episode.raw_actions,
    )


def close_simulators(playing: evaluation.Evaluation) -> None:
    """End the simulators of an evaluation; warn if faults have cut episodes."""
    restarts = playing.restarts
    playing.close()
    if restarts:
        warnings.warn(
            f"environments made anew after faults: {restarts}; the episodes in which that happened "
            "count with their return so far",
            RestartWarning,
            stacklevel=3,
        )


def _joined(*parts: Any) -> Any:
    """Concatenate arrays along their first axis; typed keys are not NumPy's."""
    return (jnp if devices.is_key(parts[0]) else np).concatenate(parts)


PER_STEP = (  # fields of `Episode` that a file has one after another, `[sum of lengths, ...]`
    *("observations", "actions", "raw_actions", "rewards", "terminated", "truncated"),
    *("values", "log_probs", "entropies", "distribution", "told"),
)


def check_file(key: str, path: Path) -> None:
    """Raise `ConfigError` if `write` cannot write to `path`."""
    if path.suffix != ".npz":
        raise ConfigError(f"{key}={path}: must end in .npz, such as {key}=episodes.npz")
    if path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        raise ConfigError(
            f"{key}={path}: cannot be written; choose another file, or make {path.parent}"
        )


def totals(episodes: Sequence[Episode]) -> dict[str, np.ndarray]:
    """Return `returns`, `lengths`, `finished` and metrics/NAME of `N` episodes, `[N]`."""
    return {
        "returns": np.array([each.episode_return for each in episodes], np.float32),
        "lengths": np.array([each.length for each in episodes]),
        "finished": np.array([each.finished for each in episodes]),
        **{
            f"metrics/{name}": np.array([each.metrics[name] for each in episodes], np.float32)
            for name in (episodes[0].metrics if episodes else ())
        },
    }


def write(path: Path, episodes: Sequence[Episode]) -> None:
    """Write `N` episodes to an npz file atomically; docs/policies.md describes its arrays."""
    rows = [dict(_named("", {name: getattr(e, name) for name in PER_STEP})) for e in episodes]
    ends = [dict(_named("final_observations", e.final_observation)) for e in episodes]
    arrays = {name: partial(np.concatenate, [row[name] for row in rows]) for name in rows[0]}
    arrays |= {name: partial(np.stack, [end[name] for end in ends]) for name in ends[0]}
    each = totals(episodes)
    each["starts"] = np.cumsum(each["lengths"]) - each["lengths"]
    arrays |= {name: partial(np.asarray, value) for name, value in each.items()}
    unfinished = path.with_name(f"{path.name}.partial")
    try:
        with zipfile.ZipFile(unfinished, "w") as file:
            for name, make in arrays.items():  # one at a time, to save memory
                with file.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    np.lib.format.write_array(entry, make(), allow_pickle=False)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _named(name: str, tree: PyTree) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays of dicts and tuples by name, such as observations/board."""
    if tree is None:
        return
    if not isinstance(tree, Mapping | tuple | list):
        yield name, np.asarray(tree)
        return
    for key, part in tree.items() if isinstance(tree, Mapping) else enumerate(tree):
        yield from _named(f"{name}/{key}" if name else str(key), part)
