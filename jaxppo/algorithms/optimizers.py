"""Gradient clipping, optimisers and learning rates for the parameter groups of an algorithm."""

from collections.abc import Callable
from functools import partial, reduce

import jax
import jax.numpy as jnp
import optax

from jaxppo.kernels.reductions import norm
from jaxppo.types import Hyperparameters, PyTree, System

# Adam: Kingma and Ba 2015 (arXiv 1412.6980); RAdam: Liu et al. 2020 (arXiv 1908.03265)
OPTIMIZERS: dict[str, Callable[[], optax.GradientTransformation]] = {
    "adam": partial(optax.scale_by_adam, eps=1e-5),
    "radam": optax.scale_by_radam,
}


def optimizer(
    system: System, hyperparameters: Hyperparameters, update: jax.Array
) -> optax.GradientTransformation:
    """Return the algorithm's optimiser after clipping by global norm.

    Each group has its own norm unless `clip_together` is set: with one norm, a critic with large
    errors (returns in the hundreds) shrinks the gradient of the actor. Learning rates are those of
    `update` (0-based) and constant within it.
    """
    hp = hyperparameters
    clip = clip_by_global_norm(hp.max_grad_norm)

    def group(rate: jax.Array) -> optax.GradientTransformation:
        adapt = OPTIMIZERS[system.algorithm.optimizer]()
        scale = optax.scale_by_learning_rate(learning_rate(hp, rate, update))
        steps = (adapt, scale) if system.clip_together else (clip, adapt, scale)
        return optax.chain(*steps)

    rates = system.algorithm.rates(hp)
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


def learning_rate(hp: Hyperparameters, rate: jax.Array, update: jax.Array) -> jax.Array:
    """Return `rate` at an update (0-based); with `decay_learning_rates` it falls to zero."""
    left = (hp.num_updates - update).astype(jnp.float32) / hp.num_updates.astype(jnp.float32)
    return rate * jnp.where(hp.decay_learning_rates > 0, jnp.maximum(left, 0.0), 1.0)


def gradient_norms(
    system: System, hyperparameters: Hyperparameters, gradients: PyTree
) -> dict[str, jax.Array]:
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
