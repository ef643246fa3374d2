"""The wheel, built and installed as a user would, trains from an empty directory."""

import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 400  # [s] for the whole test

TINY_RUN = [
    "env=cartpole",
    "arch.total_num_envs=8",
    "arch.total_timesteps=4096",
    "arch.num_evaluation=2",
    "arch.num_eval_episodes=8",
    "system.rollout_length=64",
    "hydra.run.dir=run",
]


def shell_environment() -> dict[str, str]:
    """This process's variables without those that choose a Python or change how JAX runs."""
    ours = ("PYTHON", "VIRTUAL_ENV", "JAX_", "XLA_", "HYDRA_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def run(*command: str | Path, cwd: Path, deadline: float) -> str:
    """Standard output of a command that must succeed before `deadline` (`time.monotonic`)."""
    result = subprocess.run(
        command,
        cwd=cwd,
        env=shell_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=deadline - time.monotonic(),
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.mark.long
def test_wheel_trains_from_an_empty_directory(tmp_path: Path) -> None:
    deadline = time.monotonic() + TIMEOUT
    dist, clean, empty = tmp_path / "dist", tmp_path / "venv", tmp_path / "empty"

    # fmt: off
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", dist, ROOT,
        cwd=tmp_path, deadline=deadline)
    # fmt: on
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for executable in ("ff_ppo", "rec_ppo"):
        assert {f"jaxppo/{executable}.py", f"jaxppo/configs/{executable}.yaml"} <= names
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"hydra_plugins", "jaxppo"}

    run(sys.executable, "-m", "venv", clean, cwd=tmp_path, deadline=deadline)
    python = clean / "bin" / "python"
    # fmt: off
    run(python, "-m", "pip", "install", "-q", "--no-compile", "-c", ROOT / "constraints.txt", wheel,
        cwd=tmp_path, deadline=deadline)
    # fmt: on
    empty.mkdir()
    output = run(python, "-m", "jaxppo.ff_ppo", *TINY_RUN, cwd=empty, deadline=deadline)
    assert output.splitlines()[-2].startswith("absolute metric")
    assert (empty / "run" / "summary.json").is_file()
    assert (empty / "run" / "metrics.jsonl").is_file()
