"""PPO in JAX, compiled end to end.

`python -m jaxppo.ff_ppo env=cartpole` trains, evaluates and reports; see README.md.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"
__all__ = [
    "Block",
    "CheckpointError",
    "ConfigError",
    "Result",
    "TrainingError",
    "compose",
    "load",
    "make_train",
    "rollouts",
    "train",
]

if TYPE_CHECKING:  # a checker does not see __getattr__, which would take any name
    from jaxppo.api import compose, make_train, rollouts, train
    from jaxppo.config.fields import ConfigError
    from jaxppo.deploy.policy import load
    from jaxppo.deploy.result import Block, Result
    from jaxppo.runtime.run.jobs import TrainingError
    from jaxppo.runtime.store.checkpoint import CheckpointError
else:

    def __getattr__(name: str) -> Any:
        if name in __all__:  # lazy, since JAX takes a second to import
            from importlib import import_module

            home = "jaxppo.deploy.policy" if name == "load" else "jaxppo.api"
            return getattr(import_module(home), name)
        from jaxppo.__main__ import NAMES

        more = f"; python -m {__name__}.{name} is a command" if name in NAMES else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{more}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
