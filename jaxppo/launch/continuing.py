"""Resume a sweep as a sweep: `resume=SWEEP` continues its jobs, as few programs as can be."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from jaxppo.analysis import runs, sweep
from jaxppo.config.fields import ConfigError, as_override
from jaxppo.config.messages import count
from jaxppo.config.stored import CONFIG
from jaxppo.launch.resuming import SWEEP, compose_run
from jaxppo.launch.sweeping import groups, train
from jaxppo.runtime.run.jobs import Job
from jaxppo.runtime.sinks.console import print_lines
from jaxppo.runtime.store import checkpoint
from jaxppo.runtime.store.directories import claim, release

_OF_THIS_MACHINE = ("resume=", "trust=")


def continue_sweep(command: str, folder: Path, arguments: Sequence[str]) -> bool:
    """Train the jobs of a sweep that have not ended; return whether all have ended well.

    `arguments` are settings that change, as `resume` of a run allows them: with any, jobs that have
    ended go on too. A job that never began begins. The table of all jobs is written and printed.
    """
    typed = [each for each in arguments if not re.match(r"\+{0,2}resume=", each)]
    _check(command, folder, arguments)
    claim(folder)
    try:
        changed = [each for each in typed if not each.lstrip("+").startswith(_OF_THIS_MACHINE)]
        jobs = _unfinished(command, folder, typed, every=bool(changed))
        programs = groups_of(jobs)
        every = count(sweep.read(folder), "job")
        print_lines(f"resume={folder}: {len(jobs)} of {every}, as {count(programs, 'program')}")
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
        sweep.report(folder, console=True)
        release(folder)


def _check(command: str, folder: Path, arguments: Sequence[str]) -> None:
    """Raise `ConfigError` if this command cannot continue the sweep."""
    for flag in (each for each in arguments if each.startswith("-")):
        raise ConfigError(
            f"{flag}: has no effect with resume={folder}, which goes on with the jobs of that "
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
            f"resume={folder}: its sweeper chose jobs by the results of others, and its search "
            "cannot go on; resume=DIR continues one of the jobs"
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


def _unfinished(command: str, folder: Path, typed: Sequence[str], *, every: bool) -> list[Job]:
    """Return the jobs that have not ended; with `every`, all."""
    jobs = []
    for row in sweep.read(folder):
        home = folder / row["job"]
        if not every and sweep.has_ended(row):
            continue
        if (home / CONFIG).exists():
            own = [*typed, as_override("resume", str(home))]
        else:  # it never began
            own = [*runs.overrides(home), *typed]
        jobs.append(Job(compose_run(command, own), home.absolute(), resume=True, group=folder.name))
    return jobs


def groups_of(jobs: Sequence[Job]) -> list[list[Job]]:
    """Return the jobs of each program: of equal shapes, and as far as each other."""
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
