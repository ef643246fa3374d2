"""What processes inherit from a run and from the processes of its simulators.

A program that an environment starts must not inherit their pipes: otherwise nobody would notice
that the process died. It should not outlive the run either (after `kill -9` of the run it may).
"""

import contextlib
import os
import signal

_ends: set[int] = set()  # descriptors that no child keeps
_groups: set[int] = set()  # of the processes of simulators, which this process has started


def keep_from(*descriptors: int) -> None:
    """Keep descriptors from the programs that this process starts, and from its forks."""
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    _ends.update(descriptors)


def forget(*descriptors: int) -> None:
    """Say that descriptors are about to be closed."""
    _ends.difference_update(descriptors)


def started(group: int) -> None:
    """Remember a process that leads a group, for `kill_all`."""
    _groups.add(group)


def kill(group: int) -> None:
    """End a group of processes: one of simulators, and what its environments have started."""
    _groups.discard(group)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def kill_all() -> None:
    """End all such groups, in a process that ends at once."""
    for group in list(_groups):
        kill(group)


def _replace_in_fork() -> None:
    """Lead descriptors nowhere; they stay in use, since objects may close them."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in _ends:
        os.dup2(nowhere, descriptor, inheritable=False)
    os.close(nowhere)
    _ends.clear()
    _groups.clear()


os.register_at_fork(after_in_child=_replace_in_fork)
