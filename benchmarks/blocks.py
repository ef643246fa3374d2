"""Sizes of work that systems are compared on, and how their blocks are timed in turn.

Standard library alone, since it is imported in the environments of other systems too.
"""

import dataclasses
import json
import resource
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).resolve().parents[1]


@dataclasses.dataclass(frozen=True)
class Size:
    """PPO on CartPole in 4 epochs; an actor and a critic of equal layers that share nothing."""

    num_envs: int
    rollout_length: int
    num_minibatches: int
    layers: tuple[int, ...]
    activation: str
    updates_per_block: int  # of what is timed at once
    num_epochs: int = 4

    @property
    def steps_per_update(self) -> int:
        """Environment steps."""
        return self.num_envs * self.rollout_length

    @property
    def steps_per_block(self) -> int:
        """Environment steps."""
        return self.updates_per_block * self.steps_per_update


SIZES = {
    "S": Size(4, 128, 4, (64, 64), "tanh", updates_per_block=500),
    "M": Size(1024, 128, 16, (256, 256), "relu", updates_per_block=2),
    "L": Size(4096, 32, 16, (64, 64), "tanh", updates_per_block=8),
}


def torsos(
    layers: Iterable[int], activation: str, parts: Iterable[str] = ("actor_torso", "critic_torso")
) -> list[str]:
    """The settings of torsos with these layers."""
    sizes = ",".join(map(str, layers))
    return [
        f"network.{part}.{each}"
        for part in parts
        for each in (f"layer_sizes=[{sizes}]", f"activation={activation}")
    ]


def size_of(argument: str) -> Size:
    """Return the size that a command line names: one of `SIZES`, or the fields of one as JSON."""
    if argument in SIZES:
        return SIZES[argument]
    fields = json.loads(argument)
    return Size(**{**fields, "layers": tuple(fields["layers"])})


def serve(
    block: Callable[[], object],
    steps: int,
    compile_seconds: float,
    **others: Callable[[], dict[str, Any]],
) -> None:
    """Time `block` once for each line that comes in, and answer each with a line of JSON.

    The first answer, unasked, is what tracing and compiling took (s). `block` is so many
    environment steps and returns when all of them are done. A line that names one of `others` is
    answered by its result instead.
    """
    say({"compile_seconds": compile_seconds})
    for line in sys.stdin:
        if line.strip() in others:
            say(others[line.strip()]())
            continue
        start = time.perf_counter()
        block()
        say({"speed": steps / (time.perf_counter() - start), "peak_mib": peak_mib()})


def peak_mib() -> float:
    """The most memory that this process ever had."""
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def growth_mib(function: Callable[[], object]) -> float | None:
    """By how much a call makes this process grow at its peak; None where Linux does not say."""
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak is what there is now
        before = _status("VmRSS")
        function()
        return (_status("VmHWM") - before) / 2**10
    except OSError:
        function()
        return None


def _status(name: str) -> int:
    """KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def keep(file: str, found: object) -> None:
    """Write what a benchmark found to a JSON file in benchmarks/results."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / file).write_text(json.dumps(found, indent=2) + "\n")


def say(answer: dict[str, Any]) -> None:
    """One line of JSON to whoever asks."""
    print(json.dumps(answer), flush=True)
