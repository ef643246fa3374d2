"""Which general settings learn best: variants of the defaults on environments of many kinds.

    python -m benchmarks.defaults                   # every variant; continues an interrupted study
    python -m benchmarks.defaults default epochs=8  # these variants of `system`
    python -m benchmarks.defaults --table           # what was found so far, as Markdown

Each cell trains 20 seeds, as members of one program, in one environment by `env.name`, so without
the settings of its file. The budget of `--regime few` is a thirtieth to a half of that file's.
Variants that differ only in hyperparameters share the program. A score is the mean return of the
greedy policy: 0 is a random policy's, 1 a good one's. Results lie in
benchmarks/results/defaults.jsonl (ignored by git).
"""

import argparse
import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.blocks import RESULTS
from jaxppo.launch.composing import compose
from jaxppo.launch.sweeping import groups, train
from jaxppo.ops.aggregates import interval, iqm
from jaxppo.runtime.hosts import devices
from jaxppo.runtime.run.jobs import Job

FILE = RESULTS / "defaults.jsonl"


@dataclasses.dataclass(frozen=True)
class Task:
    """An environment, its budget, and the returns of a random and of a good policy."""

    name: str
    steps: int
    low: float
    high: float


TASKS = [
    Task("CartPole-v1", 100_000, 20.0, 500.0),
    Task("Acrobot-v1", 100_000, -500.0, -80.0),
    Task("MountainCar-v0", 200_000, -200.0, -110.0),
    Task("Pendulum-v1", 150_000, -1200.0, -160.0),
    Task("MountainCarContinuous-v0", 100_000, 0.0, 95.0),
    Task("Reacher-misc", 300_000, 10.0, 60.0),
    Task("Catch-bsuite", 30_000, -0.6, 1.0),
    Task("FourRooms-misc", 100_000, 0.0, 1.0),
    Task("FrozenLake-misc", 100_000, 0.0, 0.74),
    Task("UmbrellaChain-bsuite", 50_000, 0.0, 1.0),
]
IMAGES = [Task("Breakout-MinAtar", 200_000, 0.5, 10.0)]
LONG = [
    dataclasses.replace(task, steps=1_000_000)
    for task in TASKS
    if task.name in ("CartPole-v1", "Pendulum-v1")
]
FEW = ["arch.total_num_envs=64"]  # 2,048 steps an update
MANY = ["arch.total_num_envs=1024"]  # 32,768 steps an update
REGIMES = {"few": (TASKS, FEW), "images": (IMAGES, FEW), "many": (LONG, MANY)}

DEFAULT = "default"


def variants(names: Sequence[str]) -> dict[str, list[str]]:
    """Overrides of variants; a name is its overrides of `system`, with a comma between each."""
    return {
        name: [] if name == DEFAULT else [f"system.{each}" for each in name.split(",")]
        for name in names
    }


ONE_BY_ONE = [
    DEFAULT,
    "actor_lr=3e-4,critic_lr=3e-4,normalize_rewards=false",
    *("normalize_rewards=false", "normalize_rewards=false,normalize_values=true"),
    *("actor_lr=3e-4,critic_lr=3e-4", "actor_lr=2e-3,critic_lr=2e-3", "actor_lr=3e-4"),
    "decay_learning_rates=false",
    *("ent_coef=0.0", "ent_coef=0.003", "ent_coef=0.03", "gae_lambda=0.9", "vf_coef=1.0"),
    *("max_grad_norm=0.1", "max_grad_norm=2.0", "max_grad_norm=.inf", "clip_together=true"),
    *("standardize_advantages=minibatch", "standardize_advantages=none"),
    *("normalize_values=true", "normalize_observations=false", "obs_norm_share=1"),
    *("epochs=2", "epochs=8", "num_minibatches=4", "num_minibatches=8", "num_minibatches=32"),
]


def run(
    task: Task, overrides: dict[str, list[str]], more: list[str], seeds: range
) -> list[dict[str, Any]]:
    """A row for each variant of one task, trained together where they are one program."""
    configs = {
        name: compose(
            "ff_ppo",
            [
                *(f"env.name={task.name}", f"arch.total_timesteps={task.steps}"),
                *(f"arch.seed={seeds.start}", f"arch.num_seeds={len(seeds)}"),
                *(
                    "arch.num_evaluation=10",
                    "arch.num_eval_episodes=32",
                    "arch.evaluate_first=false",
                ),
                *("arch.absolute_metric=false", "arch.compile_cache=null"),
                *("logger.console=false", "logger.plot=false", "checkpoint.enabled=false"),
                *more,
                *changes,
            ],
        )
        for name, changes in overrides.items()
    }
    names, rows = list(configs), []
    for group in groups(list(configs.values())):
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            run_dirs = [Path(folder) / str(number) for number in group]
            for run_dir in run_dirs:
                run_dir.mkdir()
            pairs = zip(group, run_dirs, strict=True)
            train([Job(configs[names[number]], run_dir) for number, run_dir in pairs])
            seconds = (time.perf_counter() - start) / len(group)
            for number, run_dir in zip(group, run_dirs, strict=True):
                found = [returns_of(seed, run_dir) for seed in seeds]  # fewer of a failed seed
                rows.append({"variant": names[number], "returns": found, "seconds": seconds})
    return rows


def returns_of(seed: int, run_dir: Path) -> list[float | None]:
    """The mean returns of a seed's ten evaluations; None if not finite, fewer if it failed."""
    lines = (run_dir / f"seed_{seed}" / "metrics.jsonl").read_text().splitlines()
    events = [event for event in map(json.loads, lines) if event["event"] == "eval"]
    return [event["episode_return"] for event in events]


def scores(task: Task, returns: Sequence[Sequence[float | None]]) -> tuple[np.ndarray, np.ndarray]:
    """The last score and the mean over the curve, of each seed, clipped to [-0.5, 1.5].

    A missing or failed evaluation scores 0.
    """

    def score(curve: Sequence[float | None]) -> tuple[float, float]:
        values = [np.nan if x is None else x for x in curve] + [np.nan] * (10 - len(curve))
        share = np.nan_to_num((np.asarray(values) - task.low) / (task.high - task.low), nan=0.0)
        share = np.clip(share, -0.5, 1.5)
        return share[-1], share.mean()

    found = np.asarray([score(curve) for curve in returns])
    return found[:, 0], found[:, 1]


def read() -> list[dict[str, Any]]:
    """All rows so far."""
    lines = FILE.read_text().splitlines() if FILE.exists() else []
    return [json.loads(line) for line in lines]


def study(regime: str, names: Sequence[str], seeds: range) -> None:
    """Train every cell that is not there yet."""
    RESULTS.mkdir(exist_ok=True)
    tasks, more = REGIMES[regime]
    for task in tasks:
        key = {"regime": regime, "task": task.name, "first": seeds.start, "seeds": len(seeds)}
        done = {row["variant"] for row in read() if key.items() <= row.items()}
        left = {name: x for name, x in variants(names).items() if name not in done}
        for row in run(task, left, more, seeds) if left else []:
            final, area = scores(task, row["returns"])
            print(
                f"{regime:<5} {task.name:<26} {row['variant']:<44} final {iqm(final):.3f} "
                f"area {iqm(area):.3f}  {row['seconds']:.0f} s",
                flush=True,
            )
            with FILE.open("a") as file:
                file.write(json.dumps({**key, **row}) + "\n")


def table(regime: str, first: int, by_task: bool) -> list[str]:
    """Markdown: of each variant the scores over all tasks and seeds, best first."""
    tasks = {task.name: task for task in REGIMES[regime][0]}
    by_variant: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]] = {}
    for row in read():
        if row["regime"] == regime and row["first"] == first and row["task"] in tasks:
            found = scores(tasks[row["task"]], row["returns"])
            by_variant.setdefault(row["variant"], {})[row["task"]] = found
    whole = {name: found for name, found in by_variant.items() if len(found) == len(tasks)}
    rows = []
    for name, by_task_name in whole.items():
        final = [by_task_name[task][0] for task in tasks]
        area = [by_task_name[task][1] for task in tasks]
        low, high = interval(final)
        every = np.sort(np.concatenate(final))
        rows.append(
            {
                "variant": f"`{name}`",
                "final, IQM [95%]": f"{iqm(np.concatenate(final)):.3f} [{low:.3f}, {high:.3f}]",
                "area under the curve, IQM": f"{iqm(np.concatenate(area)):.3f}",
                "final, mean over environments": f"{statistics.fmean(x.mean() for x in final):.3f}",
                "worst tenth": f"{every[: len(every) // 10].mean():.3f}",
                **(
                    {task.partition("-")[0]: f"{iqm(by_task_name[task][0]):.2f}" for task in tasks}
                    if by_task
                    else {}
                ),
            }
        )
    if not rows:
        return []
    rows.sort(key=lambda row: -float(row["final, mean over environments"]))
    return [
        f"| {' | '.join(rows[0])} |",
        f"|{' --- |' * len(rows[0])}",
        *(f"| {' | '.join(row.values())} |" for row in rows),
    ]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("variants", nargs="*", default=[])
    parser.add_argument("--regime", choices=tuple(REGIMES), default="few")
    parser.add_argument("--seed", type=int, default=1, help="the first")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--tasks", action="store_true", help="a column for each environment")
    given = parser.parse_args()
    if not given.table:
        devices.prepare()
        seeds = range(given.seed, given.seed + given.seeds)
        study(given.regime, given.variants or ONE_BY_ONE, seeds)
    print("\n".join(table(given.regime, given.seed, given.tasks)))


if __name__ == "__main__":
    main()
