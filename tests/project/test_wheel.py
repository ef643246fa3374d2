"""The wheel holds the package and its files, and its commands start from an empty directory."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    """Standard output of a command that must succeed, without variables that choose a Python."""
    ours = ("PYTHON", "VIRTUAL_ENV", "JAX_", "XLA_", "HYDRA_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    result = subprocess.run(
        command, cwd=cwd, env=kept | variables, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, check=False, timeout=400,
    )  # fmt: skip
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dist = tmp_path_factory.mktemp("dist")
    build = ("-m", "build", "--wheel", "--no-isolation", "--outdir", dist, ROOT)
    run(sys.executable, *build, cwd=dist)
    (found,) = dist.glob("*.whl")
    return found


@pytest.mark.long
def test_wheel_holds_all_files_and_its_commands_start(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        archive.extractall(tmp_path / "installed")
    ours = [*(ROOT / "jaxppo").rglob("*"), *(ROOT / "hydra_plugins").rglob("*")]
    wanted = {
        str(file.relative_to(ROOT)) for file in ours if file.suffix in (".py", ".pyi", ".typed")
    }
    files = (ROOT / "configs").rglob("*.yaml")
    assert names == wanted | {f"jaxppo/{file.relative_to(ROOT)}" for file in files}
    (tmp_path / "empty").mkdir()
    given = ("-m", "jaxppo.ff_ppo", "env=catch", "--cfg", "job")
    path = str(tmp_path / "installed")  # before the package of this checkout
    printed = run(sys.executable, *given, cwd=tmp_path / "empty", PYTHONPATH=path)
    assert "Catch-bsuite" in printed


@pytest.mark.slow
def test_wheel_that_is_installed_trains(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    given = ("--no-compile", "-c", ROOT / "constraints.txt", wheel)
    run(python, "-m", "pip", "install", "-q", *given, cwd=tmp_path)
    tiny = ["env=cartpole", "arch.total_num_envs=8", "arch.num_updates=4", "arch.num_evaluation=2"]
    run(python, "-m", "jaxppo.ff_ppo", *tiny, "hydra.run.dir=run", cwd=tmp_path)
    assert (tmp_path / "run" / "summary.json").is_file()
    run(tmp_path / "venv" / "bin" / "jaxppo", "evaluate", "run", "episodes=2", cwd=tmp_path)
