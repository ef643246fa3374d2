"""What a command does before it answers, and a run before its first update."""

import subprocess
import sys

import pytest

# Trains one update; prints how many programs were compiled after the compile event, by name
RUN = """
import logging, sys
import jax
from jaxppo.launch.composing import compose
from jaxppo.runtime.run import loop
from jaxppo.runtime.run.caller import Caller
from jaxppo.runtime.run.jobs import Job

class Screen:
    def __getattr__(self, name):
        return lambda *_, **__: None
    def write(self, event):
        if event["event"] == "compile":
            later.clear()

class Names(logging.Handler):
    def emit(self, record):
        if record.getMessage().startswith("Compiling"):
            later.append(record.getMessage().split()[1])

later = []
jax.config.update("jax_log_compiles", True)
logger = logging.getLogger("jax")
logger.propagate, logger.handlers = False, [Names()]
config = compose("ff_ppo", [
    "env=cartpole", "arch.num_updates=1", "arch.num_evaluation=1", "arch.compile_cache=null",
    "arch.total_num_envs=16", "arch.num_eval_episodes=4", "system.num_minibatches=1",
])
loop.run_together([Job(config, None)], caller=Caller(screens=[Screen()]))
print(*later)
print(*{"distrax", "rlax", "tensorflow_probability"} & set(sys.modules))
"""


def told(script: str, *arguments: str) -> list[str]:
    """Return the lines that a program of its own prints."""
    words = [sys.executable, "-W", "ignore", "-c", script, *arguments]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize(
    "module, argument", [("ff_ppo", "--help"), ("rec_pqn", "-h"), ("__main__", "--version")]
)
def test_help_and_version_need_neither_jax_nor_hydra(module: str, argument: str) -> None:
    ask = f"import sys, jaxppo.{module} as command; command.main(); print(*sys.modules)"
    *lines, modules = told(ask, argument)
    assert lines
    assert not {"jax", "jaxlib", "hydra", "numpy"} & set(modules.split())


@pytest.mark.long
def test_a_run_compiles_and_imports_little_beside_its_programs() -> None:
    """After the first state: copies for `best`, empty metrics, the keys of the absolute metric."""
    later, imported = told(RUN)[-2:]
    assert len(later.split()) <= 3, later
    assert imported == ""  # the policy is a categorical
