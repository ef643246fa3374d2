"""The interface between the spine and an algorithm."""

import abc
from typing import Any, ClassVar

import jax

from jaxppo.algorithms.metrics import NoMetrics
from jaxppo.algorithms.optimizers import find_optimizer
from jaxppo.config.fields import Static
from jaxppo.config.schema import NETWORK_LAYERS, Config, SystemConfig
from jaxppo.types import (
    ActorOutput,
    AgentState,
    Batch,
    Environment,
    Network,
    Policy,
    PolicyInfo,
    PyTree,
    Rollout,
    System,
)


class Algorithm(abc.ABC):
    """Acting, targets and loss of an algorithm, as pure functions of arrays.

    An algorithm is a subclass whose import path is `system.algorithm`. `Settings` declares its
    settings. Those made by `traced` are found in `agent.hyperparameters`, the others in
    `self.settings`.
    """

    Settings: ClassVar[type[SystemConfig]] = SystemConfig
    loss_metrics: ClassVar[type] = NoMetrics  # of `loss`
    target_metrics: ClassVar[type] = NoMetrics  # of `targets`
    finish_metrics: ClassVar[type] = NoMetrics  # of `finish`
    detail_metrics: ClassVar[type] = NoMetrics  # of `details`
    group_names: ClassVar[tuple[str, ...]] = ("network",)  # of optimisers
    layers: ClassVar[tuple[str, ...]] = NETWORK_LAYERS  # of config.network, that `build` reads

    stops_early: bool = False  # whether `stop` is called
    adapts: bool = False  # whether `adapt` is called
    weighs: bool = False  # whether steps that are not `alive` have no weight in the loss
    signs: bool = False  # whether `targets` read `Transition.sign`, of games with both seats

    def __init__(self, settings: SystemConfig, network: Network) -> None:
        self.settings = Static(settings)
        self.network = network
        self.optimizer = find_optimizer(settings)

    @classmethod
    def settings_type(cls, raw: dict[str, Any]) -> type[SystemConfig]:
        """Return the type of its settings, which may depend on the given settings `raw`."""
        del raw
        return cls.Settings

    @classmethod
    @abc.abstractmethod
    def build(cls, config: Config, env: Environment) -> "Algorithm":
        """Make the algorithm of a run; `ConfigError` if network and environment do not fit."""

    def init(self, key: jax.Array) -> PyTree:
        """Return initial parameters, a dict by part."""
        return self.network.init(key)

    def init_state(self) -> PyTree:
        """Return the initial `agent.algorithm_state`: what it keeps besides parameters."""
        return ()

    def groups(self, params: PyTree) -> dict[str, str]:
        """Return the optimiser group of each part of the parameters."""
        return dict.fromkeys(params, "network")

    def rates(self, agent: AgentState) -> dict[str, jax.Array]:
        """Return the learning rate of each optimiser group, before any decay."""
        return {"network": agent.hyperparameters.learning_rate}

    def exploration(self, hp: Any, update: jax.Array) -> PyTree:
        """Return `policy.exploration` at an update (0-based): numbers that sampling needs."""
        del hp, update
        return ()

    @abc.abstractmethod
    def act(self, policy: Policy, output: PyTree, key: jax.Array) -> ActorOutput:
        """Sample actions `[L, B, ...]` from the network's output `[L, B, ...]`."""

    @abc.abstractmethod
    def greedy(self, policy: Policy, output: PyTree) -> PyTree:
        """Return the greedy actions `[L, B, A...]`, as the environment takes them."""

    def describe(self, policy: Policy, output: PyTree, action: PyTree) -> PolicyInfo:
        """Return what led to raw actions `[L, B, A...]`, for recorded episodes and films.

        `action` is None if they were greedy. Fields that an algorithm leaves out are not recorded.
        """
        del policy, output, action
        return PolicyInfo()

    @abc.abstractmethod
    def targets(
        self, system: System, agent: AgentState, rollout: Rollout
    ) -> tuple[AgentState, Any, Any]:
        """Return the agent, the data that the loss needs for each step, and `target_metrics`.

        The second is a dataclass of arrays `[T, B, ...]` with fields `obs` and `reset`. The agent
        may have new statistics of targets.
        """

    def retarget(self, steps: Any, again: Any) -> Any:
        """Return `steps` with the targets of `again`, computed with newer parameters."""
        del steps
        return again

    def prepare(self, system: System, minibatch: Batch) -> Batch:
        """Prepare a minibatch for the loss, before it is split into microbatches."""
        del system
        return minibatch

    @abc.abstractmethod
    def loss(
        self, system: System, agent: AgentState, params: PyTree, minibatch: Batch
    ) -> tuple[jax.Array, Any]:
        """Return the loss, a mean over a minibatch `[L, M]`, and `loss_metrics`."""

    def details(self, system: System, agent: AgentState, batch: Batch) -> Any:
        """Return `detail_metrics` of the agent after the epochs on `batch` `[L, S]`.

        Called with `logger.details=true`. The batch has no steps of `burn_in`.
        """
        del system, agent, batch
        return self.detail_metrics()

    def stop(self, agent: AgentState, metrics: Any) -> jax.Array:
        """Return whether a minibatch with these `loss_metrics` ends the update's epochs."""
        raise NotImplementedError

    def adapt(self, agent: AgentState, metrics: Any) -> AgentState:
        """Return the agent that takes the gradient step with these `loss_metrics`."""
        raise NotImplementedError

    def finish(self, system: System, agent: AgentState, batch: Batch) -> tuple[AgentState, Any]:
        """Return the agent after all epochs, and `finish_metrics`."""
        del system, batch
        return agent, NoMetrics()
