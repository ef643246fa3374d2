"""The seam: what the spine asks of an algorithm."""

from typing import Any, ClassVar

import jax

from jaxppo.algorithms.metrics import NoMetrics
from jaxppo.config.fields import Static
from jaxppo.config.schema import Config, SystemConfig
from jaxppo.types import (
    Acted,
    AgentState,
    Batch,
    Environment,
    Hyperparameters,
    Network,
    Policy,
    PyTree,
    Rollout,
    System,
)


class Algorithm:
    """How to act, what to aim at, what to minimise: pure functions of arrays.

    A class of its own extends this one and is named by `system.algorithm`. `Settings` declares its
    settings; those made by `traced` are `agent.hyperparameters`, the others `self.settings`.
    """

    Settings: ClassVar[type[SystemConfig]] = SystemConfig
    loss_metrics: ClassVar[type] = NoMetrics  # of `loss`
    target_metrics: ClassVar[type] = NoMetrics  # of `targets`
    finish_metrics: ClassVar[type] = NoMetrics  # of `finish`
    group_names: ClassVar[tuple[str, ...]] = ("network",)  # of optimisers

    def __init__(self, settings: SystemConfig, network: Network) -> None:
        self.settings = Static(settings)
        self.network = network
        self.stops_early = False  # whether `stop` is asked

    @classmethod
    def settings_type(cls, raw: dict[str, Any]) -> type[SystemConfig]:
        """The type of its settings, which may depend on those given."""
        del raw
        return cls.Settings

    @classmethod
    def build(cls, config: Config, env: Environment) -> "Algorithm":
        """The algorithm of a run; `ConfigError` where network and environment do not fit."""
        raise NotImplementedError

    def init(self, key: jax.Array) -> PyTree:
        """Parameters, a dict by part."""
        return self.network.init(key)

    def init_state(self) -> PyTree:
        """What it keeps from update to update beside parameters: `agent.algorithm`."""
        return ()

    def groups(self, params: PyTree) -> dict[str, str]:
        """The optimiser group of each part of the parameters."""
        return dict.fromkeys(params, "network")

    def rates(self, hp: Hyperparameters) -> dict[str, jax.Array]:
        """The learning rate of each optimiser group, before any decay."""
        return {"network": hp.learning_rate}

    def act(self, policy: Policy, output: PyTree, key: jax.Array) -> Acted:
        """Draw actions `[L, B, ...]` from the network's output at as many steps."""
        raise NotImplementedError

    def greedy(self, policy: Policy, output: PyTree) -> PyTree:
        """What the environment takes for the best action, `[L, B, A...]`."""
        raise NotImplementedError

    def targets(
        self, system: System, agent: AgentState, rollout: Rollout
    ) -> tuple[AgentState, Any, Any]:
        """What the loss reads of each step, a dataclass `[T, B, ...]`, and `target_metrics`.

        Also the agent, whose statistics of targets may have moved.
        """
        raise NotImplementedError

    def retarget(self, steps: Any, again: Any) -> Any:
        """The steps of a batch where `targets` gave others `again`, by moved parameters."""
        del steps
        return again

    def prepare(self, system: System, minibatch: Batch) -> Batch:
        """A minibatch as the loss takes it, before it is cut into microbatches."""
        del system
        return minibatch

    def loss(
        self, system: System, agent: AgentState, params: PyTree, minibatch: Batch
    ) -> tuple[jax.Array, Any]:
        """The scalar to minimise, averaged over a minibatch `[L, M]`, and `loss_metrics`."""
        raise NotImplementedError

    def stop(self, agent: AgentState, metrics: Any) -> jax.Array:
        """Whether a minibatch with these `loss_metrics` ends the epochs of the update, a bool."""
        raise NotImplementedError

    def finish(self, system: System, agent: AgentState, batch: Batch) -> tuple[AgentState, Any]:
        """The agent after all epochs, and `finish_metrics`."""
        del system, batch
        return agent, NoMetrics()
