"""What a user asked for, checked before anything compiles."""

import dataclasses
from pathlib import Path

from jaxppo.config.plan import Plan, memories, num_members, plan
from jaxppo.config.schema import Config
from jaxppo.runtime import build, compile, devices, sinks
from jaxppo.runtime.population import members
from jaxppo.types import System


class TrainingError(RuntimeError):
    """A run that cannot go on (NaN, infinity, nothing legal to do): one line, where and when."""


class TooLargeError(RuntimeError):
    """A program that needs more memory than there is."""


@dataclasses.dataclass(frozen=True)
class Job:
    """Settings, and the directory of the results."""

    config: Config
    run_dir: Path
    resume: bool = False  # from the latest checkpoint there, if any
    group: str | None = None  # the name of the sweep that it is of


def prepare(config: Config) -> tuple[Plan, System]:
    """Check all of a configuration without compiling anything; `ConfigError` on what cannot be."""
    if config.arch.profile is not None:
        profile_folder(config.arch.profile)
    check_surroundings(config)
    members(config)
    planned = plan_members(config, num_members(config))
    return planned, build.build(config, planned)


def check_surroundings(config: Config) -> None:
    """`ConfigError` where the cache, the compiler or a sink of the settings is not to be had here.

    Programs are cached from then on.
    """
    compile.use_cache(config.arch.compile_cache)
    compile.check(config.arch.compiler)
    sinks.check(config.logger)


def profile_folder(setting: str) -> Path:
    """Where a profiler writes, made."""
    return compile.make_folder("arch.profile", setting, "null for no trace")


def plan_members(config: Config, count: int) -> Plan:
    """The plan of `count` members. Halving ends with one, wherever it began: it has one device."""
    num_devices = devices.count(1 if config.population.selection == "halving" else count)
    return plan(config, num_devices, count)


def algorithm_name(config: Config) -> str:
    """Such as ff_ppo or rec_ppo; of a user's own, its class."""
    name = config.system.algorithm.rpartition(".")[2]
    return f"{'rec' if memories(config.network) else 'ff'}_{name}"
