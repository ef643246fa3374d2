"""Signals that reach a run."""

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn


class Interrupted(KeyboardInterrupt):
    """SIGINT or SIGTERM ended a run, after it was saved: one line."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.status = 128 + number  # of the process, as shells have it


_LISTENED = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


class Signals:
    """While it listens, SIGINT, SIGTERM and SIGHUP are noted, for the run to ask about.

    Training is asked about every second or so. What cannot be asked (the compiler, an evaluation)
    runs within `ending`. A second SIGINT ends the process at once. A signal that is ignored, as
    SIGHUP under nohup, stays ignored. Outside the main thread, which alone may listen, nothing is
    noted.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.plan = "stopping"  # what the run is going to do about a signal
        self.way_on = ""  # what a user can do next
        self._before_end: Callable[[], str] | None = None
        self._patience = self._deadline = 0.0  # `_before_end` is not called before the deadline

    @contextlib.contextmanager
    def listen(self) -> Iterator[None]:
        """Note signals until the block ends."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        numbers = [n for n in _LISTENED if signal.getsignal(n) is not signal.SIG_IGN]
        before = {number: signal.signal(number, lambda *_: None) for number in numbers}
        wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        # The thread hears of a signal while the main thread is inside the compiler or a program.
        watcher = threading.Thread(target=self._watch, args=(reading, numbers), daemon=True)
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
    def ending(self, before_end: Callable[[], str], patience: float = 0.0) -> Iterator[None]:
        """In this block a signal ends the process, after `before_end()` in another thread.

        That returns what it did, in words. With `patience` only where the block is still running so
        many seconds after the signal.
        """
        self._deadline = time.monotonic() + patience
        self._patience, self._before_end = patience, before_end
        try:
            if self.received is not None and not patience:
                self._end(self.received)
            yield
        finally:
            self._before_end = None

    def _watch(self, reading: int, numbers: Sequence[int]) -> None:
        while True:
            # Once a signal is there, the main thread may begin a block that it is to end.
            ready, _, _ = select.select([reading], [], [], None if self.received is None else 0.1)
            if ready:
                received = os.read(reading, 1)
                if not received:
                    return
                if received[0] not in numbers:
                    continue
                if self.received is None:
                    self._note(received[0])
                elif received[0] == signal.SIGINT:
                    self._before_end = None
                    self._end(received[0])
            if (
                self.received is not None
                and self._before_end is not None
                and time.monotonic() >= self._deadline
            ):
                self._end(self.received)

    def _note(self, number: int) -> None:
        self._deadline = time.monotonic() + self._patience
        self.received = number
        if self._before_end is None or self._patience:
            again = "; Ctrl-C once more stops at once" if number == signal.SIGINT else ""
            _say(f"{signal.Signals(number).name}: {self.plan}{again}")

    def _end(self, number: int) -> NoReturn:
        done = ""
        try:
            if self._before_end is not None:
                done = self._before_end()
        except Exception as error:  # whatever cannot be saved, the process ends
            done = f" ({error})"
        if sys.stderr.isatty():
            _say("\x1b[?25h")  # a progress bar hides the cursor
        _say(f"{signal.Signals(number).name}: stopped at once{done}{self.way_on}")
        os._exit(128 + number)


def _say(line: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # nobody listens
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
