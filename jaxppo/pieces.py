"""How much of a batch is computed at a time: on CPUs, parts whose activations stay in the cache."""

from functools import partial

import jax

from jaxppo import compile
from jaxppo.config import Plan
from jaxppo.types import ActorCritic, Environment, zeros

CACHED = 12_000_000  # bytes of activations; benchmarks/speed.py times more and fewer


def gradient_pieces(
    chunk: int | None, plan: Plan, actor_critic: ActorCritic, env: Environment
) -> int:
    """In how many equal parts a minibatch is differentiated.

    Of at most `chunk` transitions each, or of one sequence; None: what suits the machine. Memories
    learn from all sequences at once, whose steps follow one another anyway.
    """
    if chunk is not None:
        return least_divisor(plan.minibatch_sequences, plan.minibatch_size / chunk)
    if has_memory(actor_critic) or jax.default_backend() != "cpu":
        return 1
    size = plan.minibatch_size * _parallel(plan) * step_bytes(actor_critic, env)
    return least_divisor(plan.minibatch_sequences, size / CACHED)


def value_pieces(plan: Plan, actor_critic: ActorCritic, env: Environment) -> int:
    """In how many equal parts of its time a rollout is valued."""
    if has_memory(actor_critic) or jax.default_backend() != "cpu":
        return 1
    size = plan.num_envs * plan.rollout_length * _parallel(plan) * step_bytes(actor_critic, env)
    return least_divisor(plan.rollout_length, size / CACHED)


def least_divisor(number: int, least: float) -> int:
    """The least divisor of `number` that is not below `least`; else `number`."""
    return next(n for n in range(1, number + 1) if number % n == 0 and n >= min(least, number))


def has_memory(actor_critic: ActorCritic) -> bool:
    """Whether it carries something from step to step."""
    return bool(jax.tree.leaves(jax.eval_shape(partial(actor_critic.initial_carry, 1))))


def step_bytes(actor_critic: ActorCritic, env: Environment) -> int:
    """Of activations that one transition leaves for the backward pass: results of products."""
    key = jax.random.key(0)
    params = jax.eval_shape(actor_critic.init, key)
    obs = jax.eval_shape(lambda: zeros(env.observation_space, (1, 1)))
    reset = jax.ShapeDtypeStruct((1, 1), bool)

    def unroll(params: object, obs: object, reset: jax.Array) -> object:
        return actor_critic.unroll(params, actor_critic.initial_carry(1), obs, reset)

    return compile.matmul_bytes(unroll, params, obs, reset)


def _parallel(plan: Plan) -> int:
    """How many batches one device computes side by side."""
    return plan.members_per_device * plan.update_batch_size
