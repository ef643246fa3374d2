"""Print what a run would need; compile it for this machine or a chip that is not here."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jaxppo.config.fields import ConfigError, setting
from jaxppo.config.messages import count
from jaxppo.config.schema import COMMANDS
from jaxppo.envs import is_simulated
from jaxppo.extras.chips import targets
from jaxppo.launch.composing import split_settings
from jaxppo.launch.resuming import compose_run
from jaxppo.runtime.programs.placement import Layout
from jaxppo.runtime.programs.population import members
from jaxppo.runtime.programs.start import compile_start
from jaxppo.runtime.run.compiling import check_memory, compile_programs
from jaxppo.runtime.run.events import of_start, precision
from jaxppo.runtime.run.jobs import prepare
from jaxppo.runtime.sinks.bars import short
from jaxppo.runtime.sinks.console import Console, print_lines


@dataclasses.dataclass(frozen=True, kw_only=True)
class Planning:
    """Print what a run would need: python -m jaxppo.plan env=cartpole [target=h200] [key=value]

    Prints sizes and budget, compiles the programs, and prints their cost and memory; trains
    nothing and writes nothing. All other settings are those of the command.
    """

    command: str = setting("ff_ppo", f"one of {', '.join(COMMANDS)}", choices=COMMANDS)
    target: str | None = setting(
        None,
        "a chip to compile for, which need not be here: h200, h100, a100, v5e, v6e or v5p; h200:4 "
        "or v5e:2x2 for several (with the compilers of the extras aot-cuda and aot-tpu); null: "
        "this machine",
    )


def plan(arguments: Sequence[str]) -> None:
    """Print the plan of a run; `arguments` are those of the command line.

    `ConfigError` as for a run, also if the programs need more memory than there is.
    """
    settings: Planning
    settings, typed = split_settings(Planning, arguments)
    config = compose_run(settings.command, typed)
    with targets.compiling(settings.target):
        planned, system = prepare(config)
        if settings.target is not None and is_simulated(system.env):
            raise ConfigError(
                f"target={settings.target}: {system.env.name} is not written in JAX, so its steps "
                "cannot be compiled; leave it out"
            )
        every = members(config)
        layout = Layout(planned, system, tuple(range(len(every))))
        console = Console()
        start = of_start(config, layout, planned.updates_per_block)
        who = {"seed": config.arch.seed} if len(every) == 1 else {"members": len(every)}
        console.write({"event": "start", **start, **who})
        programs = compile_programs(layout, every)
        console.write({"event": "compile", **programs.describe()})
        train, steps = programs.train, planned.num_members * planned.steps_per_update
        beginning = [] if settings.target is None else [compile_start(layout, every)]
        check_memory(layout, config, train, programs.evaluate, *beginning)
        if settings.target is not None:
            found = targets.estimate(
                settings.target, train.text, train.matmul_flops, steps, precision(config)
            )
            print_lines(*lines(found))
        programs.close()


def lines(found: Mapping[str, Any]) -> list[str]:
    """Return an estimate in words."""
    scopes = {"a step": "kernels_per_step", "a minibatch": "kernels_per_minibatch"}
    each = ", ".join(f"{found[key]:,} {words}" for words, key in scopes.items() if found[key])
    kernels = f"{found['kernels_per_update']:,} kernels an update" + (f" ({each})" if each else "")
    if waits := found["waits_per_update"]:
        kernels += f"; the device waits for the host at least {count(waits, 'time')} an update"
    needs = {
        "launch its kernels": "launch_seconds",
        "read and write memory": "memory_seconds",
        "compute its matrix products": "product_seconds",
    }
    times = [f"{1e3 * found[key]:.3g} ms to {does}" for does, key in needs.items() if key in found]
    parts = f"{', '.join(times[:-1])} and {times[-1]}"
    speed = found["estimated_steps_per_second"]
    told = [
        f"for {found['chip']} with {found['chip_bytes'] / 2**30:.0f} GiB: {kernels}",
        f"an update needs at least {parts}"
        if speed is None
        else f"rough estimate: {short(speed)} steps/s, since an update needs {parts}",
    ]
    if found["num_chips"] > 1:
        number, each = found["collectives_per_update"], found["collectives_per_minibatch"]
        told.append(
            f"between {found['num_chips']:,} chips: {count(number, 'collective')} per update"
            + (f" ({each:,} per minibatch)" if each else "")
            + ", which the estimate does not count"
        )
    return told
