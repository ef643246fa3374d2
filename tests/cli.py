"""The command line in tests: its fixtures, and small runs that tests share."""

import dataclasses
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import absl.logging
import jax
import pytest
from hydra.core.global_hydra import GlobalHydra

from jaxppo.config.schema import Config
from jaxppo.launch.command_line import main

ROOT = Path(__file__).resolve().parents[1]
RUN_LIMIT = 300  # [s] for a run on a machine that does other things too

# Tests that train share two programs, CartPole's and the corridor's, compiled once a session.
SMALL = [
    "arch.total_num_envs=4",
    "arch.num_eval_episodes=2",
    "arch.evaluate_first=false",
    "system.rollout_length=8",
    "system.num_minibatches=2",
    "system.epochs=1",
]
CARTPOLE = ["env=cartpole", "arch.num_updates=2", "arch.num_evaluation=2", *SMALL]

CORRIDOR = '''
"""A user's module: an environment whose reward is NaN from the tenth step of an episode on."""

import gymnax
import jax.numpy as jnp
from gymnax.environments import spaces
from gymnax.environments.environment import Environment, EnvParams, EnvState


class Corridor(Environment):
    @property
    def default_params(self):
        return EnvParams(max_steps_in_episode=12)

    def reset_env(self, key, params):
        state = EnvState(time=jnp.int32(0))
        return self.position(state), state

    def step_env(self, key, state, action, params):
        state = EnvState(time=state.time + 1)
        reward = jnp.where(state.time < 10, 1.0, jnp.nan)
        return self.position(state), state, reward, jnp.array(False), {}

    def position(self, state):
        return jnp.ones(1) * state.time

    def action_space(self, params):
        return spaces.Discrete(2)

    def observation_space(self, params):
        return spaces.Box(0.0, 12.0, (1,))


gymnax.register("Corridor-of-mine", Corridor)
'''
BY_ID = ["env.module=corridor", "env.name=Corridor-of-mine"]


@dataclasses.dataclass(frozen=True)
class Outcome:
    status: Any
    out: str
    err: str


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of all runs, so that their default cache of compiled programs is one and ours."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    """An empty directory to run in; other files of a test go beside it."""
    path = tmp_path / "cwd"
    path.mkdir()
    return path


@pytest.fixture
def shell(tmp_path: Path, home: Path) -> dict[str, str]:
    """A user's variables: this process's without those that change how Python or JAX run."""
    ours = ("PYTHON", "JAX_", "XLA_", "HYDRA_", "COV_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    (tmp_path / "corridor.py").write_text(CORRIDOR)
    return {
        **kept,
        "HOME": str(home),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}",
        "TERM": "xterm-256color",
    }


@pytest.fixture
def command(cwd: Path, shell: dict[str, str]) -> Callable[..., Outcome]:
    """`command(*arguments, module=...)` in a process of its own, from an empty directory."""

    def call(*arguments: str, limit: float = RUN_LIMIT, module: str = "ff_ppo") -> Outcome:
        return run_python("-m", f"jaxppo.{module}", *arguments, cwd=cwd, env=shell, limit=limit)

    return call


def run_python(*arguments: str, cwd: Path, env: dict[str, str], limit: float) -> Outcome:
    """What `python` with these arguments ends with; it may take `limit` seconds."""
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=limit,
    )
    return Outcome(result.returncode, result.stdout, result.stderr)


def never(config: Config, run_dir: Path) -> float:
    pytest.fail(f"started a run in {run_dir} with {config}")


@pytest.fixture
def launch(
    cwd: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    """`launch(*arguments, run=...)` in this process: all but the training, in a fraction of it."""
    names = [
        "jax_compilation_cache_dir",
        "jax_persistent_cache_min_compile_time_secs",
        "jax_persistent_cache_min_entry_size_bytes",
    ]
    before = {name: getattr(jax.config, name) for name in names}
    monkeypatch.syspath_prepend(cwd.parent)
    monkeypatch.chdir(cwd)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")  # to have back what the launcher sets
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    # Hydra shuts every log handler down, and absl's would close what pytest captures with
    monkeypatch.setattr(absl.logging.get_absl_handler().python_handler, "stream", io.StringIO())

    def call(*arguments: str, run: Callable[[Config, Path], float] = never) -> Outcome:
        GlobalHydra.instance().clear()
        monkeypatch.setattr(sys, "argv", ["ff_ppo.py", *arguments])
        status: Any = 0
        try:
            main("ff_ppo", run)
        except SystemExit as stop:
            status = stop.code
        return Outcome(status, *capsys.readouterr())

    yield call
    GlobalHydra.instance().clear()
    for name, value in before.items():
        jax.config.update(name, value)
