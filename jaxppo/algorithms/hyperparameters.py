"""The traced settings that all algorithms share, in an agent."""

from typing import TYPE_CHECKING

from jaxppo.types import Hyperparameters

if TYPE_CHECKING:  # names and types alone: their defaults must not stand in for an agent's numbers
    from jaxppo.config.schema import SystemNumbers
else:
    SystemNumbers = object


class SystemHyperparameters(Hyperparameters, SystemNumbers):
    """The traced settings of `SystemConfig`: scalars, or `[P]` for members."""
