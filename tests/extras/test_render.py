"""Films of trained policies, and the pictures that they are made of."""

import dataclasses
import math
import re
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import jax
import numpy as np
import own_games
import pytest
from conftest import LAYERS, MLP, NETWORK, refused, small_config
from gymnax.environments.classic_control.cartpole import CartPole
from PIL import Image
from runs import fresh

from jaxppo import envs, render
from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import EnvConfig
from jaxppo.deploy.policy import TrainedPolicy
from jaxppo.extras import drawings, films
from jaxppo.extras.drawings import drawing
from jaxppo.types import Box

T_MAZE = "jaxppo.envs.t_maze.TMaze"


@cache
def known(name: str) -> drawings.Drawing:
    """The drawing of an environment, by gymnax's id or an import path."""
    place = {"name": None, "target": name} if "." in name else {"name": name}
    return drawing(envs.make(EnvConfig(**place)))


def draw(name: str, **state: Any) -> np.ndarray:
    """The picture of a state that has these fields."""
    picture = known(name).draw(SimpleNamespace(**state), None)
    assert picture.dtype == np.uint8
    assert picture.ndim == 3
    assert picture.shape[2] == 3
    return picture


def draw_observation(name: str, obs: Any) -> np.ndarray:
    return known(name).draw(None, np.asarray(obs, np.float32))


@pytest.mark.parametrize(
    "name, state, color, place",
    [  # the mean row and column of a color
        # 400 pixels are 2 x 2.4 + 0.8 units; the pole is 1 long and leans right where positive
        ("CartPole-v1", {"x": 1.5, "theta": -0.4}, drawings.WOOD, (None, 293)),
        # Upright at 0, counterclockwise where positive; 96 pixels are 1
        ("Pendulum-v1", {"theta": 0.5, "last_u": 0.0}, drawings.RED, (74, 95)),
        # It hangs down at 0; the second angle is on top of the first; 54.5 pixels are 1
        ("Acrobot-v1", {"joint_angle1": 1.571, "joint_angle2": -1.571}, drawings.BLUE, (119, 147)),
        ("Acrobot-v1", {"joint_angle1": 1.571, "joint_angle2": -1.571}, drawings.WOOD, (147, 174)),
        # On the left slope of the hill, which falls to the right; 180 pixels are 1
        ("MountainCar-v0", {"position": -1.2}, drawings.BLUE, (81, 28)),
        # Left is above; 40 pixels are 1
        (T_MAZE, {"position": 4, "goal": 1}, drawings.GREEN, (120, 440)),
    ],
)
def test_things_are_where_their_state_says(
    name: str, state: dict[str, float], color: drawings.Color, place: tuple[int | None, int]
) -> None:
    picture = draw(name, **state)
    found = np.argwhere(np.abs(picture.astype(int) - color).sum(-1) < 12).mean(0)
    for axis, wanted in enumerate(place):
        assert wanted is None or found[axis] == pytest.approx(wanted, abs=4)


def test_a_film_opens_and_has_its_frames(tmp_path: Path) -> None:
    frames = [
        drawings.caption(draw("CartPole-v1", x=math.sin(i / 60), theta=0.2), f"step {i}")
        for i in range(31)
    ]
    drawings.write_film(tmp_path / "film.gif", frames, 50)
    assert (tmp_path / "film.gif").stat().st_size < 100_000
    with Image.open(tmp_path / "film.gif") as film:
        assert film.n_frames == 31
        assert film.info["duration"] == 20  # ms


# What agents see


def test_grid_has_a_color_for_each_channel() -> None:
    seen = np.zeros((10, 10, 10))
    for channel in range(10):
        seen[channel, 9 - channel, channel] = 1
    seen[0, 9] = 1  # the first channel is on top
    cells = draw_observation("Seaquest-MinAtar", seen)[12::24, 12::24]
    for channel in range(10):
        np.testing.assert_array_equal(cells[channel, 9 - channel], drawings.CHANNELS[channel])
    assert len(np.unique(cells.reshape(-1, 3), axis=0)) == 10 + 1


@pytest.mark.parametrize("dtype", ["bool", "float32"])
def test_channels_without_bounds_are_there_where_they_are_above_0(dtype: str) -> None:
    seen = np.zeros((5, 5, 4), dtype)
    seen[1, 2, 3] = 1
    picture = drawings._observation(Box((5, 5, 4), dtype), None, (), seen)
    size = len(picture) // 5
    cells = picture[size // 2 :: size, size // 2 :: size]
    there = (cells == drawings.CHANNELS[3]).all(-1)
    np.testing.assert_array_equal(there, seen[..., 3] > 0)


def test_matrices_are_grey_and_three_channels_are_colors() -> None:
    seen = np.zeros((10, 5))
    seen[3, 1] = 1
    cells = draw_observation("Catch-bsuite", seen)[12::24, 12::24]
    np.testing.assert_array_equal(cells, 255 * seen[..., None] * np.ones(3))
    seen = np.zeros((30, 40, 3))
    seen[4, 7] = [2, 0, 1]  # of Pong, whose space goes from 0 to 2
    picture = draw_observation("Pong-misc", seen)
    np.testing.assert_array_equal(picture[::6, ::6][4, 7], [255, 0, 128])


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


def test_frame_comes_before_everything_else() -> None:
    picture = draw("test_render.Framed", time=3, x=0.0, theta=0.0)
    np.testing.assert_array_equal(picture, np.full((20, 30, 3), 10))
    offspring = draw("test_render.Offspring", x=0.0, theta=0.0)
    np.testing.assert_array_equal(offspring, draw("CartPole-v1", x=0.0, theta=0.0))


@pytest.mark.parametrize(
    "name, word",
    [
        ("test_render.Closed", "step_env"),  # there is no last state to draw
        ("test_render.Crooked", "float64 [20, 30]"),
        ("test_render.Stuck", "brush"),
        ("MemoryChain-bsuite", "frame(state, params)"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_line(name: str, word: str) -> None:
    with refused(f"{re.escape(name)}.*{re.escape(word)}"):
        draw(name, time=3)


def test_render_of_gymnax_is_used_without_a_display() -> None:
    env: Any = envs.make(EnvConfig(name="FourRooms-misc"))
    drawn = drawing(env)
    states = [env.env.reset(jax.random.key(0), env.params)[1]]
    states.append(states[0].replace(pos=states[0].pos + 1))
    one, other = (drawn.draw(state, None) for state in states)
    assert one.shape == other.shape == (288, 384, 3)
    assert not np.array_equal(one, other)
    with pytest.raises(ConfigError, match="FourRooms-misc"):
        drawn.draw(None, None)


# Episodes


@pytest.fixture(scope="module")
def policy() -> TrainedPolicy:
    """An untrained policy with a memory and loud noise, in a cart pole whose velocities are hidden.

    With a larger head: a new one's actions hardly depend on what is seen and remembered.
    """
    memory = {"_target_": f"{LAYERS}.memory.Recurrent", "cell": "gru", "size": 6}
    noisy = {"_target_": f"{LAYERS}.torsos.NoisyMLP", "layer_sizes": [16], "initial_noise": 5.0}
    inputs = {"_target_": f"{LAYERS}.inputs.Concatenate", "keys": ["observation", "last_action"]}
    layers = {"input_layer": inputs, "actor_torso": noisy, "critic_torso": MLP}
    config = small_config(
        arch={"num_eval_episodes": 8, "evaluation_greedy": False},
        env={"name": "CartPole-v1", "target": None, "mask": [1, 3], "extras": ["last_action"]},
        network={**NETWORK, **layers, "actor_memory": memory, "critic_memory": memory},
        system__sequence_length=None,
    )
    new = fresh(config)
    params = {**new.policy.params}
    params["actor_head"] = jax.tree.map(lambda x: 100 * x, params["actor_head"])
    return dataclasses.replace(new, policy=dataclasses.replace(new.policy, params=params))


@pytest.mark.long
def test_replayed_episodes_are_those_of_the_evaluation(policy: TrainedPolicy) -> None:
    """Their last state is the one that the episode ended in."""
    drawn = drawing(policy.system.env)
    episodes = policy.evaluate(12)  # beyond the 8 that are played at once
    assert len(set(episodes.returns.tolist())) > 1
    for number, played in enumerate(films.play(policy, drawn, 12)):
        assert played.episode_return == episodes.returns[number]
        assert played.length == episodes.lengths[number]
        assert played.finished == episodes.finished[number]
        np.testing.assert_array_equal(played.states.time, np.arange(played.length + 1))
        moments = [films._moment(played, played.states, i) for i in range(played.length + 1)]
        over = [abs(float(s.x)) > 2.4 or abs(float(s.theta)) > 0.2095 for s, _ in moments]
        assert over == [False] * (len(over) - 1) + [True]
        for state, obs in moments:
            wanted = [state.x, 0.0, state.theta, 0.0]
            np.testing.assert_allclose(obs["observation"], wanted, 1e-6, 1e-7)


@pytest.mark.long
def test_command_films_the_best_the_median_and_the_worst(
    policy: TrainedPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, number = tmp_path / "to" / "films", 12
    arguments = ["run=somewhere", f"out={out}", f"episodes={number}", "fps=25"]
    monkeypatch.setattr(sys, "argv", ["render", *arguments])
    monkeypatch.setattr(films.Rendering, "load", lambda _: policy)
    render.main()
    order = np.argsort(policy.evaluate(number).returns, kind="stable")
    lengths = policy.evaluate(number).lengths
    for name, episode in (("best", order[-1]), ("median", order[5]), ("worst", order[0])):
        with Image.open(out / f"{name}.gif") as film:
            assert film.n_frames == lengths[episode] + 1
            assert film.info["duration"] == 40
    with Image.open(out / "strip.png") as strip:
        assert strip.size[1] > 3 * drawings.CAPTION
    films.render(films.Rendering(run=str(out), episodes=1, max_frames=2, greedy=True))
    for name in ("best", "median", "worst"):  # in the run directory, by default
        with Image.open(out / f"{name}.gif") as film:
            assert film.n_frames <= 3


class Framed3x3(own_games.TicTacToe):
    """Each pixel is a field: 0, 100 or 200 for stones of player 1, none and of player 0."""

    def frame(self, state: Any) -> Any:
        grey = (100 * (np.asarray(state[0]) + 1)).astype(np.uint8)
        return np.broadcast_to(grey.reshape(3, 3, 1), (3, 3, 3))


class Text3x3(own_games.TicTacToe):
    def svg(self, state: Any) -> str:
        board = " ".join(map(str, np.asarray(state[0]).tolist()))
        start = '<svg xmlns="http://www.w3.org/2000/svg" width="90" height="30px">'
        return f"{start}<desc>{board}</desc></svg>"


def of_game(target: str, **env: Any) -> TrainedPolicy:
    """An untrained policy against random moves."""
    env = {"name": None, "target": target, "metrics": [], **env}
    arch = {"num_eval_episodes": 16, "max_eval_steps": 20, "evaluation_greedy": False}
    return fresh(small_config(env=env, arch=arch, network=NETWORK))


def shown(film: films.Film) -> list[tuple[str, str, float, float]]:
    """Caption, text, start and end of each picture of an SVG, as shares of its duration."""
    space = f"{{{drawings.SVG}}}"
    found = []
    for group in ElementTree.fromstring(film.data).findall(f"{space}g"):
        change = group.find(f"{space}animate")
        assert change is not None
        values = change.attrib["values"].split(";")
        times = [float(x) for x in change.attrib["keyTimes"].split(";")]
        at = values.index("visible")
        assert {*values[:at], *values[at + 1 :]} <= {"hidden"}
        texts = [group.findtext(f"{space}text"), group.findtext(f"{space}svg/{space}desc")]
        found.append((*map(str, texts), times[at], times[at + 1]))
    return found


@pytest.mark.long
def test_a_film_of_a_game_shows_each_move_and_each_answer() -> None:
    policy = of_game("test_render.Text3x3", opponent="self")
    for which in ("best", "worst"):
        film = films.film(policy, which=which)
        pictures = shown(film)
        boards = np.array([text.split() for _, text, _, _ in pictures], int)
        assert np.abs(boards[0]).sum() in (0, 1)  # the learner's first move, or the second
        own = 1 if not boards[0].any() else -1
        for before, after, (caption, *_) in zip(boards, boards[1:], pictures[1:], strict=False):
            (placed,) = (after - before)[after != before]
            assert placed == (own if caption.startswith("move") else -own)
        lines = boards[-1][own_games.LINES].sum(1) * own
        assert film.episode_return == (lines == 3).any() * 1.0 - (lines == -3).any()
        assert pictures[-1][0].endswith(f"return {film.episode_return:.2f}")
        assert film.length == sum(caption.startswith("move") for caption, *_ in pictures)
        # One after the other, at two per second, and the last one a second longer
        starts, ends = np.array([each[2:] for each in pictures]).T
        seconds = len(pictures) / 2 + 1
        np.testing.assert_allclose(starts * seconds, np.arange(len(pictures)) / 2, atol=1e-4)
        np.testing.assert_allclose(ends, [*starts[1:], 1.0], atol=1e-6)


@pytest.mark.long
def test_where_a_player_moves_twice_no_answer_is_shown() -> None:
    policy = of_game("own_games.Nim", kwargs={"heap": 9, "twice": True})
    drawn = drawings.Drawing(
        env=policy.system.evaluation_env, inner=lambda state: state, draw=lambda state, _: state[0]
    )
    told = ""
    for played in films.play(policy, drawn, 16):
        shots = films.shots_of(drawn, played)
        heaps = [int(each.drawn(drawn, played)) for each in shots]
        assert (np.diff(heaps) < 0).all()
        assert heaps[-1] == 0
        told += " ".join(each.caption.split()[0] for each in shots) + "\n"
    assert "move move" in told
    assert "move step move" in told


@pytest.mark.long
def test_a_game_with_frames_has_the_pictures_that_one_with_svg_has(tmp_path: Path) -> None:
    film = films.film(of_game("test_render.Framed3x3"), thoughts=False)
    other = shown(films.film(of_game("test_render.Text3x3")))
    film.save(tmp_path / "film.gif")
    left = (180 - 3) // 2
    with Image.open(tmp_path / "film.gif") as gif:
        assert gif.n_frames == len(other)
        for number, (_, text, *_) in enumerate(other):
            gif.seek(number)
            fields = np.asarray(gif.convert("L"))[drawings.CAPTION :, left : left + 3]
            board = np.array(text.split(), int).reshape(3, 3)
            np.testing.assert_allclose(fields, 100 * (board + 1), atol=3)
    with pytest.raises(ConfigError, match=r"film\.svg: must end in \.gif"):
        film.save(tmp_path / "film.svg")
    films.film(of_game("test_render.Framed3x3"))  # with curves beside it


def test_a_game_that_cannot_be_drawn_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"own_games\.Nim: cannot be drawn; .*frame\(state\)"):
        known("own_games.Nim")


def test_scores_that_are_not_numbers_are_the_worst() -> None:
    assert films.choose(np.array([3.0, np.nan, 2.0])) == {"best": 0, "median": 2, "worst": 1}


def test_every_kth_step_is_kept_and_the_last() -> None:
    wanted = {(4, 4): [0, 1, 2, 3, 4], (5, 4): [0, 2, 4, 5], (10, 3): [0, 4, 8, 10], (7, 1): [0, 7]}
    assert {given: films.every_kth(*given) for given in wanted} == wanted
    assert films.evenly_spaced(9, 5) == [0, 2, 4, 7, 9]
    assert films.evenly_spaced(2, 5) == [0, 1, 2]
