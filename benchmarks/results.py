"""The table of docs/results.md, run anew: `make results`.

A row is an environment with its own settings, trained with ten seeds at once in a process of its
own, in a directory of its own. Rows that finished are not run again, and rows that were interrupted
go on, so the same command continues where an earlier one stopped. Writes results.md, results.json
and results.png beside the rows' directories (below benchmarks/results, ignored by git).
`--estimate` makes four updates of each row that is left and says how long all of it will take.

    python -m benchmarks.results                               # the rows of the page
    python -m benchmarks.results pqn/catch four_rooms          # two of them
    python -m benchmarks.results --accelerator --seconds 500   # what a GPU does in ten minutes
    python -m benchmarks.results --accelerator --wheels DIR    # on a machine without a network
    python -m benchmarks.results --accelerator --small         # tiny sizes: try it on a CPU

Rows of `--accelerator` are ordered by value. While one trains, four updates of the next one put its
programs into the cache. After `--seconds` the run gets SIGTERM, which saves it (some seconds more),
and the table names what is left; the same command with the same `--out` goes on.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from benchmarks.blocks import RESULTS
from benchmarks.contestants import with_wheels
from jaxppo.runtime.sinks.plot import make_panels, steps_axis

ROOT = Path(__file__).resolve().parents[1]
GYMNAX = "https://github.com/RobertTLange/gymnax"  # its README; steps are those of gymnax-blines
CLEANRL = "https://docs.cleanrl.dev/rl-algorithms/pqn/"
MINATAR = ("breakout", "asterix", "space_invaders", "freeway")
OTHERS_OF_PQN = (  # with discrete actions, where no published run of PQN is known
    *("mountain_car", "catch", "four_rooms", "deep_sea", "discounting_chain"),
    *("umbrella_chain", "frozen_lake"),
)
NEED_MEMORY = ("memory_chain", "t_maze", "cartpole_no_velocity", "pendulum_no_velocity")
ZOO = "https://github.com/DLR-RM/rl-baselines3-zoo/blob/master/benchmark.md"
DISCOGEN = (  # PPO in JAX, final policies of eight seeds, best of ten learning rates; March 2026
    "https://github.com/AlexGoldie/discogen/blob/main/"
    "discogen/domains/OnPolicyRL/utils/baseline_scores.yaml"
)
GRACE = 60.0  # seconds that a run gets to save and end after SIGTERM
TINY = (  # settings of --small
    *("arch.total_num_envs=8", "arch.total_timesteps=1024", "arch.num_evaluation=2"),
    *("arch.num_eval_episodes=4", "arch.max_eval_steps=20", "arch.compiler=quick"),
    *("system.rollout_length=8", "system.num_minibatches=2", "system.epochs=1"),
)


@dataclasses.dataclass(frozen=True)
class Published:
    """What others report: of PPO, unless the method is named; of one run, as far as they say."""

    value: float
    source: str
    steps: int | None = None  # environment steps; None: not said
    method: str = "PPO"


def gymnax(value: float, steps: int, method: str = "PPO or evolution") -> Published:
    """What gymnax's README says; except of MinAtar it does not tell which of two methods it is."""
    return Published(value, GYMNAX, steps, method)


@dataclasses.dataclass(frozen=True)
class Row:
    """What is trained: a file of configs/env, and what differs from its defaults."""

    env: str
    executable: str = "jaxppo.ff_ppo"
    overrides: tuple[str, ...] = ()
    published: Published | None = None
    label: str = ""  # what tells rows of one environment and algorithm apart
    whole: bool = False  # with a limit of seconds: only begun if there is time for all of it

    @property
    def algorithm(self) -> str:
        """The algorithm, such as ppo."""
        return self.executable.rpartition("_")[2]

    @property
    def name(self) -> str:
        """The name of the row and its directory: for PPO that of the environment and the label."""
        env = "_".join(filter(None, (self.env, self.label)))
        return env if self.algorithm == "ppo" else f"{self.algorithm}/{env}"


def remembering(env: str, published: Published | None = None) -> Row:
    """A row with a memory."""
    return Row(env, "jaxppo.rec_ppo", ("network=lru",), published)


def zoo(env: str, published: Published, *overrides: str) -> Row:
    """A row with the settings of stable-baselines3's zoo, but for its exploration noise (gSDE)."""
    common = (
        *("system.clip_together=true", "system.standardize_advantages=minibatch"),
        *("system.ent_coef=0", "system.vf_coef=1"),  # of half the squared error
    )
    return Row(env, overrides=(*common, *overrides), published=published, label="zoo")


BRAX = {"hopper": 2398, "walker2d": 1043, "halfcheetah": 5039, "ant": 6957, "humanoid": 6130}


def published_brax(name: str) -> Row:
    """A row with DiscoGen's settings and one of the ten learning rates that it searched."""
    return Row(
        f"brax/{name}",
        overrides=(
            *("arch.total_timesteps=5e7", "arch.total_num_envs=2048", "system.rollout_length=10"),
            *("system.num_minibatches=32", "system.epochs=4", "system.gamma=0.99"),
            *("system.gae_lambda=0.95", "system.clip_eps=0.2", "system.ent_coef=0"),
            *("system.actor_lr=3e-4", "system.critic_lr=3e-4", "system.decay_learning_rates=true"),
            *("system.reward_scale=1", "system.normalize_rewards=true"),
            "system.normalize_observations=true",
        ),
        published=Published(BRAX[name], DISCOGEN, 50_000_000),
        label="5e7",
    )


def playground(name: str) -> Row:
    """A row of MuJoCo Playground with the settings of the file, which are Brax's for DMC."""
    own = (f"env.name={name}", "arch.total_timesteps=5e7")
    return Row("playground/cartpole_balance", overrides=own, label=name)


SMALL = (
    Row("cartpole", published=Published(500, ZOO, 100_000)),
    Row("acrobot", published=gymnax(-80, 500_000)),
    Row("pendulum", published=gymnax(-130, 1_000_000)),
    Row("mountain_car", published=Published(-110.4, ZOO, 1_000_000)),
    Row("mountain_car_continuous", published=gymnax(92, 1_000_000)),
    zoo(
        *("cartpole", Published(500, ZOO, 100_000), "arch.total_timesteps=100000"),
        *("arch.total_num_envs=8", "system.rollout_length=32", "system.num_minibatches=1"),
        *("system.epochs=20", "system.gamma=0.98", "system.gae_lambda=0.8"),
        *("system.actor_lr=1e-3", "system.critic_lr=1e-3", "system.schedules.clip_eps.end=1e-6"),
    ),
    zoo(
        *("pendulum", Published(-172.2, ZOO, 100_000, "PPO with gSDE")),
        "arch.total_timesteps=100000",
        *("arch.total_num_envs=4", "system.rollout_length=1024", "system.num_minibatches=64"),
        *("system.epochs=10", "system.gamma=0.9", "system.gae_lambda=0.95"),
        *("system.actor_lr=1e-3", "system.critic_lr=1e-3", "system.reward_scale=1"),
        "system.decay_learning_rates=false",
    ),
    zoo(
        *("acrobot", Published(-73.5, ZOO, 1_000_000), "arch.total_timesteps=1000000"),
        *("arch.total_num_envs=16", "system.rollout_length=256", "system.num_minibatches=64"),
        *("system.epochs=4", "system.gamma=0.99", "system.gae_lambda=0.94"),
        *("system.actor_lr=3e-4", "system.critic_lr=3e-4", "system.decay_learning_rates=false"),
        *("system.normalize_observations=true", "system.normalize_rewards=true"),
    ),
    Row("catch", published=gymnax(1, 100_000)),
    Row("four_rooms", published=gymnax(1, 200_000)),
    Row("deep_sea", published=gymnax(0, 150_000)),
    Row("discounting_chain"),
    Row("umbrella_chain", published=gymnax(1, 150_000)),
    Row("frozen_lake"),
    Row("reacher"),
    remembering("memory_chain", gymnax(0.1, 150_000, "PPO or evolution without memory")),
    remembering("t_maze"),
    remembering("cartpole_no_velocity"),
    remembering("pendulum_no_velocity"),
    *(Row(env, label="feed_forward") for env in NEED_MEMORY),
    Row("cartpole", "jaxppo.ff_pqn", (), Published(495.1, CLEANRL, 500_000, "PQN")),
    Row("acrobot", "jaxppo.ff_pqn", (), Published(-95.6, CLEANRL, 500_000, "PQN")),
    *(Row(env, "jaxppo.ff_pqn") for env in OTHERS_OF_PQN),
    Row("memory_chain", "jaxppo.rec_pqn", ("network=gru",)),
    Row("t_maze", "jaxppo.rec_pqn", ("network=gru",)),
    Row("cartpole_no_velocity", "jaxppo.rec_pqn", ("network=gru",)),
    *(Row(env, "jaxppo.ff_reppo") for env in ("pendulum", "point_robot")),
    Row("pendulum_no_velocity", "jaxppo.rec_reppo", ("network=gru",)),
)
LARGE = (
    Row("breakout", published=Published(61.1, DISCOGEN, 10_000_000)),
    Row("asterix", published=Published(16.0, DISCOGEN, 10_000_000)),
    Row("space_invaders", published=Published(182, DISCOGEN, 10_000_000)),
    Row("freeway", published=Published(62.2, DISCOGEN, 10_000_000)),
    Row("seaquest"),
    *(Row(game, "jaxppo.ff_pqn") for game in MINATAR),
    *(Row(name, "jaxppo.ff_pqn") for name in ("jumanji/snake", "jumanji/game_2048")),
    Row("craftax/classic", "jaxppo.ff_pqn"),
    *(Row(n, "jaxppo.rec_pqn", ("network=gru",)) for n in ("navix/door_key", "xminigrid/empty")),
    *(
        Row(f"brax/{name}", published=Published(value, DISCOGEN, 50_000_000))
        for name, value in BRAX.items()
    ),
    *(Row(f"jumanji/{name}") for name in ("snake", "game_2048")),
    *(Row(name) for name in ("navix/door_key", "xminigrid/empty")),
    Row("craftax/classic", published=Published(16.9, DISCOGEN, 100_000_000)),
    Row("playground/cartpole_balance"),
)
LONGER = (  # what others publish at budgets that the files of CPUs do not have
    *(published_brax(name) for name in ("halfcheetah", "walker2d")),
    Row(
        "craftax/classic",
        overrides=(
            *("arch.total_timesteps=1e8", "arch.total_num_envs=1024", "system.rollout_length=64"),
            *("system.actor_lr=2e-4", "system.critic_lr=2e-4"),
        ),
        published=Published(16.9, DISCOGEN, 100_000_000),
        label="1e8",
        whole=True,
    ),
    *(playground(name) for name in ("CheetahRun", "WalkerRun")),
)
ROWS = {row.name: row for row in (*SMALL, *LARGE, *LONGER)}
ACCELERATOR = tuple(  # the most valuable first
    ROWS[name]
    for name in (
        *("brax/ant", "brax/humanoid", "brax/halfcheetah_5e7", "brax/walker2d_5e7"),
        *("craftax/classic_1e8", "breakout", "space_invaders"),
        *("playground/cartpole_balance_CheetahRun", "playground/cartpole_balance_WalkerRun"),
    )
)


def finished(folder: Path) -> bool:
    """Whether the run of a row has come to its end."""
    return _read(folder / "summary.json", {}).get("status") == "finished"


def seeds_of(folder: Path) -> int | None:
    """How many agents the run of a row has; None before it began."""
    file = folder / "config.yaml"
    return int(OmegaConf.load(file).arch.num_seeds) if file.is_file() else None


def command(row: Row, folder: Path, seeds: int, more: Sequence[str] = ()) -> list[str]:
    """What runs a row: from the start, or on from where it was interrupted."""
    start = [sys.executable, "-m", row.executable]
    if seeds_of(folder) is not None:
        return [*start, f"resume={folder}"]
    own = [f"env={row.env}", *row.overrides, f"arch.num_seeds={seeds}", *more]
    return [*start, *own, f"hydra.run.dir={folder}"]


def run(
    row: Row,
    folder: Path,
    seeds: int,
    here: dict[str, str],
    more: Sequence[str] = (),
    limit: float | None = None,
) -> int:
    """Train a row, unless that is done; the exit status. Signals go to the run, and it is awaited.

    After `limit` seconds the run gets SIGTERM. Beside the run's files stays where.json, an object
    for each process that took part.
    """
    if finished(folder):
        return 0
    given = command(row, folder, seeds, more)
    folder.mkdir(parents=True, exist_ok=True)
    parts = [*_read(folder / "where.json", []), {**here, "command": " ".join(given[1:])}]
    _write(folder / "where.json", parts)
    start, began = _processor_seconds(), time.monotonic()
    running: list[subprocess.Popen[bytes]] = []
    early: list[int] = []  # signals that come while it starts

    def pass_on(number: int, _: object) -> None:
        if running:
            running[0].send_signal(number)
        else:
            early.append(number)

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        running.append(subprocess.Popen(given, start_new_session=True))
        for number in early:
            running[0].send_signal(number)
        status = _wait(running[0], limit)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    parts[-1]["cpu_seconds"] = _processor_seconds() - start
    parts[-1]["wall_seconds"] = time.monotonic() - began
    _write(folder / "where.json", parts)
    return status


def _wait(process: subprocess.Popen[bytes], limit: float | None) -> int:
    """Wait for a run, and end it after `limit` seconds; the exit status."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(limit)
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(GRACE)
    process.kill()  # its last checkpoint stays
    return process.wait()


class Trial:
    """A process that makes four updates of a row, which also puts its programs into the cache."""

    def __init__(self, row: Row, seeds: int, more: Sequence[str] = ()) -> None:
        self._seeds = seeds
        self._temporary = tempfile.TemporaryDirectory()
        self._folder = Path(self._temporary.name)
        self._command = command(row, self._folder, seeds, more)
        short = ["arch.num_updates=4", "arch.num_evaluation=1", "arch.absolute_metric=false"]
        short += ["checkpoint.enabled=false", "logger.plot=false"]
        self._process = subprocess.Popen(
            command(row, self._folder, seeds, [*more, *short]),
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def seconds(self, limit: float | None = None) -> float | None:
        """Seconds that the whole row takes; None if the trial fails or is not over in time."""
        try:
            if self._process.wait(limit):
                return None
        except subprocess.TimeoutExpired:
            return None
        told = subprocess.run(
            [*self._command, "--cfg", "job"], capture_output=True, text=True, check=True
        )
        arch = OmegaConf.create(told.stdout).arch
        summary = _read(self._folder / "summary.json", {})
        lines = (self._folder / "metrics.jsonl").read_text().splitlines()
        *_, trained, evaluated = map(json.loads, lines)  # the last of each
        step = self._seeds / summary["steps_per_second"]  # seconds a step of every seed
        evaluation = evaluated["seconds"] - trained["seconds"]
        rest = summary["seconds"] - step * summary["steps"] - evaluation  # such as compilation
        evaluations = arch.num_evaluation + 10 * bool(arch.absolute_metric)  # with ten times more
        return float(rest + step * float(arch.total_timesteps) + evaluation * evaluations)

    def close(self) -> None:
        """End the process and delete its files."""
        self._process.kill()
        self._process.wait()
        self._temporary.cleanup()


def machine() -> dict[str, str]:
    """What runs are on, in words, and the versions that they are of."""
    ask = (
        "import jax; from jaxppo.runtime.hosts import devices;"
        "print(devices.machine(), jax.__version__, sep='|')"
    )
    told = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    name, version = told.stdout.strip().split("|")
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=10"]
    commit = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=False)
    return {"machine": name, "jax": version, "commit": commit.stdout.strip() or "unknown"}


def collect(row: Row, folder: Path) -> dict[str, Any] | None:
    """What the table says of a row that finished; None of another."""
    if not finished(folder):
        return None
    summary, parts = _read(folder / "summary.json", {}), _read(folder / "where.json", [])
    metrics = zip(map(str, summary["seeds"]), summary["absolute_metrics"], strict=True)
    return {
        "name": row.name,
        "env": row.env,
        "algorithm": row.algorithm,
        "environment": summary["environment"],
        "label": row.label,
        "network": " ".join(
            x.removeprefix("network=") for x in row.overrides if x.startswith("network=")
        ),
        "steps": summary["steps"],
        "seeds": summary["members"],
        "mean": summary["absolute_metric"],
        "iqm": summary["absolute_metric_iqm"],
        "interval": [summary["absolute_metric_low"], summary["absolute_metric_high"]],
        "lowest": summary["absolute_metric_min"],
        "final": _evaluations(folder)[-1]["episode_return"],
        "absolute_metrics": dict(metrics),
        "wall_seconds": summary["seconds"],
        "compile_seconds": summary["compile_seconds"],
        "published": row.published and dataclasses.asdict(row.published),
        "where": parts,
    }


def _evaluations(folder: Path) -> list[dict[str, Any]]:
    """The events of a run's evaluations."""
    file = folder / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.is_file() else []
    return [event for event in map(json.loads, lines) if event["event"] == "eval"]


def left(rows: Sequence[Row], out: Path, reasons: dict[str, str]) -> list[dict[str, Any]]:
    """What is not done of the rows: how far each is, and why it does not go on."""
    found = []
    for row in rows:
        if finished(out / row.name):
            continue
        last = (_evaluations(out / row.name) or [{}])[-1]
        summary = _read(out / row.name / "summary.json", {})
        found.append(
            {
                "name": row.name,
                # a run that was killed has the summary of an earlier stop
                "steps": max(summary.get("steps", 0), last.get("steps", 0)),
                "last_return": last.get("episode_return"),
                "reason": reasons.get(row.name, ""),
            }
        )
    return found


def same_budget(found: dict[str, Any]) -> bool:
    """Whether a row has the steps of its published figure, up to the last updates of both."""
    steps = (found["published"] or {}).get("steps")
    return bool(steps) and abs(found["steps"] / steps - 1) < 0.03


def table(results: Sequence[dict[str, Any]], unfinished: Sequence[dict[str, Any]] = ()) -> str:
    """The Markdown of the page: two tables, what is left, and the machines with their rows."""
    parts = []
    alike = {
        "Same budget as published": [found for found in results if same_budget(found)],
        "Other budgets, or nothing published": [x for x in results if not same_budget(x)],
    }
    for title, rows in alike.items():
        if rows:
            parts += [f"## {title}", "", *_lines(rows), ""]
    if unfinished:
        parts += ["Left; the same command goes on:", "", *map(_unfinished, unfinished), ""]
    machines: dict[str, list[str]] = {}
    for found in results:
        for part in found["where"]:
            of = f"{found['seeds']} seeds each, {part['machine']}, jax {part['jax']}"
            names = machines.setdefault(f"{of}, commit {part['commit']}", [])
            if found["name"] not in names:
                names.append(found["name"])
    alone = len(machines) == 1
    said = [of if alone else f"{', '.join(names)}: {of}" for of, names in machines.items()]
    return "\n".join([*parts, *(f"{line}." for line in said), ""])


def _lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A table, a line a row."""
    lines = [
        "| row of `make results` | steps | absolute metric, IQM [95% interval] | lowest seed "
        "| final policy, mean | published | wall time |",
        f"|{' --- |' * 7}",
    ]
    for found in rows:
        scores = [found["iqm"], *found["interval"], found["lowest"], found["final"]]
        middle, low, high, lowest, final = _in_figures(scores)
        network = f", {found['network'].upper()}" if found["network"] else ""
        lines.append(
            f"| `{found['name']}`{network} | {found['steps']:,} | {middle} [{low}, {high}] "
            f"| {lowest} | {final} | {_cite(found['published'], same_budget(found))} "
            f"| {_in_time(found['wall_seconds'])} |"
        )
    return lines


def _unfinished(found: dict[str, Any]) -> str:
    """A row that is left."""
    said = [f"stopped at {found['steps']:,} steps"] if found["steps"] else []
    if said and found["last_return"] is not None:
        said.append(f"last evaluation {_in_figures([found['last_return']])[0]}")
    said += [found["reason"]] if found["reason"] else []
    return f"- `{found['name']}`: {', '.join(said) or 'not begun'}"


def draw(results: Sequence[dict[str, Any]], out: Path, file: Path) -> None:
    """A panel a row: IQM over the seeds and its 95% interval; dotted, what others report."""
    figure, panels = make_panels(len(results), 5, 2.1, 1.6, 0.35)
    for axes, found in zip(panels, results, strict=True):
        events = _evaluations(out / found["name"])
        steps = [event["steps"] for event in events]
        low, middle, high = (
            [event[f"member_return_{of}"] for event in events] for of in ("low", "iqm", "high")
        )
        axes.plot(steps, middle, linewidth=1.2, label="IQM over seeds")
        axes.fill_between(steps, low, high, alpha=0.25, linewidth=0, label="its 95% interval")
        axes.margins(y=0.1)
        if found["published"]:
            _draw_published(axes, found["published"])
        axes.set_title(found["name"], fontsize=8)
        axes.locator_params(nbins=3)
        steps_axis(axes, "", 4)
        axes.set_xlim(0, found["steps"])
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.3)
    named: dict[str, Any] = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        named.update(zip(labels, handles, strict=True))
    figure.supxlabel("environment steps", fontsize=8)
    figure.supylabel("mean return of an evaluation's episodes", fontsize=8)
    place = dict(loc="outside upper center", ncols=3, fontsize=8, frameon=False)
    figure.legend(named.values(), list(named), **place)
    figure.savefig(file, dpi=100)


def _draw_published(axes: Any, published: dict[str, Any]) -> None:
    """A dotted line with its value, and its method unless that is PPO, where there is room."""
    value, method = published["value"], published["method"]
    line = dict(color="0.4", linestyle=":", linewidth=0.9)
    axes.axhline(value, label="published, of PPO unless named", **line)
    low, high = axes.get_ylim()
    words = f"{value:g}" if method == "PPO" else f"{value:g}, {method}"
    under = value >= (low + high) / 2  # curves rise to it and above it
    axes.annotate(
        words,
        (0.98, value),
        xycoords=axes.get_yaxis_transform(),
        xytext=(0, -3 if under else 2),
        textcoords="offset points",
        fontsize=6.5,
        color="0.3",
        ha="right",
        va="top" if under else "bottom",
    )


def _read(file: Path, otherwise: Any) -> Any:
    return json.loads(file.read_text()) if file.is_file() else otherwise


def _write(file: Path, what: Any) -> None:
    file.write_text(json.dumps(what, indent=2) + "\n")


def _processor_seconds() -> float:
    """What processes that this one started, and saw the end of, have used of all cores."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _in_figures(scores: Sequence[float]) -> list[str]:
    decimals = 1 if max(map(abs, scores)) >= 10 else 2
    return [f"{round(score, decimals) + 0.0:.{decimals}f}" for score in scores]  # + 0.0: no -0.0


def _cite(published: dict[str, Any] | None, alike: bool) -> str:
    """A published figure, with its steps where they are others, and its method unless PPO."""
    if published is None:
        return ""
    steps = published["steps"]
    after = f" after {steps:,}" if steps and not alike else ""
    method = "" if published["method"] == "PPO" else f", {published['method']}"
    return f"[{published['value']:g}{after}]({published['source']}){method}"


def _in_time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def main() -> int:
    """Train what is left, and write what there is."""
    began = time.monotonic()
    arguments = _arguments()
    deadline = began + arguments.seconds if arguments.seconds else None
    os.environ["PYTHONPATH"] = with_wheels(arguments.wheels)
    if arguments.accelerator:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # two at once
    more = [*(TINY if arguments.small else ()), *arguments.set]
    if arguments.estimate:
        return _estimate(arguments, more)
    return train(arguments, more, deadline)


def _arguments() -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"rows: {', '.join(ROWS)}")
    parser.add_argument("--large", action="store_true", help="the rows for an accelerator")
    parser.add_argument(
        "--accelerator", action="store_true", help="nine rows for ten minutes of a GPU"
    )
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try the command")
    parser.add_argument("--seconds", type=float, help="stop after so long, and list what is left")
    parser.add_argument("--wheels", type=Path, help="folder of wheels of environments' libraries")
    parser.add_argument(
        "--seeds", type=int, help="agents of a row: 10; 3 with --accelerator, 2 with --small"
    )
    parser.add_argument(
        "--out", type=Path, help="directory of the rows; by default in benchmarks/results"
    )
    parser.add_argument("--estimate", action="store_true", help="only say how long it will take")
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings that rows begin with"
    )
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in ROWS]
    if unknown:
        parser.error(f"{unknown[0]}: no such row; of {', '.join(ROWS)}")
    if given.seeds is None:
        given.seeds = 2 if given.small else 3 if given.accelerator else 10
    if given.seeds < 2:
        parser.error(f"--seeds={given.seeds}: an interval needs at least 2")
    if given.seconds is not None and given.seconds <= 0:
        parser.error(f"--seconds={given.seconds:g}: must be more than 0")
    if given.wheels and not any(given.wheels.glob("*.whl")):
        parser.error(f"--wheels={given.wheels}: has no wheels; fill it with pip download")
    name = f"{'rows' if given.accelerator else 'table'}{'_small' if given.small else ''}"
    given.out = (given.out or RESULTS / name).resolve()
    group = ACCELERATOR if given.accelerator else LARGE if given.large else SMALL
    given.rows = [ROWS[name] for name in given.names] or group
    for folder in (given.out / row.name for row in given.rows):
        has = seeds_of(folder)
        if has not in (None, given.seeds) and not given.estimate:
            parser.error(
                f"--seeds={given.seeds}: {folder} has {has}; ask for as many, or choose "
                "another --out"
            )
    return given


def _estimate(arguments: argparse.Namespace, more: Sequence[str]) -> int:
    """Say how long the rows that are left take."""
    seconds = []
    for row in arguments.rows:
        if finished(arguments.out / row.name):
            continue
        trial = Trial(row, arguments.seeds, more)
        with contextlib.closing(trial):
            found = trial.seconds()
        seconds.append(found)
        said = "failed" if found is None else f"about {_in_time(found)}"
        print(f"{row.name:26} {said}", flush=True)
    known = sum(found for found in seconds if found is not None)
    print(f"all rows that are left: about {known / 3600:.1f} hours on this machine")
    return int(None in seconds)


def train(arguments: argparse.Namespace, more: Sequence[str], deadline: float | None) -> int:
    """Train rows in turn until the deadline (`time.monotonic`); the exit status."""

    def time_left() -> float | None:
        return None if deadline is None else max(0.0, deadline - time.monotonic())

    here, out, seeds, rows = machine(), arguments.out, arguments.seeds, arguments.rows
    todo = [row for row in rows if not finished(out / row.name)]
    reasons: dict[str, str] = {}
    failed, trials = [], contextlib.ExitStack()

    def prepare(row: Row | None) -> None:
        """Put the programs of a row into the cache, beside what runs."""
        if arguments.accelerator and row and seeds_of(out / row.name) is None:
            trials.callback(Trial(row, seeds, more).close)

    with trials:
        for row, following in zip(todo, [*todo, None][1:], strict=True):
            limit = time_left()
            if limit == 0:
                break
            if row.whole and limit is not None and seeds_of(out / row.name) is None:
                with contextlib.closing(Trial(row, seeds, more)) as trial:  # with nothing beside
                    needs = trial.seconds(limit)
                limit = time_left()
                if needs is None or needs > (limit or 0.0):
                    about = "no estimate" if needs is None else f"needs about {_in_time(needs)}"
                    reasons[row.name] = f"{about}, {_in_time(limit or 0.0)} were left"
                    prepare(following)
                    continue
            prepare(following)
            status = run(row, out / row.name, seeds, here, more, limit)
            if status in (128 + signal.SIGINT, 128 + signal.SIGTERM) and time_left() != 0:
                print(f"{row.name}: interrupted; the same command goes on with it", file=sys.stderr)
                return status
            if status and time_left() != 0:
                failed.append(row.name)
                reasons[row.name] = "failed"
            write(list(ROWS.values()), out, left(rows, out, reasons))
    write(list(ROWS.values()), out, left(rows, out, reasons))
    print((out / "results.md").read_text())
    if failed:
        print(f"failed: {', '.join(failed)}; see above", file=sys.stderr)
    return 1 if failed else 0


def write(rows: Sequence[Row], out: Path, unfinished: Sequence[dict[str, Any]] = ()) -> None:
    """results.md, results.json and results.png of the rows that finished so far."""
    out.mkdir(parents=True, exist_ok=True)
    results = [found for row in rows if (found := collect(row, out / row.name))]
    (out / "results.md").write_text(table(results, unfinished))
    _write(out / "results.json", {"rows": results, "left": list(unfinished)})
    if results:
        draw(results, out, out / "results.png")


if __name__ == "__main__":
    sys.exit(main())
