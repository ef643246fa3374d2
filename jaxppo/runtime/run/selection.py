"""Select members of a population after evaluations: PBT and successive halving."""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxppo.config.schema import Config
from jaxppo.envs import is_simulated
from jaxppo.runtime.programs import build
from jaxppo.runtime.programs.placement import Layout
from jaxppo.runtime.programs.population import explore, near_one_of, rank, rungs, sources
from jaxppo.types import LearnerState


class Selection:
    """Holds the hyperparameters that members differ in, and selects members."""

    def __init__(self, config: Config, configs: Sequence[Config], layout: Layout) -> None:
        self._config = config
        self._settings = config.population
        self._num_members = len(configs)
        numbers = build.stacked_hyperparameters(configs, layout.plan)
        self.numbers: dict[str, list[float]] = {  # over slots
            name: np.asarray(getattr(numbers, name), float).tolist()
            for name in self._settings.hyperparameters
        }

    @property
    def method(self) -> str:
        """Return pbt, halving or none."""
        return self._settings.selection

    def exploits(self, block: int, num_blocks: int) -> bool:
        """Return whether PBT selects after this block; it never does after the last."""
        return (
            self.method == "pbt"
            and block + 1 < num_blocks
            and (block + 1) % self._settings.interval == 0
        )

    def exploit(
        self,
        layout: Layout,
        state: LearnerState,
        scores: Mapping[int, float],
        block: int,
        active: Collection[int],
    ) -> tuple[LearnerState, list[int]]:
        """Replace the worst active members by copies of the best, with changed hyperparameters.

        Parameters, optimiser state and statistics are copied; environments and random streams are
        not. Exception: a member without a finite score also gets the environments and memories of
        its source, since its own may hold NaN (those of simulators stay). Return the state and the
        slot that each member continues from.
        """
        generator = np.random.default_rng([self._config.arch.seed, self._num_members, block])
        found = [scores.get(i, math.nan) for i in layout.slots]
        failed = [slot for slot, i in enumerate(layout.slots) if i not in active]
        chosen = sources(found, self._settings.threshold, generator, failed)
        copied = [slot for slot, source in enumerate(chosen) if source != slot]
        inherited = {name: [row[c] for c in chosen] for name, row in self.numbers.items()}
        near_one = near_one_of(self._config)
        self.numbers = explore(inherited, copied, self._settings, generator, near_one)
        old = state.agent
        agent = layout.take(old, chosen)
        placed = {
            name: layout.place_agents(np.asarray(row, np.float32))
            for name, row in self.selected().items()
        }
        agent = dataclasses.replace(
            agent,
            hyperparameters=agent.hyperparameters.replace(**placed),
            policy=dataclasses.replace(agent.policy, noise_key=old.policy.noise_key),
        )
        if layout.system.num_opponents:
            # A running game of a copied member ends, since its opponent is another policy now
            is_copied = layout.place_agents(np.asarray([c != s for s, c in enumerate(chosen)]))
            pool = agent.opponents
            since = jnp.where(is_copied[..., None], agent.update[..., None], pool.since)
            agent = dataclasses.replace(agent, opponents=dataclasses.replace(pool, since=since))
        acting, scored = state.acting, np.isfinite(found)
        if any(not scored[slot] for slot in copied) and not is_simulated(layout.system.env):
            rows = [slot if scored[slot] else source for slot, source in enumerate(chosen)]
            acting = dataclasses.replace(layout.take(acting, rows), key=acting.key)
        return LearnerState(agent=agent, acting=acting), chosen

    def selected(self) -> dict[str, list[float]]:
        """Return the hyperparameters that selection changes, with those that follow another."""
        found: dict[str, list[float]] = dict(self.numbers)
        system: Any = self._config.system
        for field in dataclasses.fields(system):
            leader = field.metadata.get("follows")
            if leader in found and getattr(system, field.name) is None:
                found[field.name] = found[leader]
        return found

    def survivors(
        self,
        layout: Layout,
        scores: Mapping[int, float],
        block: int,
        updates_per_block: Sequence[int],
    ) -> list[int] | None:
        """Return the slots that continue after this block, or None for all.

        If devices have their own members, each keeps the same number.
        """
        if self.method != "halving":
            return None
        kept = rungs(self._num_members, self._settings.reduction, updates_per_block)
        is_last = block + 1 == len(updates_per_block)
        # A rung may have ended earlier, since a resume can shorten the budget
        over = [] if is_last else [num for end, num in kept.items() if end <= block]
        num_kept = min(over, default=self._num_members)
        if layout.plan.shards_members:
            num_kept = -(-num_kept // layout.plan.num_devices) * layout.plan.num_devices
        if num_kept >= len(layout.slots):
            return None
        return sorted(rank([scores.get(i, math.nan) for i in layout.slots])[:num_kept])

    def narrow(self, kept: Sequence[int]) -> None:
        """Keep the hyperparameters of the slots `kept` only."""
        self.numbers = {name: [row[slot] for slot in kept] for name, row in self.numbers.items()}

    def describe(self, slots: Sequence[int], sources: Sequence[int], steps: int) -> dict[str, Any]:
        """Return the values of a `selection` event: each member's parent and hyperparameters."""
        return {
            "method": self.method,
            "steps": steps,
            "members": list(slots),
            "sources": list(sources),
            "hyperparameters": self.numbers,
        }
