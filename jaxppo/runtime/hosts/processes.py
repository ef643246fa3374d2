"""The processes of a run on several hosts: they join, agree on decisions, and end together.

All processes compute. The first one decides, writes files and speaks. A run of one process has
none of this.
"""

import contextlib
import json
import os
import select
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxppo.config.fields import ConfigError
from jaxppo.config.messages import flattened, if_open, write_error
from jaxppo.runtime.hosts.clusters import find

JOIN_SECONDS = 300  # to wait until all processes have started
SILENCE = 30  # seconds after which JAX ends a run of which a process says nothing
_SMALL = 256  # bytes of a value that needs one exchange; larger ones need two


class EndedElsewhere(Exception):
    """The first process ends the run, and says why."""


def count() -> int:
    """Return the number of processes of the run."""
    return jax.process_count() if jax.distributed.is_initialized() else 1


def index() -> int:
    """Return the number of this process."""
    return jax.process_index() if jax.distributed.is_initialized() else 0


def is_first() -> bool:
    """Return whether this process writes files and speaks."""
    return index() == 0


def join(distributed: Mapping[str, Any] | None) -> None:
    """Connect the processes of a cluster, if `arch.distributed` or the environment names one.

    Must come before JAX is first used. `ConfigError` if a process does not come.
    """
    if jax.distributed.is_initialized():
        return
    arguments = find(distributed, os.environ)
    if arguments is None:
        return
    jax.config.update("jax_enable_preemption_service", False)  # it would take over SIGTERM
    if arguments:  # all is known; meet before JAX does, whose errors are pages long
        address = arguments["coordinator_address"]
        number, total = arguments["process_id"], arguments["num_processes"]
        arguments["coordinator_address"] = _watch.meet(address, number, total)
    try:
        jax.distributed.initialize(
            **arguments,
            cluster_detection_method="deactivate" if arguments else None,
            initialization_timeout=JOIN_SECONDS,
            heartbeat_timeout_seconds=SILENCE,
        )
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"arch.distributed={json.dumps(arguments)}: the processes did not meet within "
            f"{JOIN_SECONDS} s ({str(error).splitlines()[0]}); start all of them, or train in one "
            "with arch.distributed=null"
        ) from error
    _check_devices()
    if not arguments:
        name, port = agree([socket.gethostname(), _free_port()])
        _watch.meet(f"{name}:{port}", index(), count())
    _watch.begin()


def _free_port() -> int:
    with _server(0) as server:
        port: int = server.getsockname()[1]
    return port


def _server(port: int) -> socket.socket:
    """Return a socket that listens on all addresses of this machine."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", port), family=family, dualstack_ipv6=both)


def _check_devices() -> None:
    """Raise `ConfigError` in the first process unless all have as many devices; end the others."""
    counts = Counter(device.process_index for device in jax.devices())
    number = next((i for i in range(count()) if counts[i] != counts[0]), None)
    if number is None:
        return
    _refuse_together(
        f"process {number} has {counts[number]} devices, and process 0 has {counts[0]}: all must "
        "have as many; choose them by CUDA_VISIBLE_DEVICES, or on CPUs by JAX_NUM_CPU_DEVICES"
    )


def _refuse_together(line: str) -> NoReturn:
    """Raise `ConfigError` in the first process, and end the others; all processes must call."""
    leave()
    if is_first():
        raise ConfigError(line)
    raise EndedElsewhere


def check_alone(distributed: Mapping[str, Any] | None) -> None:
    """Raise `ConfigError` if this is one of several processes that would train one run."""
    if count() > 1 or find(distributed, os.environ) is not None:
        raise ConfigError(
            "jaxppo.train: trains in one process, and this is one of several; start the command "
            "line on all hosts, or a run of its own here with arch.distributed=null"
        )


def gather(value: Any) -> list[Any]:
    """Return the values of all processes, in order; `value` is JSON. All processes must call."""
    if count() == 1:
        return [value]
    text = json.dumps(value).encode()
    sizes, parts = _exchange(text, _SMALL)
    if max(sizes) > len(parts[0]):
        sizes, parts = _exchange(text, max(sizes))
    return [json.loads(bytes(part[:size])) for size, part in zip(sizes, parts, strict=True)]


def _exchange(text: bytes, room: int) -> tuple[list[int], np.ndarray]:
    """Return the lengths of all processes' texts, and the first `room` bytes of each."""
    own = np.zeros(4 + room, np.uint8)
    own[:4] = np.frombuffer(np.int32(len(text)).tobytes(), np.uint8)
    own[4 : 4 + len(text)] = np.frombuffer(text[:room], np.uint8)
    every = np.asarray(multihost_utils.process_allgather(own))
    return [int(row[:4].copy().view(np.int32)[0]) for row in every], every[:, 4:]


def peak_bytes() -> int:
    """Return the most memory that this process has had so far, in bytes; 0 on Windows."""
    try:
        import resource
    except ImportError:
        return 0
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024  # others count KiB


def agree(value: Any) -> Any:
    """Return the value of the first process; `value` is JSON. All processes must call."""
    return gather(value)[0]


@contextlib.contextmanager
def agreeing() -> Iterator[None]:
    """If any process raises `ConfigError`, raise it in the first, and end the others.

    All processes must enter this block, and none may exchange anything within it.
    """
    line = None
    try:
        yield
    except ConfigError as error:
        line = str(error)
    lines = gather(line)
    if not any(lines):
        return
    number = next(i for i, each in enumerate(lines) if each)
    _refuse_together(lines[number] if number == 0 else f"process {number}: {lines[number]}")


def check_alike(facts: Mapping[str, Any]) -> None:
    """Raise `ConfigError` in the first process if settings or versions differ; end the others.

    All processes must call.
    """
    every = gather({key: str(value) for key, value in flattened(facts)})
    for i, other in enumerate(every):
        for key in sorted({*every[0], *other}):
            here, there = every[0].get(key), other.get(key)
            if here != there:
                _refuse_together(
                    f"{key}={there}: in process {i}, and {here} in process 0; use the same "
                    "command, files and versions on all hosts, or set arch.distributed=null to "
                    "train one run in each process"
                )


def leave() -> None:
    """Let this process end: all others will end as well, as agreed."""
    _watch.leave()


def abandon(status: int) -> None:
    """Exit at once if the others go on, and end them; JAX would wait for them."""
    if count() > 1 and not _watch.is_leaving:
        _watch.end_others()
        exit_at_once(status)


def exit_at_once(status: int) -> NoReturn:
    """Exit without waiting for other threads and processes."""
    for stream in (sys.stdout, sys.stderr):
        with if_open():
            stream.flush()
    os._exit(status)


def wait_for_news() -> None:
    """Let the process end here if another process has: its own error follows from that."""
    if count() > 1 and not _watch.is_leaving:
        time.sleep(2)


def set_resume_hint(hint: str) -> None:
    """Set the end of the message that another process has ended: how to resume."""
    _watch.resume_hint = hint


class _Watch:
    """Ends this process when another one of the run has ended.

    Each process has a connection to the first. It closes when the process ends. JAX's heartbeats
    end the run if a process hangs, or its machine or the network is lost.
    """

    def __init__(self) -> None:
        self.resume_hint = ""
        self.is_leaving = False
        self._connections: dict[int, socket.socket] = {}  # by process
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def meet(self, address: str, number: int, total: int) -> str:
        """Connect process `number` of `total`; return a free address for JAX's coordinator.

        The first process listens at `address`, HOST:PORT. `ConfigError` after `JOIN_SECONDS`.
        """
        host, _, port = address.rpartition(":")
        until = time.monotonic() + JOIN_SECONDS
        if number:
            self._connections[0] = _connect(host.strip("[]"), int(port), until)
            self._send(number.to_bytes(4, "big"))
            message = _receive(self._connections[0], until)
            if not message:
                raise ConfigError(
                    f"arch.distributed.process_id={number}: process 0 has ended, or another one "
                    "has this number; number all from 0, and start all together"
                )
            free_port = int.from_bytes(message, "big")
        else:
            self._accept(int(port), total, until)
            free_port = _free_port()
            self._send(free_port.to_bytes(4, "big"))
        return f"{host}:{free_port}"

    def _accept(self, port: int, total: int, until: float) -> None:
        """Wait for the other processes."""
        missing = {*range(1, total)}
        try:
            with _server(port) as server:
                while missing:
                    server.settimeout(max(until - time.monotonic(), 0.001))
                    connection, _ = server.accept()
                    number = int.from_bytes(_receive(connection, time.monotonic() + 5), "big")
                    if number in missing:
                        self._connections[number] = connection
                        missing.remove(number)
                    else:  # a stranger, or a number that is there already
                        connection.close()
        except TimeoutError as error:
            raise ConfigError(
                f"arch.distributed.num_processes={total}: processes "
                f"{', '.join(map(str, sorted(missing)))} did not connect within {JOIN_SECONDS} s; "
                "start them, or train in one process with arch.distributed=null"
            ) from error
        except OSError as error:
            raise ConfigError(
                f"arch.distributed.coordinator: cannot listen on port {port} here "
                f"({error.strerror}); choose another"
            ) from error

    def begin(self) -> None:
        """Watch the other processes from now on."""
        self._thread.start()

    def leave(self) -> None:
        """Say goodbye: this process ends as agreed."""
        self.is_leaving = True
        self._send(_GOODBYE)

    def end_others(self) -> None:
        """Let the others end now, before JAX notices that its coordinator is gone."""
        self.is_leaving = True
        self._send(index().to_bytes(4, "big"))
        if self._thread.is_alive():
            self._thread.join(2.0)

    def _send(self, message: bytes) -> None:
        for connection in self._connections.values():
            with contextlib.suppress(OSError):
                connection.sendall(message)

    def _listen(self) -> None:
        """End when another process has, unless this one is leaving."""
        numbers = {connection: number for number, connection in self._connections.items()}
        while numbers:
            for connection in select.select(list(numbers), [], [])[0]:
                message = _receive(connection, time.monotonic() + SILENCE)
                if message == _GOODBYE or self.is_leaving:
                    del numbers[connection]
                else:  # the number of a process, or the connection is closed
                    self._end(int.from_bytes(message, "big") if message else numbers[connection])

    def _end(self, ended: int) -> NoReturn:
        self._send(ended.to_bytes(4, "big"))
        if index() == (0 if ended else 1):
            write_error(
                f"process {ended} of {count()} has ended, and all others stop{self.resume_hint}"
            )
        exit_at_once(1)


def _connect(host: str, port: int, until: float) -> socket.socket:
    """Connect to the first process, which may start later."""
    while True:
        try:
            return socket.create_connection((host, port), 5)
        except OSError as error:
            if time.monotonic() > until:
                raise ConfigError(
                    f"arch.distributed.coordinator={host}:{port}: does not answer within "
                    f"{JOIN_SECONDS} s ({error.strerror}); start the first process there, or train "
                    "in one process with arch.distributed=null"
                ) from error
            time.sleep(0.2)


def _receive(connection: socket.socket, until: float) -> bytes:
    """Return a message; b"" if none comes."""
    connection.settimeout(max(until - time.monotonic(), 0.001))
    try:
        return connection.recv(4, socket.MSG_WAITALL)
    except OSError:
        return b""


_GOODBYE = b"\xff\xff\xff\xff"
_watch = _Watch()
