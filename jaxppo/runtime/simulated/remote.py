"""Actors in processes of a Ray cluster. An actor that dies is replaced, and the run goes on."""

import contextlib
import dataclasses
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from jaxppo.config.fields import ConfigError
from jaxppo.config.messages import brief
from jaxppo.config.plan import Plan
from jaxppo.config.schema import Config
from jaxppo.runtime.hosts import devices
from jaxppo.runtime.programs import build
from jaxppo.runtime.programs.placement import Layout
from jaxppo.runtime.programs.population import members
from jaxppo.runtime.programs.start import training_shapes
from jaxppo.runtime.simulated.actor_programs import compile_actor
from jaxppo.runtime.simulated.actors import Actor, Timed
from jaxppo.simulators.faults import SimulatorError
from jaxppo.types import PyTree

ATTEMPTS = 3  # deaths in a row without a rollout, after which the run ends

_is_own = False  # whether this process started its cluster


class ClusterWarning(UserWarning):
    """A Ray cluster has fewer CPUs than actors. The message is one line."""


def connect(num_actors: int) -> None:
    """Join the cluster that RAY_ADDRESS names, or start one on this machine.

    `ClusterWarning` if the actors must wait for CPUs of a cluster that was joined.
    """
    global _is_own
    import ray

    if not ray.is_initialized():
        address = os.environ.get("RAY_ADDRESS") or "local"
        with _keep_handlers(), warnings.catch_warnings():
            # Ray's children run no Python code before exec
            warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
            quiet: Any = {"log_to_driver": False, "configure_logging": False}
            try:
                ray.init(address, logging_level="error", **quiet)
            except ConnectionError as error:
                raise ConfigError(
                    f"RAY_ADDRESS={address}: there is no Ray cluster ({brief(error)}); start one, "
                    "or unset it to use this machine"
                ) from error
        _is_own = address == "local"
    num_cpus = ray.cluster_resources().get("CPU", 0)
    if num_cpus < num_actors and not _is_own:
        warnings.warn(
            f"arch.actors={num_actors}: each takes a CPU of the Ray cluster, which has "
            f"{num_cpus:g}; the run waits until there are more",
            ClusterWarning,
            stacklevel=2,
        )


@contextlib.contextmanager
def _keep_handlers() -> Iterator[None]:
    """Restore this process's signal handlers: those of Ray end it before it saves."""
    is_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if is_main else ()
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: not installed from Python
                signal.signal(number, handler)


def hand_over(policy: PyTree) -> Any:
    """Put a policy where all actors of the cluster can read it."""
    import ray

    return ray.put(devices.host(policy))


class RemoteActor:
    """An `actors.Actor` in another process."""

    def __init__(self, config: Config, plan: Plan, number: int, seeds: np.ndarray) -> None:
        self._given = config, plan, number
        self._seeds, self._deaths = seeds, 0
        self._key: Any = None
        self._handle = self._make()
        self._restarts_before, self._restarts = 0, 0

    @property
    def restarts(self) -> int:
        """Return how many environments were made anew, those of a dead actor included."""
        return self._restarts_before + self._restarts

    def _make(self) -> Any:
        import ray

        path = os.pathsep.join(p for p in (os.getcwd(), os.environ.get("PYTHONPATH", "")) if p)
        variables = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": path}
        num_cpus = 0 if _is_own else 1  # actors share the cores of this machine, as threads do
        remote = ray.remote(num_cpus=num_cpus, runtime_env={"env_vars": variables})(_Host)
        return remote.remote(*self._given, self._seeds + self._deaths)

    def start(self, policy: Any, key: jax.Array) -> None:
        """Continue the streams of keys `[D, P, U]`, and the episodes that have begun."""
        self._key = devices.host(key)
        self._handle.start.remote(policy, self._key)

    def collect(
        self, policy: Any, version: int, key: jax.Array | None = None, waited: float = 0.0
    ) -> Timed:
        """Act for `T` steps with a policy that was handed over; `SimulatorError` as `Actor`."""
        import ray

        if key is not None:
            self.start(policy, key)
        cause = ""
        for _ in range(ATTEMPTS):
            try:
                timed, restarts = ray.get(self._handle.collect.remote(policy, version, waited))
                self._restarts, self._key = restarts, timed.rollout.memory.key
                memory = dataclasses.replace(
                    timed.rollout.memory,
                    key=jax.random.wrap_key_data(timed.rollout.memory.key),
                    keys=jax.random.wrap_key_data(timed.rollout.memory.keys),
                )
                rollout = dataclasses.replace(timed.rollout, memory=memory)
                return dataclasses.replace(timed, rollout=rollout)
            except ray.exceptions.RayActorError as error:
                cause = _last_line(error)
                if error.actor_init_failed:
                    raise SimulatorError(f"the process on Ray cannot start: {cause}") from error
                self._deaths += 1
                self._restarts_before += self._restarts + self._seeds.size
                self._restarts = 0
                self._handle = self._make()
                self._handle.start.remote(policy, self._key)
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, SimulatorError):
                    raise SimulatorError(str(error.cause)) from error
                raise
        raise SimulatorError(
            f"the process on Ray died {ATTEMPTS} times without a rollout; the last error: {cause}"
        )

    def close(self) -> None:
        """End the process."""
        import ray

        with contextlib.suppress(Exception):  # it may be dead
            ray.get(self._handle.close.remote(), timeout=5)
        ray.kill(self._handle)


class _Host:
    """What runs in the process of a `RemoteActor`."""

    def __init__(self, config: Config, plan: Plan, number: int, seeds: np.ndarray) -> None:
        system = build.build(config, plan)
        configs = members(config)
        layout = Layout(plan, system, tuple(range(len(configs))))
        state, *_ = training_shapes(layout, configs)
        compiled, _ = compile_actor(system, config, state, number)
        self._actor = Actor(system.env, system.rollout_length, compiled, seeds)

    def start(self, policy: PyTree, key: Any) -> None:
        self._actor.start(_with_keys(policy), jax.random.wrap_key_data(key))

    def collect(self, policy: PyTree, version: int, waited: float) -> tuple[Timed, int]:
        timed = self._actor.collect(_with_keys(policy), version, waited=waited)
        host = devices.host(timed.rollout)
        return dataclasses.replace(timed, rollout=host), self._actor.restarts

    def close(self) -> None:
        self._actor.close()


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__


def _with_keys(policy: Any) -> Any:
    if policy.noise_key is None:
        return policy
    return dataclasses.replace(policy, noise_key=jax.random.wrap_key_data(policy.noise_key))
