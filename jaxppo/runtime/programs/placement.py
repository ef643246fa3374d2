"""Place the members of a program on devices, and gather them for checkpoints."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.algorithms.metrics import add
from jaxppo.algorithms.report import Metrics, zero_metrics
from jaxppo.config.fields import ConfigError
from jaxppo.config.messages import count
from jaxppo.config.plan import Plan
from jaxppo.config.schema import Config
from jaxppo.ops.sequences import where
from jaxppo.runtime.hosts import devices, processes
from jaxppo.types import ActingState, LearnerState, Policy, PyTree, System


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """All arrays of a run; leaves are `[D, P, ...]` on devices, `[P, ...]` in checkpoints."""

    learner: LearnerState
    best: Policy  # best evaluated policy of each member
    total: Metrics  # since the last train event of the block
    earlier: Metrics | None = None  # of the block before that; None without logger.every


@dataclasses.dataclass(frozen=True)
class Layout:
    """The members of a program, by their number in the run, and the program's sizes."""

    plan: Plan
    system: System
    slots: tuple[int, ...]  # numbers of the members, in the program's order

    @property
    def devices(self) -> Sequence[jax.Device]:
        """Return the devices that the program runs on."""
        return devices.of_run(self.plan.num_devices)

    @property
    def shards(self) -> tuple[int, int]:
        """Return the devices per member and the update batches per device."""
        return self.plan.devices_per_member, self.plan.update_batch_size

    def narrow(self, kept: Sequence[int]) -> "Layout":
        """Return the layout with only the members in the slots `kept`.

        If devices have their own members, it uses the largest number of devices that divides the
        members. With several processes that number cannot change: `ConfigError`.
        """
        num_devices = self.plan.num_devices
        if self.plan.shards_members:
            fits = [n for n in range(1, num_devices + 1) if len(kept) % n == 0]
            if processes.count() > 1 and num_devices not in fits:
                with processes.agreeing():  # the first process speaks
                    raise ConfigError(
                        f"{count(kept, 'member')} cannot be split over {num_devices} devices of "
                        f"{processes.count()} processes; resume with one process"
                    )
            num_devices = fits[-1]
        plan = dataclasses.replace(self.plan, num_members=len(kept), num_devices=num_devices)
        return Layout(plan, self.system, tuple(self.slots[slot] for slot in kept))

    def row(self, member: int) -> int:
        """Return the slot of a member."""
        return self.slots.index(member)

    def place(self, state: LearnerState) -> LearnerState:
        """Place agents `[P, ...]` as `[D, P, ...]`, acting `[P, D, U, ...]` as `[D, P, U, ...]`."""
        return devices.shard(self.arrange(state), self.devices)

    def arrange(self, state: LearnerState) -> LearnerState:
        """Return a state in the form that `place` gives it, without placing it."""
        agent, acting = self.arrange_agents(state.agent), self.arrange_split(state.acting)
        return LearnerState(agent=agent, acting=acting)

    def place_agents(self, tree: PyTree) -> PyTree:
        """Place leaves `[P, ...]` with one entry per agent as `[D, P, ...]`."""
        return devices.shard(self.arrange_agents(tree), self.devices)

    def arrange_agents(self, tree: PyTree) -> PyTree:
        """Return leaves in the form that `place_agents` gives them."""
        num = self.plan.num_devices
        if not self.plan.shards_members:
            return devices.repeated(tree, num)
        return jax.tree.map(lambda x: x.reshape(num, -1, *x.shape[1:]), tree)

    def arrange_split(self, tree: PyTree) -> PyTree:
        """Return leaves `[P, D, ...]`, split over the devices of a member, as `[D, P, ...]`."""
        if self.plan.shards_members:
            return self.arrange_agents(jax.tree.map(lambda x: x[:, 0], tree))
        return jax.tree.map(lambda x: x.swapaxes(0, 1), tree)

    def place_count(self, count: int) -> jax.Array:
        """Place an integer on every device, `[D]`."""
        return devices.replicate(np.int32(count), self.devices)

    def no_metrics(self) -> Metrics:
        """Return the metrics at the start of a block, `[D, P]`."""
        return devices.shard(_no_metrics(self)(), self.devices)

    def no_earlier(self, config: Config) -> Metrics | None:
        """Return the metrics of the block's earlier train events at its start; None: unused."""
        return None if config.logger.every is None else self.no_metrics()

    def next_window(self, earlier: Metrics | None, total: Metrics) -> tuple[Metrics, Metrics]:
        """Add the metrics since the last train event to those before; return also new zeros."""
        return _window(self.system, tuple(self.devices))(earlier, total)

    def gather(self, state: LearnerState) -> LearnerState:
        """Return NumPy arrays in the form before `place`; typed keys become their data."""
        agent, acting = self.gather_agents(state.agent), self.gather_split(state.acting)
        return LearnerState(agent=agent, acting=acting)

    def gather_agents(self, tree: PyTree) -> PyTree:
        """Return NumPy arrays in the form before `place_agents`; typed keys become their data."""
        if self.plan.shards_members:
            return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), devices.host(tree))
        return jax.tree.map(np.array, devices.first(jax.tree.map(devices.data, tree)))

    def gather_numbers(self, tree: PyTree, members: Iterable[int]) -> dict[int, PyTree]:
        """Return the scalars `[P]` of agents as Python numbers, by member; arrays as lists."""
        found = self.gather_agents(tree)
        rows = {i: self.row(i) for i in members}
        return {
            i: jax.tree.map(lambda x, row=row: x[row].tolist(), found) for i, row in rows.items()
        }

    def gather_split(self, tree: PyTree) -> PyTree:
        """Return NumPy arrays in the form before `arrange_split`; typed keys become their data."""
        if self.plan.shards_members:
            return jax.tree.map(lambda x: x[:, None], self.gather_agents(tree))
        return jax.tree.map(lambda x: x.swapaxes(0, 1), devices.host(tree))

    def take(self, tree: PyTree, chosen: Sequence[int]) -> PyTree:
        """Select the members in these slots of leaves `[D, P, ...]`."""
        rows = np.asarray(chosen, np.int32)
        return self._compiled(_take, 0)(self.plan.shards_members, tree, rows)

    def choose(self, chosen: np.ndarray, one: Policy, other: Policy) -> Policy:
        """Select policies `[D, P, ...]`: of `one` where `chosen` `[P]` is true, else of `other`."""
        if all(chosen):  # as in most runs, whose copy is compiled already
            return self.copy(one)
        mask = self.place_agents(chosen)
        return self._compiled(where)(mask, one, other)

    def copy(self, tree: PyTree) -> PyTree:
        """Copy leaves `[D, ...]`."""
        return self._compiled(_copied)(tree)

    def _compiled(self, function: Callable[..., Any], *static: int) -> Any:
        """Return a function as a program whose results are placed as its arguments are.

        `static` are the positions of arguments without arrays. Another call does not compile anew,
        since JAX keeps programs by function, devices and static arguments.
        """
        placed = devices.sharding(self.devices)
        return jax.jit(function, static_argnums=static, out_shardings=placed)


@lru_cache(8)
def _no_metrics(layout: Layout) -> Callable[[], Metrics]:
    """Return the program of `no_metrics`: eagerly, each operation would be one."""

    def no_metrics() -> Metrics:
        zero = devices.repeated(zero_metrics(layout.system), layout.plan.num_members)
        return layout.arrange_agents(zero)

    return jax.jit(no_metrics)


@lru_cache(8)  # JAX would keep every system that is a static argument
def _window(system: System, placed: tuple[jax.Device, ...]) -> Any:
    """Return `next_window` as a program whose results are placed as its arguments are."""

    def next_window(earlier: Metrics, total: Metrics) -> tuple[Metrics, Metrics]:
        like = partial(jax.tree.map, lambda zero, x: jnp.broadcast_to(zero, x.shape))
        return add(earlier, total), like(zero_metrics(system), total)

    return jax.jit(next_window, out_shardings=devices.sharding(placed))


def _copied(tree: PyTree) -> PyTree:
    return jax.tree.map(jnp.copy, tree)


def _take(sharded: bool, tree: PyTree, chosen: jax.Array) -> PyTree:
    def take(x: jax.Array) -> jax.Array:
        if not sharded:
            return x[:, chosen]
        return x.reshape(-1, *x.shape[2:])[chosen].reshape(x.shape[0], -1, *x.shape[2:])

    return jax.tree.map(take, tree)


def reshard(acting: ActingState, shards: Sequence[int]) -> ActingState:
    """Split environments `[P, D, U, ...]` over other numbers of devices and update batches.

    Their order stays. Each device and update batch gets a new random stream of its own.
    """

    def split(x: jax.Array) -> jax.Array:
        return x.reshape(x.shape[0], *shards, -1, *x.shape[4:])

    key, numbers = acting.key[:, 0, 0], jnp.arange(math.prod(shards))
    keys = jax.vmap(lambda k: jax.vmap(partial(jax.random.fold_in, k))(numbers))(key)
    without: Any = dataclasses.replace(acting, key=None)  # type: ignore[arg-type]
    return dataclasses.replace(jax.tree.map(split, without), key=keys.reshape(-1, *shards))
