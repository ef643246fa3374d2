"""Actors: each steps simulators by the policy and collects rollouts, inline or in a thread."""

import contextlib
import dataclasses
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxppo.algorithms.stepwise import Collected
from jaxppo.runtime.hosts import devices
from jaxppo.simulators.faults import SimulatorError
from jaxppo.simulators.pool import CLOSING_SECONDS
from jaxppo.types import PyTree, TimeStep


@dataclasses.dataclass(frozen=True)
class Timed:
    """A rollout of one actor, and how long it took."""

    rollout: Collected  # [D, P, U, ...]; NumPy, but for the memory
    version: int  # updates after which its policy was taken
    acting_seconds: float
    stepping_seconds: float
    waiting_seconds: float  # for a policy


@dataclasses.dataclass(frozen=True)
class ActorPrograms:
    """Compiled programs of an actor; see `algorithms.stepwise`."""

    init: Any  # init_actors
    begin: Any  # begin_members
    act: Any  # act_members


class Actor:
    """Collects rollouts in `N` environments, in the order `[D, P, U, B]`."""

    def __init__(
        self,
        env: Any,  # envs.simulated.Simulated
        shape: tuple[int, int, int, int],  # D, P, U, B
        rollout_length: int,
        programs: ActorPrograms,
        seeds: np.ndarray,  # [D, P, U, B] int64
    ) -> None:
        self._env, self._shape, self._length = env, shape, rollout_length
        self._programs = programs
        self.simulators: Any = env.make(int(np.prod(shape)))
        try:
            self.simulators.reset(np.arange(seeds.size), seeds.reshape(-1))
        except BaseException:
            self.close()
            raise
        obs = self.simulators.arrays.obs
        self._obs = [x.reshape(*shape, *x.shape[1:]).copy() for x in obs]
        self._reset = np.ones(shape, bool)
        self._memory: PyTree = None
        self.stopping = False  # another thread asks `collect` to raise `SimulatorError`
        self._place = devices.sharding(devices.of_run(shape[0]))
        self._steps = [self._place_step(step) for step in range(rollout_length)]

    @property
    def restarts(self) -> int:
        """Return how many environments were made anew after a fault."""
        return self.simulators.restarts

    def _place_step(self, step: int) -> jax.Array:
        return jax.device_put(np.full(self._shape[0], step, np.int32), self._place)

    def start(self, policy: PyTree, key: jax.Array) -> None:
        """Continue the streams of keys `[D, P, U]`, and the episodes that have begun."""
        if self._memory is None:
            self._memory = self._programs.init(policy, key)
        else:
            self._memory = dataclasses.replace(self._memory, key=key)

    def collect(
        self, policy: PyTree, version: int, key: jax.Array | None = None, waited: float = 0.0
    ) -> Timed:
        """Act for `T` steps with a policy; a `key` replaces the stream."""
        arrays, acting, stepping = self.simulators.arrays, 0.0, 0.0
        obs, final = self._rollout_of(arrays.obs), self._rollout_of(arrays.final)
        results = arrays.reward, arrays.terminated, arrays.truncated, *arrays.metrics.values()
        flags = self._rollout_of(results)
        if key is not None:
            self.start(policy, key)
        memory = self._programs.begin(self._memory)  # a copy, which `act` overwrites
        first: dict[str, Any] = {"obs": self._env.observation(self._obs), "reset": self._reset}
        for step, placed in enumerate(self._steps):
            if self.stopping:
                raise SimulatorError("was stopped")
            began = time.perf_counter()
            tree = self._env.observation(self._obs)
            memory, action = self._programs.act(policy, memory, tree, self._reset, placed)
            parts = [np.asarray(x) for x in jax.tree.leaves(action)]
            acted = time.perf_counter()
            self.simulators.step([x.reshape(-1, *x.shape[4:]) for x in parts])
            for into, found in zip(
                (*obs, *final, *flags), (*arrays.obs, *arrays.final, *results), strict=True
            ):
                into[:, :, :, step] = found.reshape(*self._shape, *found.shape[1:])
            self._obs = [np.ascontiguousarray(x[:, :, :, step]) for x in obs]
            self._reset = flags[1][:, :, :, step] | flags[2][:, :, :, step]
            acting += acted - began
            stepping += time.perf_counter() - acted
        self._memory = memory
        steps = TimeStep(
            obs=self._env.observation(obs),
            final_observation=self._env.observation(final),
            metrics=dict[str, Any](zip(arrays.metrics, flags[3:], strict=True)),
            **dict[str, Any](zip(("reward", "terminated", "truncated"), flags[:3], strict=True)),
        )
        rollout = Collected(**first, steps=steps, memory=memory)
        return Timed(rollout, version, acting, stepping, waited)

    def _rollout_of(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        lead = (*self._shape[:3], self._length, self._shape[3])
        return [np.empty((*lead, *x.shape[1:]), x.dtype) for x in arrays]

    def abandon(self) -> None:
        """End processes of simulators for which a thread waits in `collect`."""
        self.simulators.abandon()

    def close(self) -> None:
        """End the simulators."""
        self.simulators.close()


@contextlib.contextmanager
def naming(number: int, num_actors: int) -> Iterator[None]:
    """Put the actor's number in a fault, since each of several numbers its environments from 0."""
    try:
        yield
    except SimulatorError as error:
        if num_actors == 1:
            raise
        raise SimulatorError(f"actor {number}: {error}") from error


class Threads:
    """Actors in threads of their own, which collect while the learner learns.

    Rollout `r` of every actor is collected with the policy after `max(0, r - lag)` updates, however
    fast any of them is: the same seed gives the same numbers.
    """

    def __init__(self, actors: Sequence[Any], lag: int) -> None:
        self._actors, self._lag = actors, lag
        self._policies: dict[int, PyTree] = {}
        self._published = threading.Condition()
        self._closing = False
        self._queues: list[queue.Queue[Timed | BaseException]] = [queue.Queue() for _ in actors]
        self._threads = [
            threading.Thread(target=self._run, args=(i, *pair), daemon=True, name="actor")
            for i, pair in enumerate(zip(actors, self._queues, strict=True))
        ]
        for thread in self._threads:
            thread.start()

    def publish(self, version: int, policy: PyTree) -> None:
        """Hand out the policy after `version` updates."""
        with self._published:
            self._policies[version] = policy
            self._policies.pop(version - self._lag - 1, None)
            self._published.notify_all()

    def get(self) -> list[Timed]:
        """Return the next rollout of every actor; raise what an actor raised."""
        found = [each.get() for each in self._queues]
        for each in found:
            if isinstance(each, BaseException):
                raise each
        return found  # type: ignore[return-value]

    def _run(
        self, number: int, actor: Actor, results: "queue.Queue[Timed | BaseException]"
    ) -> None:
        rollout = 0
        try:
            while True:
                began, version = time.perf_counter(), max(0, rollout - self._lag)
                with self._published:
                    while not self._closing and version not in self._policies:
                        self._published.wait()
                    if self._closing:
                        return
                    policy = self._policies[version]
                waited = time.perf_counter() - began
                with naming(number, len(self._actors)):
                    results.put(actor.collect(policy, version, waited=waited))
                rollout += 1
        except BaseException as error:
            results.put(error)

    def close(self) -> None:
        """Stop all threads, each after its step; those of Ray after their rollout.

        If a thread still waits after `CLOSING_SECONDS`, the processes of all actors here are ended.
        A simulator in this process cannot be; its thread then goes on until the step returns.
        """
        with self._published:
            self._closing = True
            self._published.notify_all()
        local = [actor for actor in self._actors if isinstance(actor, Actor)]
        for actor in local:
            actor.stopping = True
        deadline = time.monotonic() + CLOSING_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()) if local else None)
        if any(thread.is_alive() for thread in self._threads):
            for actor in local:
                actor.abandon()
            for thread in self._threads:
                thread.join(CLOSING_SECONDS)
