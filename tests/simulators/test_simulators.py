"""Simulators without JAX: what they hand over, faults, restarts, and what they leave behind."""

import contextlib
import errno
import os
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces
from simulators import (
    LENGTH,
    LIMIT,
    Failing,
    Known,
    Lucky,
    Nested,
    Refusing,
    Server,
    Slow,
    Starting,
    Where,
    Wide,
)

from jaxppo.simulators import pool as simulators_pool
from jaxppo.simulators.children import kill_all
from jaxppo.simulators.envpool import EnvPool
from jaxppo.simulators.faults import SimulatorError
from jaxppo.simulators.pool import Pool
from jaxppo.simulators.spaces import next_seed, tree


def parts_of(env: Any) -> tuple[Any, Any]:
    return jax.tree.leaves(tree(env.observation_space)), jax.tree.leaves(tree(env.action_space))


def pool(make: Any, num: int = 2, **settings: Any) -> Pool:
    return Pool(make, num, *parts_of(make()), **settings)


def started(make: Any, num: int = 2, **settings: Any) -> Pool:
    found = pool(make, num, **settings)
    found.reset(range(num), range(num))
    return found


def steps(found: Pool, num: int, action: int = 1) -> None:
    for _ in range(num):
        found.step([np.full(2, action)])


@pytest.mark.parametrize("settings", [{}, {"num_processes": 2}])
def test_an_end_hands_over_both_observations(settings: dict[str, Any]) -> None:
    """Environment 0 terminates, environment 1 is truncated by its own clock, both in turn."""
    found, times = started(Known, **settings), np.zeros(2, int)
    actions, arrays = np.array([1, 0]), found.arrays
    for _ in range(20):
        found.step([actions])
        times += 1
        over = times == [LENGTH, LIMIT]
        first = actions * np.ones(2)
        np.testing.assert_array_equal(arrays.final[0], np.stack([times, first, times * first], 1))
        np.testing.assert_array_equal(arrays.reward, actions * times - 0.5)
        np.testing.assert_array_equal(arrays.terminated, over & [True, False])
        np.testing.assert_array_equal(arrays.truncated, over & [False, True])
        times = np.where(over, 0, times)
        first = np.where(over, 0, first)
        np.testing.assert_array_equal(arrays.obs[0], np.stack([times, first, times * first], 1))
    found.close()


@pytest.mark.parametrize("settings", [{}, {"num_processes": 2}])
def test_what_is_told_is_that_of_the_step(settings: dict[str, Any]) -> None:
    """Environment 0 terminates at 5, 1 is truncated at 7; only odd times tell the second number."""
    found = started(Known, metrics=["late.time", "late.odd"], **settings)
    for step in range(1, 2 * LIMIT + 1):
        found.step([np.array([1, 0])])
        times = np.array([(step - 1) % LENGTH + 1, (step - 1) % LIMIT + 1])
        odd = np.where(times % 2, 10.0 * times, np.nan)
        np.testing.assert_array_equal(found.arrays.metrics["late.time"], times)
        np.testing.assert_array_equal(found.arrays.metrics["late.odd"], odd)
    found.close()


def test_an_episode_that_ends_without_a_number_is_a_fault() -> None:
    """A missing success is no failure, and no success either."""
    found = started(Lucky, metrics=["far", "success"])
    steps(found, LENGTH)
    np.testing.assert_array_equal(found.arrays.metrics["success"], 1.0)
    steps(found, LIMIT - 1, action=0)
    with pytest.raises(SimulatorError, match=r"^environment 0 .*success.*it tells far$"):
        steps(found, 1, action=0)
    found.close()
    found = started(Known, metrics=["seen"])
    with pytest.raises(SimulatorError, match="info seen is ndarray"):
        steps(found, 1)
    found.close()


@pytest.mark.parametrize(
    ("settings", "own"),
    [
        ({}, [True, True, True]),
        ({"num_processes": 9}, [True, False, False]),
        ({"num_processes": 2, "timeout": 60.0}, [False, False, False]),
    ],
)
def test_this_process_is_the_first_of_several_that_need_no_replacement(
    settings: dict[str, Any], own: list[bool]
) -> None:
    found = started(Where, 3, **settings)
    found.step([np.zeros(3, int)])
    assert (found.arrays.reward == os.getpid()).tolist() == own
    assert len(set(found.arrays.reward)) == max(1, min(3, settings.get("num_processes", 1)))
    found.close()


def test_only_the_chosen_environments_step_and_none_starts() -> None:
    found = started(Known, 3, num_processes=2)
    for _ in range(LIMIT):
        found.step([np.zeros(3, int)], np.array([True, False, True]))
    np.testing.assert_array_equal(found.arrays.obs[0][:, 0], [LIMIT, 0, LIMIT])
    np.testing.assert_array_equal(found.arrays.truncated, [True, False, True])
    found.reset([2], [0])
    np.testing.assert_array_equal(found.arrays.obs[0][:, 0], [LIMIT, 0, 0])
    found.close()


def test_nested_observations_and_actions_keep_their_form() -> None:
    found = started(Nested, num_processes=1)
    found.step([np.array([0, 4])])
    paths = [leaf.path for leaf in jax.tree.leaves(tree(Nested.observation_space))]
    assert paths == [("action_mask",), ("bits",), ("image",), ("pair", 0), ("pair", 1)]
    mask, bits, image, number, pair = found.arrays.obs
    np.testing.assert_array_equal(mask, [[1, 0, 0, 0, 1]] * 2)
    np.testing.assert_array_equal(bits, [[1, 0, 1]] * 2)
    assert image.dtype == np.uint8
    assert (image == 1).all()
    np.testing.assert_array_equal(number, [1, 1])  # 0 of the integers from -1
    assert pair.dtype == np.float32
    found.close()


def test_64_bits_become_32_or_a_fault() -> None:
    found = Pool(partial(Wide, 2**29), 1, *parts_of(Wide(0)))
    found.reset([0], [0])
    found.step([np.array([[0.7, -0.1]], np.float32)])  # the bounds, which in float32 are outside
    assert found.arrays.obs[0].tolist() == [[2**30]]
    with pytest.raises(SimulatorError, match="step: observation has integers that"):
        found.step([np.zeros((1, 2), np.float32)])
    found.close()


class Lives:
    """A pool as EnvPool's: games of two lives of `3 + row` steps. Observes game, life, time."""

    def __init__(self, seeds: Any) -> None:
        self.seen = np.zeros((len(seeds), 3), np.float32)

    def reset(self, rows: Any) -> Any:
        self.seen[rows] = self.seen[rows] * [1, 0, 0] + [1, 0, 0]
        return self.seen[rows], {"env_id": rows}

    def step(self, actions: Any, rows: Any) -> Any:
        game, life, time = self.seen[rows].T
        over = time == 3 + rows
        self.seen[rows] = np.where(
            over, [game + (life == 1), life == 0, 0 * time], [game, life, time + 1]
        ).T
        ends = self.seen[rows, 2] == 3 + rows
        return self.seen[rows], np.where(over, 0, actions), ends, ends & False, {"env_id": rows}


def test_envpool_starts_what_follows_an_end_itself() -> None:
    """The next life or game, without a step that is lost, while other environments go on."""
    found = EnvPool(Lives, 2, *parts_of(Known()))
    found.reset([0, 1], [5, 6])
    arrays = found.arrays
    for step in range(1, 41):
        found.step([np.ones(2, int)])
        lives, times = np.divmod(step, [3, 4])
        over = times == 0
        now = np.stack([1 + lives // 2, lives % 2, times], 1)
        last = np.stack([1 + (lives - 1) // 2, (lives - 1) % 2, [3, 4]], 1)
        np.testing.assert_array_equal(arrays.obs[0], now)
        np.testing.assert_array_equal(arrays.final[0], np.where(over[:, None], last, now))
        np.testing.assert_array_equal(arrays.terminated, over)
        assert (arrays.reward == 1).all()
    found.step([np.ones(2, int)], np.array([True, False]))  # of an evaluation, which asks for games
    found.reset([0], [7])
    np.testing.assert_array_equal(arrays.obs[0], [[8, 0, 0], [6, 0, 0]])


FAULTS = {
    "raises": "the arm is stuck",
    "nan": "not finite",
    "reward": "reward inf",
    "shape": "(2,)",
    "dtype": "complex128",
    "quits": "SystemExit: 0",  # or the run would end as if all were well
    "nothing": "NoneType",
    "array": "(1,)",
    "four": "4 values",
    "exits": "status 7",
    "hangs": "env.step_timeout=1",
}
OF_PROCESS = ("exits", "hangs")


@pytest.mark.parametrize(
    "how", [pytest.param(x, marks=[pytest.mark.long] if x in OF_PROCESS else []) for x in FAULTS]
)
def test_a_fault_is_one_line_and_a_restart_truncates(how: str, tmp_path: Path) -> None:
    """At the observation before; the other environment goes on."""
    own = how in OF_PROCESS
    settings: Any = {"num_processes": 2, "isolated": True} if own else {}
    if how == "hangs":
        settings["timeout"] = 1.0
    make = partial(Failing, how, str(tmp_path / "failed"))
    found = started(make, **settings)
    with pytest.raises(SimulatorError) as caught:
        steps(found, 3)
    if how == "hangs":  # a late answer is not that of a later step
        with pytest.raises(SimulatorError, match="process ended with status -9"):
            steps(found, 1)
    found.close()
    assert FAULTS[how] in str(caught.value)
    assert "\n" not in str(caught.value)
    begin = ("environment 0: ", "environment 1: ") if own else "environment 0 at its step 3: "
    assert str(caught.value).startswith(begin)
    (tmp_path / "failed").unlink()
    found = started(make, **settings, restart=True)
    steps(found, 3, action=0)
    (failed,) = np.flatnonzero(found.arrays.truncated)
    other = 1 - failed
    assert found.restarts == 1
    assert found.arrays.reward[[failed, other]].tolist() == [0.0, -0.5]
    assert not found.arrays.terminated.any()
    assert found.arrays.final[0][failed, 0] == 2
    assert found.arrays.obs[0][failed, 0] == 0
    assert found.arrays.obs[0][other, 0] == 3
    steps(found, 1, action=0)
    np.testing.assert_array_equal(found.arrays.obs[0][[failed, other], 0], [1, 4])
    found.close()


def test_a_fault_here_ends_the_other_process() -> None:
    before = children()
    found = started(Refusing, num_processes=2)
    with pytest.raises(SimulatorError, match=r"^environment 0 at its step 1: raises "):
        found.step([np.arange(2) == 0])
    found.close()
    assert children() == before


def test_a_fault_in_a_reset_restarts_the_environment() -> None:
    make = partial(Starting, "raises", 5)
    found = started(make, restart=True, num_processes=1)
    found.reset([0, 1], [4, 5])
    assert found.restarts == 1
    assert found.arrays.obs[0][:, 0].tolist() == [4, next_seed(5) % 1000]
    found.close()
    found = started(make)
    with pytest.raises(
        SimulatorError, match=r"^environment 1 at .*: reset raises ValueError, in reset "
    ):
        found.reset([0, 1], [4, 5])
    found.close()


def resetting(found: Any) -> type[Known]:
    class Resetting(Known):
        def reset(self, **given: Any) -> Any:
            return found

    return Resetting


class Four(Known):
    def step(self, action: Any) -> Any:
        return super().step(action)[:4]


class Flags(Known):
    def step(self, action: Any) -> Any:
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, info, False


class Less(Nested):
    def _see(self) -> Any:
        return {key: x for key, x in super()._see().items() if key != "bits"}


@pytest.mark.parametrize(
    "make, words",
    [
        (resetting(np.zeros(3, np.float32)), "reset: .*observation, info"),
        (resetting((1.0, 2.0)), "reset: .*float 2.0"),
        (resetting((np.zeros(2, np.float32), {})), r"reset: .*\(2,\)"),
        (lambda: gymnasium.wrappers.TimeLimit(Four(), 5), "step: .*observation, reward"),
        (Flags, "step: truncated is dict"),
        (Less, r"reset: observation\['bits'\]"),
    ],
)
def test_what_an_environment_returns_wrongly_is_named(make: Any, words: str) -> None:
    with pytest.raises(SimulatorError, match=f"^environment 0 at .*: {words}"):
        steps(started(make), 1)


def test_a_process_that_ends_in_a_reset_names_the_environment() -> None:
    found = started(partial(Starting, "exits", 5), num_processes=1, restart=True)
    with pytest.raises(SimulatorError, match=r"^environment 1: its process ended with status 7"):
        found.reset([0, 1], [4, 5])
    found.close()


class Exiting(Known):
    """Action 1 ends its process."""

    def step(self, action: Any) -> Any:
        if action:
            os._exit(7)
        return super().step(action)


def test_of_two_processes_the_one_that_ended_is_named() -> None:
    found = started(Exiting, num_processes=2, isolated=True)
    with pytest.raises(SimulatorError, match=r"^environment 1: its process ended with status 7"):
        found.step([np.array([0, 1])])
    found.close()


def test_a_process_that_ends_in_an_evaluation_gives_all_of_its_environments_new_episodes(
    tmp_path: Path,
) -> None:
    make = partial(Failing, "exits", str(tmp_path / "failed"))
    found = started(make, num_processes=1, restart=True)
    for _ in range(3):
        found.step([np.zeros(2, int)], np.array([False, True]))
    np.testing.assert_array_equal(found.arrays.truncated, True)
    found.step([np.zeros(2, int)], np.array([True, False]))
    assert found.arrays.obs[0][0, 0] == 1
    assert found.restarts == 1
    found.close()


class Loading(Known):
    """Its resets take longer than its steps."""

    def reset(self, **given: Any) -> Any:
        time.sleep(0.6)
        return super().reset(**given)


def test_the_limit_of_a_step_is_not_that_of_a_reset() -> None:
    found = started(Loading, 1, num_processes=1, timeout=0.5)
    found.step([np.zeros(1, int)])
    found.close()


def test_a_process_that_is_not_ready_in_time_leaves_nothing(monkeypatch: Any) -> None:
    monkeypatch.setattr(simulators_pool, "STARTING_SECONDS", 0.5)
    files, before = len(os.listdir("/proc/self/fd")), children()
    parts = parts_of(Known)
    with pytest.raises(SimulatorError, match=r"environments 0 to 0: were not made within 0\.5 s"):
        Pool(Slow, 2, *parts, num_processes=2, isolated=True)
    assert children() == before
    assert len(os.listdir("/proc/self/fd")) <= files


@pytest.mark.parametrize("num_processes", [1, 2])
def test_a_process_that_cannot_make_its_environments_says_why(num_processes: int) -> None:
    parts = parts_of(Known)

    def broken() -> Any:
        raise OSError("no licence\nfor it")

    before = children()
    with pytest.raises(SimulatorError, match=r"environment 0: OSError: no licence, in broken "):
        Pool(broken, 2, *parts, num_processes=num_processes)
    assert children() == before


def children() -> list[int]:
    me = str(os.getpid())
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, _, rest = stat.read_text().partition(" (")
        except OSError:
            continue
        if rest.rpartition(")")[2].split()[1] == me:
            found.append(int(pid))
    return found


@pytest.mark.parametrize("num, isolated", [(4, True), (1, False)])
def test_nothing_is_left_behind(num: int, isolated: bool) -> None:
    """And Ctrl-C in a terminal does not reach the processes, but the run alone."""
    files, before = len(os.listdir("/proc/self/fd")), children()
    shared = set(os.listdir("/dev/shm"))
    found = started(Known, num, num_processes=2, isolated=isolated)
    own = set(children()) - set(before)
    assert bool(own) == isolated
    assert all(os.getpgid(pid) != os.getpgrp() for pid in own)
    found.step([np.zeros(num, int)])
    found.close()
    found.close()
    del found
    assert children() == before
    assert set(os.listdir("/dev/shm")) == shared
    assert len(os.listdir("/proc/self/fd")) <= files


PARENT = """
import os, sys, time
sys.path[:0] = {path!r}
from functools import partial
import numpy as np
from simulators import Failing
from test_simulators import started
found = started(partial(Failing, "hangs", {file!r}), num_processes=2, isolated=True)
print(*[worker._process.pid for worker in found._workers], flush=True)
if not os.fork():  # as an environment in this process may do
    os.close(1)
    time.sleep(30)
    os._exit(0)
found.step([np.zeros(2, int)])
found.step([np.zeros(2, int)])
found.step([np.zeros(2, int)])
"""


@pytest.mark.long
def test_processes_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    """Also while an environment hangs in a step, and while a fork of the parent lives."""
    code = PARENT.format(path=sys.path, file=str(tmp_path / "failed"))
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    workers = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(workers) == 2
    while not (tmp_path / "failed").exists():
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while any(is_running(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(is_running(pid) for pid in workers)


def is_running(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


class Leaving(Known):
    """It starts a process that inherits all it can, and ends its own in the first step."""

    def __init__(self, forks: bool) -> None:
        super().__init__()
        self.forks = forks

    def reset(self, **given: Any) -> Any:
        if not self.forks:
            self.process = subprocess.Popen(["sleep", "60"], close_fds=False)
        elif not os.fork():
            time.sleep(60)
            os._exit(0)
        return super().reset(**given)

    def step(self, action: Any) -> Any:
        os._exit(7)


@pytest.mark.parametrize("forks", [False, True])
def test_the_end_of_a_process_is_seen_while_what_it_started_lives(forks: bool) -> None:
    found = started(partial(Leaving, forks), num_processes=1)
    began = time.monotonic()
    with pytest.raises(SimulatorError, match=r"^environment 0: its process ended with status 7"):
        found.step([np.zeros(2, int)])
    found.close()
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("room", [True, False])
def test_memory_without_room_is_taken_elsewhere_or_refused(monkeypatch: Any, room: bool) -> None:
    """A file in a full /dev/shm can be made longer, and ends the process when it is written to."""
    tried: list[int] = []
    reserve = os.posix_fallocate

    def fallocate(file: int, start: int, size: int) -> None:
        tried.append(size)
        if len(tried) == 1 or not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        reserve(file, start, size)

    monkeypatch.setattr(os, "posix_fallocate", fallocate)
    files = len(os.listdir("/proc/self/fd"))
    if room:
        found = simulators_pool._reserve(1000)
        assert os.fstat(found).st_size == 1000
        os.close(found)
    else:
        with pytest.raises(SimulatorError, match=r"/dev/shm .*env\.processes=0"):
            simulators_pool._reserve(1000)
    assert len(tried) == 2
    assert len(os.listdir("/proc/self/fd")) == files


def test_memory_is_shared_where_it_cannot_be_reserved(monkeypatch: Any) -> None:
    monkeypatch.delattr(os, "posix_fallocate")  # as on macOS
    found = simulators_pool._reserve(1000)
    assert os.fstat(found).st_size == 1000
    os.close(found)


def test_a_process_that_cannot_start_leaves_no_descriptors(monkeypatch: Any) -> None:
    real, files, before = subprocess.Popen, len(os.listdir("/proc/self/fd")), children()
    called: list[int] = []

    def popen(*given: Any, **settings: Any) -> Any:
        called.append(1)
        if len(called) == 2:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        return real(*given, **settings)

    monkeypatch.setattr(subprocess, "Popen", popen)
    with pytest.raises(SimulatorError, match=r"^environment 1: its process cannot start: Res"):
        started(Known, num_processes=2, isolated=True)
    assert children() == before
    assert len(os.listdir("/proc/self/fd")) <= files


def test_environments_are_closed_if_a_later_one_cannot_be_made() -> None:
    closed: list[int] = []

    class Counted(Known):
        number = 0

        def __init__(self) -> None:
            Counted.number += 1
            if Counted.number == 4:  # the first shows its spaces
                raise OSError("no licence")
            super().__init__()

        def close(self) -> None:
            closed.append(1)

    with pytest.raises(SimulatorError, match="environment 0: OSError: no licence"):
        Pool(Counted, 4, *parts_of(Counted()))
    assert len(closed) == 2


def test_mujocos_warnings_of_a_model_are_not_repeated(
    monkeypatch: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where environments are made anew too; later warnings are printed again."""
    handlers: list[Any] = [print]
    mujoco = SimpleNamespace(
        get_mju_user_warning=lambda: handlers[-1], set_mju_user_warning=handlers.append
    )
    monkeypatch.setitem(sys.modules, "mujoco", mujoco)

    class Warning(Failing):
        def __init__(self) -> None:
            super().__init__("raises", str(tmp_path / "failed"))
            handlers[-1]("of the model")

        def step(self, action: Any) -> Any:
            handlers[-1]("of a step")
            return super().step(action)

    found = started(Warning, restart=True)
    steps(found, 3)
    assert found.restarts == 1
    assert capsys.readouterr().out.splitlines() == ["of the model"] + 6 * ["of a step"]
    found.close()


def test_subclasses_of_spaces_go_to_other_processes() -> None:
    class Own(spaces.Box):
        pass

    class Choice(spaces.Discrete):
        pass

    class Mine(Known):
        observation_space = Own(-np.inf, np.inf, (3,), np.float32)
        action_space = Choice(2)

    found = started(Mine, num_processes=1)
    found.step([np.ones(2, int)])
    found.close()


def test_a_thread_that_waits_for_a_hanging_process_can_be_freed(tmp_path: Path) -> None:
    found = started(partial(Failing, "hangs", str(tmp_path / "failed")), num_processes=1)
    raised: list[SimulatorError] = []

    def step() -> None:
        try:
            for _ in range(3):
                found.step([np.zeros(2, int)])
        except SimulatorError as error:
            raised.append(error)

    thread = threading.Thread(target=step, daemon=True)
    thread.start()
    while not (tmp_path / "failed").exists():
        time.sleep(0.05)
    found.abandon()
    thread.join(20)
    assert "its process ended with status -9" in str(raised[0])
    found.close()


def wait_for(wanted: int, seconds: str) -> None:
    """Wait until so many processes sleep for `seconds`."""
    deadline, number = time.monotonic() + 5, -1
    while number != wanted and time.monotonic() < deadline:
        time.sleep(0.05)
        number = 0
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):  # it has ended
                number += file.read_bytes() == f"sleep\0{seconds}\0".encode()
    assert number == wanted


@pytest.mark.parametrize("ends", [True, False])
def test_processes_of_environments_end_with_theirs(ends: bool) -> None:
    """Also those that `close` forgets; those that it ends are not deaf to SIGTERM."""
    seconds = f"600.{os.getpid()}{int(ends)}"
    found = Pool(partial(Server, seconds, ends), 2, *parts_of(Known), num_processes=1)
    found.reset(range(2), range(2))
    wait_for(2, seconds)
    began = time.monotonic()
    found.close()
    assert time.monotonic() - began < 5
    wait_for(0, seconds)


def test_a_run_that_ends_at_once_ends_the_processes_of_environments() -> None:
    seconds = f"601.{os.getpid()}"
    found = Pool(partial(Server, seconds, False), 2, *parts_of(Known), num_processes=1)
    wait_for(2, seconds)
    kill_all()
    wait_for(0, seconds)
    found.close()
