"""Check that an environment keeps the contract of `types.Environment`, by playing it."""

import contextlib
import dataclasses
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify

from jaxppo import envs
from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import EnvConfig
from jaxppo.envs.episodes import inner
from jaxppo.envs.forms import entry_of, limits, line, problems, random_action
from jaxppo.kernels import random_bits
from jaxppo.ops import actions
from jaxppo.simulators.faults import SimulatorError
from jaxppo.types import Environment, PyTree, TimeStep, counted, describe, is_space, zeros

NUM_ENVS = 4  # B; of worlds with agents, as many worlds
FEW = 8  # steps of the second, separately traced run
# Settings without wrappers and varying parameters
PLAIN: dict[str, Any] = {
    **{"mask": [], "frame_stack": 1, "extras": [], "randomize": {}, "curriculum": {}}
}
LATE = 10**6  # a time at which episodes without a time limit could end


@dataclasses.dataclass(frozen=True)
class Check:
    """The result of one check of the contract."""

    name: str
    findings: list[str]  # errors, in words; empty if there are none
    seen: str  # what was checked
    # Possible errors, and checks that did not run
    hints: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Played:
    """`T` steps of `B` environments by random legal actions, in NumPy."""

    first_obs: PyTree  # [B, O...]
    steps: TimeStep  # [T, B, ...]

    @property
    def over(self) -> np.ndarray:
        """The steps that ended an episode, `[T, B]` bool."""
        return np.asarray(self.steps.terminated | self.steps.truncated)

    @property
    def lengths(self) -> np.ndarray:
        """The steps taken in the episode so far, after each step, `[T, B]`."""
        lengths, time = [], np.zeros(self.over.shape[1], int)
        for over in self.over:
            lengths.append(time + 1)
            time = np.where(over, 0, time + 1)
        return np.stack(lengths)


def check(config: EnvConfig, steps: int = 256) -> list[Check]:
    """Play an environment for `steps` steps and return the checks; it raises nothing."""
    try:
        env = envs.build(dataclasses.replace(config, on_error="stop"))  # a restart hides faults
    except Exception as error:  # an environment may raise anything
        said = str(error) if isinstance(error, ConfigError) else line(error)
        return [Check("made", [said], "")]
    made = [Check("made", [], f"{env.name}, {line(env.action_space)}")]
    simulated = envs.is_simulated(env)
    try:
        found = [] if simulated else problems(env)
        if found:
            way_out = envs.way_out(config)
            found = [f"{each}; {way_out}" for each in found]
        declared = [] if found or simulated else _misdeclared(env)
        of_library = config.target is None  # whose spaces are not the user's to mend
        wrong, hints = ([], declared) if of_library else (declared, [])
        checks = [*made, Check("forms", found + wrong, describe(env.observation_space), hints)]
        play_it = _check_simulators if simulated else _check_play
        return checks if found else checks + list(play_it(env, config, steps))
    except Exception as error:
        return [*made, Check("runs", [f"raises {line(error)}"], "")]


def _check_play(env: Environment, config: EnvConfig, steps: int) -> Iterator[Check]:
    """Play the environment and check the results."""
    keys, num = _keys(env), min(FEW, steps)
    rollout = jax.jit(partial(play, env, config.action_mask, steps))
    first, again = _numpy(rollout(keys)), _numpy(rollout(keys))
    traced_again = _numpy(jax.jit(partial(play, env, config.action_mask, num))(keys))
    played = Played(*first)
    yield Check("runs", [], f"{steps} steps of {NUM_ENVS} environments, compiled")
    yield from _check_played(env, config, played)
    yield _indices(env, config.action_mask, steps, keys)
    few = jax.tree.map(lambda x: x[:num], played.steps)
    same = _equal(first, again) and _close(traced_again, (played.first_obs, few))
    seen = "two runs from one key"
    differs, hints = ([], list(_python_state(env))) if same else ([f"{seen} differ"], [])
    yield Check("determinism", differs, seen, hints)


def _check_played(env: Environment, config: EnvConfig, played: Played) -> Iterator[Check]:
    """Check what the steps returned."""
    yield Check("values", list(_values(env, played)), "finite, and within the spaces")
    doubts = list(_doubts(env, config, played, at_limit=True))
    wrong = list(_ends(env, played))
    if config.gymnax_legacy:
        wrong = [f"{each}; leave env.gymnax_legacy=true out, for gymnax 1.0" for each in wrong]
    yield Check("ends", wrong, _describe_ends(env, played), doubts)
    count = int(played.over.sum())
    unseen = f"not checked, since no episode ended; raise steps={len(played.over)}"
    yield Check("successor", list(_successor(played)), f"at {count} ends", [unseen][count:])
    if entry_of(env.observation_space, config.action_mask) is not None:
        wrong = list(_mask(env, config.action_mask, played))
        yield Check("mask", wrong, "some action is legal everywhere")


def _check_simulators(env: Any, config: EnvConfig, steps: int) -> Iterator[Check]:
    """Play an environment that is not written in JAX, and check the results."""
    mask = config.action_mask
    try:
        played, again = (_play_simulators(env, mask, steps) for _ in range(2))
    except SimulatorError as error:
        yield Check("runs", [str(error)], "")
        return
    yield Check("runs", [], f"{steps} steps of {NUM_ENVS} environments")
    yield from _check_played(env, config, played)
    same = _equal((played.first_obs, played.steps), (again.first_obs, again.steps))
    hints = [] if same else ["two plays from one seed differ, so a run cannot be repeated"]
    yield Check("determinism", [], "two plays from one seed", hints)
    has_mask = entry_of(env.observation_space, mask) is not None  # its checker ignores masks
    if not has_mask and (found := env.problems()) is not None:
        yield Check("gymnasium", found, "its own checker")


def _play_simulators(env: Any, mask: str | None, steps: int) -> Played:
    """Play random legal actions; an error of an environment is raised as `SimulatorError`."""
    num = NUM_ENVS * env.num_agents
    keys = jax.random.split(jax.random.key(0), (steps, num))
    draw = jax.jit(jax.vmap(partial(random_action, env.action_space)))
    with contextlib.closing(env.make(num)) as pool:
        arrays = pool.arrays

        def copied(leaves: list[np.ndarray]) -> PyTree:
            obs = env.observation([x.copy() for x in leaves])
            return counted(env.observation_space, obs)

        pool.reset(range(num), range(num))
        obs = first_obs = copied(arrays.obs)
        taken = []
        for key in keys:
            action = draw(key, entry_of(obs, mask))
            pool.step([np.asarray(x) for x in jax.tree.leaves(action)])
            obs = copied(arrays.obs)
            step: Any = TimeStep(
                obs=obs,
                final_observation=copied(arrays.final),
                reward=arrays.reward.copy(),
                terminated=arrays.terminated.copy(),
                truncated=arrays.truncated.copy(),
            )
            taken.append(step)
    return Played(first_obs, jax.tree.map(lambda *x: np.stack(x), *taken))


def glance(config: EnvConfig) -> list[str]:
    """Return errors of a user's own class that are found in about a second, in words.

    It checks values of the first steps, the time limit, and state outside of JAX. Call it only if
    `problems` finds nothing. Of environments that are not written in JAX it finds none: a run
    checks every step.
    """
    try:
        with _untraced():
            env = envs.build(config)
            if envs.is_simulated(env):
                return []
            found = list(_python_state(env))
            keys = _keys(env)
            played = Played(*_numpy(jax.jit(partial(play, env, config.action_mask, FEW))(keys)))
            found += _misdeclared(env)
            return [*found, *_values(env, played), *_doubts(env, config, played)]
    except Exception as error:  # an environment may raise anything
        return [f"raises {line(error)}"]


def _keys(env: Environment) -> jax.Array:
    """Return a key `[B]` for each environment that is played, of worlds for each agent."""
    return jax.random.split(jax.random.key(0), NUM_ENVS * env.num_agents)


def _untraced() -> contextlib.AbstractContextManager[None]:
    """Compute numbers also where a caller is traced.

    Elsewhere nothing need change: each operation on constants would be a program of its own.
    """
    is_traced = isinstance(jnp.int32(0), jax.core.Tracer)
    return jax.ensure_compile_time_eval() if is_traced else contextlib.nullcontext()


def _python_state(env: Environment) -> Iterator[str]:
    """Yield an error if a step changes or reads Python state; a compiled step does so only once."""
    keys = _keys(env)
    action = zeros(env.action_space, keys.shape)

    def traced() -> tuple[str, list[Any]]:
        def both(keys: jax.Array) -> Any:
            state, _ = env.reset(keys)
            return env.step(keys, state, action)

        # A new function each time, since JAX caches the traces of functions
        closed = jax.make_jaxpr(lambda keys: both(keys))(keys)
        return str(closed.jaxpr), [np.asarray(const) for const in closed.consts]

    traced()  # fill the environment's own caches
    owner = getattr(env, "one", getattr(env, "env", env))
    attributes = getattr(owner, "__dict__", {})
    before = {name: _fingerprint(value) for name, value in attributes.items()}
    (text, consts), (text_again, consts_again) = traced(), traced()
    after = {name: _fingerprint(value) for name, value in attributes.items()}
    changed = sorted(name for name in after if after[name] != before.get(name))
    if changed:
        yield (
            f"step or reset changes self.{changed[0]}, which a compiled program does once, and not "
            "at every step; keep it in the state"
        )
    elif text != text_again or not _equal(consts, consts_again):
        yield (
            "step or reset is another function each time that it is traced (by random numbers of "
            "NumPy or Python, or a clock); a compiled program has those of the first time; draw "
            "from the key"
        )


def _fingerprint(value: Any) -> Any:
    """Return a value that changes with an attribute: its content if it is plain, else its id."""
    plain = isinstance(value, int | float | str | bool | list | dict | set | tuple | None)
    return repr(value) if plain else id(value)


def _indices(env: Environment, mask: str | None, steps: int, keys: jax.Array) -> Check:
    """Check for array indices out of bounds: JAX reads the nearest element and drops writes."""
    checked = checkify.checkify(partial(play, env, mask, steps), errors=checkify.index_checks)
    try:
        message = jax.jit(checked)(keys)[0].get()
    except Exception as error:  # checkify does not support every operation
        return Check("indices", [], "", [f"not checked: {line(error)}"])
    hints = []
    if message is not None:
        first = message.splitlines()[0].strip().rstrip(".")
        hints = [f"{first}: JAX reads the nearest element there and writes none; is that meant?"]
    return Check("indices", [], "no array is indexed beyond its ends", hints)


def play(
    env: Environment, mask: str | None, steps: int, keys: jax.Array
) -> tuple[PyTree, TimeStep]:
    """Play random legal actions; return first observations `[B, O...]` and steps `[T, B, ...]`.

    Key b of `keys` `[B]` alone determines the episodes of environment b.
    """

    def key_at(time: jax.Array) -> jax.Array:
        return jax.vmap(jax.random.fold_in, (0, None))(keys, time)

    def advance(carry: tuple[PyTree, PyTree], time: jax.Array) -> tuple[Any, TimeStep]:
        state, obs = carry
        action_key, env_key = random_bits.split_each(key_at(time))
        draw = jax.vmap(partial(random_action, env.action_space))
        action = draw(action_key, entry_of(obs, mask))
        state, step = env.step(env_key, state, action)
        return (state, step.obs), step

    state, obs = env.reset(key_at(jnp.int32(0)))
    _, played = jax.lax.scan(advance, (state, obs), jnp.arange(1, steps + 1))
    return obs, played


def _numpy(tree: PyTree) -> PyTree:
    return jax.tree.map(np.asarray, tree)


def _values(env: Environment, played: Played) -> Iterator[str]:
    """Yield values that are NaN, infinite or outside of the observation space."""
    seen = {
        "reset: observation": played.first_obs,
        "step: observation": played.steps.obs,
        "step: final_observation": played.steps.final_observation,
    }
    for what, tree in seen.items():
        spaces = jax.tree.leaves(env.observation_space, is_leaf=is_space)
        rows = zip(jax.tree.leaves(tree), spaces, limits(env.observation_space), strict=True)
        for x, space, (entry, low, high) in rows:
            name, value = what + entry, x.astype(np.float64)
            if not np.isfinite(value).all():
                yield f"{name} holds NaN or infinity"
                continue
            slack = 1e-5 * np.maximum(1.0, np.abs(value))
            if (value < low - slack).any() or (value > high + slack).any():
                start = getattr(space, "start", 0)
                yield (
                    f"{name} goes from {value.min():.6g} to {value.max():.6g}, outside of "
                    f"{line(space)}{f' from {start}' if np.any(start) else ''}"
                )
    if not np.isfinite(played.steps.reward).all():
        yield "step: reward is NaN or infinite"


def _ends(env: Environment, played: Played) -> Iterator[str]:
    """Yield an error if an episode passes its time limit or reaches it without truncation."""
    lengths, limit = played.lengths, env.time_limit
    truncated: Any = played.steps.truncated
    if limit is None:
        return
    if (lengths > limit).any():
        yield f"step: an episode went on past its time limit of {limit} steps"
    elif not np.all(played.over[lengths == limit]):
        yield f"step: an episode that reached its time limit of {limit} steps did not end"
    elif not np.all(truncated[lengths == limit]):
        yield (
            f"step: an episode that reached its time limit of {limit} steps is terminated and not "
            "truncated"
        )


def _doubts(
    env: Environment, config: EnvConfig, played: Played, *, at_limit: bool = False
) -> Iterator[str]:
    """Yield what is probably not meant about the time limit; `at_limit`: also if it is not seen."""
    limit, terminated = env.time_limit, played.steps.terminated
    if limit is None and not config.gymnax_legacy:
        return
    bare = _bare(env, config)
    params = getattr(bare, "params", None)  # of gymnax's interface
    if limit == 1:
        if getattr(bare, "inherits_limit", False) and not np.all(terminated):
            yield (
                "max_steps_in_episode=1 comes from gymnax's own EnvParams, so every episode is "
                "truncated after one step; set env.params.max_steps_in_episode, or the field in "
                f"{type(params).__name__}"
            )
        return
    end = None if params is None else _end_by_time(bare, config)
    reached = played.lengths == limit
    if end is None and reached.any():
        late = np.all((terminated & played.steps.truncated)[reached])
        end = "terminated" if late else "otherwise"
    at = "lasts long" if limit is None else f"reaches the time limit of {limit:,} steps"
    if end == "terminated":
        yield (
            f"every episode that {at} is also terminated, so nothing is bootstrapped there; is "
            f"that meant? If only time ends it, {_without_limit(bare, config)}"
        )
    elif end == "none" and config.gymnax_legacy and limit is not None:
        yield (
            f"no episode that {at} is done there, as env.gymnax_legacy=true expects; leave that "
            "out, so that the limit truncates as in gymnax 1.0"
        )
    elif limit is not None and end is None and at_limit:
        yield (
            f"not checked at the time limit of {limit:,} steps, which no episode reached; raise "
            f"steps={len(played.over)}"
        )


def _misdeclared(env: Environment) -> list[str]:
    """Return how gymnax's interface declares other spaces than its observations have."""
    found: list[str] = getattr(inner(env), "misdeclared", [])
    return found


def _without_limit(bare: Any, config: EnvConfig) -> str:
    """Return what to do if an environment terminates where time alone ends its episodes."""
    of_step = "leave the limit out of the terminated of step"
    if getattr(bare, "params", None) is None:  # not gymnax's interface
        return of_step
    end: str | None = "terminated"
    if not config.gymnax_legacy:
        legacy = dataclasses.replace(config, gymnax_legacy=True)
        try:
            end = _end_by_time(envs.build(dataclasses.replace(legacy, **PLAIN)), legacy)
        except Exception:  # without step_env
            return of_step
    if end == "terminated":
        return (
            "let done of step_env read params.max_steps_in_episode instead of a number of its own, "
            "with env.gymnax_legacy=true"
        )
    return (
        "leave the limit out of the done of step_env, which gymnax 1.0 takes for terminated, or "
        "set env.gymnax_legacy=true"
    )


def _bare(env: Environment, config: EnvConfig) -> Any:
    """Return the environment without wrappers and varying parameters; None for a simulator."""
    if envs.is_simulated(env):
        return None
    changed = dataclasses.replace(config, **PLAIN)
    return env if changed == config else envs.build(changed)


def _end_by_time(env: Any, config: EnvConfig) -> str | None:
    """Return what the last step before the time limit does to episodes that go on at time 0.

    The same first states take one step at time 0 and at the last one; without a limit, at a late
    one. "terminated": all terminate (and are truncated, if there is a limit). "none": none ends.
    "otherwise": anything else. None: states have no time.
    """
    time = LATE if env.time_limit is None else env.time_limit - 1

    def late(state: Any) -> Any:
        own = config.gymnax_legacy and hasattr(state, "inner")
        inner = {"inner": late(state.inner)} if own else {}
        return dataclasses.replace(state, time=jnp.full_like(state.time, time), **inner)

    def ends(keys: jax.Array) -> Any:
        state, obs = env.reset(keys)
        draw = jax.vmap(partial(random_action, env.action_space))
        action = draw(keys, entry_of(obs, config.action_mask))
        return [env.step(keys, x, action)[1] for x in (state, late(state))]

    try:
        early, last = _numpy(jax.jit(ends)(_keys(env)))
    except Exception:  # states without `time`, or such that cannot be set
        return None
    goes_on = ~(early.terminated | early.truncated)
    by_time = last.terminated & (last.truncated | (env.time_limit is None))
    if not goes_on.any():
        return "otherwise"
    if by_time[goes_on].all():
        return "terminated"
    return "otherwise" if (last.terminated | last.truncated)[goes_on].any() else "none"


def _describe_ends(env: Environment, played: Played) -> str:
    steps = played.steps
    acts: Any = True if steps.alive is None else steps.alive  # others only pad
    terminated = int((steps.terminated & acts).sum())
    truncated = int((steps.truncated & ~steps.terminated & acts).sum())
    limit = "no time limit" if env.time_limit is None else f"time limit {env.time_limit:,}"
    return f"{terminated} terminated, {truncated} truncated; {limit}"


def _successor(played: Played) -> Iterator[str]:
    """Yield errors of `final_observation`, which must be the observation that the step led to."""
    steps, over = played.steps, played.over
    pairs = list(
        zip(jax.tree.leaves(steps.obs), jax.tree.leaves(steps.final_observation), strict=True)
    )
    rows = [_same(x, y).reshape(*over.shape, -1).all(-1) for x, y in pairs]
    equal: Any = np.stack(rows).all(0)
    if not equal[~over].all():
        yield "step: within an episode final_observation is not the observation"
    moves = any((x != x[0]).any() for x, _ in pairs)  # observations are not constant
    if over.any() and moves and equal[over].all():
        yield (
            "step: where an episode ends, final_observation equals the next episode's first "
            "observation; it must be what the step led to, before any reset"
        )


def _mask(env: Environment, mask: str | None, played: Played) -> Iterator[str]:
    """Yield an error if masks do not fit the action space or allow nothing."""
    for tree in (jax.tree.map(lambda x: x[None], played.first_obs), played.steps.obs):
        try:
            empty = np.asarray(actions.empty_masks(env.action_space, tree[mask]))
        except Exception as error:
            yield f"{mask}: does not fit the action space {env.action_space}: {line(error)}"
            return
        if empty.any():
            yield f"{mask}: allows nothing in {empty.sum()} of {empty.size} observations"


def _equal(one: PyTree, other: PyTree) -> bool:
    return jax.tree.all(jax.tree.map(lambda x, y: _same(x, y).all(), one, other))


def _same(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return elementwise equality; NaN equals NaN."""
    return (x == y) | ((x != x) & (y != y))


def _close(one: PyTree, other: PyTree) -> bool:
    """Return whether two trees are equal up to rounding errors of a few steps."""

    def alike(x: np.ndarray, y: np.ndarray) -> bool:
        x, y = x.astype(np.float64), y.astype(np.float64)
        return x.shape == y.shape and np.allclose(x, y, 1e-2, 1e-2, equal_nan=True)

    return jax.tree.all(jax.tree.map(alike, one, other))
