"""Pictures and films of environments, drawn without a display."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any
from xml.etree import ElementTree

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from jaxppo.config.fields import ConfigError
from jaxppo.config.messages import named, raised
from jaxppo.deploy.episodes import Episode
from jaxppo.envs import is_simulated
from jaxppo.types import Box, Environment, PyTree

Picture = Image.Image
Point = tuple[float, float]
Color = tuple[int, int, int]

WHITE: Color = (255, 255, 255)
INK: Color = (38, 46, 58)
GREY: Color = (176, 184, 194)
PALE: Color = (228, 232, 237)
WOOD: Color = (203, 148, 92)
BLUE: Color = (58, 124, 190)
RED: Color = (207, 74, 68)
GREEN: Color = (66, 160, 92)
YELLOW: Color = (242, 190, 60)

NIGHT: Color = (22, 24, 34)
CHANNELS: tuple[Color, ...] = (
    (96, 214, 255),
    (255, 106, 92),
    (126, 104, 96),
    (120, 214, 120),
    (255, 206, 84),
    (236, 124, 214),
    (168, 136, 255),
    (84, 148, 255),
    (240, 240, 240),
    (255, 160, 60),
)  # for the channels of a grid, in order
LINES: tuple[Color, ...] = (BLUE, WOOD, GREEN, RED)  # of a panel's curves
PANEL = 300  # width in pixels
MOST_ROWS = 40  # of a map of actions
FINE = 3  # pictures are drawn larger by this factor, then averaged
CAPTION = 24  # height in pixels
SVG = "http://www.w3.org/2000/svg"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Drawing:
    """How an environment is drawn. For a simulator, `draw` gets a frame in place of a state."""

    env: Any  # a GymnaxEnvironment, an Episodes, a Games or a Simulated
    inner: Callable[[PyTree], PyTree]  # maps the state of `types.Environment` to that of `env`
    draw: Callable[[PyTree, PyTree], Any]  # state of `env`, observation -> uint8 [H, W, 3]; svg
    svg: bool = False  # whether `draw` returns the root of an SVG

    @property
    def suffix(self) -> str:
        """Return the ending of a film's file."""
        return ".svg" if self.svg else ".gif"


def drawing(env: Environment) -> Drawing:
    """Return how to draw `env`; `ConfigError` if it cannot be drawn.

    This is the first one available of: the environment's own `frame`, a drawing of this
    module, its observation as a picture (not of games), its own `svg` or `render(state, params)`.
    """
    from jaxppo.envs.episodes import Episodes
    from jaxppo.envs.extras import Extras
    from jaxppo.envs.frames import Frames
    from jaxppo.envs.games import Games
    from jaxppo.envs.gymnax import GymnaxEnvironment

    if is_simulated(env):
        return Drawing(env=env, inner=lambda state: state, draw=lambda frame, _: np.asarray(frame))
    bare: Any = env
    added, wrapped = False, 0
    while not isinstance(bare, GymnaxEnvironment | Episodes | Games):
        added |= isinstance(bare, Extras)
        wrapped += isinstance(bare, Extras | Frames)
        bare = bare._env
    one = bare.env if isinstance(bare, GymnaxEnvironment) else bare.one
    is_game, svg = isinstance(bare, Games), False
    space = bare.observation_space
    entry = "observation" if added or isinstance(space, dict) else None
    if isinstance(space, dict):
        space = space.get("observation")
    kinds = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(one).__mro__]
    known = [DRAWINGS[kind] for kind in kinds if kind in DRAWINGS]
    if hasattr(one, "frame"):
        draw = partial(_with_params, _frame, bare)
    elif known:
        draw = partial(_with_params, known[0], bare)
    elif isinstance(space, Box) and _is_picture(space) and not is_game:
        draw = partial(_observation, space, entry)
    elif hasattr(one, "svg") and not isinstance(bare, GymnaxEnvironment):
        draw, svg = partial(_with_params, _svg, bare), True
    elif is_game:
        raise ConfigError(
            f"{bare.name}: cannot be drawn; give it a method frame(state) that returns uint8 "
            "[H, W, 3], or svg(state) that returns the text of an SVG"
        )
    elif hasattr(one, "render") and isinstance(bare, GymnaxEnvironment):
        draw = partial(_with_params, _render, bare)
    else:
        raise ConfigError(_refusal(bare.name, "it has no render(state, params) either"))
    if isinstance(bare, GymnaxEnvironment) and not hasattr(one, "step_env"):
        raise ConfigError(
            f"{bare.name}: has no step_env, which returns the last state of an episode (step "
            "returns the first state of the next one); derive it from gymnax's Environment"
        )

    def inner(state: PyTree) -> PyTree:
        for _ in range(wrapped):
            state = state.inner
        return state

    return Drawing(env=bare, inner=inner, draw=draw, svg=svg)


def _with_params(
    draw: Callable[[Any, PyTree, PyTree], Any], env: Any, state: PyTree, obs: PyTree
) -> Any:
    """Draw an environment with the parameters of the episode."""
    view, own = env.view(state)
    return draw(view, own, obs)


def _refusal(name: str, reason: str) -> str:
    known = ", ".join(kind.rpartition(".")[2] for kind in DRAWINGS)
    return (
        f"{name}: cannot be drawn: it is none of {known}, its observation is no picture ([H, W], "
        f"or [H, W, C] of up to {len(CHANNELS)} channels), and {reason}; give it a method "
        "frame(state, params), or frame(state) in jaxppo's interface, that returns uint8 [H, W, 3]"
    )


def _frame(env: Any, state: PyTree, obs: PyTree) -> np.ndarray:
    """Call the environment's own `frame`."""
    try:
        one = getattr(env, "one", None)  # of `Episodes`, without parameters
        shown = env.env.frame(state, env.params) if one is None else one.frame(state)
        picture = np.asarray(shown)
    except Exception as error:  # the user's code may raise anything
        raise ConfigError(f"{env.name}: its frame raises {raised(error)}") from error
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
        raise ConfigError(
            f"{env.name}: its frame returned {picture.dtype} "
            f"{list(picture.shape)}; it must be uint8 [H, W, 3]"
        )
    return picture


def _svg(env: Any, state: PyTree, obs: PyTree) -> ElementTree.Element:
    """Call the environment's own `svg`."""
    try:
        root = ElementTree.fromstring(env.one.svg(state))
        _size(root)
    except Exception as error:  # the user's code may raise anything
        raise ConfigError(
            f"{env.name}: its svg fails: {raised(error)}; it must return the text of an SVG with "
            "width and height in pixels"
        ) from error
    return root


def _size(root: ElementTree.Element) -> list[float]:
    """Return the width and height of an SVG."""
    return [float(root.attrib[name].removesuffix("px")) for name in ("width", "height")]


def _render(env: Any, state: PyTree, obs: PyTree) -> np.ndarray:
    """Draw the figure that gymnax's `render` makes."""
    from matplotlib import pyplot
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    try:
        pyplot.switch_backend("agg")
        shown = env.env.render(state, env.params)
        figure = (shown[0] if isinstance(shown, tuple) else shown).figure
        figure.dpi = 60  # 384 x 288 pixels at matplotlib's default size
        canvas: Any = FigureCanvasAgg(figure)
        canvas.draw()
        return np.array(canvas.buffer_rgba())[..., :3]
    except Exception as error:  # mostly from an optional library that is missing
        reason = f"its render(state, params) raised {named(error)}"
        raise ConfigError(_refusal(env.name, reason)) from error
    finally:
        pyplot.close("all")


def _is_picture(space: Box) -> bool:
    """Return whether it is `[H, W]`, or `[H, W, C]` with a color for each channel."""
    if len(space.shape) not in (2, 3) or min(space.shape[:2]) < 2:
        return False
    return len(space.shape) == 2 or space.shape[2] <= len(CHANNELS)


def _observation(space: Box, entry: str | None, state: PyTree, obs: PyTree) -> np.ndarray:
    """Draw what the agent sees, enlarged."""
    values = np.asarray(obs if entry is None else obs[entry])
    values = values[..., -space.shape[-1] :]  # the latest of stacked frames
    low, high = (np.asarray(bound, np.float64) for bound in (space.low, space.high))
    channels = 1 if values.ndim == 2 else values.shape[2]
    if channels in (1, 3) or (channels == 4 and values.dtype == np.uint8):
        if np.all(np.isfinite(low) & np.isfinite(high)):
            bright = (values - low) / np.maximum(high - low, 1e-12)
        else:  # without bounds, map all numbers to (0, 1)
            bright = 0.5 + np.arctan(values) / np.pi
        bright = bright.reshape(*values.shape[:2], channels)[..., :3]
        picture = np.broadcast_to(255 * np.clip(bright, 0, 1), (*values.shape[:2], 3))
    else:
        absent = np.where(np.isfinite(low), low, 0.0)  # the number of what is not there
        picture, present = np.full((*values.shape[:2], 3), NIGHT), values > absent
        for channel in reversed(range(channels)):  # the first channel is on top
            picture[present[..., channel]] = CHANNELS[channel]
    return _enlarge(np.round(picture).astype(np.uint8))


def _enlarge(picture: np.ndarray, size: int = 240) -> np.ndarray:
    """Draw every pixel as a square; the longer side has about `size` pixels."""
    times = max(1, size // max(picture.shape[:2]))
    large = picture.repeat(times, axis=0).repeat(times, axis=1)
    if times >= 8:  # lines between cells
        large[times - 1 :: times] = NIGHT
        large[:, times - 1 :: times] = NIGHT
    return large


class _Canvas:
    """A white picture in the units of the environment, with y upwards."""

    def __init__(self, low: Point, high: Point, width: int) -> None:
        self.unit = FINE * width / (high[0] - low[0])  # pixels
        height = FINE * round((high[1] - low[1]) * self.unit / FINE)
        self._low, self._height = low, height
        self._image = Image.new("RGB", (FINE * width, height), WHITE)
        self._draw = ImageDraw.Draw(self._image)

    def at(self, point: Point) -> Point:
        """Return a point's place in pixels of the large picture."""
        x, y = (self.unit * (p - low) for p, low in zip(point, self._low, strict=True))
        return x, self._height - y

    def polygon(self, points: Iterable[Point], color: Color) -> None:
        """Draw a filled polygon."""
        self._draw.polygon([self.at(point) for point in points], color)

    def disc(self, center: Point, radius: float, color: Color) -> None:
        """Draw a filled circle."""
        x, y = self.at(center)
        r = radius * self.unit
        self._draw.ellipse((x - r, y - r, x + r, y + r), color)

    def rod(self, points: Sequence[Point], width: float, color: Color) -> None:
        """Draw a line through points, with round ends and corners."""
        for start, end in itertools.pairwise(points):
            length = math.dist(start, end)
            angle = math.atan2(end[1] - start[1], end[0] - start[0])
            self.polygon(_turned(_box(0.0, length, -width / 2, width / 2), angle, start), color)
        for point in points:
            self.disc(point, width / 2, color)

    def picture(self) -> np.ndarray:
        """Return the picture, uint8 `[H, W, 3]`."""
        return np.asarray(self._image.reduce(FINE))


def _turned(points: Iterable[Point], angle: float, origin: Point) -> list[Point]:
    """Turn points counterclockwise by `angle` in radians, then move them to `origin`."""
    cos, sin = math.cos(angle), math.sin(angle)
    return [(origin[0] + cos * x - sin * y, origin[1] + sin * x + cos * y) for x, y in points]


def _box(left: float, right: float, bottom: float, top: float) -> list[Point]:
    return [(left, bottom), (right, bottom), (right, top), (left, top)]


def _cart_pole(env: Any, state: PyTree, obs: PyTree) -> np.ndarray:
    """Draw a cart pole. A positive angle leans right; posts mark the ends of the track."""
    x, angle = float(state.x), float(state.theta)
    end, length = float(env.params.x_threshold), 2 * float(env.params.length)
    canvas = _Canvas((-end - 0.4, -0.35), (end + 0.4, 0.55 + 1.1 * length), 400)
    canvas.rod([(-end - 1, 0.0), (end + 1, 0.0)], 0.03, GREY)
    for post in (-end, end):
        canvas.rod([(post, -0.12), (post, 0.12)], 0.04, RED)
    canvas.polygon(_box(x - 0.35, x + 0.35, 0.06, 0.36), INK)
    for wheel in (x - 0.2, x + 0.2):
        canvas.disc((wheel, 0.07), 0.09, INK)
        canvas.disc((wheel, 0.07), 0.04, GREY)
    pivot = (x, 0.36)
    tip = (x + length * math.sin(angle), 0.36 + length * math.cos(angle))
    canvas.rod([pivot, tip], 0.11, WOOD)
    canvas.disc(pivot, 0.055, BLUE)
    return canvas.picture()


def _pendulum(env: Any, state: PyTree, obs: PyTree) -> np.ndarray:
    """Draw a pendulum. Angle 0 is upright; positive angles and torques are counterclockwise."""
    angle, torque = float(state.theta), float(np.squeeze(state.last_u))
    length = float(env.params.l)
    reach = 1.25 * length
    canvas = _Canvas((-reach, -reach), (reach, reach), 240)
    tip = (-length * math.sin(angle), length * math.cos(angle))
    canvas.rod([(0.0, 0.0), tip], 0.18 * length, RED)
    sweep = 0.75 * math.pi * torque / float(env.params.max_torque)
    if abs(sweep) > 0.02:  # an arrow from the right, over the top if positive
        angles = np.linspace(0, sweep, 40)
        arc = [(0.5 * length * math.cos(a), 0.5 * length * math.sin(a)) for a in angles]
        canvas.rod(arc, 0.035 * length, BLUE)
        size = 0.16 * length * min(1.0, abs(sweep))
        head = [(-0.5 * size, 0.0), (0.5 * size, 0.0), (0.0, math.copysign(size, sweep))]
        canvas.polygon(_turned(head, sweep, arc[-1]), BLUE)
    canvas.disc((0.0, 0.0), 0.06 * length, INK)
    return canvas.picture()


def _acrobot(env: Any, state: PyTree, obs: PyTree) -> np.ndarray:
    """Draw an acrobot: both angles are 0 if it hangs down, the second is relative to the first."""
    first, second = float(state.joint_angle1), float(state.joint_angle2)
    lengths = float(env.params.link_length_1), float(env.params.link_length_2)
    reach = 1.1 * sum(lengths)
    canvas = _Canvas((-reach, -reach), (reach, reach), 240)
    # The tip must cross this line, if both links have the same length
    canvas.rod([(-reach, lengths[0]), (reach, lengths[0])], 0.02 * reach, GREEN)
    elbow = (lengths[0] * math.sin(first), -lengths[0] * math.cos(first))
    tip = (
        elbow[0] + lengths[1] * math.sin(first + second),
        elbow[1] - lengths[1] * math.cos(first + second),
    )
    canvas.rod([(0.0, 0.0), elbow], 0.09 * reach, BLUE)
    canvas.rod([elbow, tip], 0.07 * reach, WOOD)
    for joint in ((0.0, 0.0), elbow):
        canvas.disc(joint, 0.03 * reach, INK)
    return canvas.picture()


def _height(x: float) -> float:
    """Return the height of Moore's hill (1990) at `x`, as gymnasium draws it."""
    return 0.45 * math.sin(3 * x) + 0.55


def _mountain_car(env: Any, state: PyTree, obs: PyTree) -> np.ndarray:
    """Draw a car on a hill, with a flag at the goal."""
    low, high = float(env.params.min_position) - 0.1, float(env.params.max_position) + 0.1
    canvas = _Canvas((low, 0.0), (high, 1.25), 360)
    hill = [(x, _height(x)) for x in np.linspace(low, high, 120).tolist()]
    canvas.polygon([(low, -1.0), *hill, (high, -1.0)], PALE)
    canvas.rod(hill, 0.008, INK)
    goal = float(env.params.goal_position)
    pole = [(goal, _height(goal)), (goal, _height(goal) + 0.18)]
    canvas.rod(pole, 0.008, INK)
    flag = [(goal, pole[1][1]), (goal, pole[1][1] - 0.07), (goal - 0.09, pole[1][1] - 0.035)]
    canvas.polygon(flag, GREEN)
    x = float(state.position)
    slope = math.atan(0.45 * 3 * math.cos(3 * x))
    place = (x, _height(x))
    canvas.polygon(_turned(_box(-0.08, 0.08, 0.025, 0.065), slope, place), RED)
    canvas.polygon(_turned(_box(-0.05, 0.04, 0.065, 0.1), slope, place), BLUE)
    for wheel in _turned([(-0.05, 0.03), (0.05, 0.03)], slope, place):
        canvas.disc(wheel, 0.026, INK)
        canvas.disc(wheel, 0.01, GREY)
    return canvas.picture()


def _t_maze(env: Any, state: PyTree, obs: PyTree) -> np.ndarray:
    """Draw a T-maze. The corridor runs right, so left is up. The sign is yellow while visible."""
    delay, position = int(env.env.delay), int(state.position)
    side = -1 if int(state.goal) else 1
    size = min(40, max(2, 480 // (delay + 2)))
    canvas = _Canvas((-1.0, -2.0), (delay + 1.0, 2.0), size * (delay + 2))

    def cell(x: float, y: float, color: Color) -> None:
        canvas.polygon(_box(x - 0.46, x + 0.46, y - 0.46, y + 0.46), color)

    for i in range(delay + 1):
        cell(i, 0, PALE)
    cell(delay, side, GREEN)
    cell(delay, -side, RED)
    sign = [(-0.3, 0.6 * side), (0.3, 0.6 * side), (0.0, 1.2 * side)]
    canvas.polygon(sign, YELLOW if position == 0 else GREY)
    canvas.disc((position, 0.0), 0.32, BLUE)
    return canvas.picture()


DRAWINGS: dict[str, Callable[[Any, PyTree, PyTree], np.ndarray]] = {
    "gymnax.environments.classic_control.cartpole.CartPole": _cart_pole,
    "gymnax.environments.classic_control.pendulum.Pendulum": _pendulum,
    "gymnax.environments.classic_control.acrobot.Acrobot": _acrobot,
    "gymnax.environments.classic_control.mountain_car.MountainCar": _mountain_car,
    "gymnax.environments.classic_control.continuous_mountain_car.ContinuousMountainCar": (
        _mountain_car
    ),
    "jaxppo.envs.t_maze.TMaze": _t_maze,
}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Panel:
    """Curves of what a policy computed in an episode; a line marks the step that is shown.

    Matplotlib draws the curves once; each picture adds the line.
    """

    base: Picture
    last: int  # the last step with an action
    column: Callable[[int], int]  # step -> column of the line
    rows: Sequence[tuple[int, int]]  # first and last row of each plot

    @classmethod
    def of(cls, episode: Episode, height: int) -> "Panel | None":
        """Draw the curves, at least `height` pixels high; None if there is nothing to draw."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        plots = [*_curves(episode), *_maps(episode.distribution, _raw(episode))]
        if not plots:
            return None
        height = max(height, 84 * len(plots))
        figure = Figure((PANEL / 100, height / 100), dpi=100, layout="constrained")
        canvas: Any = FigureCanvasAgg(figure)
        every = list(figure.subplots(len(plots), squeeze=False)[:, 0])
        for axes, (title, plot) in zip(every, plots, strict=True):
            plot(axes)
            axes.set_title(title, fontsize=8, loc="left", pad=3)
            axes.tick_params(labelsize=7, length=2, labelbottom=axes is every[-1])
            axes.locator_params(axis="y", nbins=3)
            axes.set_xlim(-0.5, episode.length - 0.5)
            axes.xaxis.get_major_locator().set_params(nbins=5, integer=True, min_n_ticks=1)
        every[-1].set_xlabel("step", fontsize=7, labelpad=0)
        canvas.draw()
        extents = [axes.get_window_extent() for axes in every]
        return cls(
            base=Image.fromarray(np.array(canvas.buffer_rgba())[..., :3]),
            last=episode.length - 1,
            column=lambda step: round(every[0].transData.transform((step, 0))[0]),
            rows=[(round(height - e.y1), round(height - e.y0)) for e in extents],
        )

    def beside(self, picture: np.ndarray, step: int) -> np.ndarray:
        """Put the panel at `step`, from 0, to the right of a picture; uint8 `[H, W, 3]`."""
        column = self.column(min(step, self.last))  # nothing is computed after the last step
        panel = self.base.copy()
        for top, bottom in self.rows:
            ImageDraw.Draw(panel).line((column, top, column, bottom), RED)
        height, width, _ = picture.shape
        both = Image.new("RGB", (width + panel.width, max(height, panel.height)), WHITE)
        both.paste(Image.fromarray(picture), (0, (both.height - height) // 2))
        both.paste(panel, (width, (both.height - panel.height) // 2))
        return np.asarray(both)


Plot = tuple[str, Callable[[Any], None]]  # title, and what draws into axes


def _raw(episode: Episode) -> PyTree:
    return episode.actions if episode.raw_actions is None else episode.raw_actions


def _curves(episode: Episode) -> list[Plot]:
    """Return the curves of an episode: value, entropy, and means of continuous actions."""
    named = (("value", episode.values), ("entropy [nats]", episode.entropies))
    plots: list[Plot] = [
        (title, partial(_plot_curve, x[:, None], None)) for title, x in named if x is not None
    ]
    parameters, num_steps = episode.distribution, episode.length
    mean, scale = parameters.get("loc"), parameters.get("scale", parameters.get("scale_diag"))
    if "alpha" in parameters and "beta" in parameters:
        total = parameters["alpha"] + parameters["beta"]
        mean = parameters["alpha"] / total
        scale = np.sqrt(mean * (1 - mean) / (total + 1))
    if isinstance(mean, np.ndarray) and isinstance(scale, np.ndarray):
        mean, scale = mean.reshape(num_steps, -1), scale.reshape(num_steps, -1)
        if mean.shape == scale.shape and mean.shape[1] <= len(LINES):
            raw = "action" if episode.raw_actions is None else "raw action"
            plots.append((f"{raw}, mean and deviation", partial(_plot_curve, mean, scale)))
    return plots


def _plot_curve(means: np.ndarray, deviations: np.ndarray | None, axes: Any) -> None:
    """Draw means `[T, A]`, and their deviations, over the steps of an episode."""
    steps = np.arange(len(means))
    for i, mean in enumerate(means.T):
        color = np.array(LINES[i]) / 255
        if deviations is not None:
            low, high = mean - deviations[:, i], mean + deviations[:, i]
            axes.fill_between(steps, low, high, color=color, alpha=0.25, linewidth=0)
        axes.plot(steps, mean, color=color, linewidth=1, marker="." if len(means) == 1 else None)
    low, high = axes.get_ylim()
    if high - low < 1e-6 * max(1.0, abs(low), abs(high)):  # a constant, up to rounding
        axes.set_ylim(low - 0.5, high + 0.5)


def _maps(distribution: PyTree, actions: PyTree) -> list[Plot]:
    """Return a map for each discrete action: probabilities or Q-values, up to `MOST_ROWS`."""
    plots: list[Plot] = []
    for name, numbers in distribution.items():
        if isinstance(numbers, dict):
            key = name if isinstance(actions, Mapping) else int(name)
            plots += _maps(numbers, actions[key])
        elif name in ("logits", "probs", "q_values"):
            rows = np.asarray(numbers, np.float64)
            if name == "logits":
                rows = np.exp(rows - rows.max(axis=-1, keepdims=True))
                rows /= rows.sum(axis=-1, keepdims=True)
            kind = "Q-values" if name == "q_values" else "probabilities"
            rows = rows.reshape(len(rows), -1, rows.shape[-1])  # [T, components, values]
            if math.prod(rows.shape[1:]) <= MOST_ROWS:
                taken = np.asarray(actions).reshape(len(rows), -1)
                plots.append((f"{kind} (red: the action taken)", partial(_plot_map, rows, taken)))
    return plots


def _plot_map(rows: np.ndarray, taken: np.ndarray, axes: Any) -> None:
    """Draw numbers `[T, C, K]` as greys, the larger the darker, and actions `[T, C]` as dots."""
    num_steps, num_components, num_values = rows.shape
    flat = np.where(np.isfinite(rows), rows, np.nan).reshape(num_steps, -1)
    axes.imshow(flat.T, cmap="Greys", aspect="auto", origin="lower", interpolation="none")
    places = taken + num_values * np.arange(num_components)
    axes.plot(np.arange(num_steps), places, ".", color=np.array(RED) / 255, markersize=2)
    axes.yaxis.get_major_locator().set_params(integer=True)


def caption(picture: np.ndarray, text: str, *, size: int = 13) -> Picture:
    """Put a line of text, `size` pixels high, above a picture, uint8 `[H, W, 3]`.

    The result is at least 180 pixels wide.
    """
    height, width, _ = picture.shape
    image = Image.new("RGB", (max(width, 180), height + CAPTION), WHITE)
    ImageDraw.Draw(image).text((6, CAPTION // 2), text, INK, ImageFont.load_default(size), "lm")
    image.paste(Image.fromarray(picture), ((image.width - width) // 2, CAPTION))
    return image


def write_film(
    file: Path | IO[bytes], images: Sequence[Picture], fps: int, *, smooth: bool = False
) -> None:
    """Write a GIF of images of one size, which repeats after a pause of one second.

    `smooth`: images with colour gradients, as simulators render.
    """
    few = [*images[:: -(-len(images) // 12)], images[-1]]
    # Maximum coverage keeps the colours of small objects, but gradients become bands
    method = Image.Quantize.MEDIANCUT if smooth else Image.Quantize.MAXCOVERAGE
    dither = Image.Dither.NONE
    palette = _joined(few).quantize(128 if smooth else 64, method=method, dither=dither)
    frames = [image.quantize(palette=palette, dither=dither) for image in images]
    duration = [round(100 / fps) * 10] * (len(frames) - 1) + [1000]  # ms, in the format's 10 ms
    save = partial(frames[0].save, file, format="GIF")
    save(save_all=True, append_images=frames[1:], duration=duration, loop=0)


def write_svg(
    file: Path | IO[bytes], frames: Sequence[tuple[str, ElementTree.Element]], fps: float
) -> None:
    """Write an animated SVG of (text, SVG), which repeats after a pause of one second."""
    ElementTree.register_namespace("", SVG)
    width, height = np.max([_size(frame) for _, frame in frames], axis=0)
    root = ElementTree.Element(f"{{{SVG}}}svg", width=str(width), height=str(height + CAPTION))
    page = {"width": "100%", "height": "100%", "fill": "white"}
    ElementTree.SubElement(root, f"{{{SVG}}}rect", page)
    seconds = len(frames) / fps + 1
    for i, (text, frame) in enumerate(frames):
        is_last = i == len(frames) - 1  # what viewers without animation show
        shown = {"visibility": "visible" if is_last else "hidden"}
        group = ElementTree.SubElement(root, f"{{{SVG}}}g", shown)
        end = 1 if is_last else (i + 1) / fps / seconds
        first = int(i == 0)
        changes = {
            "attributeName": "visibility",
            "values": ";".join(["hidden", "visible", "hidden"][first:]),
            "keyTimes": ";".join(f"{x:.6f}" for x in [0, i / fps / seconds, end][first:]),
            **{"dur": f"{seconds:g}s", "calcMode": "discrete", "repeatCount": "indefinite"},
        }
        ElementTree.SubElement(group, f"{{{SVG}}}animate", changes)
        font = {"x": "6", "y": "16", "font-family": "sans-serif", "font-size": "13"}
        ElementTree.SubElement(group, f"{{{SVG}}}text", font).text = text
        frame.set("y", str(CAPTION))
        group.append(frame)
    ElementTree.ElementTree(root).write(file, "utf-8", xml_declaration=True)


def write_strip(path: Path, rows: Sequence[tuple[str, Sequence[Picture]]]) -> None:
    """Write a PNG of rows: a line of text above images of one size."""
    lines = [caption(np.asarray(_joined(row, across=True)), text, size=17) for text, row in rows]
    _joined(lines).save(path)


def _joined(images: Sequence[Picture], *, across: bool = False) -> Picture:
    """Put images below one another, or `across` the page with gaps of 6 pixels."""
    widths, heights = zip(*(image.size for image in images), strict=True)
    length = sum(widths) + 6 * (len(images) - 1)
    size = (length, max(heights)) if across else (max(widths), sum(heights))
    joined, place = Image.new("RGB", size, WHITE), 0
    for image in images:
        joined.paste(image, (place, 0) if across else (0, place))
        place += image.width + 6 if across else image.height
    return joined
