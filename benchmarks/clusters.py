"""Estimate from which batch on clusters communicate for less than a tenth of an update.

Compiles the sizes of `benchmarks.speed` for 64 chips that are not here, and prints a table in
Markdown for 8, 64 and 512 chips with as many environments on each. `--all` compiles for 8 and 512
chips too, whose programs have had the same collectives so far. `--list TARGET` prints every
collective of one update instead. Needs the compilers: `pip install '.[aot-cuda,aot-tpu]'`.
"""

import argparse
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import jax

from benchmarks.speed import SETTINGS, compose
from jaxppo.kernels.platforms import forms
from jaxppo.runtime.chips import targets
from jaxppo.runtime.chips.launches import Module
from jaxppo.runtime.hosts import devices
from jaxppo.runtime.programs.placement import Layout
from jaxppo.runtime.programs.population import members
from jaxppo.runtime.run.compiling import compile_training
from jaxppo.runtime.run.jobs import prepare

SIZES = ("S", "M", "L", "lru")
TARGETS = {  # a pod of v5e has 256 chips
    "v5e": ("v5e:2x4", "v5e:8x8", "v5e:16x16"),
    "v5p": ("v5p:2x2x2", "v5p:4x4x4", "v5p:8x8x8"),
    "h100": ("h100:8", "h100:64", "h100:512"),
}
MINIBATCH = "/epochs/while/body/closed_call/while"  # the end of the name of the minibatches' loop


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A size compiled for several chips."""

    num_envs: int  # on each chip
    rollout_length: int
    gradient_steps: int  # of an update
    text: str
    flops: int | None
    traffic: int | None
    steps: int  # of an update
    precision: str

    def estimate(self, target: str) -> dict[str, Any]:
        """Return the estimate on a target, with as many environments on each chip."""
        return targets.estimate(
            target, self.text, self.flops, self.traffic, self.steps, self.precision
        )


def compiled(size: str, target: str) -> Compiled:
    """Compile a size with its environments on each chip."""
    setting, chips = SETTINGS[size], math.prod(targets.shape_of(target))
    num_envs = compose(setting).arch.total_num_envs
    config = compose(
        setting,
        "arch.plan_only=true",
        f"arch.target={target}",
        f"arch.total_num_envs={chips * num_envs}",
        "arch.total_timesteps=null",
        "arch.num_updates=2",
    )
    with targets.compiling(target):
        plan, system = prepare(config)
        layout = Layout(plan, system, tuple(range(plan.num_members)))
        program = compile_training(layout, members(config))
        precision = config.arch.precision or forms().precision
    jax.clear_caches()
    return Compiled(
        num_envs=num_envs,
        rollout_length=plan.rollout_length,
        gradient_steps=config.system.epochs * config.system.num_minibatches,
        text=program.call.as_text(),
        flops=program.matmul_flops,
        traffic=program.matmul_traffic,
        steps=plan.steps_per_update,
        precision=precision,
    )


def table(sizes: list[str], chips: list[str], compile_all: bool) -> Iterator[str]:
    """Yield the lines of the table; the programs are compiled on the way."""
    yield "| on each chip | chip | collectives | MB | 8 chips | 64 chips | 512 (v5e: 256) |"
    yield "|" + " --- |" * 7
    for size in sizes:
        for chip in chips:
            each = TARGETS[chip]
            chosen = each if compile_all else each[1:2]
            programs = {target: compiled(size, target) for target in chosen}
            one = programs[each[1]]
            found = [programs.get(target, one).estimate(target) for target in each]
            work = (
                f"{size.upper()}: {one.num_envs:,} x {one.rollout_length}, "
                f"{one.gradient_steps} gradient steps"
            )
            number = _range([row["collectives_per_update"] for row in found], "{:,}")
            size_mb = _range([row["collective_bytes_per_update"] / 1e6 for row in found], "{:.2f}")
            cells = " | ".join(_cell(one.num_envs, row) for row in found)
            yield f"| {work} | {chip} | {number} | {size_mb} | {cells} |"


def _cell(num_envs: int, row: dict[str, Any]) -> str:
    """Say how long an update communicates, which share, and how many environments it takes."""
    fewest = max(1, math.ceil(num_envs * row["tolerated_batch"]))
    digits = 10 ** max(len(str(fewest)) - 2, 0)  # two are more than the estimate deserves
    return (
        f"{1e3 * row['communication_seconds']:.2g} ms, {row['communication_share']:.0%}; "
        f"{math.ceil(fewest / digits) * digits:,}"
    )


def _range(values: list[float], form: str) -> str:
    """Format the least and the most of some numbers."""
    ends = dict.fromkeys(form.format(value) for value in (min(values), max(values)))
    return " to ".join(ends)


def listing(size: str, target: str) -> Iterator[str]:
    """Yield a line for each collective of an update."""
    module = Module(compiled(size, target).text)
    yield "| times an update | where | collective | bytes | operation |"
    yield "|" + " --- |" * 5
    for each in module.collectives(module.update()):
        where = (
            "minibatch"
            if each.loop.endswith(MINIBATCH)
            else "epoch"
            if each.loop.endswith("/epochs/while")
            else "update"
        )
        name = each.name.rpartition("closed_call/")[2].rpartition("while/body/")[2] or "(merged)"
        opcode = each.opcode.removesuffix("-start")
        yield f"| {each.times} | {where} | {opcode} | {each.num_bytes:,} | {name} |"


def main() -> None:
    """Print the table, or the list of one program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="*", default=SIZES, help=f"of {', '.join(SETTINGS)}")
    parser.add_argument("--chips", nargs="+", default=list(TARGETS), choices=list(TARGETS))
    parser.add_argument("--all", action="store_true", help="compile for each number of chips")
    parser.add_argument("--list", metavar="TARGET", help="list the collectives of one target")
    arguments = parser.parse_args()
    devices.choose_platform()
    if not arguments.list:
        for line in table(arguments.sizes, arguments.chips, arguments.all):
            print(line, flush=True)
        return
    for size in arguments.sizes:
        print(f"{size} on {arguments.list}", *listing(size, arguments.list), sep="\n")


if __name__ == "__main__":
    main()
