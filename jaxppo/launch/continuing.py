"""Resume a sweep: `resume=SWEEP` continues its unfinished jobs, in as few programs as possible."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from jaxppo.analysis import sweep
from jaxppo.config.fields import ConfigError, as_override
from jaxppo.config.messages import count
from jaxppo.config.stored import CONFIG, OVERRIDES, overrides, write_atomically
from jaxppo.launch.composing import jobs_of_sweep, subdirs_of_sweep
from jaxppo.launch.resuming import OF_RESUME, SWEEP, compose_run, is_setting
from jaxppo.launch.sweeping import as_programs, groups, train
from jaxppo.runtime.run.jobs import Job
from jaxppo.runtime.sinks.console import print_lines
from jaxppo.runtime.store import checkpoint
from jaxppo.runtime.store.directories import claim, release


def continue_sweep(command: str, folder: Path, arguments: Sequence[str]) -> bool:
    """Train the jobs of a sweep that have not ended; return whether all have ended well.

    `arguments` are settings that change, as `resume` of a run allows them: with any, jobs that have
    ended go on too. A job that never began begins. At the end the table has all jobs.
    """
    _check(command, folder, arguments)
    claim(folder)
    try:
        programs = _programs(command, folder, arguments)
    except BaseException:  # a refusal, before which nothing has changed
        release(folder)
        raise
    try:
        failed = [
            outcome
            for program in programs
            for outcome in train(program)
            if isinstance(outcome, Exception)
        ]
        for error in failed:
            print_lines(f"a job failed: {error}")
        return not failed
    finally:
        end_sweep(folder, console=True)


def _programs(command: str, folder: Path, arguments: Sequence[str]) -> list[list[Job]]:
    """Return the jobs that are left, by program, and say how many there are."""
    unmade = _unmade(command, folder)
    rows = [row for row in sweep.read(folder) if folder / row["job"] not in unmade]
    if all(is_setting(each, *OF_RESUME) for each in arguments):  # no setting changes
        left = [row for row in rows if not sweep.has_ended(row)]
    else:
        left = rows
    typed = [each for each in arguments if not is_setting(each, "resume")]
    homes = {folder / row["job"]: overrides(folder / row["job"]) for row in left} | unmade
    programs = groups_of([_job(command, home, own, typed) for home, own in homes.items()])
    for home, own in unmade.items():  # all jobs are checked now
        (home / OVERRIDES).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(home / OVERRIDES, OmegaConf.to_yaml(OmegaConf.create(own)))
    apart = f", {as_programs([each[0].config for each in programs])}" if programs else ""
    print_lines(f"resume={folder}: {len(homes)} of {count([*rows, *unmade], 'job')}{apart}")
    return programs


def _unmade(command: str, folder: Path) -> dict[Path, list[str]]:
    """Return the directories that the jobs of an interrupted sweep lack, and their overrides.

    The launcher `basic` makes the directory of each job when it begins, others make all before the
    first begins: if a sweep is killed, some are missing.
    """
    jobs, num_unmade = _planned(folder)
    if not num_unmade:
        return {}
    of_hydra = _record(folder).get("overrides", {}).get("hydra", [])
    homes = [folder / name for name in subdirs_of_sweep(command, of_hydra, jobs)]
    if len({*homes}) < len(jobs):
        raise ConfigError(
            f"resume={folder}: hydra.sweep.subdir gives several jobs one directory; start the "
            "sweep again with a hydra.sweep.subdir that differs between jobs"
        )
    found = zip(homes, jobs, strict=True)
    return {x: own for x, own in found if not ((x / CONFIG).exists() or overrides(x))}


def _planned(folder: Path) -> tuple[list[list[str]], int]:
    """Return the overrides of all jobs of a sweep, and how many of them lack a directory."""
    hydra = _record(folder)
    params = (hydra.get("sweeper", {}).get("params") or {}).items()
    task = hydra.get("overrides", {}).get("task", [])
    jobs = jobs_of_sweep([*(f"{key}={value}" for key, value in params), *task])
    made = sum(bool(overrides(each)) for each in folder.iterdir())
    return jobs, max(0, len(jobs) - made)


def end_sweep(folder: Path, *, console: bool) -> None:
    """Report the results of a sweep, even if jobs failed or did not begin; unlock its directory."""
    try:
        sweep.report(folder, console=console)
        jobs = sweep.read(folder)
        if jobs and can_continue(folder):  # not of a sweep that was refused
            left = sum(not sweep.has_ended(job) for job in jobs) + _planned(folder)[1]
            if left:
                print_lines(
                    f"{count(left, 'job')} did not end: {as_override('resume', str(folder))} "
                    "continues the sweep"
                )
    finally:
        release(folder)


def _check(command: str, folder: Path, arguments: Sequence[str]) -> None:
    """Raise `ConfigError` if this command cannot continue the sweep."""
    if flags := [each for each in arguments if each.startswith("-")]:
        raise ConfigError(
            f"{flags[0]}: has no effect with resume={folder}, which goes on with the jobs of that "
            "sweep; leave it out"
        )
    hydra = _record(folder)
    begun = hydra.get("job", {}).get("config_name", command)
    if begun != command:
        raise ConfigError(
            f"resume={folder}: the sweep was begun by another command; python -m jaxppo.{begun} "
            f"{as_override('resume', str(folder))}"
        )
    if not can_continue(folder):
        raise ConfigError(
            f"resume={folder}: a sweep whose sweeper chose jobs by results cannot be resumed as a "
            "whole; resume=DIR continues one of its jobs"
        )


def can_continue(folder: Path) -> bool:
    """Return whether all jobs of a sweep were known when it began."""
    return "basic" in str(_record(folder).get("sweeper", {}).get("_target_", ""))


def _record(folder: Path) -> dict[str, Any]:
    """Return what Hydra wrote of its own settings when the sweep began; empty if it did not."""
    if not (folder / SWEEP).is_file():
        return {}
    found: Any = OmegaConf.to_container(OmegaConf.load(folder / SWEEP), resolve=False)
    return dict(found.get("hydra", {})) if isinstance(found, dict) else {}


def _job(command: str, home: Path, own: Sequence[str], typed: Sequence[str]) -> Job:
    """Return a job that goes on, or begins, by its `own` overrides, if it never did."""
    begun = [as_override("resume", str(home))] if (home / CONFIG).exists() else own
    config = compose_run(command, [*begun, *typed])
    return Job(config, home.absolute(), resume=True, group=home.parent.name)


def groups_of(jobs: Sequence[Job]) -> list[list[Job]]:
    """Group jobs that can share a program: equal shapes, and the same number of steps done."""
    found: dict[tuple[int, ...], list[Job]] = {}
    for job in jobs:
        assert job.run_dir is not None
        steps = checkpoint.steps_in(job.run_dir / checkpoint.FOLDER)
        found.setdefault(tuple(steps[-1:]), []).append(job)
    return [
        [alike[number] for number in numbers]
        for alike in found.values()
        for numbers in groups([job.config for job in alike])
    ]
