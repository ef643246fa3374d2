"""What reaches a run from outside: signals, and a second run in its directory."""

import contextlib
import fcntl
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from jaxppo.config import ConfigError

_LOCK = ".lock"  # in the run directory; the kernel lets go of it whenever the process ends


class Interrupted(KeyboardInterrupt):
    """SIGINT or SIGTERM ended a run, after it was saved: one line."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.status = 128 + number  # of the process, as shells have it


class Signals:
    """While it listens, SIGINT and SIGTERM are noted, for the run to ask after its block.

    The process ends at once on a second SIGINT, and on the first signal while there is nothing to
    save (`at_once`): a compiler cannot be asked to stop. Outside the main thread, which alone may
    listen, nothing is noted.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.way_on = ""  # what a user can do next
        self._before_end: Callable[[], object] | None = None  # set where nothing is to be saved

    @contextlib.contextmanager
    def listen(self) -> Iterator[None]:
        """Note signals until the block ends."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, lambda *_: None) for number in numbers}
        wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        # The thread hears of a signal while the main thread is inside the compiler or a program.
        watcher = threading.Thread(target=self._watch, args=(reading,), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(writing)
            watcher.join()
            os.close(reading)

    @contextlib.contextmanager
    def at_once(self, before_end: Callable[[], object]) -> Iterator[None]:
        """In this block a signal ends the process, after `before_end` in another thread.

        What is on the disk by then is all that there is to save.
        """
        self._before_end = before_end
        try:
            if self.received is not None:
                self._end(self.received)
            yield
        finally:
            self._before_end = None

    def _watch(self, reading: int) -> None:
        while received := os.read(reading, 1):
            number = received[0]
            if number not in (signal.SIGINT, signal.SIGTERM):
                continue
            again = self.received is not None and number == signal.SIGINT
            self.received = self.received or number
            if again or self._before_end is not None:
                self._end(number)

    def _end(self, number: int) -> NoReturn:
        with contextlib.suppress(Exception):
            if self._before_end is not None:
                self._before_end()
        sys.stderr.write(f"{signal.Signals(number).name}: stopped at once{self.way_on}\n")
        os._exit(128 + number)


@contextlib.contextmanager
def only_run_in(run_dir: Path) -> Iterator[None]:
    """`ConfigError` while another process runs there."""
    with (run_dir / _LOCK).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise ConfigError(
                f"{run_dir}: process {file.read().strip()} is writing there; wait until it ends, "
                "or choose another directory"
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
