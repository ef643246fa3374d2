"""PPO in JAX, compiled end to end.

`python -m jaxppo.ff_ppo env=cartpole` trains, evaluates and reports; see README.md.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxppo.deploy.policy import load

__version__ = "0.1.0"
__all__ = ["load"]


def __getattr__(name: str) -> Any:
    if name == "load":  # lazy, since JAX takes a second to import
        from jaxppo.deploy.policy import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
