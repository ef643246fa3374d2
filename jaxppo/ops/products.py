"""Products of distributions over the parts of an action, by distrax."""

from __future__ import annotations

import distrax
import jax

from jaxppo.ops.actions import is_distribution, to_action
from jaxppo.ops.distributions import Distribution
from jaxppo.types import PyTree

distrax.Distribution.register(Distribution)  # distrax then takes ours as parts


class Product(distrax.Joint):  # type: ignore[misc]
    """The distribution of `distributions.product`."""

    def tree_flatten(self) -> tuple[tuple[PyTree], None]:
        """Return the parts once; distrax stores them twice."""
        return (self.distributions,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[PyTree]) -> Product:
        """Invert `tree_flatten`."""
        self = object.__new__(cls)
        self._distributions = children[0]
        self._distributions_leaves, self._distributions_treedef = jax.tree.flatten(
            children[0], is_leaf=is_distribution
        )
        return self

    def to_action(self, value: PyTree) -> PyTree:
        """Map each part's value to its action."""
        return jax.tree.map(to_action, self.distributions, value, is_leaf=is_distribution)
