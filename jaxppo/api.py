"""Python's door: compose settings, train, and make a whole run one pure function."""

import dataclasses
from typing import Any

import jax

from jaxppo.algorithms.whole import Schedule, TrainOutput, train_whole
from jaxppo.config.fields import ConfigError
from jaxppo.config.plan import Plan, num_members, plan
from jaxppo.config.schema import Config
from jaxppo.deploy.policy import TrainedPolicy
from jaxppo.launch.composing import compose
from jaxppo.runtime import build, compile, devices
from jaxppo.types import Hyperparameters, Policy, System

__all__ = ["compose", "make_train"]


@dataclasses.dataclass(frozen=True, eq=False)
class WholeRun:
    """A whole run of one agent as a pure function, made by `make_train`."""

    config: Config
    plan: Plan
    system: System
    schedule: Schedule
    hyperparameters: Hyperparameters  # those of `config`, scalars
    compiler_options: dict[str, Any]  # for jax.jit: those of the command line

    def __call__(
        self, key: jax.Array, hyperparameters: Hyperparameters | None = None
    ) -> TrainOutput:
        """Train from start to end. `jax.random.key(seed)` gives the run of `arch.seed=seed`.

        `hyperparameters` replace those of the settings, see `Hyperparameters.replace`. Works under
        `jit`, `vmap`, `shard_map`, and inside other programs. Under `vmap` row `i` is the run of
        that key alone, up to the order of sums.
        """
        given = self.hyperparameters if hyperparameters is None else hyperparameters
        return train_whole(self.system, self.schedule, key, given)

    @property
    def steps_per_update(self) -> int:
        """Return the environment steps of an update: `evaluations.updates` times this are steps."""
        return self.plan.steps_per_update

    def trained(self, policy: Policy) -> TrainedPolicy:
        """Return a policy of a `TrainOutput`, such as `output.best`, as an object that acts."""
        return TrainedPolicy(
            config=self.config,
            system=dataclasses.replace(self.system, axes=()),
            policy=policy,
            steps=self.plan.total_steps,
            num_devices=1,
        )


def make_train(config: Config) -> WholeRun:
    """Return the run of `config` as one pure function of a key and hyperparameters.

    It has no outputs besides its result: no screen, no files, no checkpoints. It trains one agent
    on one device; several are `jax.vmap`. `ConfigError` if the settings are wrong, or ask for
    several members.
    """
    if num_members(config) > 1:
        key = "arch.num_seeds" if config.population.size is None else "population.size"
        raise ConfigError(
            f"{key}={num_members(config)}: make_train makes one agent; leave it out, and use "
            "jax.vmap over keys and hyperparameters"
        )
    planned = plan(config, 1, 1)
    arch, platform = config.arch, devices.platform()
    compile.check(arch.compiler)
    return WholeRun(
        config=config,
        plan=planned,
        system=build.build(config, planned),
        schedule=Schedule(
            updates=(*[0] * arch.evaluate_first, *planned.updates_per_block),
            num_eval_episodes=arch.num_eval_episodes,
            absolute=10 * arch.absolute_metric,
            num_update_batches=planned.update_batch_size,
            warmup_rollouts=planned.warmup_rollouts,
        ),
        hyperparameters=build.hyperparameters(config, planned),
        compiler_options=compile.options(arch.compiler, platform),
    )
