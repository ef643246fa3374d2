"""Programs that the runs of a test module share."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from jaxppo.config.schema import Config
from jaxppo.runtime.programs.build import env_values, program_key
from jaxppo.runtime.programs.placement import Layout
from jaxppo.runtime.run import parts


@pytest.fixture(scope="module")
def share_programs() -> Iterator[None]:
    """Runs of equal settings and sizes have one program, which is traced and compiled once.

    A resume that compiles anew, in a process of its own, is in test_signals.py.
    """
    known: dict[str, Any] = {}
    real = parts.compile_programs

    def compile_once(
        layout: Layout, configs: Sequence[Config], train: Any = None, *, begins: bool = False
    ) -> Any:
        one = program_key(configs[0])
        arch = dataclasses.replace(one.arch, num_evaluation=1, evaluate_first=False)
        one = dataclasses.replace(one, arch=arch, checkpoint=None, logger=None, population=None)
        plan = dataclasses.replace(layout.plan, updates_per_block=())
        key = repr((one, plan, configs[0].logger.details))
        key += repr(env_values(layout.system, configs))
        if key not in known:
            known[key] = real(layout, configs, train, begins=begins)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "compile_programs", compile_once)
        yield
