"""Display a run: a progress bar on a terminal, plain lines elsewhere."""

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxppo.config.messages import count
from jaxppo.config.schema import TOLD
from jaxppo.ops.aggregates import iqm
from jaxppo.runtime.sinks import Event
from jaxppo.runtime.sinks.bars import TerminalBar, number, short
from jaxppo.runtime.store.facts import judged_by, scores_of_members

# A metric that an algorithm displays -> its setting of exploration; the first one counts
EXPLORATION = {
    "q_loss": "system.epsilon_end, system.epsilon_fraction",
    "q_value": "system.target_entropy, system.target_entropy_share",
    "entropy": "system.ent_coef",
}
STUCK = 5  # equal evaluations in a row, after which the console says what usually helps


class Console:
    """Prints every event. Only this module calls `print`."""

    def __init__(self, folders: Sequence[Path] = ()) -> None:
        """Make the console of runs that write to `folders`, one for each job of a sweep."""
        self._folders = list(folders)
        self._bar = TerminalBar(sys.stdout) if sys.stdout.isatty() else None
        self._headlines: dict[str, str] = {}  # metrics that the algorithm displays -> formats
        self._last: tuple[Any, ...] = ()  # numbers of the last evaluation
        self._has_advised = False
        self._equal = 0  # evaluations in a row that had these numbers

    def write(self, event: Event) -> None:
        """Print the event's lines and move the bar."""
        kind = event["event"]
        if kind == "start":
            self._headlines = event["headlines"]
        if kind == "train":
            event = {**event, "headlines": self._headlines}
        lines = _LINES[kind](event)
        if kind == "eval":
            lines += self._if_stuck(event)
        # A sweep names its directory itself at its end
        if kind == "start" or (kind == "end" and len(self._folders) == 1):
            lines += _directories(self._folders)
        for line in lines:
            if self._bar is None or not self._bar.print(line):
                print(line, flush=True)
        if self._bar is not None:
            self._bar.write(event)
            if kind == "eval" and event["last"]:
                self._bar.close()

    def _if_stuck(self, event: Event) -> list[str]:
        """Say once what usually helps if evaluations stay equal."""
        now = event[judged_by(event)], event["episode_return"], event["episode_length"]
        self._equal = self._equal + 1 if now == self._last else 1
        self._last = now
        if self._equal < STUCK or self._has_advised or now[0] is None:
            return []
        self._has_advised = True
        known = [EXPLORATION[name] for name in EXPLORATION if name in self._headlines]
        more = f"more exploration ({known[0]})" if known else "more exploration"
        return [
            f"{event['steps']:>13,} steps  {STUCK} evaluations in a row are equal: if better is "
            "possible, try arch.evaluation_greedy=false (a greedy policy may repeat one action), "
            f"{more}, or system.normalize_observations=true, if it is false"
        ]

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()

    def tick(self, steps: int, speed: float) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.tick(steps, speed)


def _start(event: Event) -> list[str]:
    rounded = (
        ""
        if event["requested_steps"] in (None, event["total_steps"])
        else f" ({event['requested_steps']:,} asked for, rounded up to whole updates)"
    )
    warm_up = (
        f"; {event['warmup_steps']:,} steps of warm-up before" if event["warmup_steps"] else ""
    )
    blocks = event["updates_per_block"]
    low, high = min(blocks), max(blocks)
    length = event["sequence_length"]
    sequences = f", in sequences of {length:,} steps" if length > 1 else ""
    devices = count(event["num_devices"], f"{event['platform']} device")
    precision = event["precision"]
    products = "" if precision == "float32" else f", matrix products in {precision}"
    who = f"seed {event['seed']}" if "seed" in event else count(event["members"], "member")
    several = event["num_members"] > 1
    each = f" of each of {event['num_members']:,} members" if several else ""
    return [
        f"{event['environment']} on {devices}, {who}, {event['num_parameters']:,} parameters"
        f"{products}",
        f"an update{each}: {count(event['devices_per_member'], 'device')} x "
        f"{count(event['update_batch_size'], 'update batch', 'es')} x "
        f"{count(event['num_envs'], 'environment')} x {count(event['rollout_length'], 'step')} = "
        f"{event['steps_per_update']:,} steps, learnt from in minibatches of "
        f"{event['minibatch_size']:,} per device and update batch{sequences}",
        f"budget: {event['num_updates']:,} updates = {event['total_steps']:,} steps{rounded}"
        f"{warm_up}",
        f"evaluations: {len(blocks)}, one every {low if low == high else f'{low} or {high}'} "
        f"updates, of {event['num_eval_episodes']} episodes of at most "
        f"{event['max_eval_steps']:,} steps",
    ]


def _compile(event: Event) -> list[str]:
    flop, peak = event["gflop_per_update"], event["peak_bytes"]
    costs = [
        *([] if flop is None else [f"{flop:.3g} GFLOP an update"]),
        *([] if peak is None else [f"{peak / 2**20:.0f} MiB at peak"]),
    ]
    cost = f": {', '.join(costs)}, on each device" if costs else ""
    names = [name for name in ("train", "evaluate", "start") if event.get(f"{name}_seconds")]
    parts = ", ".join(f"{name} {event[f'{name}_seconds']:.1f}" for name in names)
    return [f"compiled in {event['seconds']:.1f} s ({parts}){cost}"]


def _profile(event: Event) -> list[str]:
    """Return a table of the phases of an update."""
    phases, whole = event["phases"], sum(event["phases"].values()) or 1.0
    rows = [
        f"  {name:<12} {seconds * 1e3:>10.3f} ms {seconds / whole:>7.1%}"
        for name, seconds in phases.items()
    ]
    return ["an update by phase (arch.profile):", *rows, f"  {'all':<12} {whole * 1e3:>10.3f} ms"]


def _train(event: Event) -> list[str]:
    found = {name: event[name] for name in event["headlines"] if event[name] is not None}
    shown = [event["headlines"][name].format(value) for name, value in found.items()]
    shown = [*_told(event), *shown]
    trained = f"train return {number(event['episode_return']):>8}"
    if "returns_by_settings" in event:  # means over different settings say nothing
        shown, trained = [], _range(event["returns_by_settings"])
    skipped, restarts = event["skipped_steps"], event.get("env_restarts")
    return [
        "  ".join(
            [
                f"{event['steps']:>13,} steps",
                f"{short(event['steps_per_second']):>5} steps/s",
                trained,
                *shown,
                *([f"{skipped:.3g} steps an update skipped"] if skipped else []),
                *([_restarts(restarts)] if restarts else []),
            ]
        )
    ]


def _alarm(event: Event) -> list[str]:
    of = f" of seed {event['seed']}" if "seed" in event else ""
    limit = f"above logger.alarm_loss={event['alarm_loss']:g}"
    wrong = limit if math.isfinite(event["loss"]) else "not finite (logger.alarm_loss)"
    return [
        f"{event['steps']:>13,} steps  alarm: loss {event['loss']:.4g}{of} is {wrong}; train "
        f"return {number(event['episode_return'])}"
    ]


def _told(event: Event, *leave: str) -> list[str]:
    """Format the numbers of `env.metrics` in an event."""
    names = [key for key in event if key.startswith(TOLD) and key not in leave]
    return [f"{key.removeprefix(TOLD)} {number(event[key])}" for key in names]


def _finite(values: Sequence[float | None]) -> list[float]:
    return [x for x in values if x is not None and math.isfinite(x)]


def _range(returns_by_settings: dict[str, list[Any]]) -> str:
    found = [x for row in returns_by_settings.values() for x in _finite(row)]
    if not found:
        return "no episode ended yet"
    return f"train returns {number(min(found))} to {number(max(found))}"


def _cut(event: Event) -> str:
    """Say how many episodes of an evaluation did not end by themselves."""
    words = ""
    if unfinished := event["unfinished"]:
        words += (
            f"; {unfinished} of {event['episodes']} episodes unfinished after "
            f"{event['max_eval_steps']:,} steps, counted with their return so far"
        )
    if restarts := event.get("env_restarts"):
        words += f"; {_restarts(restarts)}, whose episodes count with their return so far"
    return words


def _restarts(number: float) -> str:
    return f"{count(int(number), 'restart')} of environments"


def _directories(folders: Sequence[Path]) -> list[str]:
    """Return the line that says where the files of a run, or of a sweep's jobs, are."""
    if not folders:
        return []
    if len(folders) == 1:
        return [f"run directory: {shortest(folders[0])}"]
    names = [folder.name for folder in folders]
    few = ", ".join(names if len(names) <= 8 else [*names[:3], "...", names[-1]])
    return [f"run directories: {few} in {shortest(folders[0].parent)}"]


def shortest(folder: Path) -> str:
    """Return a path as one types it here: relative if it is below the working directory."""
    here = Path.cwd()
    inside = folder.is_absolute() and folder != here and folder.is_relative_to(here)
    return str(folder.relative_to(here) if inside else folder)


def _over_settings(event: Event) -> str:
    """Format the returns of members with different settings, which are no seeds of one agent."""
    every = event["returns_by_settings"]
    scores = {
        name: float(iqm(found)) for name, values in every.items() if (found := _finite(values))
    }
    if not scores:
        return f"no finite return of {count(event['members'], 'member')}"
    best = max(scores, key=scores.__getitem__)
    of = "" if len(every) == event["members"] else f" of {count(len(every), 'setting')}"
    seeds = len(every[best])
    score = f"IQM {scores[best]:.2f} over {seeds} seeds" if seeds > 1 else f"{scores[best]:.2f}"
    kind = scores_of_members(event)
    return (
        f"best {best} ({score}), from {event[f'{kind}_min']:.2f} to "
        f"{event[f'{kind}_max']:.2f} over {count(event['members'], 'member')}{of}"
        + "".join(f", {word}" for word in _beside(event))
    )


def _scores(event: Event) -> str:
    """Format the scores of an evaluation: of one agent, or over members."""
    if "returns_by_settings" in event:
        return _over_settings(event)
    judge, kind = judged_by(event), scores_of_members(event)
    is_return = judge == "episode_return"
    words = [f"{'return' if is_return else event['eval_metric']} {number(event[judge])}"]
    if event.get("members", 1) > 1:
        low, high = event[f"{kind}_low"], event[f"{kind}_high"]
        interval = "" if low is None else f" [{low:.2f}, {high:.2f}]"
        words = [
            f"{'' if is_return else event['eval_metric'] + ' '}mean {event[judge]:.2f}",
            f"IQM {event[f'{kind}_iqm']:.2f}{interval}",
            f"from {event[f'{kind}_min']:.2f} to {event[f'{kind}_max']:.2f} over "
            f"{count(event['members'], 'member')}",
        ]
    elif is_return:
        words[0] += f" (std {event['episode_return_std']:.2f})"
        words.append(f"length {event['episode_length']:.1f}")
    return ", ".join([*words, *_beside(event)])


def _beside(event: Event) -> list[str]:
    """Format what an evaluation has besides the number by which policies are compared."""
    judge = judged_by(event)
    found = [] if judge == "episode_return" else [f"return {event['episode_return']:.2f}"]
    return [*found, *_told(event, judge)]


def _eval(event: Event) -> list[str]:
    of = f" of seed {event['seeds'][0]}" if event.get("members") == 1 else ""
    return [f"{event['steps']:>13,} steps  evaluation{of}: {_scores(event)}{_cut(event)}"]


def _absolute(event: Event) -> list[str]:
    final = event.get("final_score", event.get("final_return"))
    if event.get("members", 1) > 1:
        policy, final = "", None if "returns_by_settings" in event else final
    else:
        policy = f", policy of step {event['steps']:,}"
    ends = "" if final is None else f"; final policy: {number(final)}"
    episodes = f"{event['episodes']:,} episodes{policy}"
    return [f"absolute metric: {_scores(event)}, {episodes}{_cut(event)}{ends}"]


def _selection(event: Event) -> list[str]:
    if not event["steps"]:  # the start of the run
        return []
    start, num = f"{event['steps']:>13,} steps  selection: ", len(event["members"])
    if event["method"] == "halving":
        who = "only the best member goes on" if num == 1 else f"the best {num:,} members go on"
        return [f"{start}{who}"]
    replaced = sum(a != b for a, b in zip(event["members"], event["sources"], strict=True))
    return [f"{start}{count(num, 'member')}, {replaced} copied a better one"]


def _end(event: Event) -> list[str]:
    if "members" not in event or "seed" not in event:
        return []
    score, best = event["absolute_metric"], event.get("best_score", event["best_episode_return"])
    return [
        f"best member: seed {event['seed']}, best evaluation {number(best)}, absolute metric "
        f"{number(score)}"
    ]


def _resume(event: Event) -> list[str]:
    return [*event["lines"], f"going on from {event['path']}, step {event['steps']:,}"]


_LINES = {
    "resume": _resume,
    "start": _start,
    "compile": _compile,
    "profile": _profile,
    "train": _train,
    "alarm": _alarm,
    "eval": _eval,
    "absolute": _absolute,
    "selection": _selection,
    "end": _end,
}


def print_lines(*lines: str) -> None:
    """Print lines that are not events."""
    for line in lines:
        print(line, flush=True)


def print_table(title: str, rows: list[dict[str, Any]]) -> None:
    """Print rows with equal keys, in their order."""
    from rich.console import Console as Screen
    from rich.table import Table
    from rich.text import Text  # in plain text, brackets such as [64,64] would be markup

    table = Table(title=Text(title), title_justify="left")
    for name in rows[0]:
        table.add_column(Text(name), overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row.values()))
    screen = Screen()
    if not screen.is_terminal:  # files have no width
        screen = Screen(width=240)
    screen.print(table)


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "-" if value is None else str(value)
