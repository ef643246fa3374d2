"""Config -> System, and the first state of a run."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxppo import devices, envs
from jaxppo.config import Config, ConfigError, NetworkConfig, Plan
from jaxppo.learner import BATCH_AXIS, init_acting, init_agent
from jaxppo.networks import heads
from jaxppo.networks.actor_critic import FeedForward, Network
from jaxppo.types import (
    ActorCritic,
    Environment,
    Hyperparameters,
    LearnerState,
    System,
)


def build(config: Config, plan: Plan) -> System:
    """The static part of a run; `ConfigError` where environment and network do not fit."""
    env = envs.make(config.env)
    max_eval_steps = config.arch.max_eval_steps or env.time_limit
    if max_eval_steps is None:
        raise ConfigError(
            f"arch.max_eval_steps=null: {env.name} has no time limit, so evaluation might not end; "
            "set it to a number of steps"
        )
    system = config.system
    return System(
        env=env,
        actor_critic=build_actor_critic(config.network, env),
        num_envs=plan.num_envs,
        rollout_length=plan.rollout_length,
        sequence_length=1,
        epochs=system.epochs,
        num_minibatches=system.num_minibatches,
        standardize_advantages=system.standardize_advantages,
        normalize_observations=system.normalize_observations,
        clip_value_loss=system.clip_value_loss,
        evaluation_greedy=config.arch.evaluation_greedy,
        max_eval_steps=max_eval_steps,
        axes=(BATCH_AXIS, devices.AXIS),
    )


def build_actor_critic(config: NetworkConfig, env: Environment) -> ActorCritic:
    """Compose the layers of `config` for the spaces of `env`, and check that they take them."""
    from flax.linen import Sequential

    def layers(*names: str, **arguments: Any) -> Sequential:
        settings = [(name, getattr(config, name)) for name in names]
        return Sequential([_layer(name, s, **arguments.get(name, {})) for name, s in settings if s])

    for name in ("input_layer", "critic_head"):
        if not getattr(config, name):
            raise ConfigError(
                f"network.{name}=null: every network needs one; see configs/network/mlp.yaml"
            )
    actor_head = config.actor_head or {"_target_": f"{heads.__name__}.follow"}
    network = Network(
        shared=layers("input_layer", "shared_torso"),
        actor=Sequential(
            [
                *layers("actor_torso").layers,
                _layer("actor_head", actor_head, action_space=env.action_space),
            ]
        ),
        critic=layers("critic_torso", "critic_head"),
    )
    actor_critic = FeedForward(network, env.observation_space)

    def try_out(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        params = actor_critic.init(key)
        _, obs = env.reset(key[None])
        obs = jax.tree.map(lambda x: x[None], obs)
        _, distribution, value = actor_critic.unroll(params, (), obs, jnp.ones((1, 1), bool))
        return distribution.sample_and_log_prob(seed=key)[1], value

    try:
        log_prob, value = jax.eval_shape(try_out, jax.random.key(0))
    except Exception as error:  # a user's layer may raise anything on shapes it does not take
        raise ConfigError(
            f"network: does not take the observation {env.observation_space} of {env.name}: "
            f"{_brief(error)}; choose a network.input_layer that does"
        ) from error
    for name, output in (("actor_head", log_prob), ("critic_head", value)):
        if output.shape != (1, 1):
            raise ConfigError(
                f"network.{name}: gives shape {output.shape} where one number a step is needed; "
                "choose a head that does"
            )
    return actor_critic


def _layer(name: str, settings: dict[str, Any], **arguments: Any) -> Any:
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate

    if "_target_" not in settings:
        raise ConfigError(
            f"network.{name}: has no _target_, the import path of a layer; see configs/network"
        )
    try:
        layer = instantiate({"_convert_": "all", "_partial_": True, **settings})
        return layer(**arguments)
    except (InstantiationException, TypeError, ValueError) as error:
        raise ConfigError(
            f"network.{name} ({settings['_target_']}): {_brief(error.__cause__ or error)}"
        ) from error


def _brief(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2]) or type(error).__name__


def hyperparameters(config: Config, plan: Plan) -> Hyperparameters:
    """The traced numbers of a run."""
    names = [name for name in Hyperparameters.__dataclass_fields__ if name != "num_updates"]
    return Hyperparameters(
        **{name: jnp.asarray(getattr(config.system, name), jnp.float32) for name in names},
        num_updates=jnp.asarray(plan.num_updates, jnp.int32),
    )


def random_streams(seed: int) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Keys of the agent's initialisation, acting, evaluations and the absolute metric."""
    agent, acting, evaluation, absolute = jax.random.split(jax.random.key(seed), 4)
    return agent, acting, evaluation, absolute


def init(system: System, config: Config, plan: Plan) -> LearnerState:
    """The first state: agent `[D, ...]` equal everywhere, acting `[D, U, ...]` each its own."""
    agent_key, acting_key, _, _ = random_streams(config.arch.seed)
    grid = (plan.num_devices, plan.update_batch_size)

    @jax.jit
    def start(hp: Hyperparameters) -> LearnerState:
        acting = jax.vmap(jax.vmap(partial(init_acting, system)))(
            jax.random.split(acting_key, grid)
        )
        return LearnerState(agent=init_agent(system, hp, agent_key), acting=acting)

    state = jax.tree.map(_strong, start(hyperparameters(config, plan)))
    local = jax.local_devices()[: plan.num_devices]
    return LearnerState(
        agent=devices.replicate(state.agent, local), acting=devices.shard(state.acting, local)
    )


def _strong(x: jax.Array) -> jax.Array:
    """Without JAX's weak type, which the program's own outputs do not have."""
    return jax.lax.convert_element_type(x, x.dtype)
