"""Waiting without sleeping, for a short time: to wake up takes tens of microseconds."""

import os
import select
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

SECONDS = 5e-4  # longer than it takes to choose actions for a few environments


class Spinner:
    """Waits for messages of all `connections`, see `wait`."""

    def __init__(self, connections: Sequence[Connection]) -> None:
        self._num = len(connections)
        self._polling = select.poll()
        for connection in connections:
            self._polling.register(connection.fileno(), select.POLLIN)

    def wait(self) -> None:
        """Return when all have a message or have ended, or when `SECONDS` have passed."""
        end = time.perf_counter() + SECONDS
        while len(self._polling.poll(0)) < self._num and time.perf_counter() < end:
            os.sched_yield()  # to whoever else wants this core
