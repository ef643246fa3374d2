"""Compile the programs of a run, and check the memory that they need."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxppo.algorithms.axes import vmap_members
from jaxppo.algorithms.evaluation import evaluate as play
from jaxppo.algorithms.spine import train_block
from jaxppo.algorithms.spine import warm_up as fill
from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import Config
from jaxppo.envs import is_simulated
from jaxppo.runtime.hosts import processes
from jaxppo.runtime.programs import build, compile
from jaxppo.runtime.programs.evaluating import arranged_keys
from jaxppo.runtime.programs.placement import Layout
from jaxppo.runtime.programs.start import compile_first, state_shapes, training_shapes
from jaxppo.runtime.simulated import evaluation, training
from jaxppo.types import LearnerState, PyTree, System, zeros

# Several jobs share a program only if it takes at most this share of the memory
SHARE_OF_MEMORY = 0.75


class TooLargeError(RuntimeError):
    """A program needs too much memory."""


@dataclasses.dataclass(frozen=True)
class Programs:
    """The compiled programs of training and evaluation."""

    train: compile.Program
    evaluate: compile.Program
    start: Any = None  # for `place_start`
    start_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """Return the seconds that compiling took."""
        return self.train.seconds + self.evaluate.seconds + self.start_seconds

    @property
    def is_simulated(self) -> bool:
        """Return whether environments step outside of the programs."""
        return isinstance(self.train.call, training.Training)

    def report(self) -> dict[str, Any]:
        """Return what a `train` event says about simulators."""
        return self.train.call.report() if self.is_simulated else {}

    @property
    def evaluation_restarts(self) -> int:
        """Return how many simulators were made anew in evaluations."""
        return self.evaluate.call.restarts if self.is_simulated else 0

    def close(self) -> None:
        """End all simulators."""
        if self.is_simulated:
            self.train.call.close()
            self.evaluate.call.close()

    def describe(self) -> dict[str, Any]:
        """Return the values of a `compile` event."""
        flops = self.train.matmul_flops
        return {
            "seconds": self.seconds,
            "train_seconds": self.train.seconds,
            "evaluate_seconds": self.evaluate.seconds,
            "start_seconds": self.start_seconds,
            "gflop_per_update": None if flops is None else flops / 1e9,
            "peak_bytes": self.train.peak_bytes,
        }


def compile_training(layout: Layout, configs: Sequence[Config]) -> compile.Program:
    """Compile the program that trains members with these settings."""
    shapes = training_shapes(layout, configs)
    if is_simulated(layout.system.env):
        return training.compile_training(layout, configs, *shapes[:2])
    train, own = _of_members(layout, configs, train_block, shared=1)
    compiler = configs[0].arch.compiler
    return compile.compile_program(train, *shapes, bound=own, donate=(0, 1), compiler=compiler)


def compile_programs(
    layout: Layout,
    configs: Sequence[Config],
    train: compile.Program | None = None,
    *,
    begins: bool = False,
) -> Programs:
    """Compile the programs; `train` may be compiled already. `begins`: those of the start too."""
    if train is None:
        check_rollout(layout, configs[0])
    train = train or compile_training(layout, configs)
    policy = state_shapes(layout, configs).agent.policy

    seeds = jax.ShapeDtypeStruct((len(configs),), jnp.uint32)
    placed = jax.eval_shape(partial(arranged_keys, layout, False), seeds, 0)
    members, own = _of_members(layout, configs, play)
    if own:
        compiler = configs[0].arch.compiler
        evaluate = compile.compile_program(members, policy, placed, bound=own, compiler=compiler)
    else:
        evaluate = compile_evaluation(layout.system, policy, placed, configs[0])
    return Programs(train, evaluate, *(compile_first(layout, configs) if begins else ()))


def compile_evaluation(
    system: System, policy: PyTree, keys: Any, config: Config
) -> compile.Program:
    """Compile what plays episodes for keys `[D, P, E]`; arguments may be shapes."""
    compiler = config.arch.compiler
    if is_simulated(system.env):
        num = config.arch.total_num_envs
        return evaluation.compile_evaluation(system, policy, keys, num, compiler)
    members = partial(vmap_members(play), system)
    return compile.compile_program(members, policy, keys, compiler=compiler)


def check_group(layout: Layout, program: compile.Program | None = None) -> None:
    """Raise `TooLargeError` if the members of several jobs need too much memory.

    None: their rollout alone does, which is known before the program is compiled.
    """
    need = sum(rollout_bytes(layout)) if program is None else program.peak_bytes
    limit = _memory_limit(layout)
    if need is not None and limit is not None and need > SHARE_OF_MEMORY * limit:
        raise TooLargeError(
            f"{len(layout.slots)} members need {need / 2**30:.1f} GiB of {limit / 2**30:.1f} on "
            "each device"
        )


def check_rollout(layout: Layout, config: Config) -> None:
    """Raise `ConfigError` if a device has less memory than a rollout needs, before compiling."""
    obs, carry = rollout_bytes(layout)
    limit = _memory_limit(layout)
    with processes.agreeing():
        if limit is not None and obs + carry > limit:
            way_out = "" if obs > carry else ", or the size of the network's memory"
            raise ConfigError(
                f"arch.total_num_envs={config.arch.total_num_envs}, system.rollout_length="
                f"{config.system.rollout_length}: a rollout stores {obs / 2**30:.1f} GiB of "
                f"observations and {carry / 2**30:.1f} GiB of memories (carries) on each device, "
                f"which may use {limit / 2**30:.1f} GiB; lower "
                f"arch.total_num_envs or system.rollout_length{way_out}"
            )


def rollout_bytes(layout: Layout) -> tuple[int, int]:
    """Return the bytes of a rollout's observations and carries `[T, B, ...]` on each device."""
    plan, system = layout.plan, layout.system
    steps = plan.rollout_length * plan.num_envs * plan.update_batch_size * plan.members_per_device
    examples = (
        partial(zeros, system.env.observation_space, (1,)),
        partial(system.algorithm.network.initial_carry, 1),
    )
    obs, carry = (
        steps * sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(jax.eval_shape(example)))
        for example in examples
    )
    return obs, carry


def check_memory(layout: Layout, config: Config, *programs: compile.Program) -> None:
    """Raise `ConfigError` if a device has less memory than the programs need."""
    need = max(program.peak_bytes or 0 for program in programs)
    limit = _memory_limit(layout)
    with processes.agreeing():
        if limit is not None and need > limit:
            raise ConfigError(
                f"arch.total_num_envs={config.arch.total_num_envs}: the program needs "
                f"{need / 2**30:.1f} GiB on each device and may use {limit / 2**30:.1f}; lower it, "
                "system.rollout_length, or the number of members"
            )


def warm_up(
    layout: Layout, configs: Sequence[Config], state: LearnerState, train: compile.Program
) -> LearnerState:
    """Run the rollouts that only fill the observation statistics, if any; return the state."""
    if not layout.plan.warmup_rollouts:
        return state
    if isinstance(train.call, training.Training):
        return train.call.warm_up(state, layout.plan.warmup_rollouts)
    given = state, layout.place_count(layout.plan.warmup_rollouts)
    members, own = _of_members(layout, configs, fill, shared=1)
    compiler = configs[0].arch.compiler
    program = compile.compile_program(members, *given, bound=own, donate=(0,), compiler=compiler)
    return program.call(*given)


def _of_members(
    layout: Layout, configs: Sequence[Config], phase: Callable[..., Any], shared: int = 0
) -> tuple[Callable[..., Any], tuple[build.EnvValues, ...]]:
    """Return a phase of all members, and the arrays that it takes before its other arguments.

    These are their `build.env_values`, placed, if they have any. The last `shared` arguments of the
    phase are the same for all members.
    """
    values = build.env_values(layout.system, configs)
    if not values:
        return partial(vmap_members(phase, shared=shared), layout.system), ()

    def of_member(system: System, values: build.EnvValues, *args: PyTree) -> PyTree:
        return phase(build.with_values(system, values), *args)

    members = partial(vmap_members(of_member, shared=shared), layout.system)
    return members, (layout.place_agents(values),)


def _memory_limit(layout: Layout) -> int | None:
    own = [d for d in layout.devices if d.process_index == processes.index()] or layout.devices
    return compile.memory_limit(own[0], len(own))
