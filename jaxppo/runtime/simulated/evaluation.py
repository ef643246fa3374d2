"""Programs that play episodes of simulators, in the place of compiled ones."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.algorithms import stepwise
from jaxppo.algorithms.axes import vmap_members
from jaxppo.algorithms.evaluation import Episodes, RecordedStep, agent_keys, of_worlds, reset_keys
from jaxppo.ops import tallies
from jaxppo.runtime.hosts import devices
from jaxppo.runtime.programs import compile
from jaxppo.types import PyTree, System, zeros

_FIELDS = [field.name for field in dataclasses.fields(Episodes)]


class _EpisodeQueue:
    """Assigns episodes to environments, and records their results.

    Each device and member (a row) has `num` environments and `total` episodes. An environment that
    ends an episode gets the next one that has not begun. `in_waves`, new ones start only
    when all that run have ended.
    """

    def __init__(
        self, rows: int, num: int, total: int, kinds: Mapping[str, str], *, in_waves: bool = False
    ) -> None:
        self._in_waves = in_waves
        self._rows, self._total = np.arange(rows)[:, None], total
        self._episode = np.broadcast_to(np.arange(num), (rows, num)).copy()  # `total` for none
        self._following = np.full(rows, num)
        self.steps = np.zeros((rows, num), np.int32)  # in the present episode
        self.resets = np.ones((rows, num), bool)  # where the last step ended an episode
        shape = rows, total
        self.returns = np.zeros(shape, np.float32)
        self.lengths, self.empty_masks = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        self.finished = np.zeros(shape, bool)
        self._kinds, self._tallies = kinds, tallies.init(kinds, shape, np)

    @property
    def playing(self) -> np.ndarray:
        """Return which environments have an episode, `[rows, num]` bool."""
        return self._episode < self._total

    @property
    def begins(self) -> np.ndarray:
        """Return which environments must be reset, `[rows, num]` bool."""
        return self.resets & self.playing

    @property
    def numbers(self) -> np.ndarray:
        """Return the numbers of the episodes that are played, counted over all rows."""
        return (self._rows * self._total + self._episode)[self.playing]

    def of_episodes(self, values: np.ndarray) -> np.ndarray:
        """Return each environment's entry of `[rows, total, ...]`; arbitrary where it has none."""
        return values[self._rows, np.minimum(self._episode, self._total - 1)]

    @property
    def metrics(self) -> PyTree:
        """Return what the episodes have added up to, `[rows, total]` each."""
        return tallies.results(self._kinds, self._tallies, np)

    def count(
        self,
        reward: np.ndarray,
        ended: np.ndarray,
        empty: np.ndarray,
        told: Mapping[str, np.ndarray],
        max_steps: int,
    ) -> None:
        """Count a step of all that play, and give new episodes to those that end."""
        playing, shape = self.playing, self.steps.shape
        at = np.nonzero(playing)[0], self._episode[playing]
        over = ended.reshape(shape) & playing
        self.steps += 1
        self.returns[at] += reward.reshape(shape)[playing]
        self.lengths[at] += 1
        self.empty_masks[at] += empty.reshape(shape)[playing]
        self.finished[at] = over[playing]
        before = jax.tree.map(lambda x: x[at], self._tallies)
        now = {name: x.reshape(shape)[playing] for name, x in told.items()}
        for name, tally in tallies.add(self._kinds, before, now, np).items():
            self._tallies[name].total[at] = tally.total
            self._tallies[name].count[at] = tally.count
        self.resets = over | (playing & (self.steps >= max_steps))
        if self._in_waves:
            self._episode[self.resets] = self._total
            if self.playing.any():
                return
            self.resets[:] = True
        for row, column in np.argwhere(self.resets):
            self._episode[row, column] = self._following[row]
            self._following[row] = min(self._following[row] + 1, self._total)
        self.steps[self.resets] = 0


class Evaluation:
    """Plays one episode for each key; called as the program of `evaluate` is.

    At most `num_envs` episodes of each device and member run at once. An environment plays one
    after another, each with the seed of its key. All episodes count, so that short ones are not
    over-represented.
    """

    def __init__(self, system: System, shape: tuple[int, int, int], act: Any) -> None:
        self._system, self._shape, self._act = system, shape, act  # D, P, B
        self._simulators: Any = None

    def __call__(
        self, policy: PyTree, keys: jax.Array, tell: Callable[..., None] | None = None
    ) -> Episodes:
        """Return episodes `[D, P, E]`; `SimulatorError` if an environment fails.

        After each step `tell` gets the numbers of the episodes that were stepped, and a
        `RecordedStep` with as many rows.
        """
        if self._system.env.num_agents > 1:
            keys = jax.vmap(jax.vmap(partial(agent_keys, self._system)))(keys)
        (shards, members, num), total = self._shape, keys.shape[2]
        env: Any = self._system.env  # a Simulated
        if self._simulators is None:
            self._simulators = env.make(shards * members * num)
        simulators, arrays = self._simulators, self._simulators.arrays
        queue = _EpisodeQueue(
            shards * members, num, total, self._system.metrics, in_waves=env.in_waves
        )
        data = devices.host(keys).reshape(shards * members, total, -1)
        seeds = episode_seeds(keys).reshape(shards * members, total)

        def placed(x: np.ndarray) -> np.ndarray:
            return x.reshape(*self._shape, *x.shape[2:])

        carry = devices.shard(
            jax.tree.map(
                lambda x: np.broadcast_to(x, (shards, members, *x.shape)),
                self._system.algorithm.network.initial_carry(num),
            ),
            devices.of_run(shards),
        )
        while queue.playing.any():
            if queue.begins.any():
                begins = queue.begins
                simulators.reset(np.flatnonzero(begins), queue.of_episodes(seeds)[begins])
            obs = [x.reshape(*self._shape, *x.shape[1:]).copy() for x in arrays.obs]
            carry, action, empty, info = self._act(
                policy,
                carry,
                env.observation(obs),
                placed(queue.resets),
                placed(queue.of_episodes(data)),
                placed(queue.steps),
            )
            parts = [np.asarray(x) for x in jax.tree.leaves(action)]
            flat = queue.playing.reshape(-1)
            simulators.step([x.reshape(-1, *x.shape[3:]) for x in parts], flat)
            if tell is not None:
                tell(queue.numbers, self._recorded(flat, obs, action, info))
            queue.count(
                arrays.reward,
                arrays.terminated | arrays.truncated,
                np.asarray(empty),
                arrays.metrics,
                self._system.max_eval_steps,
            )
        found: dict[str, Any] = {name: getattr(queue, name) for name in _FIELDS}
        episodes = of_worlds(self._system, Episodes(**jax.tree.map(np.ravel, found)))
        return jax.tree.map(lambda x: np.reshape(x, (shards, members, -1)), episodes)

    def _recorded(
        self, chosen: np.ndarray, obs: list[np.ndarray], action: PyTree, info: PyTree
    ) -> RecordedStep:
        """Return what happened in the chosen environments, `[N]`."""
        env: Any = self._system.env
        arrays = self._simulators.arrays

        def rows(x: Any) -> np.ndarray:
            x = np.asarray(x)
            return x.reshape(-1, *x.shape[3:])[chosen]

        steps: dict[str, Any] = {
            "observations": env.observation([rows(x) for x in obs]),
            "rewards": arrays.reward[chosen],
            "metrics": {name: x[chosen] for name, x in arrays.metrics.items()},
            "terminated": arrays.terminated[chosen],
            "truncated": (arrays.truncated & ~arrays.terminated)[chosen],
        }
        return RecordedStep(
            **steps,
            actions=jax.tree.map(rows, action),
            info=jax.tree.map(rows, info),
            states=(),
            after=(env.observation([x[chosen] for x in arrays.final]), ()),
        )

    @property
    def restarts(self) -> int:
        """Return how many environments were made anew after a fault."""
        return 0 if self._simulators is None else self._simulators.restarts

    def close(self) -> None:
        """End the simulators."""
        if self._simulators is not None:
            self._simulators.close()
            self._simulators = None


@jax.jit
def _seed_bits(keys: jax.Array) -> jax.Array:
    return jax.random.key_data(reset_keys(keys.reshape(-1)))[:, -1]


def episode_seeds(keys: jax.Array) -> np.ndarray:
    """Return a seed for each episode, from the key that would reset a JAX environment."""
    return (np.asarray(_seed_bits(keys)) & 0x7FFFFFFF).astype(np.int64)


def compile_evaluation(
    system: System,
    policy: PyTree,
    keys: Any,
    num_at_once: int,
    compiler: str,
    *,
    describes: bool = False,
) -> compile.Program:
    """Compile what plays episodes for keys `[D, P, E]`; `policy` is `[D, P, ...]` or its shapes.

    If it `describes`, its steps can be recorded.
    """
    shards, members, total = keys.shape
    lead = (shards, members, min(total, num_at_once) * system.env.num_agents)
    num = lead[2]

    def example() -> tuple[PyTree, ...]:
        carry = jax.tree.map(
            lambda x: jnp.broadcast_to(x, (shards, members, *x.shape)),
            system.algorithm.network.initial_carry(num),
        )
        obs = zeros(system.env.observation_space, lead)
        words = jax.random.key_data(jnp.broadcast_to(jax.random.key(0), lead))
        return carry, obs, jnp.zeros(lead, bool), words, jnp.zeros(lead, jnp.int32)

    def act(policy: PyTree, carry: PyTree, obs: PyTree, reset: Any, words: Any, steps: Any) -> Any:
        drawn = jax.random.wrap_key_data(words)
        return in_episodes(system, policy, carry, obs, reset, drawn, steps)

    in_episodes = vmap_members(partial(stepwise.act_in_episodes, describes=describes))

    program = compile.compile_program(act, policy, *jax.eval_shape(example), compiler=compiler)
    return dataclasses.replace(program, call=Evaluation(system, lead, program.call))
