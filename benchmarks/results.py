"""The table of docs/results.md, run anew: `make results`.

A row is an environment with its own settings, trained with ten seeds at once in a process of its
own, in a directory of its own. Rows that finished are not run again, and rows that were interrupted
go on, so the same command continues where an earlier one stopped. Writes results.md, results.json
and results.png beside the rows' directories (below benchmarks/results, ignored by git).
`--estimate` makes four updates of each row that is left and says how long all of it will take.
"""

import argparse
import dataclasses
import json
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from benchmarks.blocks import RESULTS
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
    Row("breakout", published=gymnax(28, 10_000_000, "PPO")),
    Row("asterix", published=gymnax(15, 10_000_000, "PPO")),
    Row("space_invaders", published=gymnax(131, 10_000_000, "PPO")),
    Row("freeway", published=gymnax(58, 10_000_000, "PPO")),
    Row("seaquest"),
    *(Row(game, "jaxppo.ff_pqn") for game in MINATAR),
    *(Row(name, "jaxppo.ff_pqn") for name in ("jumanji/snake", "jumanji/game_2048")),
    Row("craftax/classic", "jaxppo.ff_pqn"),
    *(Row(n, "jaxppo.rec_pqn", ("network=gru",)) for n in ("navix/door_key", "xminigrid/empty")),
    *(Row(f"brax/{name}") for name in ("hopper", "walker2d", "halfcheetah", "ant", "humanoid")),
    *(Row(f"jumanji/{name}") for name in ("snake", "game_2048")),
    *(Row(name) for name in ("navix/door_key", "xminigrid/empty", "craftax/classic")),
    Row("playground/cartpole_balance"),
)
ROWS = {row.name: row for row in (*SMALL, *LARGE)}


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


def run(row: Row, folder: Path, seeds: int, here: dict[str, str], more: Sequence[str] = ()) -> int:
    """Train a row, unless that is done; the exit status. Signals go to the run, and it is awaited.

    Beside the run's files stays where.json, an object for each process that took part.
    """
    if finished(folder):
        return 0
    given = command(row, folder, seeds, more)
    folder.mkdir(parents=True, exist_ok=True)
    parts = [*_read(folder / "where.json", []), {**here, "command": " ".join(given[1:])}]
    _write(folder / "where.json", parts)
    start = _processor_seconds()
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
        status = running[0].wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    parts[-1]["cpu_seconds"] = _processor_seconds() - start
    _write(folder / "where.json", parts)
    return status


def estimate(row: Row, seeds: int, more: Sequence[str] = ()) -> float:
    """Seconds that a row takes on this machine, by the speed of its first four updates."""
    own = [f"env={row.env}", *row.overrides, f"arch.num_seeds={seeds}", *more]
    start = [sys.executable, "-m", row.executable, *own]
    told = subprocess.run([*start, "--cfg", "job"], capture_output=True, text=True, check=True)
    arch = OmegaConf.create(told.stdout).arch
    with tempfile.TemporaryDirectory() as folder:
        short = ["arch.num_updates=4", "arch.num_evaluation=1", "arch.absolute_metric=false"]
        short += ["checkpoint.enabled=false"]
        short += ["logger.plot=false", f"hydra.run.dir={folder}"]
        subprocess.run([*start, *short], check=True, stdout=subprocess.DEVNULL)
        summary = _read(Path(folder) / "summary.json", {})
        lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    *_, trained, evaluated = map(json.loads, lines)  # the last of each
    step = seeds / summary["steps_per_second"]  # seconds a step of every seed
    evaluation = evaluated["seconds"] - trained["seconds"]
    rest = summary["seconds"] - step * summary["steps"] - evaluation  # such as compilation
    evaluations = arch.num_evaluation + 10 * bool(arch.absolute_metric)  # which has ten times more
    return float(rest + step * float(arch.total_timesteps) + evaluation * evaluations)


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
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    *_, last = (event for event in map(json.loads, lines) if event["event"] == "eval")
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
        "final": last["episode_return"],
        "absolute_metrics": dict(metrics),
        "wall_seconds": summary["seconds"],
        "compile_seconds": summary["compile_seconds"],
        "published": row.published and dataclasses.asdict(row.published),
        "where": parts,
    }


def table(results: Sequence[dict[str, Any]]) -> str:
    """The Markdown of the page: a line a row, then the machines, each with its rows."""
    lines = [
        "| `env=` | environment | steps | mean | IQM [95% interval] | lowest seed | final mean "
        "| published | all seeds |",
        f"|{' --- |' * 9}",
    ]
    machines: dict[str, list[str]] = {}
    for found in results:
        scores = [found["mean"], found["iqm"], *found["interval"], found["lowest"], found["final"]]
        mean, middle, low, high, lowest, final = _in_figures(scores)
        network = f", {found['network'].upper()}" if found["network"] else ""
        label = f", {found['label'].replace('_', '-')}" if found["label"] else ""
        algorithm = "" if found["algorithm"] == "ppo" else f", {found['algorithm'].upper()}"
        environment = f"{found['environment']}{algorithm}{network}{label}"
        lines.append(
            f"| `{found['env']}` | {environment} | {found['steps']:,} "
            f"| {mean} | {middle} [{low}, {high}] | {lowest} | {final} "
            f"| {_cite(found['published'])} | {_in_time(found['wall_seconds'])} |"
        )
        for part in found["where"]:
            of = f"{found['seeds']} seeds each, {part['machine']}, jax {part['jax']}"
            rows = machines.setdefault(f"{of}, commit {part['commit']}", [])
            if found["name"] not in rows:
                rows.append(found["name"])
    alone = len(machines) == 1
    said = [of if alone else f"{', '.join(rows)}: {of}" for of, rows in machines.items()]
    return "\n".join([*lines, "", *(f"{line}." for line in said), ""])


def draw(results: Sequence[dict[str, Any]], out: Path, file: Path) -> None:
    """A panel a row: IQM over the seeds and its 95% interval; dotted, what others report."""
    figure, panels = make_panels(len(results), 5, 2.1, 1.6, 0.35)
    for axes, found in zip(panels, results, strict=True):
        text = (out / found["name"] / "metrics.jsonl").read_text()
        events = [e for e in map(json.loads, text.splitlines()) if e["event"] == "eval"]
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


def _cite(published: dict[str, Any] | None) -> str:
    if published is None:
        return ""
    steps = published["steps"]
    after = f" after {steps:,}" if steps else ""
    method = "" if published["method"] == "PPO" else f", {published['method']}"
    return f"[{published['value']:g}{after}]({published['source']}){method}"


def _in_time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def main() -> int:
    """Train what is left, and write what there is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"rows: {', '.join(ROWS)}")
    parser.add_argument("--large", action="store_true", help="the rows for an accelerator")
    parser.add_argument("--seeds", type=int, default=10, help="agents of a row")
    parser.add_argument("--out", type=Path, default=RESULTS / "table", help="directory of the rows")
    parser.add_argument("--estimate", action="store_true", help="only say how long it will take")
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings that rows begin with"
    )
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in ROWS]
    if unknown:
        parser.error(f"{unknown[0]}: no such row; of {', '.join(ROWS)}")
    if arguments.seeds < 2:
        parser.error(f"--seeds={arguments.seeds}: an interval needs at least 2")
    rows = [ROWS[name] for name in arguments.names] or (LARGE if arguments.large else SMALL)
    out = arguments.out.resolve()
    if arguments.estimate:
        left = [row for row in rows if not finished(out / row.name)]
        seconds = []
        for row in left:
            seconds.append(estimate(row, arguments.seeds, arguments.set))
            print(f"{row.name:26} about {_in_time(seconds[-1])}", flush=True)
        print(f"all rows that are left: about {sum(seconds) / 3600:.1f} hours on this machine")
        return 0
    for folder in (out / row.name for row in rows):
        has = seeds_of(folder)
        if has not in (None, arguments.seeds):
            parser.error(
                f"--seeds={arguments.seeds}: {folder} has {has}; ask for as many, or choose "
                "another --out"
            )
    here = machine()
    failed = []
    for row in rows:
        status = run(row, out / row.name, arguments.seeds, here, arguments.set)
        if status in (128 + signal.SIGINT, 128 + signal.SIGTERM):
            print(f"{row.name}: interrupted; the same command goes on with it", file=sys.stderr)
            return status
        failed += [row.name] if status else []
        write(list(ROWS.values()), out)
    print((out / "results.md").read_text())
    if failed:
        print(f"failed: {', '.join(failed)}; see above", file=sys.stderr)
    return 1 if failed else 0


def write(rows: Sequence[Row], out: Path) -> None:
    """results.md, results.json and results.png of the rows that finished so far."""
    results = [found for row in rows if (found := collect(row, out / row.name))]
    (out / "results.md").write_text(table(results))
    _write(out / "results.json", results)
    if results:
        draw(results, out, out / "results.png")


if __name__ == "__main__":
    sys.exit(main())
