"""Signals, kills and crowded directories, in processes of their own."""

import errno
import fcntl
import itertools
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
from killing import processes
from runs import assert_equal, coin, logged

from jaxppo.config.fields import ConfigError
from jaxppo.runtime.hosts.signals import Signals
from jaxppo.runtime.run import loop, saving
from jaxppo.runtime.run.caller import Caller
from jaxppo.runtime.run.jobs import Job
from jaxppo.runtime.run.members import Member
from jaxppo.runtime.store import checkpoint, directories

TESTS = Path(__file__).parents[1]
SCRIPT = """
import itertools, sys, time
from pathlib import Path
from runs import coin
from jaxppo.launch.errors import one_line
from jaxppo.runtime.programs import compile
from jaxppo.runtime.run import evaluations, loop, saving
from jaxppo.runtime.store.progress import Pace

folder, mode = Path(sys.argv[1]), sys.argv[2]
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
        time.sleep(0.3 if next(numbers) < 4 else 0)
        return 1

    Pace.updates = updates
if mode == "evaluating":  # for ever, in the second block
    loop.PATIENCE = 0.3

    def evaluate_slowly(*args):
        print("evaluation", flush=True)
        time.sleep(3600 if next(numbers) == 1 else 0)
        return evaluate(*args)

    evaluate, evaluations.evaluate = evaluations.evaluate, evaluate_slowly
if mode == "long":  # the first block is
    def train_slowly(*args):
        print("block", flush=True)
        time.sleep(3600)

    loop.train_block = train_slowly
if mode == "full":  # from the third block on, files cannot grow
    import resource
    save_block = saving.save_block

    def save_block_before_the_end(run, *args):
        stops = save_block(run, *args)
        if next(numbers) == 1:
            saving.wait(run)
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        return stops

    saving.save_block = save_block_before_the_end
folder.mkdir(exist_ok=True)
with one_line():
    config = coin(num_updates=40, num_evaluation=20)
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
    env = {
        **os.environ,
        "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}",
        "JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }

    def call(folder: Path, mode: str = "plain") -> subprocess.Popen[str]:
        return begin("-c", SCRIPT, str(folder), mode, env=env)

    with processes() as begin:
        yield call


@pytest.fixture(scope="module")
def whole(share_programs: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run of 20 blocks that nothing stops."""
    folder = tmp_path_factory.mktemp("whole")
    loop.run(coin(num_updates=40, num_evaluation=20), folder)
    return folder


def signalled(child: Any, number: signal.Signals, *lines: str) -> str:
    """Send a signal once a process has printed these lines; return what it says at last."""
    assert [child.stdout.readline() for _ in lines] == [f"{line}\n" for line in lines]
    child.send_signal(number)
    err = child.communicate(timeout=100)[1].splitlines()
    assert child.returncode == 128 + number, err
    assert err[-1].startswith(f"{number.name}: stopped at")
    return str(err[-1])


def killed(start: Any, folder: Path, seconds: float = 0.0) -> None:
    """Kill a run these seconds after its next checkpoint; all lines of its log are whole."""
    child = start(folder, "within")
    before = set(folder.glob("checkpoints/0*"))
    deadline = time.monotonic() + 400
    while not set(folder.glob("checkpoints/0*")) - before and child.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(seconds)
    child.kill()
    child.communicate()
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        json.loads(line)


@pytest.mark.long
def test_a_run_that_is_stopped_in_every_way_ends_as_if_nothing_had_happened(
    tmp_path: Path, start: Any, whole: Path
) -> None:
    folder, hint = tmp_path / "run", f"; to go on: resume={tmp_path / 'run'}"
    # The compiler is not waited for
    said = signalled(start(folder, "compiling"), signal.SIGINT, "compiling")
    assert said == f"SIGINT: stopped at once{hint}"
    # Two runs do not write one directory; a second interrupt stops at once
    child = start(folder, "long")
    assert child.stdout.readline() == "block\n"
    with pytest.raises(ConfigError, match=f"{folder}: process {child.pid} is writing there"):
        loop.run(coin(), folder)
    child.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert child.poll() is None
    assert "saved" not in signalled(child, signal.SIGINT)
    # A signal is answered within a block
    said = signalled(start(folder, "within"), signal.SIGTERM, "call")
    assert said == f"SIGTERM: stopped at step 64, saved{hint}"
    assert checkpoint.steps_in(folder / "checkpoints") == [64]
    assert logged(folder)["metrics.jsonl"] == []
    assert not (folder / "summary.json").exists()
    killed(start, folder)
    # An evaluation is not waited for
    said = signalled(start(folder, "evaluating"), signal.SIGTERM, "evaluation", "evaluation")
    assert said.startswith("SIGTERM: stopped at once, saved at step ")
    assert said.endswith(hint)
    # Where nothing more can be written the run stops, in one line; what was written stays
    child = start(folder, "full")
    (line,) = child.communicate(timeout=400)[1].splitlines()
    assert child.returncode not in (0, None)
    assert str(folder) in line
    assert checkpoint.newest(folder)[1] == []
    # A signal that is ignored, as under nohup, stays ignored
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        child = start(folder, "within")
    finally:
        signal.signal(signal.SIGHUP, before)
    assert child.stdout.readline() == "call\n"
    child.send_signal(signal.SIGHUP)
    assert child.communicate(timeout=400)[1] == ""
    assert child.returncode == 0
    assert_equal(whole, folder)


@pytest.mark.slow
def test_thirty_kills_in_a_row_change_nothing(tmp_path: Path, start: Any, whole: Path) -> None:
    """Each comes soon after the next checkpoint, so that they meet the run everywhere."""
    moments = random.Random(1)
    for _ in range(30):
        killed(start, tmp_path, moments.uniform(0, 0.3))
    start(tmp_path).communicate(timeout=400)
    assert_equal(whole, tmp_path)


@pytest.mark.long
def test_a_signal_does_not_hide_why_a_run_ends(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes when the third block ends, whose metrics are not finite."""
    signals, diagnose, ended = Signals(), Member.diagnose, []

    def diagnose_late(member: Member, totals: Any, steps: int) -> str | None:
        if steps < 3 * 128:
            return diagnose(member, totals, steps)
        signal.raise_signal(signal.SIGTERM)
        while signals.received is None:
            time.sleep(0.01)
        return "NaN in a test"

    monkeypatch.setattr(Signals, "_end", lambda _, number: ended.append(number))
    monkeypatch.setattr(loop, "PATIENCE", 60)
    monkeypatch.setattr(Member, "diagnose", diagnose_late)
    jobs = [Job(coin(num_updates=40, num_evaluation=20), tmp_path)]
    (error,) = loop.run_together(jobs, caller=Caller(signals=signals, console=False))
    assert str(error) == "NaN in a test"
    assert ended == []


def test_signals_are_recorded_and_ignored_ones_stay_ignored() -> None:
    """SIGHUP is ignored under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals().listen():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            for number in (signal.SIGINT, signal.SIGTERM):
                handler = signal.getsignal(number)
                assert handler not in (signal.SIG_DFL, signal.default_int_handler)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_directory_has_one_writer(tmp_path: Path) -> None:
    said = f"^{tmp_path}: process {os.getpid()} is writing there"
    with directories.only_run_in(tmp_path), pytest.raises(ConfigError, match=said):
        directories.only_run_in(tmp_path)
    directories.claim(tmp_path)
    directories.only_run_in(tmp_path).close()  # which takes over the claim


def test_a_file_system_without_locks_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: Any) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)
    with directories.only_run_in(tmp_path):
        assert (tmp_path / ".lock").read_text() == str(os.getpid())


@pytest.mark.long
def test_signals_are_handled_as_before_after_a_run(tmp_path: Path, whole: Path) -> None:
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    fds = len(os.listdir("/proc/self/fd"))
    loop.run(coin(num_updates=40, num_evaluation=20), tmp_path)
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before
    assert len(os.listdir("/proc/self/fd")) <= fds + 2


@pytest.mark.slow
def test_memory_and_descriptors_stay_flat_over_a_thousand_evaluations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, blocks, seen = saving.save_block, itertools.count(1), []

    def save_block(*args: Any) -> None:
        real(*args)
        block = next(blocks)
        if block % 100 == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            size = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
            seen.append((block, round(size), len(os.listdir("/proc/self/fd"))))

    monkeypatch.setattr(saving, "save_block", save_block)
    loop.run(coin(num_updates=1000, num_evaluation=1000), tmp_path)
    print(seen)
    (_, first, files), (_, last, more) = seen[1], seen[-1]
    assert last < first + 60  # MiB
    assert more <= files + 2
