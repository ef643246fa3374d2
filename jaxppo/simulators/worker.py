"""The process of a group of environments, started by `pool`."""

import contextlib
import fcntl
import mmap
import os
import pickle
import signal
import sys
import warnings
from multiprocessing.connection import Connection
from typing import Any

from jaxppo.config.messages import raised
from jaxppo.simulators import children
from jaxppo.simulators.faults import ANY_ERROR
from jaxppo.simulators.spaces import Arrays
from jaxppo.simulators.spinning import Spinner

STEP, STEP_ALONE, RESET, CLOSE = b"s", b"e", b"r", b"c"


def main(commands: int, results: int, life: int, memory: int) -> None:
    """Serve one group: read commands, and answer each.

    An answer is a pickle: the faults of environments, or text if the process has failed itself.
    The arguments are file descriptors. The process ends when the other end of `life` closes, also
    while an environment hangs.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # The parent ends this process. A handler, since programs of environments inherit SIG_IGN
        signal.signal(number, lambda *_: None)
    _end_with(life)
    children.keep_from(commands, results, life, memory)
    reading = Connection(commands, writable=False)
    writing = Connection(results, readable=False)
    group = None
    with contextlib.suppress(EOFError, BrokenPipeError):
        try:
            group = _make(reading.recv_bytes(), memory)
        except ANY_ERROR as error:
            writing.send_bytes(pickle.dumps(raised(error)))
            return
        writing.send_bytes(pickle.dumps([]))
        _serve(group, reading, writing)
    if group is not None:
        group.close()


def _make(payload: bytes, memory: int) -> Any:
    sys.path[:], sent, rows = pickle.loads(payload)
    warnings.simplefilter("ignore")  # the process that started this one has shown them
    kind, make, num, observations, actions, metrics, restart = pickle.loads(sent)
    arrays = Arrays(num, observations, actions, mmap.mmap(memory, 0), metrics)
    return kind(make, rows, arrays, observations, restart=restart)


def _serve(group: Any, reading: Connection, writing: Connection) -> None:
    spinner = Spinner([reading])
    while (command := reading.recv_bytes()) != CLOSE:
        try:
            faults = group.reset() if command == RESET else group.step(resets=command == STEP)
        except ANY_ERROR as error:  # of an environment that was made anew
            writing.send_bytes(pickle.dumps(f"cannot be made again: {raised(error)}"))
            return
        writing.send_bytes(pickle.dumps(faults))
        spinner.wait()


def _end_with(life: int) -> None:
    """Let the kernel end this process, by SIGIO, when the other end of a pipe closes."""
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
