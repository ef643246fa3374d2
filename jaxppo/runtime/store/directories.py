"""Check and lock run directories."""

import fcntl
import os
import re
from pathlib import Path
from typing import IO

from jaxppo.config.fields import ConfigError
from jaxppo.config.stored import CONFIG, METRICS, make_folder
from jaxppo.runtime.store import checkpoint

_LOCK = ".lock"  # in the run directory; the kernel releases it when the process ends

_claimed: dict[Path, IO[str]] = {}  # locks that this process holds for a later run


def only_run_in(folder: Path) -> IO[str]:
    """Lock a directory in a `with`; `ConfigError` if another run, of any process, writes there."""
    return _claimed.pop(folder.resolve(), None) or _lock(folder)


def claim(folder: Path) -> None:
    """Lock a directory until `only_run_in` takes over; it raises the same `ConfigError`."""
    if folder.resolve() not in _claimed:
        _claimed[folder.resolve()] = _lock(folder)


def release(folder: Path) -> None:
    """Release a claim that was not taken over, if there is one."""
    file = _claimed.pop(folder.resolve(), None)
    if file is not None:
        file.close()


def _lock(folder: Path) -> IO[str]:
    """Return the locked file; closing it releases the lock."""
    file = (folder / _LOCK).open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        holder = file.read().strip()
        file.close()
        raise ConfigError(
            f"{folder}: process {holder} is writing there; wait until it ends, or choose another "
            "directory"
        ) from error
    except OSError:
        pass  # some file systems have no locks
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def check_tree(key: str, folder: Path) -> None:
    """Raise `ConfigError` if a run's directory contains special files or links that lead outside.

    Writing to such a link would write elsewhere.
    """
    inside = folder.resolve()
    for root, folders, files in os.walk(folder):
        for path in (Path(root, name) for name in (*folders, *files)):
            target, what = path.resolve(), None
            if path.is_symlink() and not target.is_relative_to(inside):
                what = f"a link to {target}, outside of the run; put what it leads to in its place"
            elif not (path.is_file() or path.is_dir() or path.is_symlink()):
                what = "neither a file nor a directory; remove it"
            if what:
                raise ConfigError(f"{key}={folder}: {path.relative_to(folder)} is {what}")


def sign_of_run(folder: Path) -> str | None:
    """Return the name of a file or folder in `folder` that a run wrote; None if there is none."""
    for name in (METRICS, CONFIG):
        if (folder / name).exists():
            return name
    return checkpoint.FOLDER if any((folder / checkpoint.FOLDER).glob("*")) else None


def seed_of(folder: Path) -> int | None:
    """Return the seed of a member that has its own folder, seed_N; None for other folders."""
    found = re.fullmatch(r"seed_(\d+)", folder.name, re.ASCII)
    return int(found[1]) if found else None


def check_run_dir(key: str, run_dir: Path) -> None:
    """Raise `ConfigError` if a run cannot be written to `run_dir`, which may not exist yet."""
    if name := sign_of_run(run_dir):
        raise ConfigError(
            f"{key}={run_dir}: holds a run already ({name}); choose another directory"
        )
    existing = next(path for path in (run_dir, *run_dir.absolute().parents) if path.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
        raise ConfigError(
            f"{key}={run_dir}: {existing} is not a directory that can be written to; choose another"
        )


def as_path(key: str, value: str | Path) -> Path:
    """Return `value` as a path; `ConfigError` if it is neither text nor a path."""
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(f"{key}={value!r}: must be a directory, as text or a Path")
    return Path(value)


def check_is_run(given: str, folder: Path) -> None:
    """Raise `ConfigError`, which begins with what was `given`, unless `folder` holds a run."""
    if not (folder / CONFIG).is_file():
        raise ConfigError(
            f"{given}: is not the directory of a run, which has a {CONFIG}; look below outputs or "
            "multirun"
        )


def output_folder(out: str | Path) -> Path:
    """Make the directory of a setting `out`; `ConfigError` if it cannot be written to."""
    path = make_folder("out", Path(out), "another directory")
    if not os.access(path, os.W_OK):
        raise ConfigError(f"out={path}: cannot be written to; choose another directory")
    return path
