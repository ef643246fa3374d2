"""Draw initial weights of layers by other rules than the layers' own: `network.initialization`."""

import zlib
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax

from jaxppo.config.fields import ConfigError, check
from jaxppo.types import PyTree

Initializer = Callable[[jax.Array, tuple[int, ...], Any], jax.Array]

KINDS: dict[str, Initializer] = {
    "orthogonal": nn.initializers.orthogonal(),  # Saxe et al. 2014, arXiv 1312.6120
    "lecun_normal": nn.initializers.lecun_normal(),
    "lecun_uniform": nn.initializers.lecun_uniform(),
    "glorot_normal": nn.initializers.glorot_normal(),
    "glorot_uniform": nn.initializers.glorot_uniform(),
    "he_normal": nn.initializers.he_normal(),
    "he_uniform": nn.initializers.he_uniform(),
    "zeros": nn.initializers.zeros,
}


def initialize(rules: dict[str, Any], params: PyTree, key: jax.Array) -> PyTree:
    """Return `params` with new weights where a rule of `rules` says so.

    A rule is {kind, gain} for the weights below a path, such as actor_torso or actor_torso.Dense_0;
    the longest path that fits counts. Weights are the parameters called `kernel`.
    """

    def one(path: Any, x: jax.Array) -> jax.Array:
        name = _name(path)
        fits = [place for place in rules if name.startswith(f"{place}.")]
        if not fits or not name.endswith(".kernel"):
            return x
        rule = rules[max(fits, key=len)]
        kind, gain = rule.get("kind", "orthogonal"), rule.get("gain", 1.0)
        drawn = KINDS[kind](jax.random.fold_in(key, zlib.crc32(name.encode())), x.shape, x.dtype)
        return gain * drawn

    return jax.tree_util.tree_map_with_path(one, params) if rules else params


def check_initialization(rules: dict[str, Any], params: PyTree) -> None:
    """Raise `ConfigError` if a rule is wrong, or fits no weights of `params` (shapes)."""
    names = (_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params))
    parts = [name.split(".") for name in names if name.endswith(".kernel")]
    above = (".".join(steps[:n]) for steps in parts for n in range(1, len(steps)))
    places = list(dict.fromkeys(above))
    for place, rule in rules.items():
        key = f"network.initialization.{place}"
        if not isinstance(rule, dict) or set(rule) - {"kind", "gain"}:
            raise ConfigError(f"{key}={rule}: must hold kind, gain or both, such as {{gain: 0.01}}")
        check(f"{key}.kind", rule.get("kind", "orthogonal"), str, {"choices": tuple(KINDS)})
        check(f"{key}.gain", rule.get("gain", 1.0), float, {"low": 0})
        check(key, place, str, {"choices": places})


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")
