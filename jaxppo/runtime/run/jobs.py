"""Jobs, and their checks before anything compiles."""

import dataclasses
from pathlib import Path
from typing import Any

from jaxppo.config.messages import OneLineError
from jaxppo.config.plan import Plan, memories, num_members, plan
from jaxppo.config.schema import Config
from jaxppo.config.stored import make_folder
from jaxppo.runtime import sinks
from jaxppo.runtime.hosts import devices
from jaxppo.runtime.programs import build, compile, program_cache
from jaxppo.runtime.programs.population import members
from jaxppo.runtime.run import transfer
from jaxppo.types import System

Prepared = tuple[Plan, System]  # the sizes and the static part of a run


class TrainingError(OneLineError, RuntimeError):
    """A run cannot go on: NaN, infinity or no legal action. The message is one line."""

    result: Any = None  # a `Result`, if `jaxppo.train` raises this


@dataclasses.dataclass(frozen=True)
class Job:
    """The settings of a run and its directory; without one it writes no files."""

    config: Config
    run_dir: Path | None
    resume: bool = False  # from the latest checkpoint in run_dir, if any
    group: str | None = None  # name of its sweep, if any
    prepared: Prepared | None = None  # by `prepare`; None: the run builds its own


def prepare(config: Config) -> Prepared:
    """Check a whole configuration without compiling; `ConfigError` if anything is wrong."""
    if config.arch.profile is not None:
        profile_folder(config.arch.profile)
    members(config)
    check_surroundings(config)
    planned = plan_members(config, num_members(config))
    system = build.build(config, planned)
    transfer.check(config, system)
    return planned, system


def profile_folder(setting: str) -> Path:
    """Make the folder of profiler traces and return it."""
    return make_folder("arch.profile", setting, "another folder, or null for no trace")


def check_surroundings(config: Config) -> None:
    """Raise `ConfigError` if the cache, the compiler or a sink is not available here.

    This also switches the cache on.
    """
    program_cache.use(config.arch.compile_cache)
    compile.check(config.arch)
    sinks.check(config.logger)


def plan_members(config: Config, count: int) -> Plan:
    """Return the plan of `count` members. Halving ends with one member, so it uses one device."""
    num_devices = devices.count(1 if config.population.selection == "halving" else count)
    return plan(config, num_devices, count)


def algorithm_name(config: Config) -> str:
    """Return a name such as ff_ppo or rec_ppo; the class name for a user's own algorithm."""
    name = config.system.algorithm.rpartition(".")[2]
    return f"{'rec' if memories(config.network) else 'ff'}_{name}"
