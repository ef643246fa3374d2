"""Populations: seeds, sampled hyperparameters and the rules of selection."""

import dataclasses
import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from jaxppo.config.fields import ConfigError, variable_names
from jaxppo.config.parse import parse
from jaxppo.config.plan import num_members
from jaxppo.config.schema import Config, PopulationConfig


def members(config: Config) -> list[Config]:
    """Return the configuration of each member, as if it ran alone.

    Seeds ascend from `arch.seed`. In a population each member also samples hyperparameters.
    `ConfigError` if the settings of members are wrong.
    """
    arch, count = config.arch, num_members(config)
    for line in _misfits(config):
        raise ConfigError(line)
    return [
        dataclasses.replace(
            config,
            arch=dataclasses.replace(arch, seed=arch.seed + i, num_seeds=1),
            system=dataclasses.replace(config.system, **_first_values(config, i)),
            population=PopulationConfig(),
        )
        for i in range(count)
    ]


def _misfits(config: Config) -> Iterator[str]:
    """Yield a line for each setting of a population that is wrong."""
    population, size = config.population, config.population.size
    seed, count = config.arch.seed, num_members(config)
    if (last := seed + count - 1) >= 2**32:
        key = "arch.num_seeds" if size is None else "population.size"
        yield f"{key}={count}: the last seed, {last}, is above {2**32 - 1}; lower arch.seed={seed}"
    if size is None:
        if population.selection != "none":
            yield (
                f"population.selection={population.selection} needs a population.size; take "
                f"population={population.selection}, or set it to none"
            )
        return
    if config.arch.num_seeds > 1:
        yield (
            f"arch.num_seeds={config.arch.num_seeds}: the members of a population have seeds of "
            "their own; sweep over arch.seed for several populations"
        )
    if population.selection == "pbt" and not population.hyperparameters:
        yield (
            "population.hyperparameters={}: population-based training has nothing to explore; "
            "give some, such as population.hyperparameters={actor_lr: [1e-4, 1e-2]}"
        )
    for name, bounds in population.hyperparameters.items():
        if line := _misfit_of_bounds(config, name, bounds):
            yield f"population.hyperparameters.{name}{line}"
    if len(population.start) > size:
        yield (
            f"population.start: has values of {len(population.start)} members, and "
            f"population.size is {size}; leave some out"
        )
    for i, values in enumerate(population.start):
        for name, value in values.items():
            bounds = population.hyperparameters.get(name)
            if (
                bounds is None
                or type(value) not in (int, float)
                or not bounds[0] <= value <= bounds[1]
            ):
                yield (
                    f"population.start[{i}].{name}={value}: must be a number within the bounds of "
                    "one of population.hyperparameters"
                )


def _misfit_of_bounds(config: Config, name: str, bounds: Any) -> str | None:
    """Return why a setting of `system` cannot be sampled between bounds; None if it can."""
    names = variable_names(config.system)
    if name not in names:
        return f": not a number of system that members can differ in; one of {', '.join(names)}"
    is_pair = isinstance(bounds, list) and [type(x) in (int, float) for x in bounds] == [True, True]
    if not is_pair or not -math.inf < bounds[0] < bounds[1] < math.inf:
        return f"={bounds}: must be two finite numbers that ascend, such as [1e-4,1e-2]"
    for bound in bounds:
        try:
            parse({"system": {**dataclasses.asdict(config.system), name: bound}}).system.check()
        except ConfigError as error:
            return f"={bounds}: {error}"
    (field,) = (f for f in dataclasses.fields(config.system) if f.name == name)
    value = getattr(config.system, name)
    if field.metadata.get("switch") and (value is None or math.isinf(value)):
        off = "null" if value is None else ".inf"
        return f": needs a finite system.{name}, which is {off}: off"
    return None


def _first_values(config: Config, i: int) -> dict[str, Any]:
    """Return the first hyperparameters of member `i`, as far as they are not the config's."""
    population = config.population
    known = population.start[i] if i < len(population.start) else {}
    if population.initialize == "config":
        return known
    generator, near_one = np.random.default_rng([config.arch.seed, i]), near_one_of(config)
    drawn = {
        name: draw(low, high, generator, to_one=name in near_one)
        for name, (low, high) in population.hyperparameters.items()
    }
    return {**drawn, **known}


def rank(scores: Sequence[float]) -> list[int]:
    """Return members from best to worst. Non-finite scores come last, ties go by number."""
    return sorted(
        range(len(scores)), key=lambda i: -scores[i] if math.isfinite(scores[i]) else math.inf
    )


def sources(
    scores: Sequence[float],
    threshold: float,
    generator: np.random.Generator,
    failed: Collection[int] = (),
) -> list[int]:
    """Return the member that each member continues from; those that `failed` take no part.

    Truncation selection: each of the worst members copies one of the same number of best members,
    if that is better; all others continue from themselves. Jaderberg et al. 2017
    (arXiv 1711.09846), section 4.1. Members without a finite score are replaced too, even if they
    outnumber the best members.
    """
    order = [i for i in rank(scores) if i not in failed]
    num = max(1, int(threshold * len(order)))
    num_scored = sum(math.isfinite(scores[i]) for i in order)
    chosen = list(range(len(scores)))
    if not num_scored:
        return chosen
    for loser in order[-max(num, len(order) - num_scored) :]:
        winner = order[int(generator.integers(min(num, num_scored)))]
        if not math.isfinite(scores[loser]) or scores[winner] > scores[loser]:
            chosen[loser] = winner
    return chosen


def near_one_of(config: Config) -> set[str]:
    """Return the sampled settings whose distance to 1 matters, such as gamma.

    They are those that are at most (nearly) 1, with bounds of at least 0.5.
    """
    fields = dataclasses.fields(config.system)
    most = {field.name: field.metadata.get("high") or math.inf for field in fields}
    bounds = config.population.hyperparameters
    return {name for name, (low, _) in bounds.items() if 0.999 < most[name] <= 1 and low >= 0.5}


def distance_to_one(value: float, low: float, high: float) -> float:
    """Return the distance of a setting to 1, or 1% of its range, so that factors change it."""
    return max(1.0 - value, 0.01 * (high - low))


def explore(
    values: dict[str, list[float]],
    copied: Sequence[int],
    population: PopulationConfig,
    generator: np.random.Generator,
    near_one: Collection[str] = (),
) -> dict[str, list[float]]:
    """Return hyperparameters, as lists over members, with new values for the members `copied`.

    Each value is multiplied or divided by `perturbation`, within its bounds, or with probability
    `resample` sampled anew: Jaderberg et al. 2017 (arXiv 1711.09846), section 4.1. Of settings
    `near_one`, such as gamma, the distance to 1 is multiplied or divided: a factor of 1.25 would
    take the value itself to a bound.
    """
    changed = {name: list(numbers) for name, numbers in values.items()}
    for name, (low, high) in population.hyperparameters.items():
        for i in copied:
            value = values[name][i]
            factor = population.perturbation ** generator.choice((-1.0, 1.0))
            drawn = draw(low, high, generator, to_one=name in near_one)
            resampled = generator.uniform() < population.resample
            moved = value * factor
            if name in near_one:
                moved = 1.0 - distance_to_one(value, low, high) * factor
            changed[name][i] = float(drawn if resampled else min(max(moved, low), high))
    return changed


def draw(low: float, high: float, generator: np.random.Generator, *, to_one: bool = False) -> float:
    """Sample uniformly between the bounds; log-uniformly if they are positive.

    `to_one`: log-uniformly in the distance to 1.
    """
    if to_one:
        return 1.0 - draw(distance_to_one(high, low, high), 1.0 - low, generator)
    if low > 0:
        return float(math.exp(generator.uniform(math.log(low), math.log(high))))
    return float(generator.uniform(low, high))


def rungs(size: int, reduction: int, updates_per_block: Sequence[int]) -> dict[int, int]:
    """Return the schedule of successive halving: block -> number of members that continue.

    Each rung has `1 / reduction` of the members of the rung before, and ends at `reduction` times
    its updates. The last rung ends with the budget: Jamieson and Talwalkar 2016
    (arXiv 1502.07943, section 3). A rung that would end between two evaluations ends at the later.
    """
    total, done = sum(updates_per_block), 0
    num_rungs = math.ceil(math.log(size, reduction) - 1e-9)
    kept: dict[int, int] = {}
    rung = 0
    for block, updates in enumerate(updates_per_block[:-1]):
        done += updates
        while rung < num_rungs and done * reduction ** (num_rungs - rung) >= total:
            rung += 1
            size = -(-size // reduction)
            kept[block] = size
    return kept


def ancestors(selections: Sequence[dict[str, Any]], member: int, steps: float) -> list[int]:
    """Return the member that `member`, at `steps`, descends from after each selection before it.

    The last is `member` itself. A selection at `steps` comes after what is known of that step.
    """
    before = [event for event in selections if event["steps"] < steps] or [selections[0]]
    path = [member]
    for event in reversed(before[1:]):
        path.append(event["sources"][event["members"].index(path[-1])])
    return path[::-1]


def inherited(selections: Sequence[dict[str, Any]], path: Sequence[int]) -> dict[str, list[Any]]:
    """Return the hyperparameters of each member of `path` (see `ancestors`) after its selection."""
    return {
        name: [
            event["hyperparameters"][name][event["members"].index(member)]
            for event, member in zip(selections, path, strict=False)
        ]
        for name in selections[0]["hyperparameters"]
    }
