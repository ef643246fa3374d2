"""Small environments of gymnax's contract whose optimum or trajectory is known."""

from typing import Any
from urllib.error import URLError

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces


@struct.dataclass
class State:
    time: jax.Array
    value: jax.Array  # what the observation shows


@struct.dataclass
class Params:
    max_steps_in_episode: int = 5
    terminates: bool = False  # the episode's end is the MDP's, not the clock's


class Clock(environment.Environment[State, Params]):
    """Observation [t, start]; reward t + 1; episodes of `max_steps_in_episode`, whatever one does.

    `start` is drawn anew for each episode, so that a wrong successor shows.
    """

    @property
    def default_params(self) -> Params:
        return Params()

    def reset_env(self, key: jax.Array, params: Params) -> tuple[jax.Array, State]:
        state = State(time=jnp.int32(0), value=jax.random.uniform(key))
        return self.observation(state), state

    def step_env(
        self, key: jax.Array, state: State, action: jax.Array, params: Params
    ) -> tuple[jax.Array, State, jax.Array, jax.Array, dict[str, Any]]:
        state = State(time=state.time + 1, value=state.value)
        over = state.time >= params.max_steps_in_episode
        reward = state.time.astype(jnp.float32)
        return self.observation(state), state, reward, over & params.terminates, {}

    def observation(self, state: State) -> jax.Array:
        return jnp.stack([state.time.astype(jnp.float32), state.value])

    def action_space(self, params: Params) -> spaces.Discrete:
        return spaces.Discrete(2)

    def observation_space(self, params: Params) -> spaces.Box:
        return spaces.Box(0.0, 1e6, (2,))


@struct.dataclass
class ShownParams(Params):
    weight: float = 2.0
    count: int = 3
    loud: bool = False


class Shown(Clock):
    """Observation [t, start, weight, count] and reward `weight`; `count` steps truncate."""

    @property
    def default_params(self) -> ShownParams:
        return ShownParams()

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, State]:
        obs, state = super().reset_env(key, params)
        return self.show(obs, params), state

    def step_env(self, key: jax.Array, state: State, action: Any, params: Any) -> Any:
        obs, state, _, over, _ = super().step_env(key, state, action, params)
        told = {"time": state.time, "shown": {"weight": params.weight * state.time}}
        return self.show(obs, params), state, jnp.float32(params.weight), over, told

    def is_truncated(self, state: State, params: Any) -> jax.Array:
        return state.time >= params.count

    def show(self, obs: jax.Array, params: Any) -> jax.Array:
        shown = jnp.stack([jnp.float32(params.weight), jnp.float32(params.count)])
        return jnp.concatenate([obs, shown])

    def observation_space(self, params: Any) -> spaces.Box:
        return spaces.Box(-1e6, 1e6, (4,))


@struct.dataclass
class SizedParams(Params):
    num_values: int = 2


class Sized(Clock):
    """Needs a parameter while it is traced."""

    @property
    def default_params(self) -> SizedParams:
        return SizedParams()

    def step_env(self, key: jax.Array, state: State, action: Any, params: Any) -> Any:
        obs, *rest = super().step_env(key, state, action, params)
        return obs + jnp.arange(params.num_values)[0], *rest


class Turned(Clock):
    """Computes its observation by a matrix product."""

    def observation(self, state: State) -> jax.Array:
        return super().observation(state) @ jnp.eye(2)


class Copy(environment.Environment[State, Params]):
    """Reward 1 for the action that the one-hot observation shows, else 0; one step an episode.

    The environments made of it draw, show and reward something else.
    """

    num_values = 3

    @property
    def default_params(self) -> Params:
        return Params(max_steps_in_episode=1, terminates=True)

    def reset_env(self, key: jax.Array, params: Params) -> tuple[jax.Array, State]:
        state = State(time=jnp.int32(0), value=self.draw(key))
        return self.observation(state), state

    def step_env(self, key: jax.Array, state: State, action: Any, params: Any) -> Any:
        reward = self.reward(state.value, action)
        state = State(time=state.time + 1, value=state.value)
        return self.observation(state), state, reward, jnp.array(True), {}

    def draw(self, key: jax.Array) -> Any:
        return jax.random.randint(key, (), 0, self.num_values)

    def reward(self, value: Any, action: Any) -> jax.Array:
        return (action == value).astype(jnp.float32)

    def observation(self, state: State) -> Any:
        return jax.nn.one_hot(state.value, self.num_values)

    def action_space(self, params: Params) -> spaces.Discrete:
        return spaces.Discrete(self.num_values)

    def observation_space(self, params: Params) -> spaces.Box:
        return spaces.Box(0.0, 1.0, (self.num_values,))


class Faulty(Copy):
    """`Copy` of which one reward or observation in 300 is NaN."""

    def __init__(self, what: str = "reward") -> None:
        super().__init__()
        self.what = what

    def step_env(self, key: jax.Array, state: State, action: Any, params: Any) -> Any:
        obs, state, reward, over, info = super().step_env(key, state, action, params)
        bad = jax.random.bernoulli(jax.random.fold_in(key, 1), 1 / 300)
        bad = bad & (self.what == "reward")
        return obs, state, jnp.where(bad, jnp.nan, reward), over, info

    def reset_env(self, key: jax.Array, params: Params) -> tuple[jax.Array, State]:
        obs, state = super().reset_env(key, params)
        bad = jax.random.bernoulli(jax.random.fold_in(key, 1), 1 / 300)
        return jnp.where(bad & (self.what == "observation"), jnp.nan, obs), state


class Coin(environment.Environment[State, Params]):
    """Reward 1 a step; each step ends the episode with probability 1/4, so lengths average 4."""

    @property
    def default_params(self) -> Params:
        return Params(max_steps_in_episode=1000)

    def reset_env(self, key: jax.Array, params: Params) -> tuple[jax.Array, State]:
        return jnp.zeros(1), State(time=jnp.int32(0), value=jnp.float32(0))

    def step_env(self, key: jax.Array, state: State, action: Any, params: Any) -> Any:
        over = jax.random.bernoulli(key, 0.25)
        state = State(time=state.time + 1, value=state.value)
        return jnp.zeros(1), state, jnp.float32(1), over, {}

    def action_space(self, params: Params) -> spaces.Discrete:
        return spaces.Discrete(2)

    def observation_space(self, params: Params) -> spaces.Box:
        return spaces.Box(0.0, 1.0, (1,))


class Echo(Copy):
    """`Copy` whose observation is a dict with an integer leaf and a discrete one beside it."""

    def observation(self, state: State) -> dict[str, jax.Array]:
        return {"count": jnp.full((2,), 7, jnp.int32), "shown": state.value}

    def observation_space(self, params: Params) -> spaces.Dict:
        return spaces.Dict(
            {"count": spaces.Box(0, 9, (2,), jnp.int32), "shown": spaces.Discrete(3)}
        )


class Endless(Clock):
    """Reward 1 a step and nothing to see; only the clock ends an episode."""

    def step_env(self, key: jax.Array, state: State, action: Any, params: Any) -> Any:
        obs, state, _, over, info = super().step_env(key, state, action, params)
        return obs, state, jnp.float32(1.0), over, info

    def observation(self, state: State) -> jax.Array:
        return jnp.zeros(2)


class Aim(Copy):
    """Hit the target shown, scaled to [0, 1] by dimension; best 0, NaN out of bounds; one step."""

    low = (-1.0, 0.0)
    high = (3.0, 10.0)

    def draw(self, key: jax.Array) -> jax.Array:
        return jax.random.uniform(key, (2,))

    def reward(self, value: jax.Array, action: jax.Array) -> jax.Array:
        low, high = jnp.array(self.low), jnp.array(self.high)
        miss = jnp.mean(jnp.abs((action - low) / (high - low) - value))
        return jnp.where(jnp.all((action >= low) & (action <= high)), -miss, jnp.nan)

    def observation(self, state: State) -> jax.Array:
        return state.value

    def action_space(self, params: Params) -> spaces.Box:
        return spaces.Box(jnp.array(self.low), jnp.array(self.high), (2,))

    def observation_space(self, params: Params) -> spaces.Box:
        return spaces.Box(0.0, 1.0, (2,))


class Drift(Clock):
    """The second entry of the observation moves with two actions in [-1, 3] and [0, 10]."""

    low, high = Aim.low, Aim.high

    def step_env(self, key: jax.Array, state: State, action: Any, params: Any) -> Any:
        _, after, _, over, info = super().step_env(key, state, action, params)
        after = State(time=after.time, value=0.5 * state.value + 0.1 * jnp.sum(action))
        return self.observation(after), after, -jnp.abs(after.value), over, info

    def action_space(self, params: Params) -> spaces.Box:
        return spaces.Box(jnp.array(self.low), jnp.array(self.high), (2,))


class Lapse(Clock):
    """The third reward of an episode is NaN."""

    def step_env(self, key: jax.Array, state: State, action: Any, params: Any) -> Any:
        obs, state, reward, over, info = super().step_env(key, state, action, params)
        return obs, state, jnp.where(state.time == 3, jnp.nan, reward), over, info


class TwoStates(Clock):
    """The action chooses the next of two one-hot states; 2 for leaving the second, -1 the first."""

    def reset_env(self, key: jax.Array, params: Params) -> tuple[jax.Array, State]:
        state = State(time=jnp.int32(0), value=jax.random.randint(key, (), 0, 2))
        return self.observation(state), state

    def step_env(self, key: jax.Array, state: State, action: Any, params: Any) -> Any:
        reward = jnp.where(state.value == 1, 2.0, -1.0)
        after = State(time=state.time + 1, value=action.astype(state.value.dtype))
        return self.observation(after), after, reward, jnp.array(False), {}

    def observation(self, state: State) -> jax.Array:
        return jax.nn.one_hot(state.value, 2)


class FarAim(Aim):
    """With other bounds of actions."""

    high = (3.0, 20.0)


class Parts(Copy):
    """Three choices shown as one-hot vectors in a row; reward: the fraction met; one step."""

    sizes = (2, 3, 4)

    def draw(self, key: jax.Array) -> jax.Array:
        return jax.random.randint(key, (3,), 0, jnp.array(self.sizes))

    def reward(self, value: jax.Array, action: jax.Array) -> jax.Array:
        return jnp.mean(action == value, dtype=jnp.float32)

    def observation(self, state: State) -> jax.Array:
        return jnp.concatenate(
            [jax.nn.one_hot(x, n) for x, n in zip(state.value, self.sizes, strict=True)]
        )

    def action_space(self, params: Params) -> Any:
        return spaces.Box(0, jnp.array(self.sizes) - 1, (3,), jnp.int32)

    def observation_space(self, params: Params) -> spaces.Box:
        return spaces.Box(0.0, 1.0, (sum(self.sizes),))


class Mixed(Copy):
    """A tree of actions; what to choose is shown in a row. Best reward 1; one step an episode.

    The reward is the mean of three: `move` met; 1 less the distance of `aim`, as in `Aim`; the
    fraction of `more` met.
    """

    def draw(self, key: jax.Array) -> dict[str, Any]:
        keys = jax.random.split(key, 4)
        pair = jax.random.randint(keys[3], (2,), 0, jnp.array([3, 2]))
        return {
            "move": jax.random.randint(keys[0], (), 0, 3),
            "aim": jax.random.uniform(keys[1], (2,)),
            "more": (jax.random.randint(keys[2], (), 0, 2), pair),
        }

    def reward(self, value: Any, action: Any) -> jax.Array:
        aim = 1 + Aim().reward(value["aim"], action["aim"])
        flag, pair = (x == y for x, y in zip(action["more"], value["more"], strict=True))
        more = jnp.mean(jnp.stack([flag, *pair]), dtype=jnp.float32)
        return ((action["move"] == value["move"]) + aim + more) / 3

    def observation(self, state: State) -> jax.Array:
        flag, pair = state.value["more"]
        return jnp.concatenate(
            [
                state.value["aim"],
                jax.nn.one_hot(state.value["move"], 3),
                jax.nn.one_hot(flag, 2),
                jax.nn.one_hot(pair[0], 3),
                jax.nn.one_hot(pair[1], 2),
            ]
        )

    def action_space(self, params: Params) -> Any:
        return spaces.Dict(
            {
                "move": spaces.Discrete(3),
                "aim": spaces.Box(jnp.array(Aim.low), jnp.array(Aim.high), (2,)),
                "more": spaces.Tuple(
                    (spaces.Discrete(2), spaces.Box(0, jnp.array([2, 1]), (2,), jnp.int32))
                ),
            }
        )

    def observation_space(self, params: Params) -> spaces.Box:
        return spaces.Box(0.0, 1.0, (12,))


@struct.dataclass
class MaskedParams(Params):
    empty: bool = False  # one episode in four has a mask that allows nothing


class Masked(environment.Environment[State, MaskedParams]):
    """Reward 1 for the largest legal action, which is shown; NaN for an illegal one.

    The mask is drawn anew for each episode. Where it allows nothing, every action gives 0.
    """

    num_values = 5

    @property
    def default_params(self) -> MaskedParams:
        return MaskedParams(max_steps_in_episode=3)

    def reset_env(self, key: jax.Array, params: MaskedParams) -> tuple[Any, State]:
        mask_key, sure_key, empty_key = jax.random.split(key, 3)
        mask = jax.random.bernoulli(mask_key, 0.5, (self.num_values,))
        mask = mask.at[jax.random.randint(sure_key, (), 0, self.num_values)].set(True)
        mask &= ~(jax.random.bernoulli(empty_key, 0.25) & params.empty)
        state = State(time=jnp.int32(0), value=mask)
        return self.observation(state), state

    def step_env(self, key: jax.Array, state: State, action: Any, params: Any) -> Any:
        illegal = state.value.any() & ~state.value[action]
        reward = jnp.where(illegal, jnp.nan, (action == self.best(state)).astype(jnp.float32))
        state = State(time=state.time + 1, value=state.value)
        over = state.time >= params.max_steps_in_episode
        return self.observation(state), state, reward, over & params.terminates, {}

    def best(self, state: State) -> jax.Array:
        return jnp.max(jnp.where(state.value, jnp.arange(self.num_values), -1))

    def observation(self, state: State) -> dict[str, jax.Array]:
        return {
            "observation": jax.nn.one_hot(self.best(state), self.num_values),
            "action_mask": state.value,
        }

    def action_space(self, params: MaskedParams) -> spaces.Discrete:
        return spaces.Discrete(self.num_values)

    def observation_space(self, params: MaskedParams) -> spaces.Dict:
        return spaces.Dict(
            {
                "observation": spaces.Box(0.0, 1.0, (self.num_values,)),
                "action_mask": spaces.Box(0, 1, (self.num_values,), jnp.bool_),
            }
        )


class Picture(Copy):
    """A pixel of 6 x 6 x 2 is lit; reward 1 for its quadrant (0 1 / 2 3), else 0; one step."""

    num_values = 4

    def __init__(self, dtype: str = "float32", channels_first: bool = False) -> None:
        super().__init__()
        self.dtype = jnp.dtype(dtype)
        self.channels_first = channels_first
        self.lit = jnp.asarray(255 if dtype == "uint8" else 1, dtype)

    def draw(self, key: jax.Array) -> jax.Array:
        return jax.random.randint(key, (3,), 0, jnp.array([6, 6, 2]))

    def reward(self, value: jax.Array, action: jax.Array) -> jax.Array:
        row, column, _ = value
        return (action == 2 * (row // 3) + column // 3).astype(jnp.float32)

    def observation(self, state: State) -> jax.Array:
        picture = jnp.zeros((6, 6, 2), self.dtype).at[tuple(state.value)].set(self.lit)
        return jnp.moveaxis(picture, -1, 0) if self.channels_first else picture

    def observation_space(self, params: Params) -> spaces.Box:
        shape = (2, 6, 6) if self.channels_first else (6, 6, 2)
        return spaces.Box(0, self.lit, shape, self.dtype)


class Recall(Clock):
    """Nothing to see; reward 1 for the parity of the steps taken; episodes of two steps.

    Any of last_action, last_reward, step tells the two apart: best return 2. A policy that knows
    none of them, whatever it is, has the expected return 1.
    """

    @property
    def default_params(self) -> Params:
        return Params(max_steps_in_episode=2, terminates=True)

    def step_env(self, key: jax.Array, state: State, action: Any, params: Any) -> Any:
        reward = (action == state.time % 2).astype(jnp.float32)
        obs, state, _, over, info = super().step_env(key, state, action, params)
        return obs, state, reward, over, info

    def observation(self, state: State) -> jax.Array:
        return jnp.zeros(1)

    def observation_space(self, params: Params) -> spaces.Box:
        return spaces.Box(0.0, 1.0, (1,))


class Takes(Copy):
    """`Copy` of any action space, whose actions it does not look at; reward 0."""

    def __init__(self, space: Any) -> None:
        super().__init__()
        self.space = space

    def reward(self, value: jax.Array, action: Any) -> jax.Array:
        return jnp.float32(0)

    def action_space(self, params: Params) -> Any:
        return self.space


class Remote(Clock):
    """An environment that starts with a download, where there is no network."""

    def __init__(self) -> None:
        raise URLError("Name or service not known")


class Counted(Echo):
    """An observation with an entry of the name of an extra."""

    def observation(self, state: State) -> dict[str, jax.Array]:
        return {"step": jnp.zeros(1)}

    def observation_space(self, params: Params) -> spaces.Dict:
        return spaces.Dict({"step": spaces.Box(0.0, 1.0, (1,))})


class Misled(Copy):
    """Claims a dict of actions and takes an array."""

    def action_space(self, params: Params) -> Any:
        return spaces.Dict({"move": spaces.Discrete(self.num_values)})
