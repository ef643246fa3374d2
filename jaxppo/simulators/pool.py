"""Many environments that step together, in this process or in processes of their own."""

import contextlib
import itertools
import mmap
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol

import cloudpickle
import numpy as np

from jaxppo.config.messages import raised
from jaxppo.simulators import children
from jaxppo.simulators.faults import ANY_ERROR, Fault, SimulatorError
from jaxppo.simulators.group import Group
from jaxppo.simulators.spaces import Arrays, Leaf
from jaxppo.simulators.spinning import Spinner
from jaxppo.simulators.worker import CLOSE, RESET, STEP, STEP_ALONE

STARTING_SECONDS = 300.0  # that a process may take to make its environments
CLOSING_SECONDS = 2.0  # that it may take to close them
_SHARED = Path("/dev/shm")  # in memory, on Linux


class Simulators(Protocol):
    """`N` environments that step together. Their results are in `arrays`."""

    arrays: Arrays
    restarts: int  # environments that were made anew after a fault

    def reset(self, rows: Sequence[int], seeds: Sequence[int]) -> None:
        """Start episodes in some environments."""

    def step(self, actions: Sequence[np.ndarray], rows: np.ndarray | None = None) -> None:
        """Step all environments by actions `[N, ...]`; an episode that ends starts the next.

        With `rows` `[N]` bool, step only those, and start nothing.
        """

    def abandon(self) -> None:
        """End processes at once, for a thread that waits in `step`: it raises `SimulatorError`.

        Environments in this process cannot be ended.
        """

    def close(self) -> None:
        """End all processes, and close all environments."""


class Pool:
    """`Simulators` of Gymnasium environments, which `make()` makes, or another `kind` of group.

    `num_processes` share them: this process and new ones; 1: a new one; 0: only this one. All are
    new if they are `isolated`, as `restart` and `timeout` need it. `SimulatorError` after a fault,
    unless `restart` is set: then the environment is made anew. A process that needs more than
    `timeout` seconds to step its environments once is replaced, with all of them. `metrics` are
    the numbers of `info` that are kept.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        num: int,
        observations: Sequence[Leaf],
        actions: Sequence[Leaf],
        *,
        num_processes: int = 0,
        isolated: bool = False,
        restart: bool = False,
        timeout: float | None = None,
        kind: Callable[..., Any] = Group,
        metrics: Sequence[str] = (),
    ) -> None:
        self.restarts = 0
        self._kind = kind
        self._restart, self._timeout = restart, timeout
        self._workers: list[_Worker] = []
        self._file = -1  # of the memory that they share
        self._group: Any = None  # of this process
        isolated = isolated or restart or timeout is not None or num_processes == 1
        if not num_processes or (num == 1 and not isolated):
            self.arrays = Arrays(num, observations, actions, None, metrics)
            self._group = self._make_here(make, range(num), observations)
            return
        leaves = list(observations), list(actions)
        try:
            sent = cloudpickle.dumps((kind, make, num, *leaves, list(metrics), restart))
        except Exception as error:  # whatever its parts raise
            raise SimulatorError(
                f"what makes the environments cannot be sent to another process "
                f"({raised(error)}); set env.processes=0"
            ) from error
        size = Arrays(num, observations, actions, None, metrics).size
        self._file = _reserve(size)
        self.arrays = Arrays(num, observations, actions, mmap.mmap(self._file, size), metrics)
        bounds = np.linspace(0, num, min(num_processes, num) + 1).astype(int).tolist()
        groups = [list(range(low, high)) for low, high in itertools.pairwise(bounds)]
        try:
            for rows in groups if isolated else groups[1:]:
                self._workers.append(_Worker(sent, rows, self._file))
            if not isolated:
                self._group = self._make_here(make, groups[0], observations)
            self._spinner = Spinner([worker.results for worker in self._workers])
            for worker in self._workers:
                worker.started()
        except BaseException:
            self.close()
            raise

    def _make_here(
        self, make: Callable[[], Any], rows: Sequence[int], observations: Sequence[Leaf]
    ) -> Any:
        try:
            return self._kind(make, rows, self.arrays, observations, restart=self._restart)
        except ANY_ERROR as error:
            raise SimulatorError(f"environment {rows[0]}: {raised(error)}") from error

    def reset(self, rows: Sequence[int], seeds: Sequence[int]) -> None:
        """Start episodes in some environments."""
        self.arrays.stepping[:] = False
        self.arrays.stepping[rows] = True
        self.arrays.seed[rows] = seeds
        self._command(RESET)

    def step(self, actions: Sequence[np.ndarray], rows: np.ndarray | None = None) -> None:
        """Step environments, see `Simulators`."""
        arrays = self.arrays
        for mine, action in zip(arrays.action, actions, strict=True):
            mine[:] = action
        arrays.stepping[:] = True if rows is None else rows
        self._command(STEP if rows is None else STEP_ALONE)

    def keep(self, keep: Any) -> bool:
        """Give observations of steps to `keep` instead of `arrays`, if that can be.

        It can be for a batch simulator of this process whose arrays are where `keep` takes them.
        """
        return not self._workers and hasattr(self._group, "keep") and self._group.keep(keep)

    def _command(self, command: bytes) -> None:
        """Send a command to all groups, and count their faults; without `restart` raise one."""
        if self._restart and self._workers:
            self._before = [x.copy() for x in self.arrays.obs]
        for worker in self._workers:
            worker.send(command)
        faults = self._command_here(command)
        if self._workers:
            faults += self._answers(command)
        if faults and not self._restart:
            raise SimulatorError(str(faults[0]))
        self.restarts += len(faults)

    def _command_here(self, command: bytes) -> list[Fault]:
        if (group := self._group) is None:
            return []
        try:
            return group.reset() if command == RESET else group.step(resets=command == STEP)
        except ANY_ERROR as error:  # of an environment that was made anew
            raise SimulatorError(f"an environment cannot be made again: {raised(error)}") from error

    def _answers(self, command: bytes) -> list[Fault]:
        """Wait until the processes have obeyed, and return their faults."""
        self._spinner.wait()
        waiting: dict[Any, int] = {worker.results: i for i, worker in enumerate(self._workers)}
        resets, limit = command == RESET, self._timeout
        if resets and limit is not None:
            limit = max(limit, STARTING_SECONDS)
        deadline = None if limit is None else time.monotonic() + limit
        faults: list[Fault] = []
        while waiting:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = wait(list(waiting), left)
            for connection in ready:
                number = waiting.pop(connection)
                found = self._workers[number].receive()
                faults += self._replace(number, found, resets) if isinstance(found, str) else found
            if not ready:
                what = f"its step took more than env.step_timeout={limit:g} seconds"
                if resets:
                    what = f"its reset took more than {limit:g} seconds"
                for number in waiting.values():
                    faults += self._replace(number, what, resets)
                break
        return faults

    def _replace(self, number: int, what: str, resets: bool) -> list[Fault]:
        """Replace a process that failed in a step.

        `SimulatorError` without `restart`, or if it failed in resets: its other episodes would be
        lost without a step in which they count as truncated.
        """
        worker, arrays = self._workers[number], self.arrays
        row = int(arrays.current[worker.rows[0]])
        if resets or not self._restart:
            children.kill(worker.group)  # or a late answer would be taken for the next one
            raise SimulatorError(f"environment {row}: {what}")
        worker.kill()
        part = slice(worker.rows[0], worker.rows[-1] + 1)
        self._workers[number] = new = _Worker(worker.sent, worker.rows, self._file)
        self._spinner = Spinner([each.results for each in self._workers])
        new.started()
        stepping = arrays.stepping.copy()
        arrays.stepping[part] = True
        arrays.change_seeds(part)
        new.send(RESET)
        found: Any = f"its reset took more than {STARTING_SECONDS:g} seconds"
        if new.results.poll(STARTING_SECONDS):
            found = new.receive()
        arrays.stepping[:] = stepping
        if found:
            first = found if isinstance(found, str) else found[0].what
            raise SimulatorError(f"environment {row}: cannot be made again: {first}")
        arrays.cut(part, [x[part] for x in self._before])
        return [Fault(row, 0, what)]

    def abandon(self) -> None:
        """End the processes at once, see `Simulators`."""
        for worker in list(self._workers):
            children.kill(worker.group)

    def close(self) -> None:
        """End all processes, and close all environments."""
        if self._group is not None:
            self._group.close()
            self._group = None
        for worker in self._workers:
            worker.send(CLOSE)
        deadline = time.monotonic() + CLOSING_SECONDS
        for worker in self._workers:
            worker.kill(max(0.0, deadline - time.monotonic()))
        self._workers = []
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _reserve(size: int) -> int:
    """Return the descriptor of a file of so many bytes that processes can share.

    It has no name, so nothing is left over. `SimulatorError` if there is no room for it.
    """
    found = []
    for folder in [_SHARED, None] if os.access(_SHARED, os.W_OK) else [None]:
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                if hasattr(os, "posix_fallocate"):  # not on macOS
                    # Without room, a write to the file would end the process by SIGBUS
                    os.posix_fallocate(file.fileno(), 0, size)
                else:
                    file.truncate(size)
                return os.dup(file.fileno())
        except OSError as error:
            found.append(f"{folder or tempfile.gettempdir()} ({error.strerror})")
    raise SimulatorError(
        f"environments in other processes share {size:,} bytes, which cannot be had in "
        f"{' or '.join(found)}; make room, take fewer environments, or set env.processes=0"
    )


class _Worker:
    """A process with the environments `rows`, which `worker` makes by what is `sent`."""

    def __init__(self, sent: bytes, rows: list[int], memory: int) -> None:
        self.sent, self.rows = sent, rows
        commands, self._to = os.pipe()
        self._from, results = os.pipe()
        life, self._life = os.pipe()
        passed = (commands, results, life, memory)
        arguments = ", ".join(map(str, passed))
        code = f"from jaxppo.simulators.worker import main; main({arguments})"
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"],
                pass_fds=passed,
                stdin=subprocess.DEVNULL,
                env={"JAX_PLATFORMS": "cpu", **os.environ},
                start_new_session=True,  # Ctrl-C in a terminal is for the run alone
            )
        except OSError as error:
            for fd in (self._to, self._from, self._life):
                os.close(fd)
            raise SimulatorError(
                f"environment {rows[0]}: its process cannot start: {error.strerror}"
            ) from error
        finally:
            for fd in (commands, results, life):
                os.close(fd)
        children.keep_from(self._to, self._from, self._life)
        children.started(self.group)
        self._commands = Connection(self._to, readable=False)
        self.results = Connection(self._from, writable=False)
        self.send(pickle.dumps((sys.path, sent, rows)))

    @property
    def group(self) -> int:
        """The group of the process and of what its environments have started."""
        return self._process.pid

    def started(self) -> None:
        """Wait until the environments are made; `SimulatorError` if that fails."""
        if not self.results.poll(STARTING_SECONDS):
            self.kill()
            raise SimulatorError(
                f"environments {self.rows[0]} to {self.rows[-1]}: were not made within "
                f"{STARTING_SECONDS:g} seconds"
            )
        found = self.receive()
        if isinstance(found, str):
            raise SimulatorError(f"environment {self.rows[0]}: {found}")

    def send(self, command: bytes) -> None:
        """Send a command; `receive` reports a process that has ended."""
        with contextlib.suppress(OSError):  # also of a process that was killed
            self._commands.send_bytes(command)

    def receive(self) -> list[Fault] | str:
        """Return the faults of a command, or what went wrong with the process."""
        try:
            answer = self.results.recv_bytes()
        except (EOFError, ConnectionResetError):
            status = self._process.wait()
            return f"its process ended with status {status}"
        return pickle.loads(answer)

    def kill(self, patience: float = 0.0) -> None:
        """End the process, at once or after `patience` seconds."""
        if self.results.closed:  # killed before
            return
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        children.kill(self.group)  # what its environments have started
        children.forget(self._to, self._from, self._life)
        self._commands.close()
        self.results.close()
        os.close(self._life)
