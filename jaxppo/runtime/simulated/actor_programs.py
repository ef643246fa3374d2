"""Compile what an actor runs on its device."""

import contextlib
import dataclasses
from functools import partial

import jax
import jax.numpy as jnp

from jaxppo.algorithms import stepwise
from jaxppo.algorithms.acting import zero_steps
from jaxppo.config.schema import Config
from jaxppo.runtime.hosts import devices
from jaxppo.runtime.programs import compile
from jaxppo.runtime.simulated.actors import ActorPrograms
from jaxppo.types import LearnerState, PyTree, System, zeros


def compile_actor(
    system: System, config: Config, state: LearnerState, number: int
) -> tuple[ActorPrograms, float]:
    """Compile the programs of an actor; return them and the seconds that it took."""
    is_elsewhere = config.arch.act_on == "cpu"
    with devices.using([devices.host_cpu()]) if is_elsewhere else contextlib.nullcontext():
        each = part_of(system, config)
        rollout = rollout_shapes(each, state)
        build = partial(compile.compile_program, compiler=config.arch.compiler)
        policy = jax.eval_shape(partial(stepwise.prepared, system), state.agent.policy)
        memory = rollout.memory
        step = jax.ShapeDtypeStruct(rollout.reset.shape[:1], jnp.int32)
        init = build(partial(stepwise.init_actors, each), policy, state.acting.key)
        chosen = number if config.arch.actors > 1 else None
        begin = build(partial(stepwise.begin_members, chosen, system), memory)
        act = partial(stepwise.act_members, each)
        acting = build(act, policy, memory, rollout.obs, rollout.reset, step, donate=(1,))
        on = devices.of_run(rollout.reset.shape[0])
    programs = ActorPrograms(init.call, begin.call, acting.call, on)
    return programs, init.seconds + begin.seconds + acting.seconds


def part_of(system: System, config: Config) -> System:
    """Return the system with the environments of one actor."""
    num_envs = system.num_envs // config.arch.rollouts_per_update
    return dataclasses.replace(system, num_envs=num_envs)


def rollout_shapes(system: System, state: LearnerState) -> stepwise.Collected:
    """Return the shapes of a rollout in the environments of `system`, `[D, P, U, ...]`."""
    lead = (*state.acting.reset.shape[:3], system.num_envs)
    init = devices.parallel(partial(stepwise.init_actors, system), lead[0])

    def example(policy: PyTree, key: jax.Array) -> stepwise.Collected:
        return stepwise.Collected(
            obs=zeros(system.env.observation_space, lead),
            reset=jnp.zeros(lead, bool),
            steps=zero_steps(system, (*lead[:3], system.rollout_length, lead[3])),
            memory=init(policy, key),
        )

    return jax.eval_shape(example, state.agent.policy, state.acting.key)
