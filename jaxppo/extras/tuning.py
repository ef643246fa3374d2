"""Search hyperparameters for one environment, and compare the best with its own settings.

Successive halving; population-based training that starts with its best; finals of the best of
both over several seeds; then a confirmation with fresh seeds. Which hyperparameters are searched,
and between which bounds, is declared beside each setting (`tune` of `config.fields.traced`).
"""

import contextlib
import dataclasses
import json
import math
import re
import shutil
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxppo.analysis.comparison import FEW, better, overall
from jaxppo.config.fields import ConfigError, setting
from jaxppo.config.plan import Plan
from jaxppo.config.schema import COMMANDS, Config, PopulationConfig
from jaxppo.config.stored import write_atomically
from jaxppo.extras.report import PAGE, Reporting, report
from jaxppo.launch.composing import compose, split_settings
from jaxppo.launch.door import choices
from jaxppo.launch.env_files import write_files
from jaxppo.runtime.programs.population import (
    ancestors,
    distance_to_one,
    inherited,
    near_one_of,
    rungs,
)
from jaxppo.runtime.run.caller import Caller
from jaxppo.runtime.run.jobs import Job, TrainingError, plan_members, prepare
from jaxppo.runtime.run.loop import run_together
from jaxppo.runtime.run.members import Members
from jaxppo.runtime.sinks import Event
from jaxppo.runtime.sinks.console import print_lines
from jaxppo.runtime.store.checkpoint import versions
from jaxppo.runtime.store.directories import output_folder

SIZES = (128, 64, 32, 16, 8, 4)  # members of the halving: as many as half of the budget pays
MOST_EVOLVED = 32  # members of the population-based training, at most
EVALUATIONS = 20  # of a run in both, after which members are selected
FINALISTS = 8  # at most, 2 at least
FINAL_SEEDS = 3  # runs of each finalist
SEEDS = {"halving": 0, "evolution": 10_000, "finals": 20_000, "confirmation": 30_000}  # + arch.seed

_OWN = ("hydra", "resume", "population", "arch.num_seeds", "arch.absolute_metric")  # set here

Values = dict[str, float]  # hyperparameter -> value
Ranges = dict[str, list[float]]  # hyperparameter -> [low, high]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tuning:
    """Search settings for one environment: python -m jaxppo.tune env=NAME budget=STEPS [key=value]

    All other settings are those of the command, such as arch.total_timesteps=2e5. Writes the best
    settings as a file of configs/env, a report of the confirmation, and tuning.json.
    """

    budget: int = setting(
        100_000_000, "environment steps of all training runs, of search and confirmation", low=1
    )
    members: int = setting(
        128, "members of the populations of the search, at most; fewer need less memory", low=4
    )
    seeds: int = setting(10, "fresh seeds of the confirmation", low=2, high=9_999)
    command: str = setting("ff_ppo", f"one of {', '.join(COMMANDS)}", choices=COMMANDS)
    name: str = setting("tuned", "env=NAME chooses the written file")
    out: str | None = setting(None, "the directory to write to; null: outputs/tune/NAME")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """How the budget is divided."""

    num_members: int  # of the halving
    num_evolved: int  # members of the population-based training
    num_finalists: int
    steps: dict[str, int]  # phase -> environment steps of its training

    @property
    def num_candidates(self) -> int:
        """Return how many finalists halving gives, and evolution too."""
        return -(-self.num_finalists // 2)


@dataclasses.dataclass
class Record:
    """What the search has found so far, for tuning.json."""

    arguments: list[str]  # but for `out`
    budget: int
    planned: dict[str, int]  # phase -> environment steps
    versions: dict[str, str]
    phases: list[dict[str, Any]] = dataclasses.field(default_factory=list)  # cost and result
    hyperparameters: Values | None = None  # the best so far
    general: dict[str, Any] | None = None  # of the confirmation: hyperparameters, scores, IQM
    tuned: dict[str, Any] | None = None
    verdict: str = "not confirmed"

    @property
    def done(self) -> dict[str, dict[str, Any]]:
        """The phases that finished, by their names."""
        return {found["phase"]: found for found in self.phases}

    def add(self, phase: str, num_runs: int, start: float, **found: Any) -> None:
        """Record the cost of a phase and what it found; print one line."""
        steps, seconds = self.planned[phase], round(time.monotonic() - start, 1)
        self.phases.append(
            {"phase": phase, "runs": num_runs, "steps": steps, "seconds": seconds, **found}
        )
        print_lines(f"{phase}: {num_runs} runs, {steps:,} steps, {seconds} s")


def tune(arguments: Sequence[str]) -> None:
    """Search, confirm and write; `arguments` are those of the command line.

    `ConfigError` before anything trains, if they are wrong or the budget is too small. A Ctrl-C
    leaves what earlier phases found; the same arguments go on after them.
    """
    settings, typed = split(arguments)
    config = _general(settings.command, typed)
    prepare(config)
    ranges: Ranges = {name: list(bounds) for name, bounds in config.system.searched().items()}
    budget = divide(settings, config, ranges)
    out = output_folder(settings.out or Path("outputs") / "tune" / settings.name)
    given = [each for each in arguments if not each.startswith("out=")]
    record = begun(Record(given, settings.budget, budget.steps, versions()), out)

    def keep() -> None:
        write_atomically(out / "tuning.json", json.dumps(dataclasses.asdict(record), indent=1))
        if record.hyperparameters is not None:
            best = with_values(config, record.hyperparameters)
            comment = header(record)
            write_files(out / "configs", settings.name, settings.command, typed, best, comment)

    candidates: list[Values] = []
    for phase in ("halving", "evolution"):
        if phase not in record.done:
            _search(config, ranges, budget, phase, record)
        candidates += record.done[phase]["best"][: budget.num_candidates]
        record.hyperparameters = candidates[0]
        keep()
    if "finals" not in record.done:
        _play_finals(config, candidates[: budget.num_finalists], record)
    record.hyperparameters = record.done["finals"]["best"]
    keep()
    if "confirmation" not in record.done:
        if (out / "confirmation").exists():  # it was interrupted
            shutil.rmtree(out / "confirmation")
        _confirm(config, settings.seeds, out / "confirmation", record)
    keep()
    report(Reporting(runs=[str(out / "confirmation")], out=str(out / "report")))
    print_lines(record.verdict, f"{out / 'configs'}: env={settings.name}, with --config-dir=DIR")


def begun(record: Record, out: Path) -> Record:
    """Return the record of an interrupted search in `out`, or `record` if there is none.

    `ConfigError` if that search finished, cannot be read, or is another one.
    """
    file = out / "tuning.json"
    if not file.exists() and not (out / "confirmation").exists():
        return record
    same, found = ("arguments", "planned", "versions"), None
    with contextlib.suppress(OSError, TypeError, ValueError):
        found = Record(**json.loads(file.read_text()))
    finished = (out / "report" / PAGE).exists()  # it is written last
    if found is None or finished or any(getattr(found, n) != getattr(record, n) for n in same):
        raise ConfigError(
            f"out={out}: holds a search that finished, or one of other arguments, steps or "
            "versions; choose another directory"
        )
    print_lines(f"{out}: goes on after {', '.join(found.done)}")
    return found


def split(arguments: Sequence[str]) -> tuple[Tuning, list[str]]:
    """Return the settings of this command, and those of the command that trains."""
    settings: Tuning
    settings, typed = split_settings(Tuning, arguments)
    if not re.fullmatch(r"\w+", settings.name) or settings.name in choices("env"):
        raise ConfigError(
            f"name={settings.name}: must be letters, digits and underscores, and no file that "
            "configs/env has already"
        )
    for each in typed:
        key = each.lstrip("+~").partition("=")[0]
        is_layer = key.startswith(("network.", "network/"))
        if is_layer or key in _OWN or key.partition(".")[0] in _OWN:
            more = ", or take network=NAME: an environment's file cannot hold layers"
            raise ConfigError(
                f"{each}: is not for jaxppo.tune; leave it out{more if is_layer else ''}"
            )
    return settings, typed


def _general(command: str, typed: Sequence[str]) -> Config:
    """Return the environment's settings, with which the search is compared."""
    config = compose(command, typed)
    own: dict[str, Any] = dict(num_seeds=1, absolute_metric=True, evaluate_first=False)
    return dataclasses.replace(
        config,
        arch=dataclasses.replace(config.arch, **own),
        checkpoint=dataclasses.replace(config.checkpoint, enabled=False),
        logger=dataclasses.replace(config.logger, console=False, plot=False, json=True),
    )


def divide(settings: Tuning, config: Config, ranges: Ranges) -> Budget:
    """Divide the budget: the confirmation, a third of the rest for finals, then the search.

    `ConfigError` if the smallest search does not fit.
    """
    one = _steps_per_run(plan_members(config, 2 * settings.seeds))
    confirmation = 2 * settings.seeds * one
    left = settings.budget - confirmation
    num_finalists = min(max(left // (3 * FINAL_SEEDS * one), 2), FINALISTS)
    finals = num_finalists * FINAL_SEEDS * one
    for num_members in [size for size in SIZES if size <= settings.members]:
        halving = _population(config, ranges, num_members, "halving")
        steps = _steps_of_halving(plan_members(halving, num_members))
        num_evolved = min((left - finals - steps) // one, MOST_EVOLVED, settings.members)
        if num_evolved * one >= steps and num_evolved >= 2:
            return Budget(
                num_members=num_members,
                num_evolved=num_evolved,
                num_finalists=num_finalists,
                steps={
                    "halving": steps,
                    "evolution": num_evolved * one,
                    "finals": finals,
                    "confirmation": confirmation,
                },
            )
    least = confirmation + finals + steps + max(2, -(-steps // one)) * one
    raise ConfigError(
        f"budget={settings.budget}: at least {least} for {settings.seeds} seeds and runs of {one} "
        "steps; raise it, or lower seeds or arch.total_timesteps"
    )


def _steps_per_run(plan: Plan) -> int:
    return plan.total_steps + plan.warmup_steps


def _steps_of_halving(plan: Plan) -> int:
    """Return the environment steps of successive halving, summed over members."""
    kept = rungs(plan.num_members, PopulationConfig.reduction, plan.updates_per_block)
    members, updates = plan.num_members, 0
    for block, length in enumerate(plan.updates_per_block):
        updates += members * length
        members = kept.get(block, members)
    return updates * plan.steps_per_update + plan.num_members * plan.warmup_steps


def _population(
    config: Config, ranges: Ranges, num_members: int, phase: str, start: Sequence[Values] = ()
) -> Config:
    """Return the settings of a population that samples hyperparameters, but those of `start`."""
    num_updates = plan_members(config, 1).num_updates
    arch = dataclasses.replace(
        config.arch,
        seed=_seed(config, phase),
        absolute_metric=False,
        num_evaluation=min(max(EVALUATIONS, config.arch.num_evaluation), num_updates),
    )
    selection = "halving" if phase == "halving" else "pbt"
    population = PopulationConfig(
        size=num_members, selection=selection, hyperparameters={**ranges}, start=[*start]
    )
    return dataclasses.replace(config, arch=arch, population=population)


def _seed(config: Config, phase: str) -> int:
    return (config.arch.seed + SEEDS[phase]) % 2**31


def _search(config: Config, ranges: Ranges, budget: Budget, phase: str, record: Record) -> None:
    """Record the best settings of a population, best first.

    Half of the members that evolve start with the best of the halving. Their hyperparameters change
    while they train, so what is recorded is the mean over time, of a member and its ancestors.
    """
    began = time.monotonic()
    halves, num_known = phase == "halving", budget.num_evolved // 2
    num_members = budget.num_members if halves else budget.num_evolved
    start = [] if halves else record.done["halving"]["best"][:num_known]
    config = _population(config, ranges, num_members, phase, start)
    near_one = near_one_of(config)
    members, events = _train([Job(config, None)])
    last = {i: _last(member.facts.history) for i, member in enumerate(members.all)}
    ranked = sorted(last, key=lambda i: last[i], reverse=True)
    order = [i for i in ranked if math.isfinite(last[i][1])]
    if not order:
        raise TrainingError(f"{phase}: no run of the search has a finite evaluation")
    order, best = order[: max(budget.num_candidates, num_known)], last[order[0]][1]
    found = [
        rounded(_values(members, events, i, ranges, near_one), ranges, near_one) for i in order
    ]
    record.add(phase, num_members, began, ranges=ranges, best=found, best_return=best)


def _values(
    members: Members,
    events: Sequence[Event],
    member: int,
    ranges: Ranges,
    near_one: Collection[str] = (),
) -> Values:
    """Return the hyperparameters of a member and its ancestors, as means over the steps.

    Those of positive ranges are geometric means, since most changes are factors; of settings
    `near_one` those of the distance to 1.
    """
    selections = [event for event in events if event["event"] == "selection"]
    if selections[0]["method"] == "halving":  # nothing changes
        return {name: getattr(members[member].config.system, name) for name in ranges}
    end = _last(members[member].facts.history)[0]
    path = ancestors(selections, member, end)
    weights = np.diff([event["steps"] for event in selections[: len(path)]], append=end)

    def geometric(values: Sequence[float]) -> float:
        return float(np.exp(np.average(np.log(values), weights=weights)))

    found = {}
    for name, values in inherited(selections, path).items():
        low, high = ranges[name]
        if name in near_one:
            found[name] = 1.0 - geometric([distance_to_one(x, low, high) for x in values])
        else:
            found[name] = (
                geometric(values) if low > 0 else float(np.average(values, weights=weights))
            )
    return found


def _last(history: Sequence[tuple[int, float]]) -> tuple[int, float]:
    """Return the steps and the return of a member's last evaluation, which rank it."""
    steps, score = history[-1] if history else (0, -math.inf)
    return (steps, score) if math.isfinite(score) else (-1, -math.inf)


def _train(jobs: Sequence[Job]) -> tuple[Members, Sequence[Event]]:
    """Train jobs as one program, in silence; return its members and the events of the first job."""
    caller = Caller(console=False, records={})
    run_together(jobs, caller=caller)
    assert caller.reached is not None  # since the program was compiled
    assert caller.records is not None
    return caller.reached.members, caller.records.get("", [])


def rounded(values: Values, ranges: Ranges, near_one: Collection[str]) -> Values:
    """Return values within their bounds with three digits, as the file holds them.

    Of the settings `near_one` the distance to 1 has three digits.
    """
    found = {}
    for name, value in values.items():
        is_near = name in near_one
        short = float(f"{1.0 - value if is_near else value:.3g}")
        low, high = ranges[name]
        found[name] = min(max(round(1.0 - short, 9) if is_near else short, low), high)
    return found


def with_values(config: Config, values: Values) -> Config:
    """Return settings with these hyperparameters."""
    changed: dict[str, Any] = {**values}
    return dataclasses.replace(config, system=dataclasses.replace(config.system, **changed))


def _play_finals(config: Config, finalists: Sequence[Values], record: Record) -> None:
    """Record the finalist with the highest mean absolute metric over seeds."""
    start = time.monotonic()
    seeded = _with_seeds(config, "finals", FINAL_SEEDS)
    members = _train([Job(with_values(seeded, values), None) for values in finalists])[0]
    scores = [_scores(members, job) for job in range(len(finalists))]
    # A finalist of which a run failed comes last
    means = [sum(row) if len(row) == FINAL_SEEDS else -math.inf for row in scores]
    best = finalists[means.index(max(means))]
    rows = [{"hyperparameters": v, "scores": s} for v, s in zip(finalists, scores, strict=True)]
    record.add("finals", len(finalists) * FINAL_SEEDS, start, finalists=rows, best=best)


def _with_seeds(config: Config, phase: str, num_seeds: int) -> Config:
    arch = dataclasses.replace(config.arch, seed=_seed(config, phase), num_seeds=num_seeds)
    return dataclasses.replace(config, arch=arch)


def _scores(members: Members, job: int) -> list[float]:
    """Return the absolute metrics of a job's seeds; those that failed are left out."""
    found = [members[i].result for i in members.jobs[job]]
    return [score for score in found if score is not None and math.isfinite(score)]


def _confirm(config: Config, seeds: int, folder: Path, record: Record) -> None:
    """Train the starting settings and the best found with fresh seeds, and record the verdict."""
    start, values = time.monotonic(), record.hyperparameters
    assert values is not None
    seeded = _with_seeds(config, "confirmation", seeds)
    jobs = []
    for name, each in {"general": seeded, "tuned": with_values(seeded, values)}.items():
        (folder / name).mkdir(parents=True)
        jobs.append(Job(each, folder / name))
    members = _train(jobs)[0]
    general, tuned = _scores(members, 0), _scores(members, 1)
    own = {name: getattr(config.system, name) for name in values}
    record.general = _summary(own, general)
    record.tuned = _summary(values, tuned)
    record.add("confirmation", 2 * seeds, start)
    better_found = is_better(general, tuned, seeds)
    record.verdict = (
        f"{'better' if better_found else 'NOT better'} than the starting settings over {seeds} "
        f"fresh seeds: IQM {_shown(record.tuned)}; starting settings {_shown(record.general)} "
        f"(95% intervals{f'; unreliable with fewer than {FEW} seeds' if seeds < FEW else ''})"
    )


def is_better(general: Sequence[float], tuned: Sequence[float], seeds: int) -> bool:
    """Return whether the tuned settings beat the starting settings.

    All their runs finished, their IQM is higher, and the 95% interval of the probability that a
    tuned run scores higher than one of the starting settings is above 0.5.
    """
    if not tuned or len(tuned) < seeds:
        return False
    if not general:
        return True
    first, second = np.asarray(tuned, np.float64), np.asarray(general, np.float64)
    chance = better([(first, second)]).interval
    above = chance is not None and chance[0] > 0.5
    return above and overall([first]).value > overall([second]).value


def _summary(values: Values, scores: Sequence[float]) -> dict[str, Any]:
    estimate = overall([np.asarray(scores, np.float64)]) if scores else None
    return {
        "hyperparameters": values,
        "scores": list(scores),
        "iqm": None if estimate is None else estimate.value,
        "interval": None if estimate is None else estimate.interval,
    }


def _shown(summary: dict[str, Any]) -> str:
    if summary["iqm"] is None:
        return "none, all runs failed"
    low, high = summary["interval"] or (math.nan, math.nan)
    return f"{summary['iqm']:.4g} [{low:.4g}, {high:.4g}]"


def header(record: Record) -> list[str]:
    """Return the comment of the written file: verdict, cost and versions."""
    runs = sum(phase["runs"] for phase in record.phases)
    steps = sum(phase["steps"] for phase in record.phases)
    names = ("jaxppo", "jax")
    found = ", ".join(f"{n} {record.versions[n]}" for n in names if n in record.versions)
    return [
        f"Found by jaxppo.tune: {record.verdict}.",
        f"Search and confirmation: {runs} runs, {steps:,} environment steps; {found}.",
    ]
