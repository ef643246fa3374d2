"""Write and read checkpoints: arrays stored by orbax, and a manifest with a hash of every file.

A checkpoint is a directory named by its environment steps. It is written under a temporary name,
hashed, and renamed when it is complete, so that a killed run leaves earlier checkpoints intact.
The hashes are needed because orbax does not detect a flipped byte.
"""

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import logging
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxppo.config.messages import OneLineError, brief
from jaxppo.runtime.hosts import devices, processes
from jaxppo.types import PyTree

FOLDER = "checkpoints"  # in the run directory
FORMAT = 4  # version of the manifest and its arrays
_RENAMED = {3: {".agent.algorithm": ".agent.algorithm_state"}}  # format: old paths, and the new
MANIFEST, _ARRAYS = "manifest.json", "arrays"
_BEGUN, _DAMAGED, _DROPPED = ".begun", ".damaged", ".dropped"  # suffixes of other directories
_PINNED = ".pinned"  # suffix of an empty file that marks a checkpoint to keep
_ADDED = (".mean_low",)  # parts of paths that older checkpoints do not have: zeros
_VERSIONS = ("jaxppo", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "gymnax", "numpy")


class CheckpointError(OneLineError, RuntimeError):
    """A checkpoint that cannot be written or read. The message is one line: which and why."""


class CheckpointWarning(UserWarning):
    """A checkpoint is damaged and an earlier one is used. The message is one line."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint: its steps, its manifest, and its arrays by path."""

    path: Path
    steps: int
    facts: dict[str, Any]
    arrays: dict[str, np.ndarray]


def flatten(tree: PyTree) -> dict[str, np.ndarray]:
    """Return all leaves by path: NumPy arrays that must not be changed."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(tree)}


def unflatten(shapes: PyTree, arrays: dict[str, np.ndarray], where: str = "") -> PyTree:
    """Return the tree of `shapes` that was flattened to `arrays`; typed keys are stored as data.

    `where` is the path of this tree in the flattened one. `CheckpointError` if an array is missing
    or has another shape or data type.
    """

    def leaf(path: Any, shape: Any) -> jax.Array:
        name = where + jax.tree_util.keystr(path)
        data = jax.eval_shape(devices.data, shape)
        found = arrays.get(name)
        if found is None and any(part in name for part in _ADDED):
            found = np.zeros(data.shape, data.dtype)
        if found is None or (found.shape, found.dtype) != (data.shape, data.dtype):
            there = "nothing" if found is None else f"{found.dtype}{list(found.shape)}"
            raise CheckpointError(
                f"{name} is {there} in the checkpoint and {data.dtype}{list(data.shape)} in this "
                "program; read it with the settings and versions of its run"
            )
        array = jax.numpy.asarray(found)
        return jax.random.wrap_key_data(array) if devices.is_key(shape) else array

    return jax.tree.map_with_path(leaf, shapes)


class Writer:
    """Writes the checkpoints of a run in other threads, and deletes old ones.

    It keeps the `keep` latest, the one with the highest finite score, the first at or after each of
    the `milestones` (in steps), and pinned ones. The score of an earlier checkpoint counts
    only if `compares` says so of its manifest.
    """

    def __init__(
        self,
        run_dir: Path,
        threads: ThreadPoolExecutor,
        keep: int,
        milestones: list[int],
        compares: Callable[[dict[str, Any]], bool] = lambda _: True,
    ) -> None:
        self.folder = run_dir / FOLDER
        if "\\" in str(self.folder.absolute()):  # tensorstore would write to other directories
            raise CheckpointError(
                f"{self.folder}: checkpoints cannot be below a name with a backslash; choose "
                "another directory, or set checkpoint.enabled=false"
            )
        self._threads = threads
        self._keep = keep
        self._milestones = milestones
        self._scores: dict[int, float | None] = {}
        self._pinned: set[int] = set()
        self._pending: Future[None] | None = None
        self._num_saved = 0
        self._begun = time.perf_counter()  # when the last save began; at first, this writer
        self.seconds = 0.0  # spent on writing
        for path in self.folder.glob("*"):
            if path.suffix in (_BEGUN, _DROPPED):
                shutil.rmtree(path, ignore_errors=True)
            elif path.suffix == _PINNED and path.stem.isdecimal():
                self._pinned.add(int(path.stem))
        for steps in steps_in(self.folder):
            with contextlib.suppress(CheckpointError):  # a damaged one is left alone
                manifest = read_manifest(self.folder / _name(steps))
                self._scores[steps] = manifest.get("score") if compares(manifest) else None

    def save(self, steps: int, tree: PyTree, facts: dict[str, Any], score: float | None) -> None:
        """Start to write NumPy arrays; raise errors of the checkpoint before, as `wait` does."""
        self.wait()
        self._num_saved, self._begun = self._num_saved + 1, time.perf_counter()
        self._pending = self._threads.submit(self._save, steps, flatten(tree), facts, score)

    def wait(self) -> None:
        """Wait until all is written; `CheckpointError` if that failed."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    @property
    def age(self) -> float:
        """Return the seconds since the last save began; before the first, since the start."""
        return time.perf_counter() - self._begun

    @property
    def seconds_each(self) -> float:
        """Return the mean seconds of a save; before the first, a guess."""
        return self.seconds / self._num_saved if self._num_saved else 0.1

    @property
    def is_writing(self) -> bool:
        """Return whether a checkpoint is still being written."""
        return self._pending is not None and not self._pending.done()

    def pin(self) -> None:
        """Keep the latest checkpoint for good, as the last one before a failure."""
        self.wait()
        if self._scores:
            latest = max(self._scores)
            self._pinned.add(latest)
            (self.folder / f"{_name(latest)}{_PINNED}").touch()

    def is_milestone(self, steps: int, before: int) -> bool:
        """Return whether a milestone was reached after step `before`."""
        return any(before < milestone <= steps for milestone in self._milestones)

    def _save(
        self, steps: int, arrays: dict[str, np.ndarray], facts: dict[str, Any], score: float | None
    ) -> None:
        path, start = self.folder / _name(steps), time.perf_counter()
        try:
            self.folder.mkdir(exist_ok=True)
            score = self._scores.get(steps) if score is None else score  # if it is saved again
            _write(path, arrays, {**facts, "steps": steps, "score": score})
            self._scores[steps] = score
            self._drop()
            self.seconds += time.perf_counter() - start
        except Exception as error:  # orbax wraps errors of the file system in its own
            shutil.rmtree(path.with_name(path.name + _BEGUN), ignore_errors=True)
            rest = "; earlier checkpoints are intact" if self._scores else ""
            raise CheckpointError(f"{path}: cannot be written ({_brief(error)}){rest}") from error

    def _drop(self) -> None:
        latest = sorted(self._scores)[-self._keep :]
        finite = {s: x for s, x in self._scores.items() if x is not None and np.isfinite(x)}
        best = [max(finite, key=lambda s: (finite[s], -s))] if finite else []
        firsts = [min((s for s in self._scores if s >= m), default=-1) for m in self._milestones]
        for steps in set(self._scores) - {*latest, *best, *firsts, *self._pinned}:
            _remove(self.folder / _name(steps))
            del self._scores[steps]


def recover(run_dir: Path) -> None:
    """Finish saves that were interrupted between the manifest, written last, and the rename."""
    for begun in (run_dir / FOLDER).glob(f"*{_BEGUN}"):
        path = begun.with_name(begun.name.removesuffix(_BEGUN))
        with contextlib.suppress(CheckpointError):
            read_manifest(begun)  # it is written last
            if not path.exists():
                begun.rename(path)


def steps_in(folder: Path) -> list[int]:
    """Return the steps of all checkpoints in `folder`, damaged ones included, in order.

    Other names, such as numbers without leading zeros, are not checkpoints.
    """
    if not folder.is_dir():
        return []
    names = [path.name for path in folder.iterdir()]
    return sorted(int(name) for name in names if name.isdecimal() and name == _name(int(name)))


def path_of(run_dir: Path, steps: int) -> Path:
    """Return the path of the checkpoint of a step."""
    return run_dir / FOLDER / _name(steps)


def read(path: Path) -> Checkpoint:
    """Read a checkpoint; `CheckpointError` if it is incomplete or was changed."""
    manifest = read_manifest(path)
    written = manifest["files"]
    try:
        stored = {str(file.relative_to(path)): _digest(file) for file in _files(path)}
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({_brief(error)})") from error
    stored.pop(MANIFEST, None)  # it has a checksum of its own
    for name in sorted({*written, *stored}):
        if stored.get(name) != written.get(name):
            raise CheckpointError(f"{path}: {name} is not as it was written (SHA-256 differs)")
    arrays = _unpack(_restore(path / _ARRAYS), manifest["layout"])
    for old, new in _RENAMED.get(manifest["format"], {}).items():
        arrays = {re.sub(rf"{re.escape(old)}\b", new, name): x for name, x in arrays.items()}
    return Checkpoint(path, manifest["steps"], manifest, arrays)


def read_manifest(path: Path) -> dict[str, Any]:
    """Read the manifest of a checkpoint; `CheckpointError` if it is missing or was changed."""
    try:
        text = (path / MANIFEST).read_text("utf-8")
        if not is_sealed(text):
            raise ValueError("it is not as it was written: its SHA-256 differs")
    except FileNotFoundError as error:
        missing = f"{path}: has no {MANIFEST}; it was not written completely"
        raise CheckpointError(missing) from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {MANIFEST} cannot be read ({_brief(error)})") from error
    manifest: dict[str, Any] = json.loads(text)
    if manifest["format"] not in (FORMAT, *_RENAMED):
        raise CheckpointError(
            f"{path}: is of format {manifest['format']}, and this version of jaxppo reads formats "
            f"{', '.join(map(str, (*_RENAMED, FORMAT)))}; it was written by jaxppo "
            f"{manifest['versions'].get('jaxppo')}"
        )
    return manifest


_SEAL = re.compile(r'\{"sha256": "([0-9a-f]{64})", ')


def sealed(facts: dict[str, Any]) -> str:
    """Return JSON in which the first entry is the SHA-256 of the text of all others."""
    rest = json.dumps(facts)[1:]
    return f'{{"sha256": "{hashlib.sha256(rest.encode()).hexdigest()}", {rest}'


def is_sealed(text: str) -> bool:
    """Return whether a text is unchanged since `sealed` made it."""
    seal = _SEAL.match(text)
    return seal is not None and hashlib.sha256(text[seal.end() :].encode()).hexdigest() == seal[1]


def newest(run_dir: Path) -> tuple[Checkpoint | None, list[str]]:
    """Return the latest usable checkpoint, and a line about each newer one that was skipped.

    None if there are no checkpoints; `CheckpointError` if there is none to go on from.
    """
    checkpoints, lines = newest_of_all([run_dir])
    return (checkpoints[0] if checkpoints else None), lines


def newest_of_all(run_dirs: Sequence[Path]) -> tuple[list[Checkpoint], list[str]]:
    """Return each run's checkpoint of the latest step at which all are intact.

    At least one run must not have failed then: failed runs are saved only so that all runs of a
    program have the same steps. Also return a line about each newer step. The list is
    empty if one of the runs has no checkpoints; `CheckpointError` if all have, but none is usable.
    """
    folders = [run_dir / FOLDER for run_dir in run_dirs]
    existing = [set(steps_in(folder)) for folder in folders]
    lines: list[str] = []
    for steps in sorted(set.intersection(*existing), reverse=True):
        try:
            found = [read(path_of(run_dir, steps)) for run_dir in run_dirs]
        except CheckpointError as error:
            if not all(steps in steps_in(folder) for folder in folders):
                return newest_of_all(run_dirs)  # a run that trains has newer ones by now
            lines.append(f"{error}; skipped")
        else:
            if not all(map(_has_failed, found)):
                return found, lines
            lines.append(f"{found[0].path}: was saved after the run failed; skipped")
    if all(existing) and not lines:
        raise CheckpointError(
            f"{', '.join(map(str, folders))}: have no step in common; resume each run alone, or "
            "train again in other directories"
        )
    if lines:
        raise CheckpointError(
            f"{folders[0]}: none of {len(lines)} checkpoints can be used; the latest: "
            f"{lines[0].removesuffix('; skipped')}; train again in another directory"
        )
    return [], []


def _has_failed(found: Checkpoint) -> bool:
    """Return whether no member goes on."""
    members = found.facts.get("members", [])
    return bool(members) and all(member.get("failure") is not None for member in members)


def concatenate(found: Sequence[Checkpoint]) -> dict[str, np.ndarray]:
    """Return the arrays of several runs, `[P, ...]` with the members of all in turn."""
    return {name: np.concatenate([c.arrays[name] for c in found]) for name in found[0].arrays}


def put_aside(run_dir: Path, after: int) -> None:
    """Rename the checkpoints after step `after`: they are not resumed from, and block new ones."""
    for steps in steps_in(run_dir / FOLDER):
        if steps > after:
            path = path_of(run_dir, steps)
            aside = path.with_name(path.name + _DAMAGED)
            _remove(aside)
            path.rename(aside)


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of the libraries that affect results and stored files."""
    found = {}
    for name in _VERSIONS:
        # A checkout may not be installed
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _name(steps: int) -> str:
    return f"{steps:012}"


def _write(path: Path, arrays: dict[str, np.ndarray], facts: dict[str, Any]) -> None:
    begun = path.with_name(path.name + _BEGUN)
    _remove(begun)
    begun.mkdir()
    with _orbax() as checkpointer:
        checkpointer.save((begun / _ARRAYS).absolute(), _pack(arrays))
    layout = {name: [str(x.dtype), x.shape] for name, x in arrays.items()}
    files = {str(file.relative_to(begun)): _digest(file, sync=True) for file in _files(begun)}
    manifest = {"format": FORMAT, "versions": versions(), **facts, "layout": layout, "files": files}
    with (begun / MANIFEST).open("w", encoding="utf-8") as file:
        file.write(sealed(manifest))
        file.flush()
        os.fsync(file.fileno())
    dropped = _moved(path)  # renaming takes a moment, deleting takes longer
    begun.rename(path)
    shutil.rmtree(dropped, ignore_errors=True)


def _pack(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Concatenate all arrays into one vector per data type.

    Stored one by one, each would cost orbax a millisecond, and tensorstore memory that it never
    frees.
    """
    vectors: dict[str, list[np.ndarray]] = {}
    for array in arrays.values():
        if array.size:  # orbax takes no vector without elements
            vectors.setdefault(str(array.dtype), []).append(array.ravel())
    return {dtype: np.concatenate(parts) for dtype, parts in vectors.items()}


def _unpack(vectors: dict[str, np.ndarray], layout: dict[str, Any]) -> dict[str, np.ndarray]:
    """Split vectors into arrays; `layout` has the data type and shape of each, in order."""
    arrays, used = {}, dict.fromkeys(vectors, 0)
    for name, (dtype, shape) in layout.items():
        start, size = used.get(dtype, 0), math.prod(shape)
        found = vectors[dtype][start : start + size] if size else np.zeros(0, dtype)
        arrays[name] = found.reshape(shape)
        used[dtype] = start + size
    return arrays


def _restore(path: Path) -> dict[str, np.ndarray]:
    with _orbax() as checkpointer:
        try:
            found: dict[str, np.ndarray] = checkpointer.restore(path.absolute())
        except Exception as error:
            raise CheckpointError(f"{path}: orbax cannot read it ({_brief(error)})") from error
    return found


def _orbax() -> Any:
    import orbax.checkpoint as ocp

    logging.getLogger("absl").addFilter(_is_news)
    own = processes.index()  # of several processes only this one reads or writes now
    options = ocp.options.MultiprocessingOptions(
        primary_host=own, active_processes={own}, barrier_sync_key_prefix=f"host{own}"
    )
    # OCDBT files are merged by a glob, which finds none below a directory such as run[1]
    handler = ocp.StandardCheckpointHandler(multiprocessing_options=options, use_ocdbt=False)
    return ocp.Checkpointer(handler, multiprocessing_options=options)


def _is_news(record: logging.LogRecord) -> bool:
    """Drop what orbax logs for each checkpoint, and tracebacks of errors that it also raises."""
    message = str(record.msg)
    return "_SignalingThread" not in message and "Skipping merge of OCDBT" not in message


def _files(path: Path) -> Iterator[Path]:
    return (file for file in sorted(path.rglob("*")) if file.is_file())


def _digest(file: Path, *, sync: bool = False) -> str:
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
        if sync:  # so that it survives a power cut after the rename
            os.fsync(opened.fileno())
    return digest


def _remove(path: Path) -> None:
    """Delete a directory; it is renamed first, so that no partial checkpoint remains."""
    if path.exists():
        shutil.rmtree(_moved(path), ignore_errors=True)  # else the next writer deletes it


def _moved(path: Path) -> Path:
    """Rename a directory, if it exists, so that it can be deleted; return the new path."""
    dropped = path.with_name(path.name + _DROPPED)
    shutil.rmtree(dropped, ignore_errors=True)
    if path.exists():
        path.rename(dropped)
    return dropped


def _brief(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if match := re.search(r"([\w ]+) \[os_error_code=", str(error)):  # the format of tensorstore
        return match[1].strip()
    return brief(error)
