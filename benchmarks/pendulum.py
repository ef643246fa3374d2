"""The best mean return of Pendulum-v1, up to a grid, by dynamic programming: a minute on a CPU.

    python -m benchmarks.pendulum

Values of a grid of states are computed backwards over the 200 steps of an episode. The policy that
looks one step ahead with them then plays episodes in gymnax's environment.
"""

from typing import Any

import gymnax
import jax
import jax.numpy as jnp

ANGLES, SPEEDS, TORQUES, STEPS, EPISODES = 601, 481, 41, 200, 4096
MAX_SPEED = 8.0


def after(angle: jax.Array, speed: jax.Array, torque: jax.Array) -> tuple[jax.Array, ...]:
    """Return the next angle and speed, and the cost, by the equations of Gymnasium's Pendulum."""
    cost = angle**2 + 0.1 * speed**2 + 0.001 * torque**2
    change = 15.0 * jnp.sin(angle) + 3.0 * torque
    speed = jnp.clip(speed + 0.05 * change, -MAX_SPEED, MAX_SPEED)
    return wrapped(angle + 0.05 * speed), speed, cost


def wrapped(angle: jax.Array) -> jax.Array:
    """Return the angle between -pi and pi."""
    return (angle + jnp.pi) % (2 * jnp.pi) - jnp.pi


def interpolated(costs: jax.Array, angle: jax.Array, speed: jax.Array) -> jax.Array:
    """Interpolate the costs to go of the grid, linearly in both directions."""
    x = (angle + jnp.pi) / (2 * jnp.pi) * (ANGLES - 1)
    y = (speed + MAX_SPEED) / (2 * MAX_SPEED) * (SPEEDS - 1)
    return jax.scipy.ndimage.map_coordinates(costs, [x, y], order=1, mode="nearest")


@jax.jit
def costs_to_go() -> jax.Array:
    """Return the least costs of the last 0 to `STEPS` - 1 steps, `[STEPS, ANGLES, SPEEDS]`."""
    angle, speed = jnp.meshgrid(
        jnp.linspace(-jnp.pi, jnp.pi, ANGLES),
        jnp.linspace(-MAX_SPEED, MAX_SPEED, SPEEDS),
        indexing="ij",
    )

    torques = jnp.linspace(-2.0, 2.0, TORQUES)[:, None, None]

    def backwards(later: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        *state, cost = after(angle, speed, torques)
        return jnp.min(cost + interpolated(later, *jnp.broadcast_arrays(*state)), axis=0), later

    return jax.lax.scan(backwards, jnp.zeros_like(angle), None, STEPS)[1]


@jax.jit
def play(costs: jax.Array, key: jax.Array) -> jax.Array:
    """Return the return of an episode in which each torque is the best one of 201."""
    env, params = gymnax.make("Pendulum-v1")
    torques = jnp.linspace(-2.0, 2.0, 201)

    def step(state: Any, later: jax.Array) -> tuple[Any, jax.Array]:
        *states, cost = after(wrapped(state.theta), state.theta_dot, torques)
        torque = torques[jnp.argmin(cost + interpolated(later, *states))]
        _, state, reward, *_ = env.step_env(key, state, torque[None], params)
        return state, reward

    return jnp.sum(jax.lax.scan(step, env.reset_env(key, params)[1], costs[::-1])[1])


def main() -> None:
    """Print the mean return and its standard error."""
    keys = jax.random.split(jax.random.key(0), EPISODES)
    returns = jax.vmap(play, (None, 0))(costs_to_go(), keys)
    mean, deviation = float(returns.mean()), float(returns.std())
    print(
        f"{mean:.1f}, standard error {deviation / EPISODES**0.5:.1f} ({EPISODES} episodes with a "
        f"standard deviation of {deviation:.1f})"
    )


if __name__ == "__main__":
    main()
