"""Two processes train one run as one process with two devices does, bit for bit."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from runs import assert_equal

from jaxppo.config.fields import ConfigError
from jaxppo.launch import checking
from jaxppo.runtime.hosts import clusters, processes

LIMIT = 600  # [s] for a run on a machine that does other things too
TINY = [
    *("env.target=envs.Coin", "env.name=null"),
    *("arch.total_num_envs=8", "arch.num_updates=6", "arch.num_evaluation=3"),
    *("arch.num_eval_episodes=5", "arch.update_batch_size=2", "arch.compiler=quick"),
    *("system.rollout_length=8", "system.epochs=2", "system.num_minibatches=2"),
    *("system.normalize_observations=true", "checkpoint.share=1", "logger.plot=false"),
]
VARIANTS = {
    "rec": [
        *("rec_ppo", "network=gru", "system.sequence_length=4", "system.burn_in=1"),
        *("system.target_kl=1", "system.normalize_values=true", "system.obs_norm_warmup_steps=64"),
        "logger.every=1",
    ],
    "pbt": ["ff_ppo", "population=pbt", "population.size=4"],
    "halving": ["ff_ppo", "population=halving", "population.size=4"],
    "pqn": ["ff_pqn"],
    "reppo": ["ff_reppo"],
}
LONG = ["arch.num_updates=160", "arch.num_evaluation=16"]
TRUST = ["trust=[envs]"]  # for a resume


class Hosts:
    """Processes of one run that meet on this machine, with a CPU device each."""

    def __init__(self, each: Sequence[Sequence[str]], shell: dict[str, str], cwd: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.processes = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", f"jaxppo.{arguments[0]}", *arguments[1:]),
                    f"arch.distributed.coordinator=127.0.0.1:{port}",
                    f"arch.distributed.num_processes={len(each)}",
                    f"arch.distributed.process_id={number}",
                ],
                env=shell | {"JAX_NUM_CPU_DEVICES": "1"},
                cwd=cwd,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for number, arguments in enumerate(each)
        ]

    def end(self, limit: float = LIMIT) -> list[tuple[int, list[str], list[str]]]:
        """Return the status and the lines on both streams of each, without those of Gloo."""
        found = []
        for process in self.processes:
            out, err = (
                [line for line in text.splitlines() if not line.startswith("[Gloo]")]
                for text in process.communicate(timeout=limit)
            )
            found.append((process.returncode, out, err))
        return found


@pytest.fixture
def shell(shell: dict[str, str]) -> dict[str, str]:
    tests = Path(__file__).parents[1]
    return shell | {"PYTHONPATH": f"{shell['PYTHONPATH']}{os.pathsep}{tests}"}


@pytest.fixture
def start(shell: dict[str, str], cwd: Path) -> Iterator[Callable[..., Hosts]]:
    """`start(*arguments)` starts two processes; `each` gives them arguments of their own."""
    begun: list[Hosts] = []

    def call(*arguments: str, each: Sequence[Sequence[str]] = ((), ())) -> Hosts:
        begun.append(Hosts([[*arguments, *own] for own in each], shell, cwd))
        return begun[-1]

    yield call
    for process in (process for one in begun for process in one.processes):
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()


@pytest.fixture
def together(shell: dict[str, str], cwd: Path) -> Callable[..., None]:
    """`together(*arguments)` runs one process with two devices to its end."""

    def call(command: str, *arguments: str) -> None:
        subprocess.run(
            [sys.executable, "-m", f"jaxppo.{command}", *arguments],
            env=shell | {"JAX_NUM_CPU_DEVICES": "2"},
            cwd=cwd,
            check=True,
            capture_output=True,
            timeout=LIMIT,
        )

    return call


def wait_for_training(run_dir: Path, before: str = "") -> None:
    """Wait until a block is over that `before`, the earlier log, does not have."""
    log, until = run_dir / "metrics.jsonl", time.monotonic() + LIMIT
    while time.monotonic() < until:
        if log.is_file() and '"event": "train"' in log.read_text()[len(before) :]:
            return
        time.sleep(0.05)
    raise TimeoutError(f"{log}: no block of training")


@pytest.mark.long
@pytest.mark.parametrize(
    "variant",
    ["rec", "pbt", *(pytest.param(v, marks=pytest.mark.slow) for v in ("halving", "pqn", "reppo"))],
)
def test_two_processes_equal_two_devices(
    start: Any, together: Any, cwd: Path, variant: str
) -> None:
    command, *settings = VARIANTS[variant]
    started = start(command, *TINY, *settings, "hydra.run.dir=hosts")
    together(command, *TINY, *settings, "hydra.run.dir=devices")
    (status, out, err), (other_status, other_out, other_err) = started.end()
    assert (status, other_status) == (0, 0), (err, other_err)
    assert "absolute metric" in out[-2]
    assert (other_out, err, other_err) == ([], [], [])  # the first alone speaks
    assert_equal(cwd / "devices", cwd / "hosts")
    assert sorted(path.name for path in cwd.iterdir()) == ["devices", "hosts"]


@pytest.mark.long
def test_a_signal_to_one_process_saves_all_and_a_resume_goes_on(
    start: Any, together: Any, cwd: Path
) -> None:
    """And a process that is killed ends the other; one process goes on with two devices."""
    started = start("ff_ppo", *TINY, *LONG, "hydra.run.dir=hosts")
    wait_for_training(cwd / "hosts")
    started.processes[1].send_signal(signal.SIGTERM)
    (status, _, err), (other_status, _, other_err) = started.end()
    assert (status, other_status) == (128 + signal.SIGTERM, 128 + signal.SIGTERM)
    assert f"saved; to go on: resume={cwd}/hosts" in err[-1]
    assert other_err == []
    trained = (cwd / "hosts" / "metrics.jsonl").read_text()
    resumed = start("ff_ppo", "resume=hosts", *TRUST)
    wait_for_training(cwd / "hosts", trained)
    resumed.processes[0].kill()
    began = time.monotonic()
    status, _, err = resumed.end(processes.SILENCE)[1]
    assert time.monotonic() - began < processes.SILENCE / 2
    assert status == 1
    ended = f"process 0 of 2 has ended, and all others stop; to go on: resume={cwd}/hosts"
    assert ended in err  # JAX may log after it
    together("ff_ppo", "resume=hosts", *TRUST)
    together("ff_ppo", *TINY, *LONG, "hydra.run.dir=devices")
    assert_equal(cwd / "devices", cwd / "hosts")
    (cwd / "hosts" / "metrics.jsonl").write_text("")
    (status, _, err), (other_status, _, other_err) = start("ff_ppo", "resume=hosts", *TRUST).end()
    assert (status, other_status, other_err) == (2, 1, [])
    assert len(err) == 1
    assert "restore the whole log" in err[0]


JOINS = """
import sys, time
from jaxppo.runtime.hosts import processes

port, number = sys.argv[1:]
given = dict(coordinator=f"127.0.0.1:{port}", num_processes=2, process_id=int(number))
processes.join(given)
processes.set_resume_hint(": go on")
print(processes.gather("long " * 100 + number), processes.agree(number), flush=True)
time.sleep(60)
"""


@pytest.mark.long
def test_a_process_that_is_killed_ends_the_first(shell: dict[str, str], cwd: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    both = [
        subprocess.Popen(
            [sys.executable, "-c", JOINS, str(port), str(number)],
            env=shell | {"JAX_NUM_CPU_DEVICES": "1"},
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    expected = f"{['long ' * 100 + str(i) for i in range(2)]} 0\n"
    for process in both:
        lines = iter(process.stdout.readline, "")  # type: ignore[union-attr]
        assert next(line for line in lines if not line.startswith("[Gloo]")) == expected
    both[1].kill()
    err = both[0].communicate(timeout=processes.SILENCE)[1]
    assert err.endswith("process 1 of 2 has ended, and all others stop: go on\n")
    assert both[0].returncode == 1
    both[1].communicate()


@pytest.mark.long
@pytest.mark.parametrize(
    "setting, line",
    [
        ("system.gamma=0.5", "system.gamma=0.5: in process 1, and 0.99 in process 0; "),
        ("system.gamm=0.5", "process 1: system.gamm: no such key; "),
    ],
)
def test_what_does_not_fit_is_one_line(start: Any, cwd: Path, setting: str, line: str) -> None:
    found = start("ff_ppo", *TINY, each=([], [setting])).end()
    (status, _, err), (other_status, _, other_err) = found
    assert (status, other_status, other_err) == (2, 1, [])
    assert len(err) == 1
    assert err[0].startswith(line)
    assert not any(cwd.iterdir())


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
        ({"coordinator": "a:65536"}, {}, "coordinator=a:65536"),
        ({"processes": 2}, {}, "processes: no such key"),
        ({**GIVEN, "process_id": 2}, {}, "process_id=2: must be from 0 to 1"),
        ({"num_processes": 2.5}, {}, "num_processes=2.5"),
        ({}, MPI, "coordinator: is missing"),
        ({}, POD, "coordinator: is missing"),
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


@pytest.mark.parametrize("number", [1, 3])
def test_a_process_with_a_wrong_number_is_refused(number: int) -> None:
    """Process 1 is there already, and there is none with number 3."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    watches = [processes._Watch() for _ in range(4)]
    with ThreadPoolExecutor() as pool:
        first, second = (pool.submit(watches[i].meet, address, i, 3) for i in range(2))
        while not watches[0]._connections and not first.done():
            time.sleep(0.01)
        wrong = f"arch.distributed.process_id={number}: another process has, or had"
        with pytest.raises(ConfigError, match=wrong):
            watches[3].meet(address, number, 3)
        assert watches[2].meet(address, 2, 3) == first.result() == second.result()
    for watch in watches[:3]:
        for connection in watch._connections.values():
            connection.close()
