"""Traces of updates (`arch.profile`), and the time that each phase of an update takes in them."""

import contextlib
import re
from pathlib import Path

import jax

from jaxppo.runtime.hosts import processes
from jaxppo.runtime.run.jobs import profile_folder
from jaxppo.runtime.run.parts import Run
from jaxppo.types import LearnerState

# Names of scopes, see `jax.named_scope`; what is in none of them is `other`
PHASES = (
    *("act", "environment", "values", "advantages", "targets"),
    *("shuffle", "burn_in", "gradients", "optimizer"),
)
# Instructions of HLO text, without those that only run others, whose time is counted there
_INSTRUCTION = re.compile(
    r'^ *(?:ROOT )?%?([\w.\-]+) = (?!.* (?:while|conditional|call)\().*op_name="([^"]*)"',
    re.MULTILINE,
)


def profile(run: Run, state: LearnerState) -> dict[str, float]:
    """With `arch.profile`, trace two updates on a copy of the state: the run is not affected.

    Return the seconds that each phase takes of an update. Simulators start their episodes anew
    afterwards, as at the start of a run.
    """
    if run.config.arch.profile is None:
        return {}
    folder, layout, programs = profile_folder(run.config.arch.profile), run.layout, run.programs
    for traced in (False, True):  # the first call warms up
        copy = jax.tree.map(jax.numpy.copy, state)
        count = layout.place_count(2 if traced else 1)
        programs.report()  # simulators count from now on
        is_traced = traced and processes.is_first()
        with jax.profiler.trace(folder) if is_traced else contextlib.nullcontext():
            jax.block_until_ready(programs.train.call(copy, layout.no_metrics(), count))
    if programs.is_simulated:
        return {name: seconds / 2 for name, seconds in programs.train.call.phases().items()}
    if not processes.is_first():
        return {}
    newest = max(folder.rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    found = phases(newest, programs.train.text)
    return {name: seconds / 2 for name, seconds in found.items()}


def phases(trace: Path, text: str) -> dict[str, float]:
    """Return the seconds of instructions by phase, in a trace of a program with this HLO text.

    Instructions that run at the same time count side by side.
    """
    scopes = {name: phase_of(path) for name, path in _INSTRUCTION.findall(text)}
    found: dict[str, float] = {}
    for plane in jax.profiler.ProfileData.from_file(str(trace)).planes:
        for line in plane.lines:
            for event in line.events:
                if event.name in scopes:
                    phase = scopes[event.name]
                    found[phase] = found.get(phase, 0.0) + event.duration_ns / 1e9
    order = [*PHASES, "other"]
    return dict(sorted(found.items(), key=lambda item: order.index(item[0])))


def phase_of(path: str) -> str:
    """Return the innermost phase in the name stack of an instruction, such as a/b/c."""
    inner = (part for part in reversed(path.split("/")) if part in PHASES)
    return next(inner, "other")
