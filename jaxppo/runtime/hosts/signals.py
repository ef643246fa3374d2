"""Handle the signals that a run receives."""

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from jaxppo.config.messages import write_error
from jaxppo.runtime.hosts import processes
from jaxppo.simulators import children


class Interrupted(KeyboardInterrupt):
    """A signal ended a run, after it was saved. The message is one line."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.status = 128 + number  # exit status of the process, as in shells


PATIENCE = 4.0  # seconds for which an evaluation or a rollout may continue after a signal
_LISTENED = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


class Signals:
    """Records SIGINT, SIGTERM and SIGHUP, so that a run can stop in an orderly way.

    Training checks `received` about once a second. Work that cannot check it (the compiler, an
    evaluation) runs within `ending`. A second SIGINT ends the process at once. Ignored signals stay
    ignored, such as SIGHUP under nohup. Outside the main thread signals are not recorded.
    """

    def __init__(self) -> None:
        self.received: int | None = None  # by this process
        self.plan = "stopping"  # what the run will do on a signal, for the message
        self.resume_hint = ""  # end of the message: how to resume
        self._before_end: Callable[[], str] | None = None
        self._patience = self._deadline = 0.0  # `_before_end` is not called before the deadline
        self._ending = threading.RLock()  # while the process ends, no `ending` block is left

    @contextlib.contextmanager
    def listen(self) -> Iterator[None]:
        """Record signals until the block ends."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        numbers = [n for n in _LISTENED if signal.getsignal(n) is not signal.SIG_IGN]
        before = {number: signal.signal(number, lambda *_: None) for number in numbers}
        wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        # This thread receives signals even while the main thread is in the compiler or a program.
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

    def agreed(self) -> int | None:
        """Return a signal that a process of the run has received; all processes must call."""
        return next(
            (number for number in processes.gather(self.received) if number is not None), None
        )

    @contextlib.contextmanager
    def ending(self, before_end: Callable[[], str], patience: float = 0.0) -> Iterator[None]:
        """Let a signal end the process during this block, after `before_end()` in another thread.

        `before_end` returns what it did in words. With `patience`, the process ends only if the
        block still runs that many seconds after the signal. Of several processes none ends then:
        they save together after the block.
        """
        if patience and processes.count() > 1:
            yield
            return
        self._deadline = time.monotonic() + patience
        self._patience, self._before_end = patience, before_end
        try:
            if self.received is not None and not patience:
                self._end(self.received)
            yield
        finally:
            with self._ending:
                self._before_end = None

    def _watch(self, reading: int, numbers: Sequence[int]) -> None:
        while True:
            # After a signal the main thread may enter an `ending` block, so check again soon.
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
            with self._ending:
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
        except Exception as error:  # the process ends even if saving fails
            done = f" ({error})"
        if sys.stderr.isatty():
            _say("\x1b[?25h")  # a progress bar hides the cursor
        _say(f"{signal.Signals(number).name}: stopped at once{done}{self.resume_hint}")
        children.kill_all()
        processes.abandon(128 + number)
        os._exit(128 + number)


def _say(line: str) -> None:
    if processes.is_first():  # of several processes only the first speaks
        write_error(line)


class Interrupts(Signals):
    """The same in a process that belongs to the caller: only Ctrl-C counts, and none ends it.

    The first Ctrl-C during training is recorded. Everywhere else, and the second time, it raises
    `KeyboardInterrupt` as usual.
    """

    def __init__(self) -> None:
        super().__init__()
        self._raises = False

    @contextlib.contextmanager
    def listen(self) -> Iterator[None]:
        """Record Ctrl-C until the block ends."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, self._receive)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before or signal.default_int_handler)

    @contextlib.contextmanager
    def ending(self, before_end: Callable[[], str], patience: float = 0.0) -> Iterator[None]:
        """Without `patience`, let Ctrl-C raise `KeyboardInterrupt` during this block."""
        self._raises = not patience
        try:
            if self.received is not None and self._raises:
                raise KeyboardInterrupt
            yield
        finally:
            self._raises = False

    def _receive(self, number: int, _: Any) -> None:
        if self._raises or self.received is not None:
            raise KeyboardInterrupt
        self.received = number
        _say(f"Ctrl-C: {self.plan}; once more stops at once")
