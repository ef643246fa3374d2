"""Choose microbatch sizes: on CPUs, so that activations stay in the cache."""

from functools import partial

import jax

from jaxppo.config.fields import ConfigError
from jaxppo.config.plan import Plan
from jaxppo.kernels.divisors import least_divisor, near_divisor
from jaxppo.kernels.platforms import forms
from jaxppo.runtime.programs import compile
from jaxppo.types import Environment, Network, zeros

# Of a microbatch by default: the products of fewer mostly wait for the layers' parameters
FEWEST_TRANSITIONS = 128


def count(size: int | None, plan: Plan, network: Network, env: Environment) -> tuple[int, int]:
    """Return the number of microbatches per minibatch, and of value chunks per rollout.

    Microbatches have at most `size` transitions, but at least one sequence. If `size` is None, both
    numbers follow from the machine's cache, but about 128 transitions or more stay together.
    Networks with memory are not split by default, since they compute one step at a time anyway.
    """
    gradient = value = 1
    cache = forms().cached_activations
    step = compile.unless_it_fails(lambda: step_bytes(network, env))
    if cache is not None and step is not None and not has_memory(network):
        num_batches = plan.members_per_device * plan.update_batch_size  # at once on one device
        # Per transition, of what a microbatch may hold
        share = min(num_batches * step / cache, 1 / FEWEST_TRANSITIONS)
        gradient = near_divisor(plan.minibatch_sequences, plan.minibatch_size * share)
        value = near_divisor(plan.rollout_length, plan.num_envs * plan.rollout_length * share)
    if size is not None:
        gradient = least_divisor(plan.minibatch_sequences, plan.minibatch_size / size)
        if plan.minibatch_size > size > 2 * plan.minibatch_size // gradient:
            raise ConfigError(
                f"system.microbatch_size={size}: {plan.minibatch_size:,} transitions of a "
                f"minibatch would be split into {gradient:,} microbatches of only "
                f"{plan.minibatch_size // gradient}, the largest equal parts that fit; set it to "
                "null, or change system.num_minibatches"
            )
    return gradient, value


def has_memory(network: Network) -> bool:
    """Return whether a network carries memory from step to step."""
    return bool(jax.tree.leaves(jax.eval_shape(partial(network.initial_carry, 1))))


def step_bytes(network: Network, env: Environment) -> int:
    """Return the bytes of activations per transition that the backward pass needs.

    They are the results of matrix products.
    """
    key = jax.random.key(0)
    params = jax.eval_shape(network.init, key)
    obs = jax.eval_shape(lambda: zeros(env.observation_space, (1, 1)))
    reset = jax.ShapeDtypeStruct((1, 1), bool)

    def unroll(params: object, obs: object, reset: jax.Array) -> object:
        return network.unroll(params, network.initial_carry(1), obs, reset)

    return compile.matmul_bytes(unroll, params, obs, reset)
