"""Train with a flax module of your own, given as an object.

`network` takes modules by their place in the actor-critic. A torso is any module from features
`[..., F]` to features `[..., G]`; see docs/networks.md for the places and what else they take.
"""

import flax.linen as nn
import jax

import jaxppo


class Residual(nn.Module):
    """Residual blocks: x + y, where y is a layer norm and two dense layers applied to x."""

    size: int = 32
    num_blocks: int = 2

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `[..., F]` to `[..., size]`."""
        x = nn.Dense(self.size)(x)
        for _ in range(self.num_blocks):
            y = nn.silu(nn.Dense(self.size)(nn.LayerNorm()(x)))
            x = x + nn.Dense(self.size)(y)
        return x


result = jaxppo.train(
    [
        "env=cartpole",
        "arch.total_timesteps=6e4",
        "arch.total_num_envs=32",
        "arch.num_evaluation=5",
        "arch.compiler=quick",  # compiles faster and runs slower: for runs of seconds
        "system.num_minibatches=4",
        "system.gae_lambda=0.95",
    ],
    network={"actor_torso": Residual(num_blocks=3), "critic_torso": Residual()},
)
for place, parameters in result.policy.policy.params.items():
    numbers = sum(leaf.size for leaf in jax.tree.leaves(parameters))
    print(f"{place}: {numbers:,} parameters")
print(f"absolute metric: {result.absolute_metric:.1f}")
