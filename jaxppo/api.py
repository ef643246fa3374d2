"""The Python interface: compose settings, train, and make a whole run one pure function."""

import contextlib
import dataclasses
import inspect
import re
import threading
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxppo.algorithms.whole import Schedule, TrainOutput, train_whole
from jaxppo.config.fields import ConfigError, as_override, check, variable_names
from jaxppo.config.given import with_given
from jaxppo.config.messages import flattened
from jaxppo.config.parse import key_of_keyword
from jaxppo.config.plan import Plan, num_members, plan
from jaxppo.config.schema import COMMANDS, Config, LoggerConfig
from jaxppo.deploy.collecting import Rollouts
from jaxppo.deploy.policy import TrainedPolicy, check_count, check_key
from jaxppo.deploy.result import Block, Result, is_donated, result
from jaxppo.envs import is_simulated
from jaxppo.envs.contract import glance
from jaxppo.launch.errors import check_jax, explain
from jaxppo.launch.resuming import compose_run
from jaxppo.runtime.hosts import devices, processes
from jaxppo.runtime.hosts.signals import Interrupts
from jaxppo.runtime.programs import build, compile
from jaxppo.runtime.run.caller import Caller, Reached
from jaxppo.runtime.run.jobs import Job, TrainingError, prepare
from jaxppo.runtime.run.loop import run_together
from jaxppo.runtime.sinks.bars import bar
from jaxppo.runtime.store.checkpoint import CheckpointError
from jaxppo.runtime.store.directories import as_path, check_run_dir
from jaxppo.types import Hyperparameters, System

if TYPE_CHECKING:  # a stub, since only editors and type checkers read it
    from typing import Unpack

    from jaxppo.config.keywords import Keywords

_composing = threading.Lock()  # Hydra composes with global state


DEFAULT = "ff_ppo"  # the command whose settings are taken where none is given
Settings = Config | Sequence[str] | Mapping[str, Any]


def compose(
    command: str = DEFAULT,
    settings: Sequence[str] | Mapping[str, Any] = (),
    **keywords: "Unpack[Keywords]",
) -> Config:
    """Return the settings of a command, checked: `jaxppo.compose("ff_ppo", env="cartpole")`.

    Keywords are settings that an editor completes and a type checker checks: those of `arch` and
    `system` have their own name, such as `total_timesteps=1e6`, others that of their group before
    it, such as `population_size=8`. `settings` are what the command line takes,
    `["env=cartpole", "arch.total_timesteps=1e6"]`, or a dict of them, which may be nested:
    `{"env": "cartpole", "arch": {"total_timesteps": 1e6}}`; keywords come after them.
    `ConfigError`, one line, if any is wrong.
    """
    devices.choose_platform()
    if command not in COMMANDS:
        raise ConfigError(
            f"command={command}: no such command; one of {', '.join(COMMANDS)}, as in "
            'jaxppo.compose("ff_ppo", ["env=cartpole"])'
        )
    overrides = _as_overrides(settings)
    typed = {key_of_keyword(name): value for name, value in keywords.items()}
    overrides += _as_overrides(typed)
    for each in overrides:
        if each.lstrip("+~").startswith("hydra"):
            raise ConfigError(f"{each}: is for the command line; jaxppo.train takes run_dir=DIR")
    with _one_line(overrides), _composing:
        return compose_run(command, overrides)


def _as_overrides(settings: Any) -> list[str]:
    """Return settings as the command line takes them."""
    if isinstance(settings, Mapping):
        return [as_override(*each) for each in flattened(settings)]
    is_list = isinstance(settings, Sequence) and not isinstance(settings, str)
    if not is_list or not all(isinstance(each, str) for each in settings):
        raise ConfigError(
            f'{settings!r}: settings are a list, such as ["env=cartpole"], or a dict, or what '
            "jaxppo.compose returns"
        )
    return list(settings)


def _composed(
    command: str | None, config: Settings, env: Any, network: Mapping[str, Any] | None
) -> Config:
    """Compose settings; `ConfigError` if they describe what is given as an object."""
    if isinstance(config, Config):
        _refuse_command(command, "settings that are composed; give it to jaxppo.compose instead")
        return config
    given = {} if env is None else {"env=OBJECT": r"env\.(name|target|kwargs)"}
    for layer in network if isinstance(network, Mapping) else ():
        given[f"network={{{layer!r}: MODULE}}"] = rf"network[./]{re.escape(str(layer))}"
    for what, pattern in given.items():
        for each in _as_overrides(config):
            if re.match(rf"[+~]*{pattern}\b", each):
                raise ConfigError(f"{each}: has no effect with {what}; leave one of the two out")
    return compose(DEFAULT if command is None else command, config)


def _refuse_command(command: str | None, beside: str) -> None:
    """Raise `ConfigError` if a command is given where it would have no effect."""
    if command is not None:
        raise ConfigError(f"command={command}: has no effect beside {beside}")


@contextlib.contextmanager
def _one_line(overrides: Sequence[str] = ()) -> Iterator[None]:
    """Raise a user's mistakes as one-line `ConfigError`s, also an unsupported mode of JAX."""
    check_jax()
    try:
        yield
    except (ConfigError, TrainingError, CheckpointError, _Raised):
        raise
    except Exception as error:
        line = explain(error, overrides)
        if line is None:
            raise
        raise ConfigError(" ".join(line.split())) from error


def train(
    config: Settings = (),
    *,
    command: str | None = None,
    env: Any = None,
    network: Mapping[str, Any] | None = None,
    run_dir: str | Path | None = None,
    resume: str | Path | None = None,
    on_block: Callable[[Block], Any] | None = None,
    progress: bool = True,
) -> Result:
    """Train as the command line does, with the same numbers, and return the result.

        result = jaxppo.train(["env=cartpole", "arch.total_timesteps=1e6"])
        result.absolute_metric, result.evaluations["episode_return"], result.policy

    `config`: settings of `command` (by default ff_ppo), or what `compose` returns. `env`: an
    environment of your own instead of an import path; as a tuple, with its parameters. `network`:
    flax modules of your own by layer name, such as `{"actor_torso": MyTorso()}`. `run_dir`: where
    to write the files of a run; None: nothing is written. `resume`: the directory of a run to
    continue; `config` then holds only the changed settings, and to change `system` or `network`,
    `command` must be the one that began the run. `on_block`: called with a `Block` after each block
    of training and its evaluation; must return True (stop), False or None. `progress`: show a bar
    on a terminal or in a notebook.

    Problems of an environment class of yours that a check of about a second finds are warnings.
    Ctrl-C during training stops the run and returns the result so far; before training it raises
    `KeyboardInterrupt`. Raises `ConfigError` if the settings are wrong, `CheckpointError` if a
    checkpoint cannot be read, and `TrainingError` if any seed fails (of a population: if all
    members fail); its `result` has what was reached.
    """
    devices.prepare()
    if on_block is not None:
        _check_on_block(on_block)
    if resume is not None:
        if isinstance(config, Config):
            raise ConfigError(
                f"resume={resume}: goes on with the settings of that run; give changes as a list "
                "or a dict"
            )
        typed = _as_overrides(config)
        if any(each.lstrip("+").startswith("resume=") for each in typed):
            raise ConfigError(f"resume={resume}: is in the settings too; give it once")
        config = [*typed, as_override("resume", str(resume))]
    found = _composed(command, config, env, network)
    resumes = found.resume is not None
    if resumes and run_dir is not None:
        raise ConfigError(f"run_dir={run_dir}: a resumed run stays in its directory; leave it out")
    found = with_given(found, env, network, resumes=resumes)
    given = found.resume or run_dir
    folder = None if given is None else as_path("run_dir", given)
    if folder is None:
        _check_without_files(found.logger, "give run_dir=DIR")
    elif not resumes:
        check_run_dir("run_dir", folder)
    with _one_line():
        processes.check_alone(found.arch.distributed)
        prepared = prepare(found)
        _warn_of_environment(found, prepared[1])
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
    job = Job(found, folder, resume=resumes, prepared=prepared)
    return _run(job, on_block, progress=progress)


def _check_on_block(on_block: Any) -> None:
    """Raise `ConfigError` unless `on_block` can be called with a `Block`."""
    try:
        inspect.signature(on_block).bind(None)
    except ValueError:  # a built-in function without a signature
        pass
    except TypeError as error:  # not a function, or one of other arguments
        raise ConfigError(
            f"on_block={on_block!r}: must be a function of one argument, a Block, such as "
            f"lambda block: block.steps > 1e6 ({error})"
        ) from error


def _warn_of_environment(config: Config, system: System) -> None:
    """Warn of problems in a user's environment class, as the command line does; see `glance`."""
    is_own = config.env.target is not None and not is_simulated(system.env)
    for finding in glance(config.env) if is_own else ():
        words = f"{system.env.name}: {' '.join(finding.split())}"
        warnings.warn(f"{words}; python -m jaxppo.check_env checks more", stacklevel=3)


class _Raised(Exception):
    """What a caller's `on_block` raised, which is not ours to explain."""


def _watched(on_block: Callable[[Block], Any], records: Mapping[str, Any]) -> Callable[..., bool]:
    """Return what a run calls after each block: whether `on_block` stops it."""

    def call(reached: Reached) -> bool:
        if not reached.members.active(reached.layout.slots):
            return False
        last = {event["event"]: event for event in records[""]}
        try:
            steps, train, evaluation = reached.progress.steps, last.get("train"), last.get("eval")
            copies = dict(train or {}), dict(evaluation or {})  # it may change them
            stop = on_block(Block(steps, *copies, reached))
            if stop is not None and (np.shape(stop) or np.asarray(stop).dtype.kind != "b"):
                raise ConfigError(f"on_block: must return True, False or None, not {stop!r}")
        except Exception as error:
            raise _Raised(error) from error
        return bool(stop)

    return call


def _run(job: Job, on_block: Callable[[Block], Any] | None, *, progress: bool) -> Result:
    """Run a job and return its result, also after Ctrl-C."""
    records: dict[str, list[dict[str, Any]]] = {}
    shown = bar() if progress else None
    caller = Caller(
        signals=Interrupts(),
        console=False,
        screens=[] if shown is None else [shown],
        records=records,
        on_block=None if on_block is None else _watched(on_block, records),
    )
    status, failure = "", None
    try:
        with _one_line():
            (outcome,) = run_together([job], caller=caller)
        if isinstance(outcome, TrainingError):
            status, failure = str(outcome), outcome
    except _Raised as error:
        raise error.args[0] from None
    except (TrainingError, KeyboardInterrupt) as error:  # of a simulator; Ctrl-C
        if caller.reached is None or is_donated(caller.reached):
            raise
        status = str(error) or "interrupted"
        failure = error if isinstance(error, TrainingError) else None
    finally:
        if shown is not None:
            shown.close()
    assert caller.reached is not None  # since the program was compiled
    found = result(caller.reached, records, status or caller.reached.progress.status)
    if failure is not None:
        failure.result = found
        raise failure
    return found


def _check_without_files(logger: LoggerConfig, way_out: str) -> None:
    """Raise `ConfigError` for outputs that need a directory."""
    for name in ("marl_eval", "tensorboard", "wandb", "sinks"):
        if value := getattr(logger, name):
            shown = str(value).lower() if value is True else value
            raise ConfigError(f"logger.{name}={shown}: writes files; {way_out}")


@dataclasses.dataclass(frozen=True, eq=False)
class WholeRun:
    """A whole run of one agent as a pure function, made by `make_train`."""

    config: Config
    plan: Plan
    system: System
    schedule: Schedule
    hyperparameters: Hyperparameters  # those of `config`, scalars
    compiler_options: dict[str, Any]  # for jax.jit: those of the command line

    def __repr__(self) -> str:
        size = f"{self.plan.num_updates:,} updates of {self.steps_per_update:,} steps"
        return f"WholeRun({self.system.env.name}, {size}): call it with jax.random.key(seed)"

    def __call__(
        self, key: jax.Array, hyperparameters: Hyperparameters | None = None
    ) -> TrainOutput:
        """Train from start to end. `jax.random.key(seed)` gives the run of `arch.seed=seed`.

        `hyperparameters` replace those of the settings, see `Hyperparameters.replace`. Works under
        `jit`, `vmap`, `shard_map(..., check_vma=False)`, and inside other programs. Under `vmap`
        row `i` is the run of that key alone, up to the order of sums. NaN, infinity and empty
        action masks do not stop the run; look at `metrics["nonfinite_loss"]` and
        `metrics["empty_mask"]`. `ConfigError` if `key` is not a typed key, or if a hyperparameter
        breaks the rule of its setting; traced values are not checked.
        """
        check_key(key)
        given = self.hyperparameters if hyperparameters is None else hyperparameters
        self._check(given)
        return train_whole(self.system, self.schedule, key, given)

    def _check(self, hyperparameters: Hyperparameters) -> None:
        """Raise `ConfigError` if a number that is not traced breaks the rule of its setting."""
        settings = self.config.system
        hints = typing.get_type_hints(type(settings))
        rules = {field.name: field.metadata for field in dataclasses.fields(settings)}
        for name in variable_names(settings):
            found = vars(hyperparameters).get(name)
            if found is not None and not isinstance(found, jax.core.Tracer):
                values = np.asarray(found)
                for value in (values.min(), values.max()):
                    check(f"hyperparameters.{name}", float(value), hints[name], rules[name])

    @property
    def steps_per_update(self) -> int:
        """Return the environment steps of an update; times `evaluations.updates` it gives steps."""
        return self.plan.steps_per_update

    def trained(self, output: TrainOutput, which: str = "best") -> TrainedPolicy:
        """Return the `best` policy of a `TrainOutput`, or its `latest`, as an object that acts.

        Of a `vmap`, give one row: `jax.tree.map(lambda x: x[0], outputs)`.
        """
        if which not in ("best", "latest"):
            raise ConfigError(f"which={which}: must be best or latest")
        if output.best_updates.ndim:
            raise ConfigError(
                f"output: has {len(output.best_updates)} rows; give one: "
                "jax.tree.map(lambda x: x[0], output)"
            )
        is_best = which == "best"
        updates = int(output.best_updates) if is_best else self.plan.num_updates
        return TrainedPolicy(
            config=self.config,
            system=dataclasses.replace(self.system, axes=()),
            policy=output.best if is_best else output.policy,
            steps=updates * self.steps_per_update,
            num_devices=1,
        )


def rollouts(
    policy_or_config: TrainedPolicy | Settings = (),
    env: Any = None,
    *,
    num_envs: int | None = None,
    length: int | None = None,
    episodes: bool = False,
    command: str | None = None,
    network: Mapping[str, Any] | None = None,
) -> Rollouts:
    """Return an endless iterator over what acting collects, for a learner of your own.

        rollouts = jaxppo.rollouts(["env=cartpole"], num_envs=64, length=128)
        for rollout in itertools.islice(rollouts, 100):
            rollouts.policy = learn(rollouts.policy, rollout)

    `policy_or_config`: a policy, such as `jaxppo.load` returns, or the settings of `command`, as in
    `train`, whose first policy then acts. `env`: an environment as in `train`; for a policy also
    settings to change, as in `jaxppo.load`. `num_envs` and `length` (steps) replace
    `arch.total_num_envs` and `system.rollout_length`. Each item is a `types.Rollout`, `steps` of
    which are `[T, B, ...]`; with `episodes` it is a list of the whole episodes that ended since the
    last one, each a `types.Transition` of NumPy arrays `[T, ...]`.

    With the same settings, and a policy that learns the same, rollouts are those of `train`, also
    with simulators, which `close()` ends. `ConfigError` if the settings are wrong or ask for
    several members or actors.
    """
    devices.choose_platform()
    if isinstance(policy_or_config, TrainedPolicy):
        _refuse_command(command, "a policy; leave it out")
        if network is not None:
            raise ConfigError("network: a trained policy has its own; leave it out")
        trained = policy_or_config if env is None else policy_or_config.with_env(env)
        found, policy = trained.config, trained.policy
    else:
        found, policy = _composed(command, policy_or_config, env, network), None
        found = with_given(found, env, network, resumes=False)
        if found.init_from is not None:
            raise ConfigError(
                f"init_from={found.init_from}: rollouts of settings use new parameters; leave it "
                f"out, or give the policy instead of settings: jaxppo.load({found.init_from!r})"
            )
    for name, value in (("num_envs", num_envs), ("length", length)):
        if value is not None:
            check_count(name, value)
    arch = dataclasses.replace(found.arch, total_num_envs=num_envs or found.arch.total_num_envs)
    system = dataclasses.replace(found.system, rollout_length=length or found.system.rollout_length)
    with _one_line():
        found = dataclasses.replace(found, arch=arch, system=system)
        return Rollouts(found, policy, episodes=episodes)


def make_train(
    config: Settings = (),
    *,
    command: str | None = None,
    env: Any = None,
    network: Mapping[str, Any] | None = None,
) -> WholeRun:
    """Return a run as one pure function of a key and hyperparameters.

        run = jaxppo.make_train(["env=cartpole"])
        output = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), 16))

    `config`, `command`, `env` and `network` are as in `train`. The function has no outputs besides
    its result: no screen, no files, no checkpoints. It trains one agent on one device; for several
    agents use `jax.vmap`.

    `ConfigError` if the settings are wrong, ask for several members, resume a run, begin with the
    policy of one (`init_from`), or write files (`logger.tensorboard`, `wandb`, `marl_eval` or
    `sinks`).
    """
    devices.choose_platform()
    found = _composed(command, config, env, network)
    if found.resume is not None:
        raise ConfigError(
            f"resume={found.resume}: make_train begins a run and has no files; leave it out"
        )
    _check_without_files(found.logger, "leave it out, or use jaxppo.train(..., run_dir=DIR)")
    if found.init_from is not None:
        raise ConfigError(
            f"init_from={found.init_from}: make_train begins with new parameters; leave it out, "
            "or use jaxppo.train"
        )
    with _one_line():
        run = _whole_run(with_given(found, env, network, resumes=False))
        _warn_of_environment(run.config, run.system)
    return run


def _whole_run(found: Config) -> WholeRun:
    if num_members(found) > 1:
        key = f"arch.num_seeds={found.arch.num_seeds}"
        if found.population.size is not None:
            key = f"population.size={found.population.size} (or population=NAME)"
        raise ConfigError(
            f"{key}: make_train makes one agent; leave it out, and use "
            "jax.vmap over keys and hyperparameters"
        )
    arch, planned = found.arch, plan(found, 1, 1)
    compile.check(arch)
    system = build.build(found, planned)
    if is_simulated(system.env):
        raise ConfigError(
            f"{system.env.name}: is not written in JAX, so no pure function can train on it; use "
            "jaxppo.train"
        )
    return WholeRun(
        config=found,
        plan=planned,
        system=system,
        schedule=Schedule(
            evaluate_first=arch.evaluate_first,
            updates=tuple(planned.updates_per_block),
            num_eval_episodes=arch.num_eval_episodes,
            absolute=10 * arch.absolute_metric,
            num_update_batches=planned.update_batch_size,
            warmup_rollouts=planned.warmup_rollouts,
            eval_metric=arch.eval_metric,
        ),
        hyperparameters=build.hyperparameters(found, planned),
        compiler_options=compile.options(arch.compiler, devices.platform()),
    )
