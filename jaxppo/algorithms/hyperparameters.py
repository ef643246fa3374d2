"""The traced settings that all algorithms share, in an agent."""

from jaxppo.config.schema import SystemNumbers
from jaxppo.types import Hyperparameters


class SystemHyperparameters(Hyperparameters, SystemNumbers):
    """The traced settings of `SystemConfig`: scalars, or `[P]` for members."""
