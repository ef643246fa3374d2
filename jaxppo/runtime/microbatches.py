"""How much of a batch is computed at a time: on CPUs, parts whose activations stay in the cache."""

import math
from functools import partial

import jax

from jaxppo.config.fields import ConfigError
from jaxppo.config.plan import Plan
from jaxppo.kernels.platforms import forms
from jaxppo.runtime import compile
from jaxppo.types import Environment, Network, zeros


def count(size: int | None, plan: Plan, network: Network, env: Environment) -> tuple[int, int]:
    """In how many equal parts a minibatch is differentiated, and a rollout valued along its time.

    Minibatches in parts of at most `size` transitions, or of one sequence; None: what suits the
    machine. Memories learn from all sequences at once, whose steps follow one another anyway.
    """
    gradient = value = 1
    cache = forms().cached_activations
    step = compile.unless_it_fails(lambda: step_bytes(network, env))
    if cache is not None and step is not None and not has_memory(network):
        side_by_side = plan.members_per_device * plan.update_batch_size  # batches of one device
        share = side_by_side * step / cache  # of the cache, that a transition takes
        gradient = near_divisor(plan.minibatch_sequences, plan.minibatch_size * share)
        value = near_divisor(plan.rollout_length, plan.num_envs * plan.rollout_length * share)
    if size is not None:
        gradient = least_divisor(plan.minibatch_sequences, plan.minibatch_size / size)
        if plan.minibatch_size > size > 2 * plan.minibatch_size // gradient:
            raise ConfigError(
                f"system.microbatch_size={size}: the only equal parts of at most that of a "
                f"minibatch of {plan.minibatch_size:,} transitions are {gradient:,} of "
                f"{plan.minibatch_size // gradient}; set it to null, or change "
                "system.num_minibatches"
            )
    return gradient, value


def near_divisor(number: int, wanted: float) -> int:
    """A divisor of `number`, about as many as `wanted`.

    The least that is not below it, or where that is more than twice as many (a prime has no
    other), the nearest in proportion: large parts cost a fifth of the speed, single rows all of
    it.
    """
    least = least_divisor(number, wanted)
    if least <= 2 * wanted or wanted <= 1:
        return least
    divisors = (n for n in range(1, number + 1) if number % n == 0)
    return min(divisors, key=lambda n: abs(math.log(n / wanted)))


def least_divisor(number: int, least: float) -> int:
    """The least divisor of `number` that is not below `least`; else `number`."""
    return next(n for n in range(1, number + 1) if number % n == 0 and n >= min(least, number))


def has_memory(network: Network) -> bool:
    """Whether it carries something from step to step."""
    return bool(jax.tree.leaves(jax.eval_shape(partial(network.initial_carry, 1))))


def step_bytes(network: Network, env: Environment) -> int:
    """Of activations that one transition leaves for the backward pass: results of products."""
    key = jax.random.key(0)
    params = jax.eval_shape(network.init, key)
    obs = jax.eval_shape(lambda: zeros(env.observation_space, (1, 1)))
    reset = jax.ShapeDtypeStruct((1, 1), bool)

    def unroll(params: object, obs: object, reset: jax.Array) -> object:
        return network.unroll(params, network.initial_carry(1), obs, reset)

    return compile.matmul_bytes(unroll, params, obs, reset)
