"""Limits of the Linux control groups that this process is in, as containers and SLURM set them."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

_OF, _ROOT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def memory_limits(of: Path = _OF, root: Path = _ROOT) -> list[int]:
    """Return the memory limits in bytes of the process's groups and their parents."""
    limits = []
    for group, version in _groups("memory", of, root):
        file = "memory.max" if version == 2 else "memory.limit_in_bytes"
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            limits.append(int((group / file).read_text()))
    return limits


def core_limits(of: Path = _OF, root: Path = _ROOT) -> list[float]:
    """Return the quotas of the process's groups and their parents, in CPU cores."""
    limits = []
    for group, version in _groups("cpu", of, root):
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            if version == 2:
                quota, period = map(int, (group / "cpu.max").read_text().split())
            else:
                quota = int((group / "cpu.cfs_quota_us").read_text())  # -1: no quota
                period = int((group / "cpu.cfs_period_us").read_text())
            if quota > 0:
                limits.append(quota / period)
    return limits


def _groups(controller: str, of: Path, root: Path) -> Iterator[tuple[Path, int]]:
    """Yield folders of groups of a controller, and the version of their files.

    Each line of `of` is `number:controllers:path`; version 2 has one line without controllers.
    """
    for line in of.read_text().splitlines() if of.is_file() else []:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        inner = (root / controller if controllers else root) / path.lstrip("/")
        for group in (inner, *inner.parents):
            yield group, 1 if controllers else 2
