"""Train a sweep on several machines: split it into shares, and run them by a launcher of Hydra.

A share is a list of programs, which one worker trains one after another. The submitting process
makes the directories of all jobs and collects the results. A worker that dies is started again by
Ray or SLURM, and continues from the checkpoints in these directories.
"""

import copy
import logging
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.types import HydraContext
from omegaconf import DictConfig, open_dict, read_write

from jaxppo.config.fields import ConfigError, quoted
from jaxppo.config.messages import brief, count, named
from jaxppo.launch.errors import explain
from jaxppo.launch.sweeping import Outcome, train
from jaxppo.runtime.hosts import devices
from jaxppo.runtime.hosts.processes import exit_at_once
from jaxppo.runtime.hosts.signals import Interrupted
from jaxppo.runtime.run.jobs import Job, TrainingError
from jaxppo.runtime.store.checkpoint import CheckpointError

FOLDER = ".shares"  # in the directory of a sweep: what the launcher writes for each share
_LOG = logging.getLogger("hydra.jaxppo")

Part = tuple[int, slice]  # the number of a program, and some of its jobs


def check_workers(launcher: DictConfig) -> None:
    """Raise `ConfigError` if `hydra.launcher.workers` is there and no number of shares."""
    workers = launcher.get("workers", 1)
    if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
        raise ConfigError(f"hydra.launcher.workers={workers}: must be a whole number, at least 1")


def split(sizes: Sequence[int], workers: int) -> list[list[Part]]:
    """Return at most `workers` shares of programs that have `sizes` jobs.

    With fewer programs than workers, the programs with the most jobs per share are split, and no
    share has two programs. Otherwise each program stays whole, and the largest are dealt first, to
    the share with the fewest jobs.
    """
    if len(sizes) >= workers:
        shares: list[list[Part]] = [[] for _ in range(workers)]
        totals = [0] * workers
        for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
            least = totals.index(min(totals))
            shares[least].append((number, slice(0, sizes[number])))
            totals[least] += sizes[number]
        return shares
    counts = [1] * len(sizes)
    while sum(counts) < workers:
        most = max(range(len(sizes)), key=lambda number: sizes[number] / counts[number])
        if counts[most] == sizes[most]:  # a job cannot be split
            break
        counts[most] += 1
    return [
        [(number, slice(i * size // num, (i + 1) * size // num))]
        for number, (size, num) in enumerate(zip(sizes, counts, strict=True))
        for i in range(num)
    ]


@dataclass(frozen=True)
class Work:
    """The function that workers call: it trains the share that has the number of Hydra's job."""

    shares: list[list[list[Job]]]  # share -> program -> jobs
    first: int  # number of the first share

    def __call__(self, settings: DictConfig) -> list[list[Outcome]]:
        """Train one share, from the checkpoints in the directories of its jobs, if any.

        Return the outcomes of each program. A signal saves the jobs and ends the process without a
        result, so that Ray or SLURM starts the share again.
        """
        devices.prepare()
        share = self.shares[HydraConfig.get().job.num - self.first]
        try:
            return [[_portable(outcome) for outcome in train(jobs)] for jobs in share]
        except Interrupted as stopped:
            sys.stderr.write(f"{stopped}\n")
            exit_at_once(stopped.status)


def _portable(outcome: Outcome) -> Outcome:
    """Return an outcome that can be sent to another process: errors of libraries as one line."""
    if not isinstance(outcome, Exception):
        return outcome
    if isinstance(outcome, ConfigError | CheckpointError | TrainingError):
        return outcome
    traceback.print_exception(outcome)
    return TrainingError(explain(outcome) or named(outcome))


def train_in_shares(
    context: HydraContext, config: DictConfig, first: int, programs: Sequence[Sequence[Job]]
) -> list[list[Outcome]]:
    """Train programs in `hydra.launcher.workers` shares, which `hydra.launcher.over` runs as jobs.

    Return the outcomes of each program.
    """
    workers = config.hydra.launcher.workers
    shares = split([len(jobs) for jobs in programs], workers)
    _LOG.info("%s of %s", count(shares, "share"), count(programs, "program"))
    resuming = [[replace(job, resume=True) for job in jobs] for jobs in programs]
    work = Work([[resuming[number][part] for number, part in share] for share in shares], first)
    folder = Path(config.hydra.sweep.dir).absolute() / FOLDER
    own = [
        f"hydra.sweep.dir={quoted(str(folder))}",
        "hydra.sweep.subdir=${hydra.job.num}",
        "hydra.output_subdir=null",  # a share is not a run
    ]
    outcomes: list[list[Outcome]] = [[TrainingError("")] * len(jobs) for jobs in programs]
    try:
        launcher = Plugins.instance().instantiate_launcher(context, work, _inner(config))
        returns = launcher.launch([own] * len(shares), first)
    except Exception as error:  # a worker is lost, or the cluster is not there
        _LOG.error("%s", error)
        name = config.hydra.runtime.choices["hydra/launcher"]
        lost = TrainingError(
            f"hydra/launcher={name}: {brief(error, 2)}; resume=DIR continues a job"
        )
        return [[lost] * len(jobs) for jobs in programs]
    for share, done in zip(shares, returns, strict=True):
        for (number, part), found in zip(share, done.return_value, strict=True):
            outcomes[number][part] = found
    return outcomes


def _inner(config: DictConfig) -> DictConfig:
    """Return the settings of the launcher that runs the shares."""
    inner = copy.deepcopy(config)
    with read_write(inner.hydra), open_dict(inner.hydra):
        inner.hydra.launcher = inner.hydra.launcher.over
    return inner
