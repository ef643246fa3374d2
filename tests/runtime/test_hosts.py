"""Two processes train one run as one process with two devices does, bit for bit."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import killing
import pytest
from omegaconf import OmegaConf
from runs import assert_equal

from jaxppo.config.fields import ConfigError
from jaxppo.launch import checking
from jaxppo.runtime.hosts import clusters, processes
from jaxppo.runtime.hosts.signals import Signals

LIMIT = 600  # [s] for a run on a machine that does other things too
TINY = [
    *("env.target=envs.Coin", "env.name=null"),
    *("arch.total_num_envs=8", "arch.num_updates=6", "arch.num_evaluation=3"),
    *("arch.num_eval_episodes=5", "arch.update_batch_size=2", "arch.compiler=quick"),
    *("system.rollout_length=8", "system.epochs=2", "system.num_minibatches=2"),
    *("system.normalize_observations=true", "checkpoint.share=1", "logger.plot=false"),
]
LONG = ["arch.num_updates=160", "arch.num_evaluation=16"]
VARIANTS = {
    "rec": [
        *("rec_ppo", "network=gru", "system.sequence_length=4", "system.burn_in=1"),
        *("system.target_kl=1", "system.normalize_values=true", "system.obs_norm_warmup_steps=64"),
        "logger.every=1",
    ],
    "pbt": ["ff_ppo", "population=pbt", "population.size=4"],
    "long": ["ff_ppo", *LONG],
    "halving": ["ff_ppo", "population=halving", "population.size=4"],
    "pqn": ["ff_pqn"],
    "reppo": ["ff_reppo"],
}
RUNS = """
import json, sys
from pathlib import Path
from killing import Killed, asked
from jaxppo.launch.composing import compose
from jaxppo.launch.errors import one_line
from jaxppo.runtime.hosts import devices, processes
from jaxppo.runtime.run import loop
from jaxppo.runtime.store.progress import Progress

folder, port, number, variants = sys.argv[1:]
devices.choose_platform()
if int(port):  # one of two processes
    hosts = dict(coordinator=f"127.0.0.1:{port}", num_processes=2, process_id=int(number))
    processes.join(hosts)

def stop(block):
    if block == 1:
        raise Killed

with one_line():
    for variant, (command, *settings) in json.loads(variants).items():
        config, run_dir = compose(command, settings), Path(folder) / variant
        run_dir.mkdir(parents=True, exist_ok=True)
        if variant == "rec" and int(port):  # stopped after a block, and resumed
            left, Progress.left = Progress.left, asked(stop)
            try:
                loop.run(config, run_dir)
            except Killed:
                Progress.left = left
                if not int(number):  # which has written them
                    print(*(path.name for path in (run_dir / "checkpoints").iterdir()))
        loop.run(config, run_dir, resume=True)
    processes.leave()
"""
JOINS = """
import sys, time
from jaxppo.runtime.hosts import processes

_, port, number, _ = sys.argv[1:]
processes.join(dict(coordinator=f"127.0.0.1:{port}", num_processes=2, process_id=int(number)))
processes.set_resume_hint(": go on")
print(processes.gather("long " * 100 + number), processes.agree(number), flush=True)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def start(home: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`start(devices, folder, *arguments)` starts Python with a number of CPU devices."""
    tests = Path(__file__).parents[1]
    ours = ("PYTHON", "JAX_", "XLA_", "HYDRA_", "COV_")
    shell = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    shell |= {"PYTHONPATH": f"{tests.parent}{os.pathsep}{tests}", "HOME": str(home)}

    def call(devices: int, folder: Path, *arguments: str) -> subprocess.Popen[str]:
        return begin(*arguments, env={**shell, "JAX_NUM_CPU_DEVICES": str(devices)}, cwd=folder)

    with killing.processes() as begin:
        yield call


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


def pair(start: Any, folder: Path, script: str, *variants: str) -> list[subprocess.Popen[str]]:
    """Two processes that run a script and meet, with a CPU device each."""
    last = str(folder), str(free_port())
    return [
        start(1, folder, "-c", script, *last, str(number), settings_of(variants))
        for number in range(2)
    ]


def settings_of(variants: Sequence[str]) -> str:
    """The command and settings of variants, in JSON."""
    each = {variant: VARIANTS[variant] for variant in variants}
    return json.dumps({name: [command, *TINY, *more] for name, (command, *more) in each.items()})


def commands(start: Any, folder: Path, each: Sequence[Sequence[str]]) -> list[Any]:
    """Commands of one run that meet on this machine, with a CPU device each."""
    port = free_port()
    return [
        start(
            1,
            folder,
            *("-m", f"jaxppo.{command}", *arguments),
            f"arch.distributed.coordinator=127.0.0.1:{port}",
            f"arch.distributed.num_processes={len(each)}",
            f"arch.distributed.process_id={number}",
        )
        for number, (command, *arguments) in enumerate(each)
    ]


def end(process: subprocess.Popen[str], limit: float = LIMIT) -> tuple[int, list[str], list[str]]:
    """Return the status and the lines on both streams, without those of Gloo."""
    out, err = (
        [line for line in text.splitlines() if not line.startswith("[Gloo]")]
        for text in process.communicate(timeout=limit)
    )
    return process.returncode, out, err


QUICK, SLOW = ("rec", "pbt"), ("halving", "pqn", "reppo")


@pytest.fixture(scope="module")
def whole(start: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directories of runs in one process with two devices that nothing stops."""
    folder = tmp_path_factory.mktemp("whole")
    variants = settings_of(("long", *QUICK))
    status, _, err = end(start(2, folder, "-c", RUNS, str(folder), "0", "0", variants))
    assert status == 0, err
    return folder


@pytest.mark.long
def test_two_processes_equal_two_devices(start: Any, whole: Path, tmp_path: Path) -> None:
    """One agent, with a stop and a resume; and a population."""
    (status, out, err), (other_status, _, other_err) = map(end, pair(start, tmp_path, RUNS, *QUICK))
    assert (status, other_status) == (0, 0), (err, other_err)
    assert f"{2 * 64:012}" in out  # where it stopped
    for variant in QUICK:
        assert_equal(whole / variant, tmp_path / variant)


@pytest.mark.slow
def test_two_processes_equal_two_devices_in_other_runs(start: Any, tmp_path: Path) -> None:
    for folder in ("hosts", "devices"):
        (tmp_path / folder).mkdir()
    alone = start(2, tmp_path, "-c", RUNS, str(tmp_path / "devices"), "0", "0", settings_of(SLOW))
    for process in (*pair(start, tmp_path / "hosts", RUNS, *SLOW), alone):
        status, _, err = end(process)
        assert status == 0, err
    for variant in SLOW:
        assert_equal(tmp_path / "devices" / variant, tmp_path / "hosts" / variant)


@pytest.mark.long
def test_a_signal_to_one_process_saves_all_and_a_resume_goes_on(
    start: Any, whole: Path, tmp_path: Path
) -> None:
    """One process goes on with two devices."""
    started = commands(start, tmp_path, [["ff_ppo", *TINY, *LONG, "hydra.run.dir=hosts"]] * 2)
    log, until = tmp_path / "hosts" / "metrics.jsonl", time.monotonic() + LIMIT
    while not (log.is_file() and '"event": "train"' in log.read_text()):
        assert time.monotonic() < until, "no block of training"
        time.sleep(0.05)
    started[1].send_signal(signal.SIGTERM)
    (status, _, err), (other_status, other_out, other_err) = map(end, started)
    assert (status, other_status) == (128 + signal.SIGTERM, 128 + signal.SIGTERM)
    assert f"saved; to go on: resume={tmp_path}/hosts" in err[-1]
    assert (other_out, other_err) == ([], [])  # the first alone speaks
    resumed = start(2, tmp_path, "-m", "jaxppo.ff_ppo", "resume=hosts", "trust=[envs]")
    assert end(resumed)[0] == 0
    assert_equal(whole / "long", tmp_path / "hosts")


@pytest.mark.long
@pytest.mark.parametrize("killed", [0, 1])
def test_a_process_that_is_killed_ends_the_other(start: Any, tmp_path: Path, killed: int) -> None:
    both = pair(start, tmp_path, JOINS)
    expected = f"{['long ' * 100 + str(i) for i in range(2)]} 0\n"
    for process in both:
        lines = iter(process.stdout.readline, "")  # type: ignore[union-attr]
        assert next(line for line in lines if not line.startswith("[Gloo]")) == expected
    both[killed].kill()
    status, _, err = end(both[1 - killed], processes.SILENCE / 2)
    assert f"process {killed} of 2 has ended, and all others stop: go on" in err
    assert status == 1


@pytest.mark.long
def test_what_does_not_fit_is_one_line(start: Any, tmp_path: Path) -> None:
    each = [["ff_ppo", *TINY], ["ff_ppo", *TINY, "system.gamm=0.5"]]
    (status, _, err), (other_status, _, other_err) = map(end, commands(start, tmp_path, each))
    assert (status, other_status, other_err) == (2, 1, [])
    (line,) = err
    assert line.startswith("process 1: system.gamm: no such key; ")
    assert not (tmp_path / "outputs").exists()


SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_NODELIST": "gpu[03-04]",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
MASTER = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "CUDA_VISIBLE_DEVICES": ""}
MPI = {
    **{"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "CUDA_VISIBLE_DEVICES": ""},
    **{"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"},
}
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "1"}
GIVEN = {"coordinator": "a:1", "num_processes": 2, "process_id": 1}
FOUND = {"coordinator_address": "a:1", "num_processes": 2, "process_id": 1}


@pytest.mark.parametrize(
    "given, env, expected",
    [
        ({}, {}, None),
        (GIVEN, {}, FOUND),
        (None, SLURM, None),
        ({}, SLURM, {"coordinator_address": "gpu03:61657", "num_processes": 4, "process_id": 3}),
        ({}, SLURM | {"SLURM_STEP_NUM_TASKS": "1"}, None),
        ({}, {k: v for k, v in SLURM.items() if "STEP" not in k}, None),  # sbatch without srun
        (
            {},
            TORCHRUN | MASTER,
            {"coordinator_address": "10.0.0.1:29500", "num_processes": 2, "process_id": 1},
        ),
        (
            {},
            TORCHRUN | MASTER | {"TORCHELASTIC_USE_AGENT_STORE": "True"},
            {"coordinator_address": "10.0.0.1:29501", "num_processes": 2, "process_id": 1},
        ),
        (
            {},
            MPI | {"OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911"},
            {"coordinator_address": "10.96.0.1:62624", "num_processes": 2, "process_id": 1},
        ),
        ({"coordinator": "a:1"}, MPI, FOUND),
        ({"coordinator": "a:1", "num_processes": 2}, POD, FOUND),
        ({}, {"TPU_WORKER_HOSTNAMES": "t1k-0,t1k-1"}, {}),  # JAX asks the cloud
        ({}, {"TPU_WORKER_HOSTNAMES": "localhost"}, None),
    ],
)
def test_processes_are_found(
    given: dict[str, Any] | None, env: dict[str, str], expected: dict[str, Any] | None
) -> None:
    assert clusters.find(given, env) == expected


@pytest.mark.parametrize(
    "given, env, key",
    [
        ({"coordinator": "a"}, {}, "coordinator=a"),
        ({"processes": 2}, {}, "processes=2"),
        ({**GIVEN, "process_id": 2}, {}, "process_id=2: must be from 0 to 1"),
        ({"num_processes": 2.5}, {}, "num_processes=2.5"),
        ({}, MPI, "coordinator: is missing"),
    ],
)
def test_processes_that_cannot_be_found_are_refused(
    given: dict[str, Any], env: dict[str, str], key: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^arch\.distributed\.{key}"):
        clusters.find(given, env)


@pytest.mark.parametrize(
    "rank, tasks, visible, of_node, expected",
    [
        (0, 1, 0, None, []),  # no GPUs
        (0, 1, 8, 8, [0, 1, 2, 3, 4, 5, 6, 7]),  # one task a machine has all
        (3, 8, 8, 8, [3]),  # one task a GPU
        (1, 2, 8, 8, [4, 5, 6, 7]),
        (3, 8, 1, 8, [0]),  # SLURM shows each task its own
        (2, None, 4, None, [2]),  # torchrun without LOCAL_WORLD_SIZE
    ],
)
def test_each_gpu_has_one_process(
    rank: int, tasks: int | None, visible: int, of_node: int | None, expected: list[int]
) -> None:
    found = clusters.own_gpus("SLURM", rank, tasks, visible, of_node)
    assert found.get("local_device_ids", []) == expected


def test_gpus_are_counted_and_none_is_idle_or_shared(tmp_path: Path) -> None:
    for tasks, visible, what in ((3, 8, "leave some idle"), (4, 2, "share them")):
        with pytest.raises(ConfigError, match=f"{tasks} processes .* {visible} GPUs .*{what}"):
            clusters.own_gpus("SLURM", 0, tasks, visible, None)
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert clusters.visible_gpus({}, tmp_path) == 2
    assert clusters.visible_gpus({"CUDA_VISIBLE_DEVICES": "3"}, tmp_path) == 1
    assert clusters.visible_gpus({"CUDA_VISIBLE_DEVICES": "-1"}, tmp_path) == 0


def test_versions_of_all_hosts_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"system": {"gamma": 0.99}, "versions": {"jax": "1"}}
    monkeypatch.setattr(processes, "gather", lambda mine: [mine, mine])
    processes.check_alike(own)
    monkeypatch.setattr(processes, "gather", lambda mine: [mine, mine | {"versions.jax": "2"}])
    with pytest.raises(ConfigError, match=r"^versions.jax=2: in process 1, and 1 in process 0"):
        processes.check_alike(own)
    monkeypatch.setattr(processes, "gather", lambda mine: [mine, mine | {"env.more": "3"}])
    with pytest.raises(ConfigError, match=r"^env.more=3: in process 1, and None in process 0"):
        processes.check_alike(own)


def test_the_signal_of_any_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "gather", lambda own: [own, None, signal.SIGTERM])
    assert Signals().agreed() == signal.SIGTERM


@pytest.mark.parametrize(
    "message, ended", [(b"", [1]), (processes._GOODBYE, []), ((3).to_bytes(4, "big"), [3])]
)
def test_a_process_that_leaves_without_a_word_ends_the_others(
    message: bytes, ended: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Process 1 hangs up; or it says goodbye; or that process 3 has ended."""
    here, there = socket.socketpair()
    watch, found = processes._Watch(), []
    watch._connections[1] = here

    def end(number: int) -> None:
        found.append(number)
        watch.is_leaving = True

    monkeypatch.setattr(watch, "_end", end)
    with here, there:
        there.sendall(message)
        there.shutdown(socket.SHUT_WR)
        watch._listen()
    assert found == ended


def test_a_seed_that_is_drawn_is_that_of_the_first_process(
    launch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is drawn once, so a single run is not built again either."""
    seen: list[Any] = []

    def run(config: Any, run_dir: Path, **given: Any) -> float:
        seen.append((config.arch.seed, given["prepared"] is not None))
        return 0.0

    monkeypatch.setattr(processes, "agree", lambda _: 7)
    assert launch("env=cartpole", "arch.seed=null", run=run).status == 0
    assert seen == [(7, True)]


def test_a_directory_that_a_host_does_not_see_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(processes, "agree", lambda _: str(tmp_path / "elsewhere"))
    config = OmegaConf.create({"hydra": {"run": {"dir": "runs/first"}}})
    with pytest.raises(ConfigError, match="elsewhere: "):
        checking._share_directory(config)


def test_training_from_python_is_of_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    import jaxppo

    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"^jaxppo.train: trains in one process"):
        jaxppo.train(["env=cartpole", "arch.num_updates=1"])


def test_a_sweep_is_of_one_process(launch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (TORCHRUN | MASTER).items():
        monkeypatch.setenv(name, value)
    done = launch("-m", "env=cartpole", "arch.seed=1,2")
    assert done.status == 2
    assert done.err.startswith("-m: a sweep cannot run in several processes")


def test_a_process_with_a_wrong_number_is_refused() -> None:
    """Process 1 is there already, and there is none with number 3."""
    address = f"127.0.0.1:{free_port()}"
    watches = [processes._Watch() for _ in range(5)]
    with ThreadPoolExecutor() as pool:
        first, second = (pool.submit(watches[i].meet, address, i, 3) for i in range(2))
        while not watches[0]._connections and not first.done():
            time.sleep(0.01)
        for number, watch in ((1, watches[3]), (3, watches[4])):
            with pytest.raises(ConfigError, match=f"process_id={number}: .* has this number"):
                watch.meet(address, number, 3)
        assert watches[2].meet(address, 2, 3) == first.result() == second.result()
    for watch in watches:
        for connection in watch._connections.values():
            connection.close()
