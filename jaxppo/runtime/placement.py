"""Where the members of a program are: on their devices, and in NumPy for checkpoints."""

import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.algorithms.spine import Metrics, zero_metrics
from jaxppo.config.plan import Plan
from jaxppo.runtime import devices
from jaxppo.types import ActingState, LearnerState, Policy, PyTree, System


@dataclasses.dataclass(frozen=True)
class Layout:
    """The members of a program, by their number in the run, and its sizes."""

    plan: Plan
    system: System
    slots: tuple[int, ...]  # the members, in the program's order

    @property
    def devices(self) -> list[jax.Device]:
        """Those that the program runs on."""
        return jax.local_devices()[: self.plan.num_devices]

    @property
    def shards(self) -> list[int]:
        """Parts that a member's environments are in: devices, and on each, update batches."""
        return [self.plan.devices_per_member, self.plan.update_batch_size]

    def narrow(self, kept: Sequence[int]) -> "Layout":
        """The same with the members in the slots `kept` alone."""
        plan = dataclasses.replace(self.plan, num_members=len(kept))
        axes = self.system.member_axes if plan.members_per_device > 1 else ()
        system = dataclasses.replace(self.system, member_axes=axes)
        return Layout(plan, system, tuple(self.slots[slot] for slot in kept))

    def row(self, member: int) -> int:
        """The slot of a member."""
        return self.slots.index(member)

    def place(self, state: LearnerState) -> LearnerState:
        """Agents `[P, ...]` to `[D, P, ...]`, acting `[P, D, U, ...]` to `[D, P, U, ...]`."""
        if self.plan.shards_members:
            acting = self.place_agents(jax.tree.map(lambda x: x[:, 0], state.acting))
        else:
            swapped = jax.tree.map(lambda x: x.swapaxes(0, 1), state.acting)
            acting = devices.shard(swapped, self.devices)
        return LearnerState(agent=self.place_agents(state.agent), acting=acting)

    def place_agents(self, tree: PyTree) -> PyTree:
        """Leaves `[P, ...]` of agents, or what belongs to them, to `[D, P, ...]`."""
        return devices.place(tree, self.devices, sharded=self.plan.shards_members)

    def place_count(self, count: int) -> jax.Array:
        """An integer on every device, `[D]`."""
        placed: jax.Array = devices.replicate(np.int32(count), self.devices)
        return placed

    def no_metrics(self) -> Metrics:
        """What the metrics of a block begin from, `[D, P]`."""
        zero = zero_metrics(self.system)
        row = jax.tree.map(lambda x: jnp.broadcast_to(x, (self.plan.num_members,)), zero)
        placed: Metrics = self.place_agents(row)
        return placed

    def gather(self, state: LearnerState) -> LearnerState:
        """The inverse of `place`, in NumPy; keys of random streams are their data."""
        if self.plan.shards_members:
            acting = jax.tree.map(lambda x: x[:, None], self.gather_agents(state.acting))
        else:
            acting = jax.tree.map(lambda x: x.swapaxes(0, 1), devices.host(state.acting))
        return LearnerState(agent=self.gather_agents(state.agent), acting=acting)

    def gather_agents(self, tree: PyTree) -> PyTree:
        """The inverse of `place_agents`, as `gather` does it."""
        if self.plan.shards_members:
            return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), devices.host(tree))
        return jax.tree.map(lambda x: x[0], devices.host(tree))

    def read(self, tree: PyTree) -> PyTree:
        """Leaves `[D, P, ...]` as NumPy `[P, ...]`, from one device where all have the same."""
        return devices.members(tree, sharded=self.plan.shards_members)

    def take(self, tree: PyTree, chosen: Sequence[int]) -> PyTree:
        """Of leaves `[D, P, ...]` the members in these slots."""
        return devices.take(tree, chosen, self.devices, sharded=self.plan.shards_members)

    def choose(self, chosen: np.ndarray, one: Policy, other: Policy) -> Policy:
        """Policies `[D, P, ...]` of `one` where `chosen` `[P]`, else of `other`."""
        mask = self.place_agents(chosen)
        found: Policy = devices.shard(_choose(mask, one, other), self.devices)
        return found


@jax.jit
def _choose(chosen: jax.Array, one: PyTree, other: PyTree) -> PyTree:
    def pick(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.where(chosen.reshape(*chosen.shape, *(1,) * (x.ndim - 2)), x, y)

    return jax.tree.map(pick, one, other)


def reshard(acting: ActingState, shards: Sequence[int]) -> ActingState:
    """Environments `[P, D, U, ...]` over other numbers of devices and update batches, in order.

    Each device and update batch gets a random stream that no other has, and none had before.
    """

    def split(x: jax.Array) -> jax.Array:
        return x.reshape(x.shape[0], *shards, -1, *x.shape[4:])

    key, numbers = acting.key[:, 0, 0], jnp.arange(math.prod(shards))
    keys = jax.vmap(lambda k: jax.vmap(partial(jax.random.fold_in, k))(numbers))(key)
    without: Any = dataclasses.replace(acting, key=None)  # type: ignore[arg-type]
    return dataclasses.replace(jax.tree.map(split, without), key=keys.reshape(-1, *shards))
