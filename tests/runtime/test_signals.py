"""Signals, kills and crowded directories, in processes of their own."""

import contextlib
import errno
import fcntl
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
from runs import assert_equal, coin, logged

from jaxppo.config.fields import ConfigError
from jaxppo.runtime.run import loop
from jaxppo.runtime.run.saving import Saver
from jaxppo.runtime.store import checkpoint, directories

TESTS = Path(__file__).parents[1]
SCRIPT = """
import itertools, sys, time
from pathlib import Path
from runs import coin
from jaxppo.launch.errors import one_line
from jaxppo.runtime.programs import compile
from jaxppo.runtime.run import blocks, loop
from jaxppo.runtime.run.blocks import Blocks
from jaxppo.runtime.run.members import Member
from jaxppo.runtime.store.progress import Pace
from jaxppo.runtime.run.saving import Saver
from jaxppo.runtime.run.caller import Caller
from jaxppo.runtime.hosts.signals import Signals

folder, variant, mode = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
numbers = itertools.count()
if mode == "compiling":  # for ever, in a call that hears of no signal
    import ctypes
    libc = ctypes.CDLL(None)

    def compile_program(*args, **kwargs):
        print("compiling", flush=True)
        while True:
            libc.usleep(1000)

    compile.compile_program = compile_program
if mode == "within":  # a block in calls of one update
    def updates(self, left):
        print("call", flush=True)
        time.sleep(0.05)
        return 1

    Pace.updates = updates
if mode == "evaluating":  # for ever, in the third block
    loop.PATIENCE = 0.3
    evaluate = blocks.evaluate

    def evaluate_slowly(*args):
        print("evaluation", flush=True)
        time.sleep(3600 if next(numbers) == 2 else 0)
        return evaluate(*args)

    blocks.evaluate = evaluate_slowly
if mode == "diverging":  # in the third block, and a signal comes meanwhile
    import signal
    signals, diagnose = Signals(), Member.diagnose
    loop.Caller = lambda console: Caller(signals=signals, console=console)

    def diagnose_late(self, totals, steps):
        if steps < 3 * 128:
            return diagnose(self, totals, steps)
        signal.raise_signal(signal.SIGTERM)
        while signals.received is None:
            time.sleep(0.01)
        return "NaN in a test"

    Member.diagnose = diagnose_late
if mode == "long":  # the third block is
    train = Blocks.train

    def train_slowly(self, state):
        print("block", flush=True)
        time.sleep(3600 if next(numbers) == 2 else 0)
        return train(self, state)

    Blocks.train = train_slowly
if mode == "full":  # from the third block on, files cannot grow
    import resource
    save_block = Saver.save_block

    def save_block_before_the_end(self, *args):
        stops = save_block(self, *args)
        if next(numbers) == 1:
            self.wait()
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        return stops

    Saver.save_block = save_block_before_the_end
folder.mkdir(exist_ok=True)
with one_line():
    config = coin(variant, num_updates=int(sys.argv[4]), num_evaluation=int(sys.argv[5]))
    loop.run(config, folder, resume=(folder / "config.yaml").exists())
"""


@pytest.fixture(autouse=True)
def usual_signals() -> Iterator[None]:
    """Signals are not ignored, as they are for children of a job under nohup or in a background."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`start(folder, mode)`: a process that trains there, or goes on."""
    children = []

    def call(
        folder: Path, mode: str = "plain", variant: str = "one", updates: int = 8, blocks: int = 4
    ) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [
                *(sys.executable, "-c", SCRIPT, str(folder), variant, mode),
                *(str(updates), str(blocks)),
            ],
            env={
                **os.environ,
                "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}",
                "JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir),
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        return child

    yield call
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        child.communicate()


def wait_for(condition: Callable[[], Any], child: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        assert child.poll() is None, child.communicate()
        time.sleep(0.02)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run of 40 blocks that nothing stops."""
    folder = tmp_path_factory.mktemp("whole")
    loop.run(coin(num_updates=40, num_evaluation=40), folder)
    return folder


@pytest.mark.long
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGHUP, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_signal_saves_and_stops(
    tmp_path: Path, start: Any, whole: Path, number: signal.Signals
) -> None:
    folder = tmp_path / "run"
    child = start(folder, "within", updates=40, blocks=40)  # slow enough to be stopped
    wait_for(lambda: list(folder.glob("checkpoints/0*")), child)
    child.send_signal(number)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 128 + number
    first, line = err.splitlines()
    assert first.startswith(f"{number.name}: saving a checkpoint, then stopping")
    assert line.startswith(f"{number.name}: stopped at step ")
    assert line.endswith(f", saved; to go on: resume={folder}")
    assert not (folder / "summary.json").exists()
    assert 0 < len(logged(folder)["metrics.jsonl"]) < 80
    child = start(folder, updates=40, blocks=40)
    _, err = child.communicate(timeout=120)
    assert (child.returncode, err) == (0, "")
    assert_equal(whole, folder)


@pytest.mark.long
def test_a_signal_does_not_wait_for_the_block(tmp_path: Path, start: Any) -> None:
    """It is answered within it, and the block is ended by a resume, bit for bit."""
    whole, folder = tmp_path / "whole", tmp_path / "run"
    whole.mkdir()
    loop.run(coin("warm-up and skipping", num_updates=40, num_evaluation=2), whole)
    for calls in (3, 4):
        child = start(folder, "within", "warm-up and skipping", updates=40, blocks=2)
        assert [child.stdout.readline() for _ in range(calls)] == ["call\n"] * calls
        child.send_signal(signal.SIGTERM)
        _, err = child.communicate(timeout=60)
        assert child.returncode == 128 + signal.SIGTERM, err
    assert logged(folder)["metrics.jsonl"] == []
    assert 0 < checkpoint.steps_in(folder / "checkpoints")[-1] < 20 * 64
    child = start(folder, "plain", "warm-up and skipping", updates=40, blocks=2)
    _, err = child.communicate(timeout=120)
    assert (child.returncode, err) == (0, "")
    assert_equal(whole, folder)


@pytest.mark.long
@pytest.mark.parametrize("variant", ["one", pytest.param("pbt", marks=pytest.mark.slow)])
def test_a_signal_does_not_wait_for_an_evaluation(tmp_path: Path, start: Any, variant: str) -> None:
    whole, folder = tmp_path / "whole", tmp_path / "run"
    whole.mkdir()
    loop.run(coin(variant), whole)
    child = start(folder, "evaluating", variant)
    assert [child.stdout.readline() for _ in range(3)] == ["evaluation\n"] * 3
    child.send_signal(signal.SIGTERM)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 128 + signal.SIGTERM
    assert err.splitlines() == [
        "SIGTERM: saving a checkpoint, then stopping",
        f"SIGTERM: stopped at once, saved at step 384; to go on: resume={folder}",
    ]
    child = start(folder, "plain", variant)
    _, err = child.communicate(timeout=120)
    assert (child.returncode, err) == (0, "")
    assert_equal(whole, folder)


@pytest.mark.long
def test_a_signal_does_not_hide_why_a_run_ends(tmp_path: Path, start: Any) -> None:
    child = start(tmp_path / "run", "diverging")
    _, err = child.communicate(timeout=120)
    assert child.returncode == 1
    assert err.splitlines()[-1] == "NaN in a test"
    assert "saved" not in err.splitlines()[-1]


@pytest.mark.long
def test_a_signal_that_is_ignored_stays_ignored(tmp_path: Path, start: Any) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
    try:
        child = start(tmp_path / "run", "within")
    finally:
        signal.signal(signal.SIGHUP, before)
    assert child.stdout.readline() == "call\n"
    child.send_signal(signal.SIGHUP)
    _, err = child.communicate(timeout=120)
    assert (child.returncode, err) == (0, "")


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_compiler(tmp_path: Path, start: Any, number: signal.Signals) -> None:
    child = start(tmp_path / "run", "compiling")
    assert child.stdout.readline() == "compiling\n"
    child.send_signal(number)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 128 + number
    assert err == f"{number.name}: stopped at once; to go on: resume={tmp_path / 'run'}\n"


@pytest.mark.long
def test_a_second_interrupt_stops_at_once(tmp_path: Path, start: Any) -> None:
    child = start(tmp_path / "run", "long")
    assert [child.stdout.readline() for _ in range(3)] == ["block\n"] * 3
    child.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert child.poll() is None
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130
    first, last = err.splitlines()
    assert first == ("SIGINT: saving a checkpoint, then stopping; Ctrl-C once more stops at once")
    assert last.startswith("SIGINT: stopped at once; to go on: resume=")


def kill_until_done(start: Any, folder: Path, times: int, seed: int) -> list[int]:
    """SIGKILL a run `times` times at random moments, going on each time; checkpoints seen."""
    moments, seen = random.Random(seed), []
    for _ in range(times):
        child = start(folder, updates=40, blocks=40)
        before = set(folder.glob("checkpoints/0*"))
        with contextlib.suppress(AssertionError):
            wait_for(lambda before=before: set(folder.glob("checkpoints/0*")) - before, child)
        time.sleep(moments.uniform(0, 0.3))
        child.kill()
        child.communicate()
        for file in folder.rglob("metrics.jsonl"):
            for line in file.read_text().splitlines():
                json.loads(line)
        seen.append(len(logged(folder)["metrics.jsonl"]))
    child = start(folder, updates=40, blocks=40)
    _, err = child.communicate(timeout=120)
    assert (child.returncode, err) == (0, "")
    return seen


@pytest.mark.long
def test_kills_change_nothing(tmp_path: Path, start: Any, whole: Path) -> None:
    kill_until_done(start, tmp_path / "run", times=2, seed=0)
    assert_equal(whole, tmp_path / "run")


@pytest.mark.slow
def test_thirty_kills_in_a_row_change_nothing(tmp_path: Path, start: Any, whole: Path) -> None:
    """Each comes soon after the next checkpoint, so that they meet the run everywhere."""
    print(kill_until_done(start, tmp_path / "run", times=30, seed=1))
    assert_equal(whole, tmp_path / "run")


@pytest.mark.long
def test_where_nothing_more_can_be_written_the_run_stops(
    tmp_path: Path, start: Any, whole: Path
) -> None:
    """Loudly, in one line; what was written stays, and the run can go on from it."""
    folder = tmp_path / "run"
    child = start(folder, "full", updates=40, blocks=40)
    _, err = child.communicate(timeout=120)
    assert child.returncode != 0
    (line,) = err.splitlines()
    assert str(folder) in line
    assert "File too large" in line or "cannot be written" in line
    found, damaged = checkpoint.newest(folder)
    assert found is not None
    assert damaged == []
    child = start(folder, updates=40, blocks=40)
    _, err = child.communicate(timeout=120)
    assert (child.returncode, err) == (0, "")
    assert_equal(whole, folder)


@pytest.mark.long
def test_two_runs_do_not_write_one_directory(tmp_path: Path, start: Any) -> None:
    folder = tmp_path / "run"
    child = start(folder, "long")
    assert child.stdout.readline() == "block\n"
    second = start(folder, "plain")
    _, err = second.communicate(timeout=120)
    assert second.returncode == 2
    assert err == (
        f"{folder}: process {child.pid} is writing there; wait until it ends, or choose another "
        "directory\n"
    )
    child.kill()  # which leaves no lock behind
    child.communicate()
    with directories.only_run_in(folder), pytest.raises(ConfigError, match=str(os.getpid())):
        directories.only_run_in(folder).__enter__()


@pytest.mark.parametrize("number, fails", [(errno.ENOSYS, False), (errno.EIO, True)])
def test_a_file_system_without_locks_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, fails: bool
) -> None:
    def flock(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    refused = (
        pytest.raises(ConfigError, match="cannot be locked") if fails else contextlib.nullcontext()
    )
    with refused, directories.only_run_in(tmp_path):
        pass


@pytest.mark.long
def test_signals_are_handled_as_before_after_a_run(tmp_path: Path) -> None:
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    fds = len(os.listdir("/proc/self/fd"))
    for i in range(3):
        (tmp_path / str(i)).mkdir()
        loop.run(coin(), tmp_path / str(i))
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before
    assert len(os.listdir("/proc/self/fd")) <= fds + 2


@pytest.mark.slow
def test_memory_and_descriptors_stay_flat_over_a_thousand_evaluations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, blocks, seen = Saver.save_block, itertools.count(1), []

    def save_block(saver: Saver, *args: Any) -> None:
        real(saver, *args)
        block = next(blocks)
        if block % 100 == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            size = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
            seen.append((block, round(size), len(os.listdir("/proc/self/fd"))))

    monkeypatch.setattr(Saver, "save_block", save_block)
    loop.run(coin(num_updates=1000, num_evaluation=1000), tmp_path)
    print(seen)
    (_, first, files), (_, last, more) = seen[1], seen[-1]
    assert last < first + 60  # MiB
    assert more <= files + 2
