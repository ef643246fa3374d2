"""Which settings of actors and simulators fit an environment."""

import dataclasses

import jax

from jaxppo.config.fields import ConfigError
from jaxppo.config.given import is_given
from jaxppo.config.importing import is_installed
from jaxppo.config.messages import installing
from jaxppo.config.schema import Config, EnvConfig
from jaxppo.envs import OF_SIMULATORS, is_simulated, refuse
from jaxppo.types import Environment

OF_ACTORS = ("actors", "actors_on", "actors_wait", "actors_per_update", "max_policy_lag")


def env_config(config: Config) -> EnvConfig:
    """Return `config.env`, isolated if actors are threads and it has processes: Python blocks."""
    threads = config.arch.actors > 0 and config.arch.actors_on == "threads"
    isolated = config.env.isolated or (threads and config.env.processes > 0)
    return dataclasses.replace(config.env, isolated=isolated)


def check(config: Config, env: Environment, num_envs: int, num_devices: int) -> None:
    """Raise `ConfigError` for settings that simulators, or JAX environments, do not have.

    `num_envs` is that of one device and update batch.
    """
    arch = config.arch
    if not is_simulated(env):
        why = f"{env.name} is written in JAX, so it steps in the compiled program; leave it out"
        refuse(arch, (*OF_ACTORS, "act_on"), why)
        refuse(config.env, OF_SIMULATORS, why)
        return
    if jax.distributed.is_initialized() and jax.process_count() > 1:
        raise ConfigError(
            f"{env.name}: is not written in JAX, and such a run is one process so far; set "
            "arch.distributed=null"
        )
    if not arch.actors:
        refuse(arch, OF_ACTORS, "needs arch.actors=N, which collect while the learner learns")
    if arch.actors_wait != "first":
        why = "needs arch.actors_wait=first, since an update otherwise waits for all actors"
        refuse(arch, ["actors_per_update"], why)
    if arch.actors_on == "ray":
        _check_ray(config, num_devices)
    if num_envs % (arch.rollouts_per_update * env.num_agents):
        name = "actors" if arch.actors_per_update is None else "actors_per_update"
        raise ConfigError(
            f"arch.{name}={arch.rollouts_per_update}: does not divide the "
            f"{num_envs // env.num_agents} environments of each device and update batch; take a "
            "divisor"
        )


def _check_ray(config: Config, num_devices: int) -> None:
    """Raise `ConfigError` if a run cannot have actors on Ray."""
    key = f"arch.actors_on={config.arch.actors_on}"
    if num_devices > 1:
        raise ConfigError(
            f"{key}: such a learner has one device, not {num_devices}; set JAX_NUM_CPU_DEVICES=1, "
            "or use arch.actors_on=threads"
        )
    if not is_installed("ray"):
        raise ConfigError(f"{key}: Ray is not installed; {installing('ray')}")
    if is_given(config.env.target):
        raise ConfigError(
            f"{key}: another process cannot see an object; give an import path: "
            "env.target=my_module.MyEnv"
        )
