"""Loading a trained policy and acting with it."""

import contextlib
import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo import envs
from jaxppo.algorithms.acting import act, act_and_describe
from jaxppo.algorithms.evaluation import Episodes, Watch, episode_keys, watch_nothing
from jaxppo.config.fields import ConfigError, setting
from jaxppo.config.given import with_given
from jaxppo.config.messages import BoundsWarning, brief, count
from jaxppo.config.parse import parse
from jaxppo.config.plan import plan as make_plan
from jaxppo.config.schema import Config
from jaxppo.config.stored import plain
from jaxppo.config.trust import check_trust
from jaxppo.deploy.episodes import Episode, close_simulators, play
from jaxppo.envs import is_simulated
from jaxppo.envs.forms import limits, line
from jaxppo.runtime.hosts import devices
from jaxppo.runtime.programs import build
from jaxppo.runtime.programs.population import members
from jaxppo.runtime.run.compiling import compile_evaluation
from jaxppo.runtime.store import checkpoint, policies
from jaxppo.runtime.store.checkpoint import Checkpoint, CheckpointError
from jaxppo.runtime.store.directories import as_path, check_tree, seed_of
from jaxppo.runtime.store.facts import RunFacts
from jaxppo.types import (
    Box,
    Environment,
    Policy,
    PolicyInfo,
    PyTree,
    System,
    counted,
    describe,
    is_space,
    zeros,
)


def check_key(key: Any) -> None:
    """Raise `ConfigError` if `key` is not a typed key, such as `jax.random.key(0)`."""
    if not jnp.issubdtype(getattr(key, "dtype", float), jax.dtypes.prng_key):
        raise ConfigError("key: must be a typed key, such as jax.random.key(seed)")


@dataclasses.dataclass(frozen=True, eq=False)
class TrainedPolicy:
    """Parameters and statistics of one agent, with its network and environment.

    `system.env` has the spaces; its `reset` and `step` are those of training, and those of
    `system.evaluation_env` those of evaluations.
    """

    config: Config  # of this agent alone
    system: System
    policy: Policy
    steps: int  # environment steps that it was trained on
    num_devices: int  # that evaluate it

    def __repr__(self) -> str:
        seed = self.config.arch.seed
        return f"TrainedPolicy({self.system.env.name}, seed {seed}, step {self.steps:,})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle settings and arrays; network and environment are built anew from the settings."""
        arrays = checkpoint.flatten(devices.host(self.policy))
        greedy = self.system.evaluation_greedy
        return _rebuilt, (self.config, greedy, arrays, self.steps, self.num_devices)

    def episode_keys(self, numbers: np.ndarray) -> jax.Array:
        """Return the keys of the absolute metric's episodes with these numbers, from 0."""
        seeds = np.asarray([self.config.arch.seed], np.uint32)
        return episode_keys(build.streams(seeds)[3][0], numbers)

    def initial_carry(self, num: int | None = None) -> PyTree:
        """Return the memory at the start of `num` episodes, `[num, ...]`; None: of one, unbatched.

        It has no leaves if the network has no memory.
        """
        carry = self.system.algorithm.network.initial_carry(1 if num is None else num)
        return jax.tree.map(lambda x: x[0], carry) if num is None else carry

    def act(
        self,
        observation: PyTree,
        key: jax.Array | None = None,
        *,
        carry: PyTree = None,
        reset: Any = False,
    ) -> tuple[PyTree, PyTree]:
        """Return the actions for raw observations `[O...]` or `[B, O...]`, and the next memory.

        With a `key` actions are sampled; without one they are greedy. Pass the returned memory to
        the next call as `carry`; None starts episodes. `reset`, a bool or `[B]`, says that an
        observation starts an episode. Observations are normalised by the statistics of training,
        and an action mask in them is respected. Integers are those of the environment, also where
        its spaces have a `start`. Works under `jit` and `vmap`. `ConfigError` if the observation
        does not fit the environment's space, `carry` lacks the memory's structure or the batch
        size, or `key` is not a typed key; outside of `jit` also if the observation holds NaN,
        infinity or an integer that is not in a discrete space.
        """
        if key is not None:
            check_key(key)
        return self._call(_act, observation, carry, reset, key)

    def describe(
        self, observation: PyTree, *, carry: PyTree = None, reset: Any = False
    ) -> PolicyInfo:
        """Return the value, the action distribution and so on for raw observations.

        Arguments and errors as for `act`. `log_probs` are those of the greedy actions. Values are
        in the units of training.
        """
        return self._call(_describe, observation, carry, reset)

    def _call(
        self,
        function: Callable[..., Any],
        observation: PyTree,
        carry: PyTree,
        reset: Any,
        *more: Any,
    ) -> Any:
        """Return what `function` returns for a batch; for one observation without `B`."""
        batch = self._batch_of(observation)
        num = 1 if not batch else batch[0]
        for name, given in (("reset", reset), *(("key", key) for key in more if key is not None)):
            if np.shape(given) not in ((), (num,)):
                raise ConfigError(
                    f"{name}: has shape {np.shape(given)} for {count(num, 'observation')}; pass "
                    "one for all, or one for each"
                )
        if carry is not None and not _fits(carry, self._expected[1], batch):
            raise ConfigError(
                f"carry: is no memory for {f'a batch of {num}' if batch else 'one observation'}; "
                f"pass what act returned for {'that batch' if batch else 'one'}, or "
                f"initial_carry({num if batch else ''})"
            )
        inputs = observation, carry, reset
        return function(self.system, not batch, self.policy, inputs, *more)

    def _batch_of(self, observation: PyTree) -> tuple[int, ...]:
        """Return `(B,)`, or () for one observation; `ConfigError` if it is not of this space."""
        name, wanted = self.system.env.name, self._expected[0]
        first = np.shape(next(iter(jax.tree.leaves(observation)), ()))
        batch = first[: len(first) - jax.tree.leaves(wanted)[0].ndim]
        if len(batch) > 1 or 0 in batch or not _fits(observation, wanted, batch):
            raise ConfigError(
                f"observation: is {_shown(observation)}, but {name} returns {_shown(wanted)}; pass "
                "what its reset and step return, or a batch of that"
            )
        for x, (entry, low, high) in zip(jax.tree.leaves(observation), self._limits, strict=True):
            # A tracer has no values, and reading those of an accelerator would wait for it
            if low is None or isinstance(x, jax.core.Tracer) or _is_elsewhere(x):
                continue
            x = np.asarray(x)
            fits = (low <= x) & (x <= high)
            if not fits.all():
                where = np.unravel_index(np.argmin(fits), x.shape)
                low, high = (np.broadcast_to(end, x.shape)[where] for end in (low, high))
                raise ConfigError(
                    f"observation{entry}: is {x[where]} where {name} returns {low} to {high}; pass "
                    "what its reset and step return"
                )
        return batch

    @functools.cached_property
    def _limits(self) -> list[tuple[str, Any, Any]]:
        """The name, lowest and highest value of each array.

        The bounds of a `Box` are often estimates: its floats must be finite, its integers are free.
        """
        space = self.system.env.observation_space
        found: list[tuple[str, Any, Any]] = []
        kinds = jax.tree.leaves(space, is_leaf=is_space), jax.tree.leaves(self._expected[0])
        for (name, *ends), kind, x in zip(limits(space), *kinds, strict=True):
            bounds: list[Any] = ends
            if isinstance(kind, Box) and x.dtype != bool:
                finfo: Any = jnp.finfo
                floats = finfo(x.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else None
                bounds = [None, None] if floats is None else [floats.min, floats.max]
            found.append((name, bounds[0], bounds[1]))
        return found

    @functools.cached_property
    def _expected(self) -> tuple[PyTree, PyTree]:
        """The shapes and dtypes of one observation and of its memory."""
        space = self.system.env.observation_space
        return jax.eval_shape(lambda: (zeros(space), self.initial_carry()))

    def evaluate(self, episodes: int) -> Episodes:
        """Return the first of the absolute metric's episodes, leaves NumPy `[episodes]`.

        The run's own absolute metric is the mean return of the first 10 x arch.num_eval_episodes.
        """
        check_count("episodes", episodes)
        policy, play, parts = self._placed(), None, []
        try:
            for num, keys in self._batches(episodes):
                if play is None:
                    play = compile_evaluation(self.system, policy, keys, self.config).call
                found = jax.tree.map(lambda x: np.asarray(x).reshape(-1), play(policy, keys))
                parts.append(jax.tree.map(lambda x, num=num: x[:num], found))
        finally:
            if play is not None and is_simulated(self.system.env):
                close_simulators(play)
        return jax.tree.map(lambda *x: np.concatenate(x), *parts)

    def play(self, env: Any = None, episodes: int = 8) -> list[Episode]:
        """Return whole trajectories of the first `episodes` that `evaluate` plays.

        `env`: None is the policy's own environment; else settings to change, or an environment, as
        for `jaxppo.load`. `ConfigError` if its spaces do not fit the policy. Actions are
        stretched to its bounds: if these are others, there is a warning.
        """
        check_count("episodes", episodes)
        policy = self if env is None else self.with_env(env)
        _warn_of_bounds(self.system.env, policy.system.env)
        return list(policy.record(episodes))

    def record(self, num_episodes: int, watch: Watch = watch_nothing) -> Iterator[Episode]:
        """Yield what `play` returns; see `evaluation.record` for `watch`."""
        compiler, batches = self.config.arch.compiler, self._batches(num_episodes)
        return play(self.system, self._placed(), batches, compiler=compiler, watch=watch)

    def _placed(self) -> Policy:
        """Return the policy on all devices, `[D, 1, ...]`."""
        alone = jax.tree.map(lambda x: x[None], self.policy)
        return devices.replicate(alone, devices.of_run(self.num_devices))

    def _batches(self, num_episodes: int) -> Iterator[tuple[int, jax.Array]]:
        """Yield keys `[D, 1, E]` of episodes that are played at once, and how many of them count.

        Rounding depends on the size of a batch, so it is always that of the run's evaluations.
        """
        local, at_once = devices.of_run(self.num_devices), self.config.arch.num_eval_episodes
        shape = (len(local), 1, -(-at_once // self.num_devices))
        for start in range(0, num_episodes, at_once):
            keys = self.episode_keys(start + np.arange(math.prod(shape))).reshape(shape)
            yield min(at_once, num_episodes - start), devices.shard(keys, local)

    def with_env(self, env: Any) -> "TrainedPolicy":
        """Return the policy in another environment, given as in `play`."""
        config = with_env(self.config, env)
        system = build.build_alone(config)
        mine, other = self.system.env, system.env
        for name in ("observation_space", "action_space"):
            wanted, found = getattr(mine, name), getattr(other, name)
            if describe(wanted) != describe(found):
                raise ConfigError(
                    f"env={other.name}: its {name} is {describe(found)}, but the policy was "
                    f"trained with {describe(wanted)}"
                )
        greedy = self.system.evaluation_greedy
        system = dataclasses.replace(system, evaluation_greedy=greedy)
        return dataclasses.replace(self, config=config, system=system)


def _warn_of_bounds(mine: Environment, other: Environment) -> None:
    """Warn if the bounds of actions are not those with which a policy was trained."""
    if _bounds(mine.action_space) != _bounds(other.action_space):
        warnings.warn(
            f"env={other.name}: its action_space is {line(other.action_space)}, but the policy was "
            f"trained with {line(mine.action_space)}; actions are stretched to the new bounds",
            BoundsWarning,
            stacklevel=3,
        )


def _bounds(space: PyTree) -> list[Any]:
    """Return the bounds of all actions, as lists."""
    boxes = [x for x in jax.tree.leaves(space, is_leaf=is_space) if isinstance(x, Box)]
    bounds = [(box.shape, np.float32(x)) for box in boxes for x in (box.low, box.high)]
    return [np.broadcast_to(bound, shape).tolist() for shape, bound in bounds]


def _fits(tree: PyTree, like: PyTree, batch: tuple[int, ...]) -> bool:
    """Return whether a tree is a batch of `like`, in numbers that become its dtypes."""
    if str(jax.tree.structure(tree)) != str(jax.tree.structure(like)):
        return False
    try:
        return all(
            np.shape(x) == (*batch, *y.shape)
            and jnp.can_cast(jnp.result_type(x), y.dtype, "same_kind")
            for x, y in zip(jax.tree.leaves(tree), jax.tree.leaves(like), strict=True)
        )
    except TypeError:  # neither an array nor a number
        return False


def _shown(tree: PyTree) -> str:
    """Return the dtypes and shapes of a tree."""
    return str(
        jax.tree.map(lambda x: f"{getattr(x, 'dtype', type(x).__name__)}{[*np.shape(x)]}", tree)
    )


def _is_elsewhere(x: Any) -> bool:
    """Return whether an array is not on this host's CPU."""
    return isinstance(x, jax.Array) and any(d.platform != "cpu" for d in x.devices())


def check_count(name: str, value: Any) -> None:
    """Raise `ConfigError` unless a number of episodes or the like is an integer, at least 1."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ConfigError(f"{name}={value!r}: must be an integer, at least 1")


def _rebuilt(
    config: Config, greedy: bool, arrays: dict[str, np.ndarray], steps: int, num_devices: int
) -> TrainedPolicy:
    """Return a policy that was pickled."""
    system = dataclasses.replace(build.build_alone(config), evaluation_greedy=greedy)
    return TrainedPolicy(
        config=config,
        system=system,
        policy=checkpoint.unflatten(build.policy_shapes(config, system), arrays),
        steps=steps,
        num_devices=min(num_devices, len(devices.available())),
    )


@functools.partial(jax.jit, static_argnums=(0, 1))
def _act(
    system: System, single: bool, policy: Policy, inputs: tuple[Any, ...], key: jax.Array | None
) -> tuple[PyTree, PyTree]:
    """Return the actions for raw observations `[B, O...]` or `[O...]`, and the next memory."""
    if key is None:
        policy = dataclasses.replace(policy, noise_key=None)
    obs, carry, reset = _batched(system, single, *inputs)
    carry, acted = act(system, policy, carry, obs, reset, key)
    found = counted(system.env.action_space, acted.env_action), carry
    return _first(found) if single else found


@functools.partial(jax.jit, static_argnums=(0, 1))
def _describe(system: System, single: bool, policy: Policy, inputs: tuple[Any, ...]) -> PolicyInfo:
    """Return what the policy computes for `[B, O...]` or `[O...]`, with greedy actions."""
    policy = dataclasses.replace(policy, noise_key=None)
    obs, carry, reset = _batched(system, single, *inputs)
    found = act_and_describe(system, policy, carry, obs, reset, None)[2]
    return _first(found) if single else found


def _batched(
    system: System, single: bool, obs: PyTree, carry: PyTree, reset: Any
) -> tuple[PyTree, PyTree, jax.Array]:
    """Return checked inputs `[B, ...]` in the dtypes of the network; `B` is 1 if it was lacking."""

    def one(x: Any, like: Any) -> jax.Array:
        return jnp.asarray(x, like.dtype)[None if single else ...]

    space = system.env.observation_space
    obs = counted(space, jax.tree.map(one, obs, zeros(space)), -1)
    num = jax.tree.leaves(obs)[0].shape[0]
    start = system.algorithm.network.initial_carry(num)
    if carry is not None:
        leaves = map(one, jax.tree.leaves(carry), jax.tree.leaves(start))
        start = jax.tree.unflatten(jax.tree.structure(start), leaves)
    return obs, start, jnp.broadcast_to(jnp.asarray(reset, bool), (num,))


def _first(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: x[0], tree)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """Settings of a command line that select a policy of a run."""

    run: str = setting("", "the run directory")
    which: str = setting("best", "best, latest, or the environment steps of a checkpoint")
    seed: int | None = setting(None, "seed of the member, if there are several; null: the best one")
    env: dict[str, Any] = setting(
        {}, "settings of the environment to change, such as env.params.gravity=15"
    )
    trust: list[str] = setting(
        [], "import paths, such as my_package, that the run's settings may name"
    )

    def load(self) -> TrainedPolicy:
        """Return the policy; `ConfigError` if no run is given, and as `load`."""
        self.check()
        return load(self.run, self.which, seed=self.seed, env=self.env or None, trust=self.trust)

    def check(self) -> None:
        """Raise `ConfigError` if no run is given."""
        if not self.run:
            raise ConfigError("run=: must be the directory of a run, such as run=outputs/...")
        check_tree("run", Path(self.run))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Playing(Choice):
    """Settings that select a policy and how it acts."""

    greedy: bool | None = setting(
        None, "whether to take the mode of the policy, not samples; null: as the run evaluated"
    )

    def load(self) -> TrainedPolicy:
        """Return the policy, which acts in this way."""
        policy = super().load()
        if self.greedy is None:
            return policy
        system = dataclasses.replace(policy.system, evaluation_greedy=self.greedy)
        return dataclasses.replace(policy, system=system)


def load(
    run_dir: str | Path,
    which: str | int = "best",
    *,
    seed: int | None = None,
    env: Any = None,
    network: Mapping[str, Any] | None = None,
    trust: Sequence[str] = (),
) -> TrainedPolicy:
    """Return the policy of a run, from its checkpoints.

    `which`: `best` is the policy of the absolute metric, `latest` is that of the last checkpoint,
    and a number of environment steps selects a checkpoint that still exists. `seed`: of the member,
    if there are several; None: the member that evaluated best. `env`: settings that replace those
    of the run's environment, such as `{"params": {"max_steps_in_episode": 100}}`; or, as for
    `jaxppo.train`, the environment itself, as `network` are flax modules. `trust`: import paths
    beyond jaxppo, flax, optax and gymnax that the run's settings may name.

    `CheckpointError` if no checkpoint can be used, `ConfigError` if what was asked for does not
    exist. Warns about newer checkpoints that are damaged or from after the run failed, and about
    other bounds of actions, to which actions are stretched.
    """
    return _load(run_dir, which, seed, env, network, trust)[0]


def load_pool(
    run_dir: str | Path, *, env: Any = None, trust: Sequence[str] = ()
) -> list[TrainedPolicy]:
    """Return the policies in the pool of the last checkpoint, oldest first, and the latest policy.

    None is there twice. A run without `env.opponent=pool` has the latest policy only. Arguments and
    errors are those of `load`.
    """
    latest, found, row = _load(run_dir, "latest", None, env, None, trust)
    policy = dataclasses.replace(latest.policy, noise_key=None)
    pool = policies.read_pool(found, policy, row)
    if pool is None:
        return [latest]
    per_update = make_plan(latest.config, 1, 1).steps_per_update
    slots = {update * per_update: slot for slot, update in enumerate(pool.since.tolist())}
    older = [(n, jax.tree.map(itemgetter(slots[n]), pool.policies)) for n in sorted(slots)]
    return [
        *(dataclasses.replace(latest, policy=x, steps=n) for n, x in older if n < latest.steps),
        latest,
    ]


def _load(
    run_dir: str | Path,
    which: str | int,
    seed: int | None,
    env: Any,
    network: Mapping[str, Any] | None,
    trust: Sequence[str],
) -> tuple[TrainedPolicy, Checkpoint, int]:
    """Return a policy, the checkpoint that holds it, and the row of its agent there."""
    devices.choose_platform()
    run_dir, seed = _run_of(as_path("run", run_dir), seed)
    found = policies.find(run_dir, which)
    facts = RunFacts.of(found)
    trained, config = _settings_of(facts, env, network, trust)
    every = members(config)
    if len(every) != len(facts.members):
        raise CheckpointError(f"{found.path}: holds {len(facts.members)} members of {len(every)}")
    row = policies.row_of(facts, [member.arch.seed for member in every], seed)
    own = every[facts.slots[row]]
    system = build.build_alone(own)
    try:
        stored = policies.read(found, build.policy_shapes(own, system), len(facts.slots), which)
    except CheckpointError as error:
        if env is None:
            raise
        raise ConfigError(
            f"env={system.env.name}: its observations or actions do not fit the policy of {run_dir}"
            f" ({brief(error).partition(';')[0]})"
        ) from error
    if env is not None:
        with contextlib.suppress(ConfigError):  # it may have been an object, which is gone
            alone = dataclasses.replace(trained.env, opponent="random", evaluation_opponent=None)
            _warn_of_bounds(envs.build(alone), system.env)
    steps = policies.steps_of(found, facts, row, which)
    if steps is None:
        raise ConfigError(
            f"which=best: no evaluation of {run_dir} up to step {found.steps:,} was finite, so "
            "no policy is the best; which=latest takes that of the last step"
        )
    trained_policy = TrainedPolicy(
        config=own,
        system=system,
        policy=jax.tree.map(lambda x: x[row], stored),
        steps=steps,
        num_devices=min(facts.shards[0], len(devices.available())),
    )
    return trained_policy, found, row


def _run_of(run_dir: Path, seed: int | None) -> tuple[Path, int | None]:
    """Return a run and a seed; of a member's own directory its run and its seed."""
    member = seed_of(run_dir)
    folders = (run_dir / checkpoint.FOLDER, run_dir.parent / checkpoint.FOLDER)
    if member is not None and [each.exists() for each in folders] == [False, True]:
        return run_dir.parent, member
    return run_dir, seed


def _settings_of(
    facts: RunFacts, env: Any, network: Mapping[str, Any] | None, trust: Sequence[str]
) -> tuple[Config, Config]:
    """Return the settings of a run, and those with what is given; `ConfigError` if not trusted."""
    settings = {**facts.config, "logger": {}}  # a policy writes no log
    trust = check_trust(settings, trust)
    # The run of `env.opponent` is read with the caller's trust, not with that of the settings
    trained = dataclasses.replace(parse(settings), trust=list(trust))
    config = with_env(with_given(trained, None, network, resumes=False), env)
    if isinstance(env, Mapping):
        check_trust(plain(config), trust)
    return trained, config


def with_env(config: Config, env: Any) -> Config:
    """Return settings with another environment: settings to replace, or an object; None: as is."""
    if not isinstance(env, Mapping):
        return with_given(config, env, None, resumes=False)
    merged = {**dataclasses.asdict(config.env), **env}
    for name in ("params", "kwargs", "randomize", "curriculum"):
        given = env.get(name)
        # {} adds nothing to params and kwargs, and switches the other two off
        if isinstance(given, Mapping) and (given or name in ("params", "kwargs")):
            merged[name] = {**getattr(config.env, name), **given}
    return parse({**plain(config), "env": merged})
