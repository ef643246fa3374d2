"""The door of the commands: `--help` alone and `--version` are answered without JAX and Hydra.

Both take longer to import than the answer. Whatever else is on the command line goes to
`command_line`, whose `--help` has Hydra's rules.
"""

import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from jaxppo import __version__
from jaxppo.config.parse import help_text
from jaxppo.config.schema import ALGORITHMS, SystemConfig

# Folders in configs/network
LAYERS = ("input_layer", "torso", "memory", "actor_head", "critic_head", "q_head")


def train(config_name: str) -> None:
    """Run a command that trains, `config_name` being its file of settings."""
    algorithm = config_name.partition("_")[2]
    if not answers(lambda: help_of(algorithm), sys.argv[1:]):
        from jaxppo.launch.command_line import main
        from jaxppo.runtime.run.loop import run

        main(config_name, run)


def answers(help: Callable[[], str], arguments: Sequence[str], *, bare: bool = False) -> bool:
    """Print the help or the versions; return False if the arguments ask for something else.

    `bare`: the help is the answer to no arguments.
    """
    open_streams()
    if "--version" in arguments:
        text = versions()
    elif arguments in (["-h"], ["--help"]) or (bare and not arguments):
        text = help()
    else:
        return False
    try:
        print(text, flush=True)
    except OSError:
        from jaxppo.launch.errors import one_line

        with one_line():
            raise
    return True


def open_streams() -> None:
    """Open closed standard streams to the null device.

    Otherwise the next opened file would take their descriptors, and receive what is printed.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115


def versions() -> str:
    """Return the versions of jaxppo and JAX."""
    return f"jaxppo {__version__}, jax {version('jax')}"


def config_dir() -> Path:
    """Return the folder of the YAML files: in an installed package, or beside it in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def choices(group: str) -> list[str]:
    """Return the names of a group's files; those of env are also in one folder per library."""
    folder = config_dir() / group
    files = folder.rglob("*.yaml") if group == "env" else folder.glob("*.yaml")
    names = [file.relative_to(folder).with_suffix("").as_posix() for file in files]
    return sorted(names, key=lambda name: ("/" in name, name))


def help_of(algorithm: str) -> str:
    """Return the text of `--help` for an algorithm."""
    groups = ("env", "network", "arch", "population", *(f"network/{layer}" for layer in LAYERS))
    listed = "\n".join(f"{group}={', '.join(choices(group))}" for group in groups)
    short = algorithm if algorithm in ALGORITHMS else SystemConfig.algorithm
    rate = "learning_rate" if short == "pqn" else "actor_lr"
    text = f"""{short.upper()} in JAX, compiled end to end.

  python -m jaxppo.ff_{short} env=cartpole arch.total_num_envs=4096
  python -m jaxppo.ff_{short} env=cartpole arch.num_seeds=16
  python -m jaxppo.ff_{short} -m env=cartpole arch.seed=1,2,3 system.gamma=0.98,0.99
  python -m jaxppo.ff_{short} env=cartpole population=pbt population.size=32
  python -m jaxppo.rec_{short} env=t_maze network=gru

Settings that matter first:
  env=NAME                       an environment with settings that suit it
  env.name=ID                    any environment of env.library; python -m jaxppo.envs lists them
  network=NAME                   the layers
  arch.total_timesteps=1e6       how long to train
  arch.total_num_envs=1024       environments that are stepped at once
  arch.num_seeds=10              agents to train at once, for an interval
  arch.seed=1                    seed of the first of them
  {f"system.{rate}=1e-3":<30} learning rate
  hydra.run.dir=DIR              where to write; otherwise a new directory below outputs/
  resume=DIR                     go on with the run of a directory

Choices of groups:
{listed}
  network/torso and network/memory need a branch: network/torso@network.critic_torso=mlp
--cfg job prints the settings; --hydra-help shows more.

{help_text(algorithm, _of_file(algorithm))}"""
    return coloured(text) if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else text


def _of_file(algorithm: str) -> list[tuple[str, str, str]] | None:
    """Return name, help and default of an algorithm's settings by its file; None: it has none.

    The algorithm itself would import JAX.
    """
    if algorithm not in ALGORITHMS:
        return None
    lines = (config_dir() / "system" / f"{algorithm}.yaml").read_text()
    found = re.findall(r"^(\w+): (.*?)  # (.*)$", lines, re.MULTILINE)
    return [(name, help, default) for name, default, help in found]


def coloured(text: str) -> str:
    """Return a help text with bold headings and coloured keys, for a terminal."""
    text = re.sub(r"^(\w[\w/ ]*)(?=[:=])", "\x1b[1m\\1\x1b[0m", text, flags=re.MULTILINE)
    return re.sub(r"^  ([\w.]+)(?=[ =])", "  \x1b[36m\\1\x1b[0m", text, flags=re.MULTILINE)
