"""The folder of compiled programs: no damaged entries, and a bounded size.

JAX reads and writes the entries. A kill or a full disk leaves a damaged entry, which JAX never
replaces but warns of in every run. JAX's own limit needs a lock, and 0.1 s for each write among a
thousand entries. So repair and limit are done here, once when a run begins.
"""

import contextlib
import functools
import importlib
import os
import re
import shutil
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import jax

from jaxppo.config.stored import make_folder

SIZE = 2**30  # bytes of all entries, beyond which some are deleted
LIMIT = "JAX_COMPILATION_CACHE_MAX_SIZE"  # variable of JAX that replaces SIZE; -1: no limit, 0: off
_FOLDER = "JAX_COMPILATION_CACHE_DIR"
_ENTRY = re.compile(r".+-[0-9a-f]{64}-(cache|atime)")  # an entry of JAX, and when it was read
_CHECKED = ".checked"  # file as old as the last check
_ZSTANDARD = b"\x28\xb5\x2f\xfd"  # which JAX takes instead of zlib where it is installed


def use(setting: str | None) -> None:
    """Cache all compiled programs in a folder, even small ones; None: no cache.

    `ConfigError` if it cannot be made. A folder in JAX_COMPILATION_CACHE_DIR takes precedence: it
    is left to JAX.
    """
    limit = int(os.environ.get(LIMIT, SIZE))
    if setting is None or limit == 0 or os.environ.get(_FOLDER):
        return
    folder = make_folder("arch.compile_cache", path_of(setting), "another, or null for no cache")
    folder = folder.absolute()  # the working directory may change
    with contextlib.suppress(OSError):  # a folder that only others may write to can be read
        tend(folder, limit)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_compilation_cache_max_size", -1)  # `tend` keeps the limit
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def path_of(setting: str) -> str:
    """Return the folder of a setting: XDG_CACHE_HOME, if it is set, stands for `~/.cache`."""
    caches = os.environ.get("XDG_CACHE_HOME", "")
    inner = setting.removeprefix("~/.cache/")
    return os.path.join(caches, inner) if os.path.isabs(caches) and inner != setting else setting


@functools.cache  # once in a process
def tend(folder: Path, limit: int) -> None:
    """Delete damaged entries; if those left exceed `limit`, also the ones last read longest ago.

    The latter go until a quarter of the limit is free. Entries that did not change since the
    last check are not read. Other processes may read, write and tend the folder at the same time.
    """
    checked, began = folder / _CHECKED, time.time()
    since = checked.stat().st_mtime if checked.exists() else 0.0
    whole = []
    for entry in _entries(folder):
        with contextlib.suppress(OSError):  # deleted by another process, or not ours to change
            status = entry.stat()
            if status.st_mtime >= since:
                if not _is_whole(entry.read_bytes()):
                    entry.unlink()
                    continue
                with contextlib.suppress(OSError):  # this read is not a use
                    os.utime(entry, ns=(status.st_atime_ns, status.st_mtime_ns))
            whole.append((max(status.st_atime, status.st_mtime), status.st_size, entry))
    excess = sum(size for _, size, _ in whole) - limit
    if limit > 0 and excess > 0:
        excess += limit // 4
        for _, size, entry in sorted(whole):
            if excess > 0:
                with contextlib.suppress(OSError):
                    entry.unlink()
                    excess -= size
    checked.touch()
    os.utime(checked, (began, began))  # what was written since is checked next time


def _is_whole(entry: bytes) -> bool:
    """Return whether an entry can be decompressed; True if only other programs could."""
    try:
        if entry.startswith(_ZSTANDARD):
            importlib.import_module("zstandard").ZstdDecompressor().decompress(entry)
        else:
            zlib.decompress(entry)
    except ImportError:
        return True
    except Exception:  # the errors of the two libraries have no common class
        return False
    return True


def _entries(folder: Path, kind: str = "cache") -> Iterator[Path]:
    """Yield JAX's own files: a folder of a user's may hold others, also pipes."""
    for path in folder.iterdir():
        name = _ENTRY.fullmatch(path.name)
        if name and name[1] == kind and path.is_file():
            yield path


def clear(folder: Path) -> tuple[int, int]:
    """Delete what JAX and `tend` wrote to a folder; return how many programs and their bytes."""
    sizes = []
    for entry in _entries(folder) if folder.is_dir() else ():
        with contextlib.suppress(FileNotFoundError):
            sizes.append(entry.stat().st_size)
            entry.unlink()
    for path in (*(_entries(folder, "atime") if folder.is_dir() else ()), folder / _CHECKED):
        path.unlink(missing_ok=True)
    for path in folder.glob("xla_gpu_*_cache_dir"):
        shutil.rmtree(path, ignore_errors=True)
    return len(sizes), sum(sizes)
