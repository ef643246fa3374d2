"""Compute sizes from settings, in exact integers."""

import dataclasses
import math

from jaxppo.config.fields import MAX_INT, ConfigError
from jaxppo.config.schema import ALGORITHMS, ArchConfig, Config, NetworkConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Sizes that follow from a `Config` and the number of devices."""

    num_devices: int  # D
    num_members: int  # P, over all devices
    devices_per_member: (
        int  # D: devices split the environments of each member; 1: they split the members
    )
    update_batch_size: int  # U
    num_envs: int  # B, per device, member and update batch
    rollout_length: int  # T
    sequence_length: int  # L
    steps_per_update: int  # per member: devices_per_member * U * B * T
    minibatch_size: int  # transitions per gradient step, device, member and update batch
    minibatch_sequences: int  # sequences per minibatch
    num_updates: int
    updates_per_block: tuple[int, ...]  # one entry per evaluation
    total_steps: int  # per member, as run: num_updates * steps_per_update
    requested_steps: int | None  # total_timesteps; None if num_updates is set
    warmup_rollouts: int
    eval_episodes_per_device: int  # per member

    @property
    def shards_members(self) -> bool:
        """Return whether each device has its own members rather than a part of every member."""
        return self.devices_per_member < self.num_devices

    @property
    def members_per_device(self) -> int:
        """Return P of one device's program."""
        return self.num_members * self.devices_per_member // self.num_devices

    @property
    def warmup_steps(self) -> int:
        """Return the environment steps before training, which `total_steps` does not count."""
        return self.warmup_rollouts * self.steps_per_update


def plan(config: Config, num_devices: int, members: int | None = None) -> Plan:
    """Compute all sizes; `ConfigError` if settings do not fit each other.

    `members` is the number of members in the program, which may include those of other jobs; None:
    the members of `config`.
    """
    arch, system = config.arch, config.system
    system.check()
    length = _sequence_length(config)
    count = num_members(config) if members is None else members
    shards_members = count > 1 and count % num_devices == 0
    shards = 1 if shards_members else num_devices
    learners = shards * arch.update_batch_size
    num_envs, left = divmod(arch.total_num_envs, learners)
    if left:
        nearest = max(num_envs + (2 * left > learners), 1) * learners
        raise ConfigError(
            f"arch.total_num_envs={arch.total_num_envs} is not a multiple of {learners} learners "
            f"(devices: {shards}, arch.update_batch_size={arch.update_batch_size}); "
            f"the nearest that is: {nearest}"
        )
    batch = num_envs * system.rollout_length
    if batch > MAX_INT:
        raise ConfigError(
            f"arch.total_num_envs={arch.total_num_envs}: {num_envs:,} environments x "
            f"system.rollout_length={system.rollout_length} are {batch:,} transitions for each "
            f"device and update batch, and at most {MAX_INT:,} can be numbered; lower one of them"
        )
    num_sequences, steps_per_update = batch // length, learners * batch
    learnt = num_sequences * (length - system.burn_in)  # per device and update batch
    of = f"{num_envs} environments x system.rollout_length={system.rollout_length}"
    of += f" in sequences of {length}" if length > 1 else ""
    _check_divides("system.num_minibatches", system.num_minibatches, num_sequences, of)
    system.check_sizes(learners * learnt // system.num_minibatches)
    if system.microbatch_size is not None and system.microbatch_size < length - system.burn_in:
        raise ConfigError(
            f"system.microbatch_size={system.microbatch_size} is less than one sequence of "
            f"{length - system.burn_in} transitions, which cannot be split; at least that, or null"
        )
    num_updates = _num_updates(arch, steps_per_update)
    blocks = arch.num_evaluation
    return Plan(
        num_devices=num_devices,
        num_members=count,
        devices_per_member=shards,
        update_batch_size=arch.update_batch_size,
        num_envs=num_envs,
        rollout_length=system.rollout_length,
        sequence_length=length,
        steps_per_update=steps_per_update,
        minibatch_size=learnt // system.num_minibatches,
        minibatch_sequences=num_sequences // system.num_minibatches,
        num_updates=num_updates,
        updates_per_block=tuple(
            (i + 1) * num_updates // blocks - i * num_updates // blocks for i in range(blocks)
        ),
        total_steps=num_updates * steps_per_update,
        requested_steps=arch.total_timesteps if arch.num_updates is None else None,
        warmup_rollouts=-(-system.obs_norm_warmup_steps // steps_per_update),
        eval_episodes_per_device=-(-arch.num_eval_episodes // shards),
    )


def num_members(config: Config) -> int:
    """Return how many agents a run trains."""
    return config.population.size or config.arch.num_seeds


def memories(network: NetworkConfig) -> list[str]:
    """Return the names of the memories in a network."""
    names = [field.name for field in dataclasses.fields(network)]
    return [name for name in names if name.endswith("_memory") and getattr(network, name)]


def _sequence_length(config: Config) -> int:
    """Return L; `ConfigError` if it does not fit the rollout or the network."""
    system, found, rollout = config.system, memories(config.network), config.system.rollout_length
    length = rollout if system.sequence_length is None else system.sequence_length
    of = f"system.rollout_length={rollout}"
    _check_divides("system.sequence_length", length, rollout, of)
    if found and length == 1:
        command = system.algorithm if system.algorithm in ALGORITHMS else "ppo"
        raise ConfigError(
            f"network.{found[0]}: a memory learns nothing from sequences of one step; set "
            f"system.sequence_length=null for whole rollouts, as jaxppo.rec_{command} does"
            f"{f', with more than {of}' if rollout == 1 else ''}, or do without: network=mlp"
        )
    for key, off in (("burn_in", 0), ("recompute_carries", False)):
        value = getattr(system, key)
        if value and not found:
            raise ConfigError(
                f"system.{key}={str(value).lower()}: the network has no memory; set it to "
                f"{str(off).lower()}, or take network=lstm"
            )
    if system.recompute_carries and length == rollout:
        raise ConfigError(
            "system.recompute_carries=true has nothing to do where sequences are whole rollouts of "
            f"{rollout} steps: set a shorter system.sequence_length, or it to false"
        )
    if system.burn_in >= length:
        raise ConfigError(
            f"system.burn_in={system.burn_in} leaves nothing to learn from in sequences of "
            f"{length} steps; at most {length - 1}"
        )
    return length


def _check_divides(key: str, value: int, number: int, of: str) -> None:
    """Raise `ConfigError` if `value` does not divide `number`, which `of` describes."""
    if number % value:
        # Divisors in time sqrt(number)
        small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
        divisors = (*small, *(number // n for n in small))
        nearest = min(divisors, key=lambda n: abs(n - value))
        raise ConfigError(f"{key}={value} does not divide {of}; the nearest that does: {nearest}")


def _num_updates(arch: ArchConfig, steps_per_update: int) -> int:
    """Return the updates of the budget; `ConfigError` if they are too few or too many."""
    num_updates, key, unit = arch.num_updates, "arch.num_updates", 1
    if num_updates is None:
        if arch.total_timesteps is None:
            raise ConfigError(
                "arch.total_timesteps=null and arch.num_updates=null: one must be an integer"
            )
        num_updates, key = -(-arch.total_timesteps // steps_per_update), "arch.total_timesteps"
        unit = steps_per_update
        if arch.total_timesteps < steps_per_update:
            raise ConfigError(
                f"{key}={arch.total_timesteps} is less than one update of {steps_per_update} steps "
                f"(arch.total_num_envs x system.rollout_length); at least {steps_per_update}, or "
                "lower one of those"
            )
    if num_updates > MAX_INT:
        raise ConfigError(f"{key}: {num_updates} updates are more than {MAX_INT}; ask for fewer")
    if num_updates < arch.num_evaluation:
        raise ConfigError(
            f"arch.num_evaluation={arch.num_evaluation} is more than {num_updates} updates of "
            f"{steps_per_update} steps; at most {num_updates}, or raise {key} to "
            f"{arch.num_evaluation * unit}{', or lower arch.total_num_envs' if unit > 1 else ''}"
        )
    return num_updates
