"""Reading runs from their directories: settings, evaluations and results.

Nothing that a directory names is imported or called.
"""

import contextlib
import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from jaxppo.config.fields import ConfigError
from jaxppo.config.given import is_given, shown
from jaxppo.config.messages import count, flattened
from jaxppo.config.parse import parse
from jaxppo.config.schema import HOW_RUN, TOLD
from jaxppo.config.stored import CONFIG, METRICS, SUMMARY, overrides, plain
from jaxppo.runtime.sinks import Event, of_environment, whole_lines
from jaxppo.runtime.store import checkpoint
from jaxppo.runtime.store.directories import seed_of
from jaxppo.runtime.store.facts import judged_by, scores_of_members
from jaxppo.runtime.store.progress import STOPPED

FINISHED, UNFINISHED = "finished", "unfinished"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One agent, or one population; the score of a population is its best member's."""

    folder: Path  # has metrics.jsonl
    home: Path  # has config.yaml: the folder itself, or its parent if the run has several seeds
    seed: int
    env: dict[str, Any]  # settings of the environment, by keys such as `name` and `params.gravity`
    settings: dict[str, Any]  # other settings that affect the result, such as `system.gamma`
    typed: dict[str, str]  # the overrides that started it, by key
    status: str  # FINISHED, UNFINISHED, or the reason of a failure
    # steps -> mean return, or mean of arch.eval_metric; without those that were not finite
    evaluations: dict[int, float]
    absolute: float | None  # absolute metric
    final: float | None  # score of the last evaluation, of the policy at the end
    # mean return and means of env.metrics, in the episodes of the absolute metric
    told: dict[str, float]
    steps: int  # so far
    seconds: float | None  # of the whole program, which may have trained several runs
    versions: dict[str, str]  # of libraries; empty if not recorded
    machine: str | None  # None: not recorded
    picture: Path | None  # lineage of a population
    results: str  # digest of all evaluations without times, equal for copies; empty without any

    @property
    def failed(self) -> bool:
        """Whether the run ended without a result."""
        on_purpose = self.status.startswith(STOPPED)  # by a caller in Python
        return self.status not in (FINISHED, UNFINISHED) and not on_purpose

    @property
    def score(self) -> float | None:
        """The absolute metric, or the best evaluation if there is none; None for failed runs."""
        if self.failed:
            return None
        trained = [score for steps, score in self.evaluations.items() if steps > 0]
        return max(trained, default=None) if self.by_best else self.absolute

    @property
    def by_best(self) -> bool:
        """Whether the score is the best evaluation, a maximum of several."""
        return self.absolute is None


def find(places: Sequence[str]) -> tuple[list[Run], list[str]]:
    """Return the runs in and below directories, each once, and notes on damaged files and copies.

    `ConfigError` if a place is not a directory, or if no place has a run.
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
                config, own = _config(home), typed(home)
                for folder in [home / only] if only else _folders(home, config):
                    if folder.resolve() not in seen:
                        seen.add(folder.resolve())
                        runs.append(_read(home, folder, config, own, notes))
            except (OSError, TypeError, ValueError) as error:
                notes.append(f"{home}: left out: {error}")
    if not runs:
        more = f" ({notes[0]})" if notes else ""
        raise ConfigError(
            f"{' '.join(places)}: no run there or below{more}; a run's directory holds {CONFIG}; "
            "runs are in outputs by default, sweeps in multirun"
        )
    return _without_copies(runs, notes), notes


def _without_copies(runs: Sequence[Run], notes: list[str]) -> list[Run]:
    """Leave out runs with the settings and the results of an earlier one; append a note."""
    firsts: list[Run] = []
    copies: dict[Path, list[str]] = {}
    seen: dict[tuple[Any, ...], Path] = {}
    for run in runs:
        own = (run.seed, repr(run.env), repr(run.settings), run.results)
        first = seen.setdefault(own, run.folder)
        if run.results and first != run.folder:
            copies.setdefault(first, []).append(str(run.folder))
        else:
            firsts.append(run)
    notes += [f"{first}: also in {', '.join(c)}; counted once" for first, c in copies.items()]
    return firsts


def _results(log: Sequence[Event]) -> str:
    """Return a digest of the evaluations without times, which no two runs have in common."""
    found = [
        {key: value for key, value in event.items() if "seconds" not in key}
        for event in log
        if event["event"] in ("eval", "absolute")
    ]
    return hashlib.sha256(json.dumps(found).encode()).hexdigest() if found else ""


def composed(home: Path) -> tuple[str | None, dict[str, str]]:
    """Return the name of the run's Hydra config and the choice made for each config group.

    None and an empty dict if Hydra did not start the run.
    """
    try:
        hydra = _yaml(home / ".hydra" / "hydra.yaml")["hydra"]
        choices = {str(k): str(v) for k, v in hydra["runtime"]["choices"].items()}
        return str(hydra["job"]["config_name"]), choices
    except (ValueError, KeyError, TypeError):
        return None, {}


def typed(home: Path) -> dict[str, str]:
    """Return the overrides that started a run, by key."""
    parts = [line.partition("=") for line in overrides(home)]
    return {key.lstrip("+~"): value for key, _, value in parts}


def _section(key: str) -> str:
    """Return the first two parts of a key, such as `system.schedules`."""
    return ".".join(key.split(".")[:2])


def natural_order(path: Path) -> tuple[int, str]:
    """Return a sort key that puts 9 before 10."""
    return len(path.name), path.name


def _yaml(file: Path) -> Any:
    """Load YAML without resolving interpolations; `ValueError` if it cannot be read."""
    if not file.is_file():  # a pipe would never end
        raise ValueError(f"{file.name} is not a file")
    try:
        return OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    except Exception as error:  # the parser's errors have no common class
        raise ValueError(" ".join(str(error).split())[:200]) from error


def _homes(place: Path) -> Iterator[tuple[Path, str]]:
    """Yield the directories with settings in and below `place`, sorted by name.

    The second value is the folder of one seed if `place` is such a folder, else "".
    """
    real = place.resolve()
    if (
        seed_of(real) is not None
        and not (place / CONFIG).exists()
        and (real.parent / CONFIG).exists()
    ):
        yield place.parent if place.name == real.name else real.parent, real.name
        return
    for root, inner, files in os.walk(place):
        kept = [name for name in inner if not name.startswith(".") and name != "checkpoints"]
        inner[:] = sorted(kept, key=lambda name: (len(name), name))
        if CONFIG in files:
            yield Path(root), ""


def _config(home: Path) -> dict[str, Any]:
    """Return the settings of a run, missing ones by default; `ValueError` if they are no run's."""
    config = _yaml(home / CONFIG)
    groups = ("arch", "system", "env")
    if isinstance(config, dict) and all(isinstance(config.get(name), dict) for name in groups):
        defaults = plain(parse({}))
        return {
            name: {**defaults[name], **part} if isinstance(defaults.get(name), dict) else part
            for name, part in config.items()
        }
    raise ValueError(f"{CONFIG} holds no settings of a run")


def _folders(home: Path, config: dict[str, Any]) -> list[Path]:
    """Return the folders of the runs: `home`, or one for each seed if there are several."""
    if _is_population(config) or config["arch"].get("num_seeds", 1) == 1:
        return [home]
    members = [folder for folder in home.glob("seed_*") if seed_of(folder) is not None]
    seeds = sorted(members, key=natural_order)
    if not seeds:
        raise ValueError("has several seeds but no seed_N directories")
    return seeds


def _is_population(config: dict[str, Any]) -> bool:
    return bool((config.get("population") or {}).get("size"))


def _read(
    home: Path, folder: Path, config: dict[str, Any], typed: dict[str, str], notes: list[str]
) -> Run:
    """Return one run, with notes on damaged files; `ValueError` if it writes no results."""
    log = events(folder / METRICS, notes)
    end = summary(folder / SUMMARY, notes)
    if not log and not end:
        if (config.get("logger") or {}).get("json") is False:
            raise ValueError(f"logger.json=false, so it has no {METRICS} and no {SUMMARY}")
        notes.append(f"{folder}: nothing was written yet")
    seed = end.get("seed", next((event["seed"] for event in log if "seed" in event), None))
    if seed is None or _is_population(config):  # a population's summary has the best member's seed
        seed = config["arch"].get("seed", 0)
    if is_of_before(end, log):
        end = {name: end[name] for name in ("machine", "versions") if name in end}
    compare = of_environment(log)
    if len(compare) < len(log):
        steps = next(e["steps"] for e in reversed(log) if e.get("new_environment"))
        notes.append(
            f"{folder}: a resume changed the environment at step {steps:,}; evaluations before are "
            "left out"
        )
    picture, machine = folder / "population.png", end.get("machine")
    compared = _compared(config)
    judge = compared.pop("arch.eval_metric", None)
    judged = [e for kind in ("eval", "absolute") for e in compare if e["event"] == kind]
    last = [e for e in compare if e["event"] == "eval" and e["steps"] > 0][-1:]
    final = score_of(last[0]) if last else None
    return Run(
        folder=folder,
        home=home,
        seed=int(seed),
        env={k.removeprefix("env."): v for k, v in compared.items() if k.startswith("env.")}
        | ({} if judge is None else {"eval_metric": judge}),  # whose scores do not compare
        settings={k: v for k, v in compared.items() if not k.startswith("env.")},
        typed=typed,
        status=str(end.get("status", UNFINISHED)),
        evaluations={
            int(event["steps"]): score
            for event in compare
            if event["event"] == "eval" and (score := score_of(event)) is not None
        },
        absolute=_number(end.get("absolute_metric")),
        # Of a population, the summary has that of its best member
        final=_number(end.get("final_score", end.get("final_return", final))),
        told=_told(judged[-1]) if judged else {},
        steps=_last_step(log),
        seconds=_number(end.get("seconds", log[-1].get("seconds") if log else None)),
        versions=end.get("versions") or _newest_manifest(home).get("versions") or {},
        machine=None if machine is None else str(machine),
        picture=picture if picture.exists() else None,
        results=_results(log),
    )


# Groups and keys that do not affect the result: runs that differ only in these are the same
_IGNORED_GROUPS = ("checkpoint", "logger", "resume", "resume_allow", "trust")
_IGNORED_KEYS = {
    *("arch.seed", "arch.num_seeds", "arch.evaluate_first"),
    *("arch.profile", "arch.compiler", "arch.compile_cache", "arch.distributed"),
    *(f"env.{name}" for name in (*HOW_RUN, "metrics")),
}


def _compared(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that affect the result, by key."""
    compared = {name: part for name, part in config.items() if name not in _IGNORED_GROUPS}
    return {key: value for key, value in _leaves(compared) if _section(key) not in _IGNORED_KEYS}


def _leaves(settings: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield key and value of every setting; a list, and an empty dict, is one value, as JSON.

    An object that was given in Python has the same path in each run.
    """
    for key, value in flattened(settings):
        value = shown(value) if is_given(value) else value
        scalar = value is None or isinstance(value, bool | int | float | str)
        yield key, value if scalar else json.dumps(value)


def events(file: Path, notes: list[str]) -> list[Event]:
    """Return the events of a metric log up to the first damaged line, with a note in `notes`."""
    size = file.stat().st_size if file.is_file() else 0
    lines = whole_lines(file, size)
    if len(lines) < size:
        notes.append(f"{file}: damaged after {count(lines.splitlines(), 'line')}; these are used")
    return [json.loads(line) for line in lines.splitlines()]


def summary(file: Path, notes: list[str]) -> dict[str, Any]:
    """Return a run's summary; an empty dict if it is damaged or not written yet."""
    found = _json(file)
    if file.is_file() and not found:
        notes.append(f"{file}: damaged; the run is taken as unfinished")
    return found


def is_of_before(end: Mapping[str, Any], log: Sequence[Event]) -> bool:
    """Return whether a summary is older than its run, which was resumed and has not ended since."""
    steps = _last_step(log)
    changed = [event["steps"] for event in log if event.get("new_environment")]
    done = end.get("steps", steps)
    return bool(steps > done or ("steps" in end and max(changed, default=-1) >= done))


def _last_step(log: Sequence[Event]) -> int:
    return int(max((event["steps"] for event in log), default=0))


def _newest_manifest(home: Path) -> dict[str, Any]:
    """Return the newest checkpoint manifest that can be read; an empty dict if there is none."""
    for steps in reversed(checkpoint.steps_in(home / checkpoint.FOLDER)):
        with contextlib.suppress(OSError):
            if manifest := _json(checkpoint.path_of(home, steps) / checkpoint.MANIFEST):
                return manifest
    return {}


def _json(file: Path) -> dict[str, Any]:
    """Return the dict in a file; an empty dict if there is none."""
    try:
        found = json.loads(file.read_bytes()) if file.is_file() else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def score_of(event: Event) -> float | None:
    """Return the score of an evaluation; with several members, the best one's."""
    scores = [_number(value) for value in event.get(f"{scores_of_members(event)}s", [])]
    found = [score for score in scores if score is not None]
    return max(found, default=None) if scores else _number(event.get(judged_by(event)))


def _told(event: Event) -> dict[str, float]:
    """Return the mean return and the means of env.metrics that an evaluation has."""
    found = {k: _number(x) for k, x in event.items() if k == "episode_return" or k.startswith(TOLD)}
    return {name: value for name, value in found.items() if value is not None}


def _number(value: Any) -> float | None:
    """Return `value` as a float if it is a finite number, else None."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None
