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
from jaxppo.runtime.simulated.resident import observed
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
    devices: Sequence[jax.Device]  # on which these run


class Actor:
    """Collects rollouts in `N` environments, in the order `[D, P, U, B]`."""

    def __init__(
        self,
        env: Any,  # envs.simulated.Simulated
        rollout_length: int,
        programs: ActorPrograms,
        seeds: np.ndarray,  # [D, P, U, B] int64
    ) -> None:
        shape: Any = seeds.shape
        self._env, self._shape, self._length = env, shape, rollout_length
        self._programs = programs
        self.simulators: Any = env.make(seeds.size)
        try:
            self.simulators.reset(np.arange(seeds.size), seeds.reshape(-1))
        except BaseException:
            self.close()
            raise
        leaves = env.observation_leaves
        self._seen: Any = observed(self.simulators, leaves, shape, programs.devices)
        self._reset = np.ones(shape, bool)
        self._memory: PyTree = None
        self.stopping = False  # another thread asks `collect` to raise `SimulatorError`
        self._place = devices.sharding(programs.devices)
        self._home = devices.sharding(devices.of_run(shape[0]))
        self._steps = [
            jax.device_put(np.full(shape[0], step, np.int32), self._place)
            for step in range(rollout_length)
        ]

    @property
    def restarts(self) -> int:
        """Return how many environments were made anew after a fault."""
        return self.simulators.restarts

    def start(self, policy: PyTree, key: jax.Array) -> None:
        """Continue the streams of keys `[D, P, U]`, and the episodes that have begun."""
        policy, key = jax.device_put((policy, key), self._place)
        if self._memory is None:
            self._memory = self._programs.init(policy, key)
        else:
            self._memory = dataclasses.replace(self._memory, key=key)

    def collect(
        self, policy: PyTree, version: int, key: jax.Array | None = None, waited: float = 0.0
    ) -> Timed:
        """Act for `T` steps with a policy; a `key` replaces the stream."""
        arrays, acting, stepping = self.simulators.arrays, 0.0, 0.0
        results = arrays.reward, arrays.terminated, arrays.truncated, arrays.alive
        results = *results, *arrays.metrics.values()
        lead = *self._shape[:3], self._length, self._shape[3]
        flags = [np.empty(lead, x.dtype) for x in results]
        if key is not None:
            self.start(policy, key)
        policy = jax.device_put(policy, self._place)
        memory = self._programs.begin(self._memory)  # a copy, which `act` overwrites
        first: dict[str, Any] = {"obs": self._env.observation(self._seen.obs), "reset": self._reset}
        for step, placed in enumerate(self._steps):
            if self.stopping:
                raise SimulatorError("was stopped")
            began = time.perf_counter()
            tree = self._env.observation(self._seen.obs)
            memory, action = self._programs.act(policy, memory, tree, self._reset, placed)
            parts = [np.asarray(x) for x in jax.tree.leaves(action)]
            acted = time.perf_counter()
            self.simulators.step([x.reshape(-1, *x.shape[4:]) for x in parts])
            self._seen.take()
            for into, x in zip(flags, results, strict=True):
                into[:, :, :, step] = x.reshape(self._shape)
            self._reset = flags[1][:, :, :, step] | flags[2][:, :, :, step]
            acting += acted - began
            stepping += time.perf_counter() - acted
        self._memory = memory
        obs, final = self._seen.rollout()
        alive: Any = flags[3] if self._env.pads else None
        steps = TimeStep(
            obs=self._env.observation(obs),
            final_observation=self._env.observation(final),
            metrics=dict[str, Any](zip(arrays.metrics, flags[4:], strict=True)),
            **dict[str, Any](zip(("reward", "terminated", "truncated"), flags[:3], strict=True)),
            alive=alive,
        )
        memory = jax.device_put(memory, self._home)
        rollout = Collected(**first, steps=steps, memory=memory)
        return Timed(rollout, version, acting, stepping, waited)

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


# What actors have put there: the number of each, and its rollout or what it raised
Results = queue.Queue[tuple[int, Timed | BaseException]]


class Threads:
    """Actors in threads of their own, which collect while the learner learns.

    Rollout `r` of every actor is collected with the policy after `max(0, r - lag)` updates, however
    fast any of them is: the same seed gives the same numbers.
    """

    def __init__(self, actors: Sequence[Any], lag: int) -> None:
        self._actors, self._lag = actors, lag
        self._policies: dict[int, PyTree] = {}
        self._changed = threading.Condition()  # of policies, of results taken, of closing
        self._closing = False
        self._queues: list[Results] = [queue.Queue() for _ in actors]  # by actor
        self._threads = [
            threading.Thread(target=self._run, args=(number, actor), daemon=True, name="actor")
            for number, actor in enumerate(actors)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def publish(self, version: int, policy: PyTree) -> None:
        """Hand out the policy after `version` updates."""
        with self._changed:
            self._policies[version] = policy
            self._policies.pop(version - self._lag - 1, None)
            self._changed.notify_all()

    def get(self) -> Iterator[tuple[int, Timed]]:
        """Yield the next rollout of every actor, with its number; raise what an actor raised."""
        yield from map(_take, self._queues)

    def _choose(self, rollout: int) -> int | None:
        """Return the version of the policy that collects, None if it is not there yet."""
        version = max(0, rollout - self._lag)
        return version if version in self._policies else None

    def _run(self, number: int, actor: Actor) -> None:
        rollout = 0
        try:
            while True:
                began = time.perf_counter()
                with self._changed:
                    version = self._choose(rollout)
                    while version is None and not self._closing:
                        self._changed.wait()
                        version = self._choose(rollout)
                    if version is None or self._closing:
                        return
                    policy = self._policies[version]
                waited = time.perf_counter() - began
                with naming(number, len(self._actors)):
                    found = actor.collect(policy, version, waited=waited)
                self._queues[number].put((number, found))
                rollout += 1
        except BaseException as error:
            self._queues[number].put((number, error))

    def close(self) -> None:
        """Stop all threads, each after its step; those of Ray after their rollout.

        If a thread still waits after `CLOSING_SECONDS`, the processes of all actors here are ended.
        A simulator in this process cannot be; its thread then goes on until the step returns.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
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


class Racing(Threads):
    """Actors that do not wait for one another: the learner takes what is ready first.

    Each rollout uses the newest policy when it starts, so the rollouts of an update depend on the
    speed of the actors. An actor waits while as many rollouts are ready as an
    update takes.
    """

    def __init__(self, actors: Sequence[Any], lag: int, num_taken: int) -> None:
        super().__init__(actors, lag)
        self._num_taken = num_taken
        self._queues = [queue.Queue()] * len(actors)  # one for all

    def get(self) -> Iterator[tuple[int, Timed]]:
        """Yield rollouts as they come, with the numbers of their actors, without end."""
        while True:
            taken = _take(self._queues[0])
            with self._changed:
                self._changed.notify_all()
            yield taken

    def _choose(self, rollout: int) -> int | None:
        del rollout
        full = self._queues[0].qsize() >= self._num_taken
        return None if full or not self._policies else max(self._policies)


def _take(results: Results) -> tuple[int, Timed]:
    """Return the next rollout in a queue, with its actor; raise what that actor raised."""
    number, found = results.get()
    if isinstance(found, BaseException):
        raise found
    return number, found
