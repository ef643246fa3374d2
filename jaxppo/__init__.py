"""PPO in JAX, compiled end to end.

`python -m jaxppo.ff_ppo env=cartpole` trains, evaluates and reports; see README.md.
"""

__version__ = "0.1.0"
