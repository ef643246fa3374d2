"""Gradient clipping, optimisers and learning rates for the parameter groups of an algorithm."""

import math
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxppo.config.fields import ConfigError
from jaxppo.config.importing import imported
from jaxppo.config.messages import raised
from jaxppo.config.schema import OPTIMIZERS, SystemConfig
from jaxppo.kernels.reductions import norm
from jaxppo.types import AgentState, PyTree, System


def scale_by_radam(
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    threshold: float = 5.0,
    *,
    nesterov: bool = False,
) -> optax.GradientTransformation:
    """Return RAdam: Liu et al. 2020 (arXiv 1908.03265), algorithm 2. State and names are optax's.

    The length rho_t of the moving average is 1 - 2 phi(u) + 2 t phi(t u) with u = -log(b2) and
    phi(x) = 1/x - 1/(e^x - 1). The paper's form is a difference of numbers near 2 / (1 - b2): in
    float32, as optax computes it, the first rectified steps are 0.6% off, with b2=0.9999 58%.
    """
    adam = optax.scale_by_adam(b1, b2, eps, eps_root, nesterov=nesterov)
    u, longest = -math.log(b2), 2.0 / (1.0 - b2) - 1.0

    def phi(x: jax.Array) -> jax.Array:
        square = x * x  # its series up to x^7, exact in float32 below 1
        series = 0.5 - x * (
            1 / 12 - square * (1 / 720 - square * (1 / 30_240 - square / 1_209_600))
        )
        return jnp.where(x < 1.0, series, 1.0 / x - 1.0 / jnp.expm1(x))

    def update(gradients: PyTree, state: Any, params: PyTree = None) -> tuple[PyTree, Any]:
        steps, state = adam.update(gradients, state, params)
        t = state.count.astype(jnp.float32)
        length = 1.0 - 2.0 * phi(jnp.float32(u)) + 2.0 * t * phi(t * u)
        rectified = (length - 4.0) * (length - 2.0) / length
        rectified *= longest / ((longest - 4.0) * (longest - 2.0))

        def one(step: jax.Array, square: jax.Array) -> jax.Array:
            size = jnp.sqrt(square + eps_root) + eps  # times it, Adam's step is the momentum alone
            return step * jnp.where(length >= threshold, jnp.sqrt(rectified), size)

        squares = optax.tree.bias_correction(state.nu, b2, state.count)
        return jax.tree.map(one, steps, squares), state

    return optax.GradientTransformation(adam.init, update)


# These two in parts, so that checkpoints keep the form of their optimiser state
SCALED: dict[str, Callable[..., optax.GradientTransformation]] = {
    "adam": partial(optax.scale_by_adam, eps=1e-5),
    "radam": scale_by_radam,
}


def find_optimizer(settings: SystemConfig) -> Callable[[jax.Array, Any], tuple[Any, ...]]:
    """Return the function that maps a learning rate and hyperparameters to the transformations.

    `ConfigError` if `system.optimizer` is no function of a learning rate that gives an
    `optax.GradientTransformation`, or does not take `system.optimizer_kwargs`.
    """
    name, numbers = settings.optimizer, settings.adam_numbers()

    def kwargs_of(hp: Any) -> dict[str, Any]:
        return {**settings.optimizer_kwargs, **{x: getattr(hp, f"adam_{x}") for x in numbers}}

    def of_scale(rate: jax.Array, hp: Any) -> tuple[Any, ...]:
        return SCALED[name](**kwargs_of(hp)), optax.scale_by_learning_rate(rate)

    def of_rate(rate: jax.Array, hp: Any) -> tuple[Any, ...]:
        return (make(learning_rate=rate, **kwargs_of(hp)),)

    if name in SCALED:
        found = of_scale
    else:
        path = OPTIMIZERS.get(name, name)
        make, found = imported("system.optimizer", path, "function", OPTIMIZERS), of_rate

    def step(rate: jax.Array) -> PyTree:
        params = {"weight": jnp.zeros((2, 2)), "bias": jnp.zeros(2)}
        transform = optax.chain(*found(rate, settings))
        return transform.update(params, transform.init(params), params)

    try:
        jax.eval_shape(step, jax.ShapeDtypeStruct((), jnp.float32))
    except Exception as error:  # a user's function may raise anything
        raise ConfigError(
            f"system.optimizer={name}: called with learning_rate and "
            f"system.optimizer_kwargs={settings.optimizer_kwargs}, raises {raised(error)}; it must "
            "give an optax.GradientTransformation, whose update takes gradients, state and "
            "parameters"
        ) from error
    return found


def optimizer(system: System, agent: AgentState) -> optax.GradientTransformation:
    """Return the algorithm's optimiser after clipping by global norm.

    Each group has its own norm unless `clip_together` is set: with one norm, a critic with large
    errors (returns in the hundreds) shrinks the gradient of the actor. Learning rates are those of
    `agent.update` (0-based).
    """
    hp = agent.hyperparameters
    clip = clip_by_global_norm(hp.max_grad_norm)

    def group(rate: jax.Array) -> optax.GradientTransformation:
        steps = system.algorithm.optimizer(learning_rate(hp, rate, agent.update), hp)
        return optax.chain(*steps) if system.clip_together else optax.chain(clip, *steps)

    rates = system.algorithm.rates(agent)
    groups = optax.partition(
        {name: group(rate) for name, rate in rates.items()}, system.algorithm.groups
    )
    return optax.chain(clip, groups) if system.clip_together else groups


def clip_by_global_norm(limit: jax.Array) -> optax.GradientTransformation:
    """`optax.clip_by_global_norm` with the norm of `reductions`."""

    def clip(gradients: PyTree, _: PyTree) -> PyTree:
        whole = norm(gradients)
        return jax.tree.map(lambda x: jnp.where(whole < limit, x, x / whole * limit), gradients)

    return optax.stateless(clip)


def learning_rate(hp: Any, rate: jax.Array, update: jax.Array) -> jax.Array:
    """Return `rate` at an update (0-based); with `decay_learning_rates` it falls to zero."""
    left = (hp.num_updates - update).astype(jnp.float32) / hp.num_updates.astype(jnp.float32)
    return rate * jnp.where(hp.decay_learning_rates > 0, jnp.maximum(left, 0.0), 1.0)


def greatest_second_moment(opt_state: PyTree) -> jax.Array:
    """Return the greatest running mean of squared gradients, `nu` of optax's states; 0 without."""
    found = [
        jnp.max(x)
        for path, x in jax.tree.leaves_with_path(opt_state)
        if any(getattr(key, "name", None) == "nu" for key in path)
    ]
    return reduce(jnp.maximum, found, jnp.zeros((), jnp.float32))


def gradient_norms(system: System, hyperparameters: Any, gradients: PyTree) -> dict[str, jax.Array]:
    """Return the global norm of each group's gradient before and after clipping."""
    labels = system.algorithm.groups(gradients)
    names = system.algorithm.group_names
    norms = {
        name: norm({part: x for part, x in gradients.items() if labels[part] == name})
        for name in names
    }
    limit = hyperparameters.max_grad_norm
    if system.clip_together:
        whole = reduce(jnp.hypot, norms.values())
        share = jnp.minimum(1.0, limit / jnp.maximum(whole, 1e-30))
        clipped = {name: norm * share for name, norm in norms.items()}
    else:
        clipped = {name: jnp.minimum(norm, limit) for name, norm in norms.items()}
    return {
        **{f"{name}_gradient_norm": norm for name, norm in norms.items()},
        **{f"{name}_gradient_norm_clipped": norm for name, norm in clipped.items()},
    }
