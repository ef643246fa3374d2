"""What runs left in their directories: settings, evaluations, results, and what is amiss with them.

Nothing that a directory names is imported or called.
"""

import dataclasses
import json
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from jaxppo.config.fields import ConfigError
from jaxppo.config.parse import parse
from jaxppo.config.stored import CONFIG, plain
from jaxppo.runtime.sinks import METRICS, SUMMARY, Event

FINISHED, UNFINISHED = "finished", "unfinished"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One agent, or one population, which is judged by its best member."""

    folder: Path  # of its metrics.jsonl
    home: Path  # of its config.yaml: the folder itself, or that of all seeds of the run
    seed: int
    env: dict[str, Any]  # settings of the environment, by keys such as `name` and `params.gravity`
    settings: dict[str, Any]  # all others that can make a difference, such as `system.gamma`
    status: str  # FINISHED, UNFINISHED, or why it failed
    evaluations: dict[int, float]  # steps -> mean return; those that were finite
    absolute: float | None
    steps: int  # so far
    seconds: float | None  # of the program that trained it, perhaps with others
    versions: dict[str, str]  # of libraries, where a checkpoint tells
    machine: str | None  # where the summary tells
    picture: Path | None  # of a population's lineage

    @property
    def failed(self) -> bool:
        """Whether it ended without a result."""
        return self.status not in (FINISHED, UNFINISHED)

    @property
    def score(self) -> float | None:
        """The absolute metric, or without one the best evaluation; None of runs that failed."""
        if self.failed:
            return None
        return max(self.evaluations.values(), default=None) if self.by_best else self.absolute

    @property
    def by_best(self) -> bool:
        """Whether the score is the best evaluation, and so the maximum of several."""
        return self.absolute is None


def find(places: Sequence[str]) -> tuple[list[Run], list[str]]:
    """The runs in and below directories, each once, and lines on what could not be read whole.

    `ConfigError` where a place is no directory, or there is no run in any.
    """
    for place in places:
        if not Path(place).is_dir():
            what = "is not a directory" if Path(place).exists() else "no such directory"
            raise ConfigError(f"{place}: {what}; name directories of runs or of sweeps")
    runs: list[Run] = []
    notes: list[str] = []
    seen = set[Path]()
    for place in places:
        for home, only in _homes(Path(place)):
            try:
                config = _config(home)
                for folder in [home / only] if only else _folders(home, config):
                    if folder.resolve() not in seen:
                        seen.add(folder.resolve())
                        runs.append(_read(home, folder, config, notes))
            except (OSError, ValueError) as error:
                notes.append(f"{home}: left out: {error}")
    if not runs:
        more = f" ({notes[0]})" if notes else ""
        raise ConfigError(
            f"{' '.join(places)}: no run there or below{more}; a run's directory holds {CONFIG}, "
            "and is by default in outputs, one of a sweep in multirun"
        )
    return runs, notes


def composed(home: Path) -> tuple[str | None, dict[str, str]]:
    """Which configuration Hydra composed a run from, and what it chose of each group.

    Of a run that Hydra did not start, None and nothing.
    """
    file = home / ".hydra" / "hydra.yaml"
    try:
        told = _yaml(file)
        job, choices = told["hydra"]["job"], told["hydra"]["runtime"]["choices"]
        return str(job["config_name"]), {str(k): str(v) for k, v in choices.items()}
    except (ValueError, KeyError, TypeError):
        return None, {}


def typed(home: Path) -> dict[str, str]:
    """What a user typed to start a run, by its key."""
    parts = [line.partition("=") for line in overrides(home)]
    return {key.lstrip("+~"): value for key, _, value in parts}


def overrides(home: Path) -> list[str]:
    """The same, line by line; of a run that Hydra did not start, nothing."""
    file = home / ".hydra" / "overrides.yaml"
    try:
        told = _yaml(file)
    except ValueError:
        return []
    return [str(line) for line in told] if isinstance(told, list) else []


def _yaml(file: Path) -> Any:
    """What a file holds, with nothing in it looked up; `ValueError` where it cannot be read."""
    try:
        return OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    except Exception as error:  # the parser's own have no common class
        raise ValueError(" ".join(str(error).split())[:200]) from error


def _homes(place: Path) -> Iterator[tuple[Path, str]]:
    """Directories with settings in and below one, in the order of their names.

    Beside each the one seed of it that `place` is, if it is one.
    """
    real = place.resolve()
    is_seed = real.name.startswith("seed_") and not (place / CONFIG).exists()
    if is_seed and (real.parent / CONFIG).exists():
        yield place.parent if place.name == real.name else real.parent, real.name
        return
    for root, inner, files in os.walk(place):
        kept = [name for name in inner if not name.startswith(".") and name != "checkpoints"]
        inner[:] = sorted(kept, key=lambda name: (len(name), name))
        if CONFIG in files:
            yield Path(root), ""


def _config(home: Path) -> dict[str, Any]:
    """The settings that a directory holds; `ValueError` where they are not those of a run.

    What it does not name, as runs of earlier versions may not, is as it is by default.
    """
    config = _yaml(home / CONFIG)
    groups = ("arch", "system", "env")
    if isinstance(config, dict) and all(isinstance(config.get(name), dict) for name in groups):
        usual = plain(parse({}))
        return {
            name: {**usual[name], **part} if isinstance(usual.get(name), dict) else part
            for name, part in config.items()
        }
    raise ValueError(f"{CONFIG} holds no settings of a run")


def _folders(home: Path, config: dict[str, Any]) -> list[Path]:
    """Where the runs of a home write: each seed of several into a folder of its own."""
    if _is_population(config) or config["arch"].get("num_seeds", 1) == 1:
        return [home]
    seeds = sorted(home.glob("seed_*"), key=lambda path: (len(path.name), path.name))
    if not seeds:
        raise ValueError("of several seeds, and has no seed_N directories")
    return seeds


def _is_population(config: dict[str, Any]) -> bool:
    return bool((config.get("population") or {}).get("size"))


def _read(home: Path, folder: Path, config: dict[str, Any], notes: list[str]) -> Run:
    """One run; lines on what is damaged go to `notes`."""
    events = _events(folder / METRICS, notes)
    summary = _summary(folder / SUMMARY, notes)
    if not events and not summary:
        notes.append(f"{folder}: nothing was written yet")
    seed = summary.get("seed", events[0].get("seed") if events else None)
    if seed is None or _is_population(config):  # whose summary names the best member's
        seed = config["arch"].get("seed", 0)
    seconds = summary.get("seconds", events[-1].get("seconds") if events else None)
    picture, machine = folder / "population.png", summary.get("machine")
    compared = {name: part for name, part in config.items() if name not in _ASIDE}
    return Run(
        folder=folder,
        home=home,
        seed=int(seed),
        env=dict(_leaves(config["env"])),
        settings={k: v for k, v in _leaves(compared) if k not in _NO_DIFFERENCE},
        status=str(summary.get("status", UNFINISHED)),
        evaluations={
            int(event["steps"]): score
            for event in events
            if event["event"] == "eval" and (score := _score(event)) is not None
        },
        absolute=_number(summary.get("absolute_metric")),
        steps=int(max((event["steps"] for event in events), default=0)),
        seconds=_number(seconds),
        versions=summary.get("versions") or _newest_manifest(home).get("versions") or {},
        machine=None if machine is None else str(machine),
        picture=picture if picture.exists() else None,
    )


# Groups and keys in which runs may differ and still be the same experiment
_ASIDE = ("env", "checkpoint", "logger", "resume", "resume_allow", "trust")
_NO_DIFFERENCE = {
    *("arch.seed", "arch.num_seeds"),
    *("arch.plan_only", "arch.profile", "arch.compiler", "arch.compile_cache"),
}


def _leaves(settings: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting that is not a dict, by its key; a list is one value, as JSON text."""
    if isinstance(settings, dict) and (settings or not key):
        for name, value in settings.items():
            yield from _leaves(value, f"{key}.{name}".lstrip("."))
    else:
        plain = settings is None or isinstance(settings, bool | int | float | str)
        yield key, settings if plain else json.dumps(settings)


def _events(file: Path, notes: list[str]) -> list[Event]:
    """The events of a metric log, without lines that are not whole."""
    if not file.exists():
        return []
    events: list[Event] = []
    damaged = []
    lines = file.read_bytes().splitlines()
    for number, line in enumerate(lines, 1):
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        if isinstance(event, dict) and {"event", "steps"} <= set(event):
            events.append(event)
        else:
            damaged.append(number)
    if damaged:
        last = damaged == [len(lines)]
        which = "its last line is" if last else f"{len(damaged)} of {len(lines)} lines are"
        notes.append(f"{file}: {which} damaged and left out")
    return events


def _summary(file: Path, notes: list[str]) -> dict[str, Any]:
    """The last event of a run; of one that goes on, or whose summary is damaged, nothing."""
    if not file.exists():
        return {}
    try:
        summary = json.loads(file.read_bytes())
    except ValueError:
        summary = None
    if not isinstance(summary, dict):
        notes.append(f"{file}: damaged; the run is taken as unfinished")
        return {}
    return summary


def _newest_manifest(home: Path) -> dict[str, Any]:
    """What the newest checkpoint says of itself, if there is one that can be read."""
    for file in sorted(home.glob("checkpoints/*/manifest.json"), reverse=True):
        try:
            manifest = json.loads(file.read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(manifest, dict):
            return manifest
    return {}


def _score(event: Event) -> float | None:
    """The mean return of an evaluation, of several members the best one's."""
    scores = [_number(value) for value in event.get("member_returns", [])]
    found = [score for score in scores if score is not None]
    return max(found, default=None) if scores else _number(event.get("episode_return"))


def _number(value: Any) -> float | None:
    """A finite number; None of anything else."""
    real = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if real and math.isfinite(value) else None
