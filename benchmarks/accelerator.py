"""What an accelerator does, in five minutes: `make bench-accelerator`.

Every row is a setting, run by us and by others on equal work. Each system of a row is a process of
its own. All compile side by side, while the tests of tests/runtime/test_device.py run; then a block
of each is timed in turn, row by row. (A TPU takes one process at a time, so there they run one
after another.) Writes benchmarks/results/accelerator.json and accelerator.md (ignored by git). What
there was no time for is named in the table.

    python -m benchmarks.accelerator                  # all rows
    python -m benchmarks.accelerator L LRU --forms    # two rows, and each form of them off
    python -m benchmarks.accelerator L --profile      # kernels and phases by time, busy share
    python -m benchmarks.accelerator --wheels DIR     # peers from wheels, on a machine offline
    python -m benchmarks.accelerator S --small        # tiny sizes: try the command on a CPU
"""

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import jax

from benchmarks.blocks import RESULTS, ROOT, SIZES, Size, keep, serve
from benchmarks.contestants import Contestant, ContestantError, in_turn, with_wheels
from benchmarks.peers import PEERS
from benchmarks.speed import Setting, Timed, memory, of_size
from jaxppo.extras.chips import targets
from jaxppo.kernels import platforms
from jaxppo.runtime.hosts import devices
from jaxppo.runtime.programs import program_cache
from jaxppo.runtime.run import profiling

BUDGET = 300  # seconds, of which compiling may take COMPILING
COMPILING = 0.7
ROUNDS = 5
TRACED_UPDATES = 3
OURS = "jaxppo"
TESTS = "tests"  # the row of device tests
# Forms that are off until a measurement says otherwise: `--forms` times rows whose scans are packed
TRIALS = {"two steps a turn": {"unroll": 2}}


@dataclasses.dataclass(frozen=True)
class Row:
    """A setting, its variants, and who else runs the same work."""

    setting: Setting
    peers: dict[str, list[str]] = dataclasses.field(default_factory=dict)  # name: arguments
    variants: dict[str, list[str]] = dataclasses.field(default_factory=dict)  # name: overrides
    forms: tuple[str, ...] = ()  # those of `kernels.platforms` that matter here


def _row(size: Size, peers: tuple[str, ...], algorithm: str = "ppo", **more: Any) -> Row:
    """A row of CartPole that others run too."""
    work = json.dumps(dataclasses.asdict(size))
    setting = Setting(of_size(size, algorithm), size.steps_per_block, f"ff_{algorithm}")
    return Row(setting, {peer: [work, algorithm] for peer in peers}, **more)


def rows(small: bool) -> dict[str, Row]:
    """Return all rows; those of a small run take a second each on a CPU."""

    def size(name: str, **changes: Any) -> Size:
        if small:
            changes = dict(num_envs=8, rollout_length=8, num_minibatches=2, updates_per_block=4)
        return dataclasses.replace(SIZES[name], **changes)

    def own(executable: str, updates: int, *overrides: str, **more: Any) -> Row:
        tiny = ["arch.total_num_envs=8", "system.rollout_length=8", "system.num_minibatches=2"]
        setting = Setting([*overrides, *(tiny if small else [])], 256 if small else updates)
        return Row(dataclasses.replace(setting, executable=executable), **more)

    def remembering(cell: str, **more: Any) -> Row:
        overrides = memory(cell, 128).overrides
        return own("rec_ppo", 4 * 2**17, *overrides, "arch.total_num_envs=1024", **more)

    fused = {"fused": ["arch.fused=true"]}
    both, packed = ("plain", "rejax"), ("packed_bytes",)
    sums = ("stack_sums", "associative_sums", "resets_without_branch", "hash_in_one_kernel")
    alone = _row(size("S", updates_per_block=10), ())
    num = 4 if small else 1024
    members = Setting(
        [*alone.setting.overrides, f"arch.num_seeds={num}"], num * alone.setting.steps_per_block
    )
    ant = Size(4096, 20, 32, (64, 64), "tanh", updates_per_block=10)
    if small:
        ant = dataclasses.replace(ant, num_envs=8, rollout_length=8, num_minibatches=2)
    return {
        "S": _row(size("S", updates_per_block=60), both, variants=fused, forms=packed),
        "L": _row(size("L", updates_per_block=100), both, variants=fused, forms=packed + sums),
        "L, 32,768 environments": _row(
            size("L", num_envs=32_768, updates_per_block=40), both, variants=fused, forms=packed
        ),
        "L, 131,072 environments": _row(
            size("L", num_envs=131_072, updates_per_block=10), ("rejax",), variants=fused
        ),
        "S, 1,024 members": Row(members, variants=fused, forms=packed),
        "M": _row(
            size("M", updates_per_block=40), both, variants={"bf16": ["arch.precision=bf16"]}
        ),
        "PQN L": _row(size("L", updates_per_block=100), ("rejax",), "pqn"),
        "LSTM": remembering("lstm", variants=fused, forms=(*packed, "joined_gates")),
        "LRU": remembering("lru", forms=("recurrence_block",)),
        "GTrXL": own("rec_ppo", 4 * 2**16, "network=gtrxl_shared", "arch.total_num_envs=1024",
                     "system.normalize_observations=false",
                     "system.rollout_length=64", "system.num_minibatches=4"),
        "CNN": own("ff_ppo", 10 * 2**16, "env=breakout", "network=cnn",
                   "arch.total_num_envs=1024", "system.rollout_length=64"),
        "ant": own("ff_ppo", ant.steps_per_block, "env=brax/ant", peers={
            "brax": [json.dumps(dataclasses.asdict(ant)), "ppo", "ant"]}),
        "Craftax": own("ff_ppo", 10 * 2**16, "env=craftax/symbolic"),
    }  # fmt: skip


def serve_row(name: str, variant: str, small: bool) -> None:
    """Compile our program of a row, or of a variant of it, and answer `Contestant`."""
    row = rows(small)[name]
    changed = dict[str, Any](TRIALS.get(variant, {}))
    if variant.startswith("without "):
        form = variant.removeprefix("without ")
        changed[form] = getattr(platforms.Forms(), form)
    platform = devices.platform()
    platforms.FORMS[platform] = dataclasses.replace(platforms.forms(), **changed)
    timed = Timed(row.setting, *row.variants.get(variant, []), "arch.total_timesteps=1e9")
    timed.block()
    asked = {"facts": partial(facts, timed), "profile": partial(profile, timed)}
    serve(timed.block, timed.steps, timed.program.seconds, **asked)


def facts(timed: Timed) -> dict[str, Any]:
    """Return what the compiler says of a program, and the estimate of `jaxppo.plan` here."""
    program = timed.program
    found: dict[str, Any] = {"peak_mib": (program.peak_bytes or 0) / 2**20}
    kind = jax.local_devices()[0].device_kind.lower().replace(" lite", "e")
    for key, chip in targets.CHIPS.items():
        if chip.name.split()[-1].lower() in kind:
            steps, precision = timed.steps // timed.updates, platforms.forms().precision
            text, flops = program.text, program.matmul_flops
            found |= targets.estimate(key, text, flops, steps, precision)
    return found


def profile(timed: Timed) -> dict[str, Any]:
    """Trace some updates: milliseconds of an update by phase and by kernel, and the busy share."""
    updates, count = min(TRACED_UPDATES, timed.updates), timed.count
    timed.count = count * 0 + updates
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            timed.block()
        start = time.perf_counter()
        timed.block()  # tracing takes time: this one is not traced
        seconds = time.perf_counter() - start
        timed.count = count
        file = next(Path(folder).rglob("*.xplane.pb"))
        phases = profiling.phases(file, timed.program.text)
        planes = list(jax.profiler.ProfileData.from_file(str(file)).planes)
    on_device = [plane for plane in planes if plane.name.startswith("/device:")] or planes
    kernels: Counter[str] = Counter()
    spans: list[tuple[float, float]] = []
    for plane in on_device:
        for line in plane.lines:
            if plane.name.startswith("/device:") and not line.name.startswith("Stream"):
                continue  # the same kernels once more, by name
            for event in line.events:
                if event.name.startswith("$"):  # a function of Python, in traces of CPUs
                    continue
                kernels[event.name] += event.duration_ns
                spans.append((event.start_ns, event.start_ns + event.duration_ns))
    return {
        "milliseconds_of_update": seconds * 1e3 / updates,
        "busy": busy(spans),
        "phases": {name: value * 1e3 / updates for name, value in phases.items()},
        "kernels": {
            name[:100]: nanoseconds / 1e6 / updates for name, nanoseconds in kernels.most_common(25)
        },
    }


def busy(spans: list[tuple[float, float]]) -> float:
    """Return the share of the time between the first start and the last end that a span covers."""
    covered, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        covered += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return covered / (end - min(spans)[0]) if spans else 0.0


class Race:
    """The contestants of all rows, what they answered, and why some have not."""

    def __init__(self, chosen: dict[str, Row], arguments: argparse.Namespace) -> None:
        self.deadline = time.monotonic() + arguments.budget
        self.contestants: dict[tuple[str, str], Contestant] = {}
        self.found: dict[tuple[str, str], dict[str, Any]] = {}
        self.environment = {
            "JAX_PLATFORMS": _platforms(),
            "PYTHONPATH": with_wheels(arguments.wheels),
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # all hold programs on it at once
        }
        self.commands: dict[tuple[str, str], list[str]] = {}
        for name, row in chosen.items():
            ours = ["benchmarks.accelerator", name, *(["--small"] if arguments.small else [])]
            forms = [f"without {form}" for form in row.forms if arguments.forms and _is_on(form)]
            trials = TRIALS if "without packed_bytes" in forms else {}
            for variant in ["", *row.variants, *forms, *trials]:
                command = [*ours, "--serve", variant]
                system = f"{OURS}, {variant}" if variant else OURS
                self.commands[name, system] = command
            for peer, work in row.peers.items():
                self.commands[name, peer] = [f"benchmarks.peers.run_{peer}", *work]

    def attempt(self, key: tuple[str, str], act: Callable[[], Any]) -> Any:
        """Return what `act` returns; without an answer its contestant has run its last."""
        try:
            return act()
        except ContestantError as error:
            self.found.setdefault(key, {})["missing"] = _reason(key[1], str(error))
            self.contestants.pop(key).close()

    def start(self, key: tuple[str, str], until: float) -> None:
        """Start a contestant and wait until it has compiled."""
        if time.monotonic() >= until:
            self.found[key] = {"missing": "no time to compile"}
            return
        command = [sys.executable, "-m", *self.commands[key]]
        contestant = self.contestants[key] = Contestant(command, self.environment)
        left = until - time.monotonic()
        if answer := self.attempt(key, lambda: contestant.answer(left)):
            self.found[key] = answer

    def time(self, keys: list[tuple[str, str]], rounds: int) -> None:
        """Time those of one row in turn, after a block that warms up."""
        for key in keys:
            if key in self.contestants:
                self.attempt(key, partial(self.contestants[key].ask, "block", self.left))
        for _ in range(rounds):
            for key in keys:
                if key in self.contestants and self.left > 0:
                    self.attempt(key, partial(in_turn, [self.contestants[key]], 1))
        for key in keys:
            if key in self.contestants:
                speeds = self.contestants[key].speeds
                self.found[key] |= {"speeds": speeds} if speeds else {"missing": "no time"}

    def ask(self, keys: list[tuple[str, str]], what: str) -> None:
        """Add what ours answer to a question."""
        for key in keys:
            if key in self.contestants and key[1].startswith(OURS) and self.left > 0:
                answer = self.attempt(key, partial(self.contestants[key].ask, what, self.left))
                self.found[key][what] = answer

    @property
    def left(self) -> float:
        """Seconds of the budget."""
        return self.deadline - time.monotonic()

    def close(self, keys: list[tuple[str, str]]) -> None:
        """End contestants."""
        for key in keys:
            if key in self.contestants:
                self.contestants.pop(key).close()


def _is_on(form: str) -> bool:
    """Return whether this platform has a form that is not JAX's own."""
    return getattr(platforms.forms(), form) != getattr(platforms.Forms(), form)


def _reason(system: str, message: str) -> str:
    """Return why there is no figure."""
    if "ModuleNotFoundError" in message and system in PEERS:
        return f"pip install {' '.join(PEERS[system])}"
    return message[:200]


def _platforms() -> str:
    """Return JAX_PLATFORMS for this machine's accelerator, with the CPU beside it."""
    names = {"gpu": "cuda,cpu", "tpu": "tpu,cpu"}
    return os.environ.get("JAX_PLATFORMS") or names.get(devices.platform(), "cpu")


def device_tests(environment: dict[str, str], limit: float) -> dict[str, Any]:
    """Run the tests of the device; return pytest's last line, and those that failed."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "device", "tests/runtime/test_device.py"]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=limit,
        )
    except subprocess.TimeoutExpired:
        return {"last": f"took more than {limit:.0f} s", "failed": []}
    lines = (done.stdout or done.stderr).strip().splitlines() or ["no output"]
    return {"last": lines[-1], "failed": [line for line in lines if line.startswith("FAILED")]}


def run(chosen: dict[str, Row], arguments: argparse.Namespace, with_tests: bool) -> dict[str, Any]:
    """Run everything and return what was found."""
    race = Race(chosen, arguments)
    start, compiled_by = time.monotonic(), time.monotonic() + COMPILING * arguments.budget
    keys = list(race.commands)
    one_by_one = devices.platform() == "tpu"
    found: dict[str, Any] = {}
    with ThreadPoolExecutor(1 if one_by_one else os.cpu_count()) as pool:
        limit = COMPILING * arguments.budget
        tests = pool.submit(device_tests, race.environment, limit) if with_tests else None
        if one_by_one and tests:
            tests.result()
        for key in [] if one_by_one else keys:
            pool.submit(race.start, key, compiled_by)
    try:
        for key in keys if one_by_one else []:
            race.start(key, race.deadline)
            measure(race, [key], arguments)
            race.close([key])
        for name in [] if one_by_one else chosen:
            measure(race, [key for key in keys if key[0] == name], arguments)
    finally:
        race.close(keys)
    found["tests"] = tests.result() if tests else None
    found["seconds"] = time.monotonic() - start
    found["rows"] = {
        name: {system: race.found[row, system] for row, system in keys if row == name}
        for name in chosen
    }
    return found


def measure(race: Race, keys: list[tuple[str, str]], arguments: argparse.Namespace) -> None:
    """Time contestants in turn and ask for what else is wanted."""
    race.time(keys, arguments.rounds)
    race.ask(keys, "facts")
    if arguments.profile:
        race.ask(keys, "profile")
    for key in keys:
        speeds = race.found[key].get("speeds")
        text = f"{statistics.median(speeds):,.0f} steps/s" if speeds else race.found[key]["missing"]
        print(f"{key[0]}: {key[1]}: {text}", flush=True)


def table(found: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    tests = found["tests"] or {"last": "not run", "failed": []}
    head = "row | system | steps/s (slowest to fastest) | of the fastest other | estimate | "
    lines = [
        f"{found['device']}, jax {found['jax']}, {found['seconds']:.0f} s",
        "",
        *[f"Device tests: {tests['last']}", *tests["failed"]],
        "",
        f"| {head}kernels an update | compile | memory |",
        f"|{' --- |' * 8}",
    ]
    for name, systems in found["rows"].items():
        medians = {x: statistics.median(y["speeds"]) for x, y in systems.items() if "speeds" in y}
        others = [speed for system, speed in medians.items() if not system.startswith(OURS)]
        for system, answer in systems.items():
            if system not in medians:
                lines.append(f"| {name} | {system} | {answer['missing']} |{' |' * 5}")
                continue
            facts, speeds = answer.get("facts") or {}, answer["speeds"]
            ours = system.startswith(OURS)
            cells = [
                f"{medians[system]:,.0f} ({min(speeds):,.0f} to {max(speeds):,.0f})",
                f"{medians[system] / max(others):.2f}" if ours and others else "",
                _number(facts, "estimated_steps_per_second"),
                _number(facts, "kernels_per_update"),
                f"{answer['compile_seconds']:.1f} s",
                f"{facts['peak_mib']:,.0f} MiB" if facts else "",
            ]
            lines.append(f"| {name} | {system} | {' | '.join(cells)} |")
    for name, systems in found["rows"].items():
        for system, answer in systems.items():
            if traced := answer.get("profile"):
                lines += ["", *_profile(f"{name}: {system}", traced)]
    return "\n".join([*lines, ""])


def _number(facts: dict[str, Any], name: str) -> str:
    """Return a number of the estimate, if there is one."""
    return f"{facts[name]:,.0f}" if facts.get(name) is not None else ""


def _profile(title: str, traced: dict[str, Any]) -> list[str]:
    """Return the lines of a profile."""
    parts = {**traced["phases"], **dict(list(traced["kernels"].items())[:8])}
    return [
        f"{title}: {traced['milliseconds_of_update']:.3f} ms an update, "
        f"busy {traced['busy']:.0%} of the time",
        *(f"- {milliseconds:.3f} ms {part}" for part, milliseconds in parts.items()),
    ]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", help=f"of {', '.join([*rows(False), TESTS])}")
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="timed blocks of each system")
    parser.add_argument("--forms", action="store_true", help="time forms of kernels off, too")
    parser.add_argument("--profile", action="store_true", help="trace some updates of each row")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try the command")
    parser.add_argument("--wheels", type=Path, help="folder of wheels of the peers")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    known = rows(arguments.small)
    if unknown := set(arguments.rows) - {*known, TESTS}:
        parser.error(f"{min(unknown)}: rows are {', '.join([*known, TESTS])}")
    devices.prepare()
    if arguments.serve is not None:
        program_cache.use(None)
        serve_row(arguments.rows[0], arguments.serve, arguments.small)
        return
    names = arguments.rows or [*known, TESTS]
    chosen = {name: row for name, row in known.items() if name in names}
    found = {"device": devices.machine(), "jax": jax.__version__}
    found |= run(chosen, arguments, TESTS in names)
    keep("accelerator.json", found)
    (RESULTS / "accelerator.md").write_text(table(found))
    print(f"\n{table(found)}")


if __name__ == "__main__":
    main()
