"""Films of trained policies, and the pictures that they are made of."""

import dataclasses
import math
import re
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from conftest import LAYERS, MLP, NETWORK, small_config
from gymnax.environments.classic_control.cartpole import CartPole
from PIL import Image

from jaxppo import envs, render
from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import EnvConfig
from jaxppo.deploy.policy import TrainedPolicy, load
from jaxppo.extras import drawings, films
from jaxppo.extras.drawings import drawing
from jaxppo.runtime.run import loop

UNKNOWN = EnvConfig(name="MemoryChain-bsuite")
T_MAZE = "jaxppo.envs.t_maze.TMaze"


@cache
def known(name: str) -> drawings.Drawing:
    """The drawing of an environment, by gymnax's id or an import path."""
    place = {"name": None, "target": name} if "." in name else {"name": name}
    return drawing(envs.make(EnvConfig(**place)))


def draw(name: str, **state: Any) -> np.ndarray:
    """The picture of a state that has these fields."""
    return known(name).draw(SimpleNamespace(**state), None)


def draw_observation(name: str, obs: Any) -> np.ndarray:
    return known(name).draw(None, np.asarray(obs, np.float32))


def places(picture: np.ndarray, *colors: drawings.Color) -> np.ndarray:
    """Row and column of every pixel that has one of the colors, `[N, 2]`."""
    near = [np.abs(picture.astype(int) - color).sum(-1) < 12 for color in colors]
    return np.argwhere(np.any(near, axis=0))


def is_picture(picture: np.ndarray) -> bool:
    return picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] == 3


# Classic control


@pytest.mark.parametrize("x, theta", [(0.0, 0.2), (0.0, -0.2), (1.5, 0.1), (-2.4, -0.1)])
def test_cart_pole_is_drawn_to_scale(x: float, theta: float) -> None:
    """400 pixels are 2 x 2.4 + 0.8 units; the pole is 1 long, and leans right where positive."""
    picture = draw("CartPole-v1", x=x, theta=theta)
    assert is_picture(picture)
    assert picture.shape[1] == 400
    unit = 400 / 5.6
    cart = places(picture, drawings.INK)[:, 1]
    assert cart.mean() == pytest.approx(200 + unit * x, abs=1.5)
    pole = places(picture, drawings.WOOD)
    tip, foot = pole[pole[:, 0].argmin()], pole[pole[:, 0].argmax()]
    assert tip[1] == pytest.approx(200 + unit * (x + math.sin(theta)), abs=4)
    assert foot[0] - tip[0] == pytest.approx(unit * (math.cos(theta) + 0.055), abs=5)


@pytest.mark.parametrize("theta", [0.0, 0.5, math.pi / 2, math.pi, -math.pi / 2])
def test_pendulum_is_upright_at_zero_and_turns_counterclockwise(theta: float) -> None:
    picture = draw("Pendulum-v1", theta=theta, last_u=0.0)
    assert is_picture(picture)
    assert picture.shape[:2] == (240, 240)
    row, column = places(picture, drawings.RED).mean(0) - 119.5
    unit = 240 / 2.5
    assert math.hypot(row, column) == pytest.approx(0.54 * unit, abs=1)  # the hub is black
    assert math.atan2(-column, -row) % (2 * math.pi) == pytest.approx(
        theta % (2 * math.pi), abs=0.03
    )


@pytest.mark.parametrize("torque", [-2.0, -1.0, 1.0, 2.0])
def test_pendulum_shows_the_torque(torque: float) -> None:
    """An arrow from the right: over the top where it is counterclockwise; longer where larger."""
    picture = draw("Pendulum-v1", theta=math.pi if torque > 0 else 0.0, last_u=np.float32(torque))
    arrow = places(picture, drawings.BLUE) - 119.5
    assert (arrow[:, 0] * torque < 10).all()
    assert np.abs(arrow[:, 0]).max() > 40
    # The head's tip: 15 pixels along the tangent of a circle of radius 48.
    sweep = 0.75 * math.pi * abs(torque) / 2
    tip = 48 * math.cos(sweep) - 15.4 * math.sin(sweep)
    assert arrow[:, 1].min() == pytest.approx(tip, abs=2)


@pytest.mark.parametrize(
    "first, second",
    [(0.0, 0.0), (math.pi / 2, 0.0), (math.pi / 2, math.pi / 2), (-0.4, -0.8), (2.8, 0.3)],
)
def test_acrobot_hangs_down_at_zero(first: float, second: float) -> None:
    """x = sin, y = -cos of the angle from below; the second angle is on top of the first."""
    picture = draw("Acrobot-v1", joint_angle1=first, joint_angle2=second)
    assert is_picture(picture)
    unit = 240 / 4.4
    elbow = np.array([-math.cos(first), math.sin(first)])  # upwards, to the right
    tip = elbow + np.array([-math.cos(first + second), math.sin(first + second)])
    for color, middle in ((drawings.BLUE, elbow / 2), (drawings.WOOD, (elbow + tip) / 2)):
        row, column = places(picture, color).mean(0) - 119.5
        assert column == pytest.approx(unit * middle[1], abs=4)
        assert row == pytest.approx(-unit * middle[0], abs=4)
    line = places(picture, drawings.GREEN)[:, 0]
    assert line.mean() == pytest.approx(119.5 - unit, abs=1)  # the height of one link


@pytest.mark.parametrize(
    "name, goal", [("MountainCar-v0", 0.5), ("MountainCarContinuous-v0", 0.45)]
)
def test_mountain_car_stands_on_its_hill(name: str, goal: float) -> None:
    """y = 0.45 sin(3 x) + 0.55; 360 pixels are the track of 1.8 and 0.1 on either side."""
    unit = 360 / 2.0
    for position in (-1.2, -0.5, 0.1, goal):
        picture = draw(name, position=position)
        assert is_picture(picture)
        column = round(unit * (position + 1.3))
        cab = places(picture, drawings.BLUE).mean(0)
        slope = math.atan(1.35 * math.cos(3 * position))
        height = 0.45 * math.sin(3 * position) + 0.55
        middle = picture.shape[0] - unit * (height + 0.0825 * math.cos(slope))
        assert cab[0] == pytest.approx(middle, abs=4)
        assert cab[1] == pytest.approx(column - unit * 0.0825 * math.sin(slope), abs=4)
        for x in (-1.1, -0.7, -0.2, 0.3):
            if abs(x - position) > 0.2:
                below = places(picture[:, [round(unit * (x + 1.3))]], drawings.PALE)[:, 0]
                top = picture.shape[0] - below.min()
                assert top == pytest.approx(unit * (0.45 * math.sin(3 * x) + 0.55), abs=4)
    flag = places(draw(name, position=-0.5), drawings.GREEN)[:, 1]
    assert flag.max() == pytest.approx(unit * (goal + 1.3), abs=2)


def test_five_hundred_steps_are_a_small_film(tmp_path: Path) -> None:
    frames = [
        drawings.caption(
            draw("CartPole-v1", x=2 * math.sin(i / 60), theta=0.2 * math.sin(i / 7)),
            f"step {i}   return {i}.00",
        )
        for i in range(501)
    ]
    drawings.write_film(tmp_path / "film.gif", frames, 50)
    assert (tmp_path / "film.gif").stat().st_size < 1_000_000
    with Image.open(tmp_path / "film.gif") as film:
        assert film.n_frames == 501
        assert film.info["duration"] == 20  # ms


# Grids and mazes


@pytest.mark.parametrize("name, channels", [("Breakout-MinAtar", 4), ("Seaquest-MinAtar", 10)])
def test_grid_has_a_color_for_each_channel(name: str, channels: int) -> None:
    seen = np.zeros((10, 10, channels))
    for channel in range(channels):
        seen[channel, 9 - channel, channel] = 1
    seen[0, 9] = 1  # the first channel is on top
    picture = draw_observation(name, seen)
    assert is_picture(picture)
    assert picture.shape[:2] == (240, 240)
    cells = picture[12::24, 12::24]
    for channel in range(channels):
        np.testing.assert_array_equal(cells[channel, 9 - channel], drawings.CHANNELS[channel])
    assert len(np.unique(cells.reshape(-1, 3), axis=0)) == channels + 1


@pytest.mark.parametrize("name, shape", [("Catch-bsuite", (10, 5)), ("DeepSea-bsuite", (8, 8))])
def test_matrix_is_shown_in_grey(name: str, shape: tuple[int, int]) -> None:
    seen = np.zeros(shape)
    seen[3, 1] = 1
    picture = draw_observation(name, seen)
    assert is_picture(picture)
    size = 240 // shape[0]
    cells = picture[size // 2 :: size, size // 2 :: size]
    np.testing.assert_array_equal(cells, 255 * seen[..., None] * np.ones(3))


def test_picture_of_three_channels_is_shown_as_it_is() -> None:
    """Pong's, whose space goes from 0 to 2."""
    seen = np.zeros((30, 40, 3))
    seen[4, 7] = [2, 0, 1]
    picture = draw_observation("Pong-misc", seen)
    np.testing.assert_array_equal(picture[::6, ::6][4, 7], [255, 0, 128])
    assert picture.shape == (180, 240, 3)


def test_bytes_and_unbounded_pictures() -> None:
    def shown(space: drawings.Box, obs: np.ndarray) -> np.ndarray:
        assert drawings._is_picture(space)
        return drawings._observation(space, None, None, obs)

    rng = np.random.default_rng(0)
    for channels in (1, 3, 4):
        obs = rng.integers(0, 256, (300, 250, channels), np.uint8)
        space = drawings.Box(obs.shape, "uint8", 0.0, 255.0)
        np.testing.assert_array_equal(shown(space, obs), obs[..., :3] * np.ones(3, np.uint8))
    obs = np.array([[-1e9, -1.0], [0.0, 1e9]])
    space = drawings.Box((2, 2), "float32", -math.inf, math.inf)
    grey = shown(space, obs)[60::120, 60::120, 0]
    np.testing.assert_array_equal(grey, [[0, 64], [128, 255]])


@pytest.mark.parametrize("goal", [0, 1])
@pytest.mark.parametrize("position", [0, 4, 10])
def test_t_maze_has_left_above(goal: int, position: int) -> None:
    picture = draw(T_MAZE, position=position, goal=goal)
    assert is_picture(picture)
    middle, size = (picture.shape[0] - 1) / 2, picture.shape[1] / 12
    walker = places(picture, drawings.BLUE).mean(0)
    np.testing.assert_allclose(walker, [middle, size * (position + 1) - 0.5], atol=1)
    for color, side in ((drawings.GREEN, 1), (drawings.RED, -1)):
        below = places(picture, color).mean(0)
        up = 1 if goal == 0 else -1
        np.testing.assert_allclose(below, [middle - side * up * size, size * 11 - 0.5], atol=1.5)
    assert len(places(picture, drawings.YELLOW)) == 0 or position == 0  # the sign, while it shines
    assert len(places(picture, drawings.YELLOW)) > 0 or position != 0


# What else can be drawn


class Framed(CartPole):
    """A cart pole that draws itself: a grey that its clock says."""

    def frame(self, state: Any, params: Any) -> Any:
        return jax.numpy.full((20, 30, 3), state.time + 7, np.uint8)


class Crooked(CartPole):
    def frame(self, state: Any, params: Any) -> Any:
        return np.zeros((20, 30))


class Stuck(CartPole):
    def frame(self, state: Any, params: Any) -> Any:
        raise KeyError("no\nbrush")


class Offspring(CartPole):
    """Drawn as what it derives from."""


class Closed:
    """A cart pole with nothing but gymnax's contract and a picture."""

    def __init__(self) -> None:
        inner = CartPole()
        self.default_params = inner.default_params
        self.reset, self.step = inner.reset, inner.step
        self.action_space, self.observation_space = inner.action_space, inner.observation_space
        self.frame = Framed.frame


def test_without_step_env_there_is_no_last_state_to_draw() -> None:
    with pytest.raises(ConfigError, match=r"test_render\.Closed: has no step_env"):
        known("test_render.Closed")


def test_frame_comes_before_everything_else() -> None:
    picture = draw("test_render.Framed", time=3, x=0.0, theta=0.0)
    np.testing.assert_array_equal(picture, np.full((20, 30, 3), 10))
    offspring = draw("test_render.Offspring", x=0.0, theta=0.0)
    np.testing.assert_array_equal(offspring, draw("CartPole-v1", x=0.0, theta=0.0))


@pytest.mark.parametrize(
    "name, words",
    [
        ("test_render.Crooked", ["returned float64 [20, 30]", "uint8 [H, W, 3]"]),
        ("test_render.Stuck", ["KeyError", "no", "brush"]),
    ],
)
def test_broken_frame_is_refused_in_one_line(name: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        draw(name, time=3)
    assert "\n" not in str(caught.value)
    for word in [name, "frame(state, params)", *words]:
        assert word in str(caught.value)


def test_what_cannot_be_drawn_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError) as caught:
        drawing(envs.make(UNKNOWN))
    assert "\n" not in str(caught.value)
    for word in ("MemoryChain-bsuite", "CartPole", "TMaze", "frame(state, params)", "[H, W, 3]"):
        assert word in str(caught.value)


def test_render_of_gymnax_is_used_without_a_display() -> None:
    env: Any = envs.make(EnvConfig(name="FourRooms-misc"))
    drawn = drawing(env)
    states = [env.env.reset(jax.random.key(0), env.params)[1]]
    states.append(states[0].replace(pos=states[0].pos + 1))
    one, other = (drawn.draw(state, None) for state in states)
    assert is_picture(one)
    assert one.shape == other.shape == (288, 384, 3)
    assert not np.array_equal(one, other)
    with pytest.raises(ConfigError, match=r"FourRooms-misc: cannot be drawn.*its render.*raised"):
        drawn.draw(None, None)


# Episodes


def trained(run_dir: Path, **changes: Any) -> TrainedPolicy:
    """A policy that hardly learnt, sampled, so that its episodes differ."""
    settings = small_config(
        **{
            "arch__num_updates": 1,
            "arch__num_evaluation": 1,
            "arch__num_eval_episodes": 8,
            "arch__absolute_metric": False,
            "arch__evaluation_greedy": False,
            "logger": {"console": False, "json": False, "plot": False},
            **changes,
        }
    )
    loop.run(settings, run_dir)
    return load(run_dir)


def decided(policy: TrainedPolicy) -> TrainedPolicy:
    """With a larger head: a new one's actions hardly depend on what is seen and remembered."""
    params = {**policy.policy.params}
    params["actor_head"] = jax.tree.map(lambda x: 100 * x, params["actor_head"])
    return dataclasses.replace(policy, policy=dataclasses.replace(policy.policy, params=params))


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainedPolicy]:
    """A cart pole whose velocities are hidden, with the step beside; both wrappers."""
    run_dir = tmp_path_factory.mktemp("hidden")
    env = {"name": "CartPole-v1", "target": None, "mask": [1, 3], "extras": ["last_action"]}
    layer = {"_target_": f"{LAYERS}.inputs.Concatenate", "keys": ["observation", "last_action"]}
    return run_dir, trained(run_dir, env=env, network={**NETWORK, "input_layer": layer})


@pytest.fixture(scope="module")
def remembering(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainedPolicy]:
    """A T-maze with a memory and a noisy layer, whose noise is loud."""
    run_dir = tmp_path_factory.mktemp("remembering")
    memory = {"_target_": f"{LAYERS}.memory.Recurrent", "cell": "gru", "size": 6}
    noisy = {"_target_": f"{LAYERS}.torsos.NoisyMLP", "layer_sizes": [16], "initial_noise": 5.0}
    network = {**NETWORK, "actor_torso": noisy, "critic_torso": MLP}
    return run_dir, trained(
        run_dir,
        env={"target": T_MAZE, "kwargs": {"delay": 2}},
        system__sequence_length=None,
        network={**network, "actor_memory": memory, "critic_memory": memory},
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "which, greedy", [("hidden", False), ("remembering", False), ("remembering", True)]
)
def test_replayed_episodes_are_those_of_the_evaluation(
    which: str, greedy: bool, request: pytest.FixtureRequest
) -> None:
    policy = decided(request.getfixturevalue(which)[1])
    policy = dataclasses.replace(
        policy, system=dataclasses.replace(policy.system, evaluation_greedy=greedy)
    )
    drawn = drawing(policy.system.env)
    episodes = policy.evaluate(12)  # beyond the 8 that are played at once
    assert greedy or len(set(episodes.returns.tolist())) > 1
    for number, played in enumerate(films.play(policy, drawn, 12)):
        assert played.episode_return == episodes.returns[number]
        assert played.length == episodes.lengths[number]
        assert played.finished == episodes.finished[number]
        np.testing.assert_array_equal(played.states.time, np.arange(played.length + 1))


@pytest.mark.long
def test_last_state_is_the_one_that_the_episode_ended_in(
    hidden: tuple[Path, TrainedPolicy],
) -> None:
    _, policy = hidden
    for played in films.play(policy, drawing(policy.system.env), 3):
        moments = [films._moment(played, i) for i in range(played.length + 1)]
        over = [abs(float(s.x)) > 2.4 or abs(float(s.theta)) > 0.2095 for s, _ in moments]
        assert over == [False] * (len(over) - 1) + [True]
        for state, obs in moments:
            wanted = [state.x, 0.0, state.theta, 0.0]
            np.testing.assert_allclose(obs["observation"], wanted, 1e-6, 1e-7)


@pytest.mark.long
def test_unfinished_episodes_end_at_the_bound(hidden: tuple[Path, TrainedPolicy]) -> None:
    _, policy = hidden
    policy = dataclasses.replace(
        policy, system=dataclasses.replace(policy.system, max_eval_steps=3)
    )
    (played,) = films.play(policy, drawing(policy.system.env), 1)
    assert played.length == 3
    assert not played.finished


@pytest.mark.long
def test_command_writes_three_films_and_a_strip(
    hidden: tuple[Path, TrainedPolicy],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_dir, policy = hidden
    out = tmp_path / "to" / "films"
    arguments = [f"run={run_dir}", f"out={out}", "episodes=7", "fps=25"]
    monkeypatch.setattr(sys, "argv", ["render", *arguments])
    render.main()
    assert {path.name for path in out.iterdir()} == {
        *("best.gif", "median.gif", "worst.gif", "strip.png")
    }
    episodes = policy.evaluate(7)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    returns = np.sort(episodes.returns)
    drawn = drawing(policy.system.env)
    for line, name, wanted in zip(
        lines, ("best", "median", "worst"), (returns[6], returns[3], returns[0]), strict=False
    ):
        match = re.search(rf"{name}\.gif: return (.*), (\d+) steps, episode (\d) of 7$", line)
        assert match is not None
        assert float(match[1]) == wanted
        number = int(match[3]) - 1
        assert episodes.returns[number] == wanted
        assert episodes.lengths[number] == int(match[2])
        with Image.open(out / f"{name}.gif") as film:
            assert film.n_frames == int(match[2]) + 1
            assert film.info["duration"] == 40
            film.seek(film.n_frames - 1)
            last = np.asarray(film.convert("RGB"), int)
        played = films.play(policy, drawn, 7)[number]
        shown = [drawn.draw(*films._moment(played, i)) for i in range(played.length + 1)]
        height, width, _ = shown[0].shape
        top = drawings.CAPTION + (len(last) - drawings.CAPTION - height) // 2
        frame = last[top : top + height, :width]
        apart = [np.abs(frame - picture).mean() for picture in shown]
        assert np.argmin(apart) == len(shown) - 1
        assert apart[-1] < 4  # of 255: a small palette
    assert lines[3].startswith(f"{out / 'strip.png'}: ")
    with Image.open(out / "strip.png") as strip:
        assert strip.size == (5 * 406 - 6, 3 * (shown[0].shape[0] + 2 * drawings.CAPTION))


@pytest.mark.long
def test_run_directory_is_the_default_and_frames_may_be_fewer(
    remembering: tuple[Path, TrainedPolicy],
) -> None:
    run_dir, _ = remembering
    films.render(films.Rendering(run=str(run_dir), episodes=1, max_frames=2, greedy=True))
    for name in ("best", "median", "worst"):
        with Image.open(run_dir / f"{name}.gif") as film:
            assert film.n_frames <= 3
    assert (run_dir / "strip.png").exists()


def test_best_median_and_worst() -> None:
    assert films.choose(np.array([3.0, 9.0, -2.0, 5.0, 4.0])) == {
        "best": 1, "median": 4, "worst": 2,
    }  # fmt: skip
    assert films.choose(np.array([3.0, 9.0, -2.0, 5.0]))["median"] == 0  # the lower of the two
    assert films.choose(np.array([1.0])) == {"best": 0, "median": 0, "worst": 0}
    assert films.choose(np.array([3.0, np.nan, 2.0])) == {"best": 0, "median": 2, "worst": 1}


@pytest.mark.parametrize(
    "length, max_frames, wanted",
    [
        (4, 10, [0, 1, 2, 3, 4]),
        (4, 4, [0, 1, 2, 3, 4]),
        (5, 4, [0, 2, 4, 5]),
        (9, 3, [0, 3, 6, 9]),
        (10, 3, [0, 4, 8, 10]),
        (7, 1, [0, 7]),
        (1, 1, [0, 1]),
    ],
)
def test_every_kth_step_is_kept_and_the_last(
    length: int, max_frames: int, wanted: list[int]
) -> None:
    assert films.every_kth(length, max_frames) == wanted


def test_strip_is_evenly_spaced() -> None:
    assert films.evenly_spaced(9, 5) == [0, 2, 4, 7, 9]
    assert films.evenly_spaced(2, 5) == [0, 1, 2]


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments, words",
    [
        (["episodes=4"], ["run=", "directory of a run"]),
        (["run=RUN", "episodes=0"], ["episodes=0", "at least 1"]),
        (["run=RUN", "fps=60"], ["fps=60", "50"]),
        (["run=RUN", "frames=3"], ["frames", "max_frames"]),
        (["run=RUN", "out=RUN/config.yaml/films"], ["out=", "cannot be made"]),
        (["run=RUN", "seed=3"], ["seed=3"]),
        (
            ["run=RUN", "trust=[test_render]", "env.name=null", "env.target=test_render.Stuck"],
            ["brush"],
        ),
    ],
)
def test_mistakes_are_one_line(
    hidden: tuple[Path, TrainedPolicy],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: list[str],
) -> None:
    run_dir, _ = hidden
    given = [argument.replace("RUN", str(run_dir)) for argument in arguments]
    monkeypatch.setattr(sys, "argv", ["render", *given])
    with pytest.raises(SystemExit) as caught:
        render.main()
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for word in words:
        assert word in error
