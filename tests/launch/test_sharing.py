"""Sweeps over machines: shares, the workers that train them, and workers that die."""

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli import CARTPOLE, ROOT, run_python
from hydra.core.hydra_config import HydraConfig
from killing import Killed
from omegaconf import DictConfig, OmegaConf
from runs import assert_equal, coin

from jaxppo.analysis import sweep
from jaxppo.config.fields import ConfigError
from jaxppo.launch import sharing, sweeping
from jaxppo.launch.sharing import Work, check_workers, split
from jaxppo.runtime.hosts.signals import Interrupted
from jaxppo.runtime.run import loop
from jaxppo.runtime.run.jobs import Job, TrainingError
from jaxppo.runtime.store import checkpoint

SHARES = ("-m", "hydra/launcher=jaxppo_shares", "hydra.sweep.dir=sweep")


@pytest.mark.parametrize(
    "sizes, workers, expected",
    [
        ([4], 1, [{0: 4}]),
        ([7], 3, [{0: 2}, {0: 2}, {0: 3}]),
        ([2], 5, [{0: 1}, {0: 1}]),
        ([8, 2], 3, [{0: 4}, {0: 4}, {1: 2}]),
        ([1, 1, 1], 2, [{0: 1, 2: 1}, {1: 1}]),
        ([1, 2, 5, 2], 2, [{2: 5}, {1: 2, 3: 2, 0: 1}]),
    ],
)
def test_shares_are_balanced(sizes: list[int], workers: int, expected: Any) -> None:
    shares = split(sizes, workers)
    assert [{n: part.stop - part.start for n, part in share} for share in shares] == expected
    dealt = [(n, job) for share in shares for n, part in share for job in range(sizes[n])[part]]
    assert sorted(dealt) == [(n, job) for n, size in enumerate(sizes) for job in range(size)]


@pytest.mark.long
def test_another_program_is_told_that_a_launcher_is_not_for_it(
    cwd: Path, shell: dict[str, str]
) -> None:
    (cwd / "theirs.yaml").write_text("x: 1\n")
    decorator = "@hydra.main(version_base=None, config_path='.', config_name='theirs')"
    (cwd / "theirs.py").write_text(f"import hydra\n{decorator}\ndef main(_): ...\nmain()\n")
    typed = ("theirs.py", "-m", "x=1,2", "hydra/launcher=jaxppo_shares")
    found = run_python(*typed, cwd=cwd, env=shell, limit=100)
    assert (found.status, found.out) == (2, "")
    assert found.err.startswith("hydra/launcher=jaxppo_shares")
    assert len(found.err.splitlines()) == 1


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[list[Job]]:
    """The jobs that are trained together, which return their seed; three epochs fail."""
    seen: list[list[Job]] = []

    def run_together(jobs: list[Job], *, fit: bool) -> list[float | TrainingError]:
        seen.append(jobs)
        configs = [job.config for job in jobs]
        failed = TrainingError("diverged")
        return [failed if c.system.epochs == 3 else float(c.arch.seed) for c in configs]

    monkeypatch.setattr(sweeping, "run_together", run_together)
    return seen


@pytest.fixture
def returned(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the launcher returns for each job."""
    seen: list[Any] = []
    real = sweeping.launch

    def launch(*args: Any) -> Any:
        returns = real(*args)
        seen.extend(each._return_value for each in returns)
        return returns

    monkeypatch.setattr(sweeping, "launch", launch)
    return seen


@pytest.mark.long
def test_every_worker_trains_its_share_as_one_program(
    launch: Any, cwd: Path, trained: list[list[Job]], returned: list[Any]
) -> None:
    typed = ("arch.seed=1,2", "system.epochs=1,3,2", "hydra.launcher.workers=2")
    assert launch(*SHARES, *typed).status == 1  # three epochs fail
    assert [jobs[0].config.system.epochs for jobs in trained] == [1, 2, 3]
    assert [[job.config.arch.seed for job in jobs] for jobs in trained] == [[1, 2]] * 3
    # In the order of the jobs, whichever share has them
    assert [str(each) for each in returned] == ["1.0", "diverged", "1.0", "2.0", "diverged", "2.0"]
    for number, job in zip((0, 3, 2, 5, 1, 4), (x for jobs in trained for x in jobs), strict=True):
        assert (job.run_dir, job.group) == (cwd / "sweep" / str(number), "sweep")
        assert job.resume
        assert (cwd / "sweep" / str(number) / ".hydra" / "overrides.yaml").is_file()
    assert [row["job"] for row in sweep.read(cwd / "sweep")] == [*"012345"]


@pytest.mark.parametrize("workers", [0, "two", 1.5, True])
def test_a_wrong_number_of_workers_is_refused(workers: Any) -> None:
    with pytest.raises(ConfigError, match=f"^hydra.launcher.workers={workers}: "):
        check_workers(OmegaConf.create({"workers": workers}))


@pytest.mark.long
def test_a_worker_that_is_lost_for_good_is_one_line(
    launch: Any, cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cluster:
        def launch(self, overrides: list[list[str]], first: int) -> None:
            raise RuntimeError("the worker died\nsee its log")

    class Plugins:
        @staticmethod
        def instance() -> "Plugins":
            return Plugins()

        def instantiate_launcher(self, *_: Any) -> Cluster:
            return Cluster()

    monkeypatch.setattr(sharing, "Plugins", Plugins)
    outcome = launch(*SHARES, "arch.seed=1,2")
    assert outcome.status == 1
    last = outcome.err.splitlines()[-1]
    assert last.startswith("hydra/launcher=jaxppo_shares: the worker died see its log")


def as_job(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Be the job of this number in a worker."""
    found = OmegaConf.create({"job": {"num": number}})
    monkeypatch.setattr(HydraConfig, "get", staticmethod(lambda: found))


def test_a_signal_ends_the_worker_without_a_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error would be a result, and a share with a result is not started again."""

    def run_together(jobs: list[Job], *, fit: bool) -> None:
        raise Interrupted("SIGTERM: stopped at step 64, saved", signal.SIGTERM)

    def leave(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr(sweeping, "run_together", run_together)
    monkeypatch.setattr(os, "_exit", leave)
    as_job(monkeypatch, 0)
    with pytest.raises(SystemExit) as stop:
        Work([[[Job(coin(), None)]]], 0)(DictConfig({}))
    assert stop.value.code == 128 + signal.SIGTERM
    assert capsys.readouterr().err == "SIGTERM: stopped at step 64, saved\n"


def test_errors_of_libraries_come_back_as_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Unknown(Exception):
        """Cannot be unpickled elsewhere."""

    def run_together(jobs: list[Job], *, fit: bool) -> None:
        raise Unknown("line one\nline two")

    monkeypatch.setattr(sweeping, "run_together", run_together)
    as_job(monkeypatch, 0)
    ((outcome,),) = Work([[[Job(coin(), None)]]], 0)(DictConfig({}))
    assert str(pickle.loads(pickle.dumps(outcome))) == "Unknown: line one line two"
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.long
def test_a_share_that_was_killed_ends_as_if_nothing_had_happened(
    tmp_path: Path, kill: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker dies in the second program of its share; the share runs again elsewhere."""
    config = coin(absolute_metric=False)
    programs = [[Job(config, tmp_path / name, True)] for name in ("whole", "halves")]
    for (job,) in programs:
        Path(str(job.run_dir)).mkdir()
    as_job(monkeypatch, 8)
    result = loop.run_together(programs[0])
    kill(2)
    with pytest.raises(Killed):
        loop.run_together(programs[1])
    work = pickle.loads(pickle.dumps(Work([[], programs], first=7)))
    assert work(DictConfig({})) == [result, result]
    assert_equal(tmp_path / "whole", tmp_path / "halves")


def wait_for(found: Callable[[], Any], seconds: float = 200) -> Any:
    """What `found` returns once that is true."""
    end = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < end
        time.sleep(0.1)
    return value


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Ray's own
def test_ray_starts_a_killed_worker_again(cwd: Path) -> None:
    """On a cluster of two nodes, against the same sweep in one process after another."""
    pytest.importorskip("hydra_plugins.hydra_ray_launcher", reason="pip install '.[ray]'")
    cluster_utils = pytest.importorskip("ray.cluster_utils", reason="pip install '.[ray]'")
    command = [sys.executable, "-m", "jaxppo.ff_ppo", "-m", *CARTPOLE, "arch.seed=1,2,3,4"]
    command += ["arch.num_updates=20000", "arch.num_evaluation=20", "checkpoint.share=1"]
    command += ["hydra.launcher.workers=2", "arch.num_eval_episodes=1"]

    # The workers have the variables of the cluster, which has those of this process
    env = {**os.environ, "PYTHONPATH": str(ROOT)}

    def start(name: str, *launcher: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*command, f"hydra.sweep.dir={name}", *launcher], cwd=cwd, env=env)

    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        cluster.add_node(num_cpus=1)
        address = f"hydra.launcher.over.ray.init.address={cluster.address}"
        sweep = start("killed", "hydra/launcher=jaxppo_ray", address)
        checkpoints = cwd / "killed" / "0" / "checkpoints"
        wait_for(lambda: len(checkpoint.steps_in(checkpoints)) > 1)
        lock = cwd / "killed" / "0" / ".lock"
        killed = int(lock.read_text())
        os.kill(killed, signal.SIGKILL)
        assert sweep.wait(300) == 0
        assert int(lock.read_text()) != killed
    finally:
        cluster.shutdown()
    assert start("whole", "hydra/launcher=jaxppo_shares").wait(300) == 0
    for number in range(4):
        assert_equal(cwd / "whole" / str(number), cwd / "killed" / str(number))
    assert (cwd / "killed" / "sweep.csv").is_file()
