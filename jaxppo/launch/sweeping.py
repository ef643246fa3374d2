"""Run a sweep as one program, or as few."""

import dataclasses
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobReturn, JobStatus, run_job
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf, open_dict

from jaxppo.config.fields import MAX_FLOAT, ConfigError
from jaxppo.config.messages import count, flattened
from jaxppo.config.parse import parse, system_type
from jaxppo.config.schema import Config, SystemConfig
from jaxppo.config.stored import plain
from jaxppo.envs import varying
from jaxppo.launch.composing import plain_settings, without_plus
from jaxppo.launch.resuming import settings_of
from jaxppo.runtime.hosts import devices
from jaxppo.runtime.programs.build import program_key
from jaxppo.runtime.run.compiling import TooLargeError
from jaxppo.runtime.run.jobs import Job, prepare
from jaxppo.runtime.run.loop import run_together
from jaxppo.runtime.store.directories import sign_of_run

_LOG = logging.getLogger("hydra.jaxppo")  # as visible as Hydra's own messages
_MAX_COMPOSED = 32  # jobs of a sweep that are checked in full before the first starts

Outcome = float | Exception  # of a job
TrainAll = Callable[[list[list[Job]]], Iterable[Sequence[Outcome]]]  # trains programs


def launch(
    context: HydraContext,
    config: DictConfig,
    compose: Callable[[Sequence[str]], DictConfig],
    job_overrides: Sequence[Sequence[str]],
    first: int,
    train_all: TrainAll | None = None,
) -> list[JobReturn]:
    """Run the jobs of a sweep; jobs that need the same program run as its members.

    Each job has its own directory and result. A failed job does not affect the others. `compose`
    maps overrides to a job's settings. `train_all` trains the programs; by default one after
    another in this process.
    """
    jobs, returns = _begin_all(context, config, compose, job_overrides, first)
    programs = groups([job.config for job in jobs])
    firsts = [jobs[numbers[0]].config for numbers in programs]
    _LOG.info("%s %s", count(jobs, "job"), as_programs(firsts))
    outcomes = (train_all or partial(map, train))([[jobs[n] for n in ns] for ns in programs])
    for numbers, found in zip(programs, outcomes, strict=True):
        for number, outcome in zip(numbers, found, strict=True):
            failure = _failure(outcome)
            if failure is not None and "optuna" in str(config.hydra.sweeper._target_):
                _LOG.warning("job %s failed: %s", first + number, failure)
                outcome = -MAX_FLOAT  # so that the study goes on
            returns[number].return_value = outcome
            if isinstance(outcome, Exception):
                returns[number].status = JobStatus.FAILED
    return returns


def _failure(outcome: Outcome) -> str | None:
    """Return why Optuna cannot take an outcome as a score; None if it can."""
    if isinstance(outcome, Exception):
        return str(outcome)
    return "its result is NaN" if math.isnan(outcome) else None


def _begin_all(
    context: HydraContext,
    config: DictConfig,
    compose: Callable[[Sequence[str]], DictConfig],
    job_overrides: Sequence[Sequence[str]],
    first: int,
) -> tuple[list[Job], list[JobReturn]]:
    """Make the directories of all jobs; return the jobs, and what Hydra records of each.

    All jobs are checked before any directory is made.
    """
    composed, taken = [], set[Path]()
    for number, overrides in enumerate(job_overrides, first):
        settings = compose(overrides)
        with open_dict(settings):
            settings.hydra.job.id = settings.hydra.job.num = number
        without_plus(settings)
        HydraConfig.instance().set_config(settings)  # for the names of directories
        _check_directory(settings, taken)
        composed.append((settings, settings_of(settings, settings.hydra)))
    jobs: list[Job] = []
    returns, group = [], Path(config.hydra.sweep.dir).name
    for settings, own in composed:
        done = run_job(
            hydra_context=context,
            task_function=lambda _, own=own: jobs.append(  # type: ignore[misc]
                Job(own, Path(HydraConfig.get().runtime.output_dir), group=group)
            ),
            config=settings,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )
        done.return_value  # noqa: B018  raises the error of a failed job
        returns.append(done)
    return jobs, returns


def _check_directory(settings: DictConfig, taken: set[Path]) -> None:
    """Add a new job's directory to `taken`; `ConfigError` if another job has, or had, it."""
    sweep = settings.hydra.sweep
    folder = (Path(sweep.dir) / sweep.subdir).absolute()
    if folder in taken or sign_of_run(folder):
        typed: Any = OmegaConf.to_container(sweep)
        raise ConfigError(
            f"hydra.sweep.subdir={typed['subdir']}: two jobs would have the directory {folder}; "
            "name it by what differs between jobs, and choose another hydra.sweep.dir"
        )
    taken.add(folder)


def groups(configs: Sequence[Config]) -> list[list[int]]:
    """Return for each program the numbers of the jobs that it can train."""
    groups: list[tuple[Config, list[int]]] = []
    known: dict[str, bool] = {}  # whether environments can be those of one program

    def share(one: Config, other: Config) -> bool:
        if one == other or dataclasses.replace(other, env=one.env) != one:
            return one == other
        pair = repr((one.env, other.env))
        if pair not in known:
            known[pair] = varying.can_vary(one.env, other.env)
        return known[pair]

    for number, config in enumerate(configs):
        key = program_key(config)
        alone = config.population.size is not None  # each population has its own program
        found = [] if alone else [numbers for other, numbers in groups if share(other, key)]
        if found:
            found[0].append(number)
        else:
            groups.append((key, [number]))
    return [numbers for _, numbers in groups]


def as_programs(firsts: Sequence[Config]) -> str:
    """Return how many programs train jobs, and why not one, of the first job's settings of each."""
    return f"as {count(firsts, 'program')}{_apart(firsts)}"


def _apart(configs: Sequence[Config]) -> str:
    """Return, after a colon, why jobs of these settings cannot share a program; "" if they can."""
    if any(config.population.size is not None for config in configs[1:]):
        return ": each population is a program of its own"
    keys = [dict(flattened(plain(program_key(config)))) for config in configs]
    names = dict.fromkeys(name for key in keys for name in key)
    differ = [name for name in names if any(key.get(name) != keys[0].get(name) for key in keys)]
    if not differ:
        return ""
    more = f" and {count(differ[3:], 'other')}" if differ[3:] else ""
    return (
        f": jobs differ in {', '.join(differ[:3])}{more}, of which a program has one value; "
        "seeds, settings marked traced and most numbers of env.params may differ within one"
    )


def train(jobs: Sequence[Job]) -> Sequence[float | Exception]:
    """Train jobs in one program, or in halves if it would be too large; return their results."""
    try:
        return run_together(jobs, fit=len(jobs) > 1)
    except TooLargeError:
        half = len(jobs) // 2
        num_devices = len(devices.available())
        half -= half % num_devices if half > num_devices else 0
        return [*train(jobs[:half]), *train(jobs[half:])]
    except Exception as error:  # affects only this program
        return [error] * len(jobs)


def check_sweeper(sweeper: DictConfig, overrides: list[str]) -> None:
    """Raise `ConfigError` for an interval that cannot be sampled, or if Optuna minimises."""
    kind = str(sweeper._target_)
    if "basic" in kind:
        named = [f"{key}={value}" for key, value in (sweeper.get("params") or {}).items()]
        for override in OverridesParser.create().parse_overrides([*named, *overrides]):
            if override.is_interval_sweep():
                key, typed = override.key_or_group, (override.input_line or "").partition("=")[2]
                raise ConfigError(
                    f"{key}={typed}: an interval needs a sweeper that draws from it; add "
                    "hydra/sweeper=optuna, or name the values, such as 1,2"
                )
    if "optuna" not in kind:
        return
    for name in ("n_trials", "n_jobs"):
        number = sweeper.get(name, 1)
        if not isinstance(number, int) or number < 1:
            raise ConfigError(f"hydra.sweeper.{name}={number}: must be an integer, at least 1")
    direction = getattr(sweeper.get("direction"), "name", sweeper.get("direction"))
    if direction != "maximize":
        raise ConfigError(
            f"hydra.sweeper.direction={direction}: would look for the lowest return; set it to "
            "maximize"
        )


def check_sweep(config_name: str, overrides: list[str]) -> None:
    """Check each swept value by its rule, then whole jobs, one changed value at a time.

    Of an interval these are both ends and, unless its values are integers, one value between them.
    """
    parser = OverridesParser.create()
    parsed = parser.parse_overrides(overrides)
    choices = [
        [f"{o.get_key_element()}={value}" for value in _values(o)]
        if o.is_sweep_override()
        else [o.input_line or ""]
        for o in parsed
    ]
    first = [options[0] for options in choices]
    composed = plain_settings(hydra.compose(config_name, first), first)
    for override in parsed:
        if override.is_sweep_override() and override.key_or_group.count(".") == 1:
            group, name = override.key_or_group.split(".")
            for value in _values(override):
                found = parser.parse_override(f"{name}={value}").value()
                if isinstance(found, str):  # YAML knows more numbers, such as .inf
                    found = OmegaConf.create(f"value: {value}").value
                parse({**composed, group: {**composed.get(group, {}), name: found}})
    jobs = [first] + [
        [*first[:i], option, *first[i + 1 :]]
        for i, options in enumerate(choices)
        for option in options[1:]
        if not _is_free(option.partition("=")[0].lstrip("+"), system_type(composed["system"]))
    ]
    for job in jobs[:_MAX_COMPOSED]:
        prepare(parse(plain_settings(hydra.compose(config_name, job), job)))


def _values(override: Override) -> list[str]:
    """Return the values of a sweep, as text; `ConfigError` if an interval is empty."""
    interval: Any = override.value()
    if not override.is_interval_sweep():
        return list(override.sweep_string_iterator())
    low, high = interval.start, interval.end
    least = 0 if "log" in interval.tags else -math.inf
    if not least < low < high:
        rule = "end above its start" if low >= high else "start above 0, since it has the tag log"
        raise ConfigError(f"{override.key_or_group}: the interval from {low} to {high} must {rule}")
    whole = isinstance(low, int)
    return [str(low), *([] if whole else [str(low + (high - low) / math.pi)]), str(high)]


def _is_free(key: str, system: type[SystemConfig]) -> bool:
    """Return whether the values of a setting need no check beyond their own rule."""
    fields = {f"system.{f.name}": f.metadata for f in dataclasses.fields(system)}
    rule: Any = fields.get(key, {})
    return key == "arch.seed" or ("traced" in rule and not rule.get("coupled"))
