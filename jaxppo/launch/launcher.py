"""Hydra's side of a run: composing, checking before anything is written, and one-line errors."""

import contextlib
import dataclasses
import difflib
import errno
import logging
import os
import re
import sys
import traceback
import typing
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import hydra
import jax
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn, JobStatus, run_job
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.types import HydraContext, RunMode, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from jaxppo.analysis import sweep
from jaxppo.config.fields import MAX_FLOAT, ConfigError, quoted
from jaxppo.config.parse import help_text, parse, parse_as, system_type, unknown_key
from jaxppo.config.schema import Config, NetworkConfig
from jaxppo.config.stored import CONFIG, LOCAL, plain, read_config, with_local
from jaxppo.config.trust import check_trust
from jaxppo.envs.contract import glance
from jaxppo.runtime import devices
from jaxppo.runtime.build import program_key
from jaxppo.runtime.checkpoint import CheckpointError, CheckpointWarning
from jaxppo.runtime.directories import check_run_dir, check_tree, claim, release
from jaxppo.runtime.jobs import Job, TooLargeError, TrainingError, prepare
from jaxppo.runtime.loop import run_together
from jaxppo.runtime.signals import Interrupted
from jaxppo.runtime.sinks.console import print_lines

_LOG = logging.getLogger("hydra.jaxppo")  # as visible as what Hydra says
_FLAGS = (
    *("-h", "--help", "--hydra-help", "--version", "-c", "--cfg", "--resolve", "-p", "--package"),
    *("-r", "--run", "-m", "--multirun", "-sc", "--shell-completion", "-cp", "--config-path"),
    *("-cn", "--config-name", "-cd", "--config-dir", "--experimental-rerun", "-i", "--info"),
)
_LAYERS = ("input_layer", "torso", "memory", "actor_head", "critic_head")  # in configs/network
_BRANCHES = {  # of these groups, the places that take one
    f"network/{kind}": [
        f"network.{field.name}"
        for field in dataclasses.fields(NetworkConfig)
        if field.name.endswith(f"_{kind}")
    ]
    for kind in ("torso", "memory")
}
_MAX_COMPOSED = 32  # jobs of a sweep that are checked whole before the first starts


def config_dir() -> Path:
    """The folder of the YAML files: inside an installed package, beside it in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def main(config_name: str, run: Callable[..., float]) -> None:
    """Run the command line: `run(config, run_dir, resume)` for every job that Hydra composes.

    A user's mistake is one line on standard error and exit status 2; a run that failed, 1.
    """
    _open_streams()
    for argument in sys.argv[1:]:
        flag = argument.partition("=")[0]
        if flag.startswith("-") and flag not in _FLAGS:
            _refuse(f"{argument}: no such flag; settings are key=value, without dashes; see -h", 2)
    devices.use_cores()
    OmegaConf.register_new_resolver("jaxppo.help", _help, replace=True)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors reach the handlers below

    def job(settings: DictConfig) -> float:
        config, run_dir = begin(settings)
        if HydraConfig.get().mode == RunMode.MULTIRUN:
            return run(config, run_dir)  # a failed job is Hydra's to report: others go on
        with _one_line():
            return run(config, run_dir, resume=config.resume is not None)

    with _one_line():
        sys.argv[1:] = [with_plus(argument) for argument in sys.argv[1:]]
        sys.argv += _where_to_resume(sys.argv[1:])
        hydra.main(version_base="1.3", config_path=str(config_dir()), config_name=config_name)(
            job
        )()


def command(settings: type, run: Callable[[Any], None], *, places: str | None = None) -> None:
    """Run a command line of `key=value` that is no training: `run(settings)`.

    `settings` is a dataclass of `config.setting`s whose docstring is the help. Errors as in `main`.
    Arguments that are no `key=value`, or are paths that exist, are the list `places`, if there is
    one.
    """
    _open_streams()
    arguments = sys.argv[1:]
    if not arguments or {"-h", "--help"} & set(arguments):
        print_lines((settings.__doc__ or "").strip(), "")
        for field in dataclasses.fields(settings):
            if field.name == places:
                continue
            shown = field.default not in (None, "", dataclasses.MISSING)
            default = f" [{field.default}]" if shown else ""
            print_lines(f"  {field.name:<12} {field.metadata['help']}{default}")
        return
    with _one_line():
        arguments = [argument.lstrip("+") for argument in arguments]
        named = [a for a in arguments if places and not a.startswith("-") and _is_place(a)]
        arguments = [argument for argument in arguments if argument not in named]
        _check_form(arguments)
        typed = OmegaConf.to_container(OmegaConf.from_dotlist(arguments), resolve=False)
        raw = typing.cast(dict[str, Any], typed)
        texts = {field.name for field in dataclasses.fields(settings) if field.type is str}
        for name in texts & set(raw):
            raw[name] = raw[name] if raw[name] is None else str(raw[name])  # which=8192
        if named:
            raw[str(places)] = named
        with warnings.catch_warnings():
            warnings.simplefilter("always", CheckpointWarning)
            warnings.showwarning = partial(_show_warning, warnings.showwarning)
            run(parse_as(settings, raw))


def _show_warning(usual: Callable[..., None], message: Any, category: Any, *rest: Any) -> None:
    """What is of checkpoints is said to the user of a command in its one line."""
    if issubclass(category, CheckpointWarning):
        sys.stderr.write(f"{message}\n")
    else:
        usual(message, category, *rest)


def output_folder(out: str | Path) -> Path:
    """The directory of a setting `out`, made; `ConfigError` where it cannot be written to."""
    path = Path(out)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"out={path}: cannot be made ({error.strerror}); choose another directory"
        ) from error
    if not os.access(path, os.W_OK):
        raise ConfigError(f"out={path}: cannot be written to; choose another directory")
    return path


def _is_place(argument: str) -> bool:
    return "=" not in argument or Path(argument).exists()


def _check_form(arguments: Sequence[str]) -> None:
    for argument in arguments:
        if "=" not in argument or argument.startswith("-"):
            raise ConfigError(f"{argument}: settings are key=value, without dashes; see -h")


def attempt(run: Callable[[], None]) -> None:
    """Run something else, with errors as in `main`."""
    _open_streams()
    with _one_line():
        run()


def compose(config_name: str, overrides: Sequence[str]) -> Config:
    """The settings that an executable would run with, where no Hydra is under way."""
    _check_form(overrides)
    with hydra.initialize_config_dir(version_base="1.3", config_dir=str(config_dir())):
        return parse(_plain(hydra.compose(config_name, [with_plus(each) for each in overrides])))


def with_plus(argument: str) -> str:
    """An argument as Hydra takes it: entries of env.params and env.kwargs need no plus sign."""
    return f"++{argument}" if re.match(r"env\.(params|kwargs)\.[\w.]+=", argument) else argument


def begin(settings: DictConfig) -> tuple[Config, Path]:
    """The job that Hydra runs now, and its directory."""
    return _settings(settings, HydraConfig.get()), Path(HydraConfig.get().runtime.output_dir)


def _where_to_resume(arguments: Sequence[str]) -> list[str]:
    """What tells Hydra to write nothing of its own, and into the directory that is resumed."""
    given = [argument for argument in arguments if re.match(r"\+{0,2}resume=", argument)]
    if not given:
        return []
    run_dir = OverridesParser.create().parse_override(given[-1]).value()
    if run_dir is None:
        return []
    if {"-m", "--multirun"} & set(arguments):
        raise ConfigError(f"{given[-1]}: goes on with one run at a time; leave out -m")
    if not (Path(str(run_dir)) / CONFIG).is_file():
        raise ConfigError(
            f"{given[-1]}: is not the directory of a run, which has a {CONFIG}; look below outputs "
            "or multirun"
        )
    return [f"hydra.run.dir={quoted(str(run_dir))}", "hydra.output_subdir=null"]


def _settings(composed: DictConfig, hydra_config: Any) -> Config:
    """What a run is to do: as composed, or as the run that it resumes was told to.

    Of a run's directory only config.yaml is read here, and of that nothing that says what this
    machine is to do (`LOCAL`): such settings are those of the command line.
    """
    config = parse(_plain(composed))
    if config.resume is None:
        return config
    run_dir = Path(config.resume)
    if Path(hydra_config.run.dir).resolve() != run_dir.resolve():
        raise ConfigError(
            f"resume={run_dir}: has to be typed on the command line, as resume=DIR, beside no "
            "hydra.run.dir"
        )
    check_tree("resume", run_dir)
    stored = {**read_config(run_dir), "logger": {}, "resume": None}
    check_trust(stored, config.trust)
    before = plain(with_local(parse(read_config(run_dir)), config))
    refused = []
    for path, value in _typed(hydra_config, plain(config)):
        key, was = ".".join(path), _value_at(before, path)
        grows = key in ("arch.total_timesteps", "arch.num_updates") and (was or 0) <= (value or 0)
        allowed = {".".join(path[: i + 1]) for i in range(len(path))} & set(config.resume_allow)
        if was != value and not grows and not allowed:
            refused.append(f"{key}={value} (was {was})")
        _put_at(before, path, value)
    if refused:
        names = ",".join(change.partition("=")[0] for change in refused)
        raise ConfigError(
            f"resume={run_dir}: a run keeps its settings, and these differ: {', '.join(refused)}; "
            f"leave them out, or allow them: resume_allow=[{names}]"
        )
    again = ("resume", "resume_allow", "trust")
    merged = parse({**before, **{name: getattr(config, name) for name in again}})
    check_trust({**plain(merged), "logger": {}}, config.trust)
    return merged


def _typed(hydra_config: Any, composed: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each setting that was typed beside `resume`, by its path, and its value as composed.

    A group that was chosen by name stands for its whole section (env=cartpole: all of env), and not
    for what its file sets elsewhere.
    """
    overrides = OmegaConf.to_container(hydra_config.overrides.task, resolve=False)
    parser = OverridesParser.create()
    for override in parser.parse_overrides(typing.cast(list[str], overrides)):
        key = override.package or override.key_or_group.replace("/", ".")
        path = tuple(key.split("."))
        if path[0] in ("resume", "resume_allow", "trust") or key in LOCAL:
            continue
        if override.is_delete():
            raise ConfigError(f"{override.input_line}: a run keeps its settings; set it to null")
        if len(path) > 1:
            yield path, _value_at(composed, path)
        else:
            for name, value in composed[path[0]].items():
                if f"{path[0]}.{name}" not in LOCAL:
                    yield (*path, name), value


def _value_at(settings: Any, path: Sequence[str]) -> Any:
    for name in path:
        settings = settings.get(name) if isinstance(settings, dict) else None
    return settings


def _put_at(settings: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for name in path[:-1]:
        if not isinstance(settings.get(name), dict):
            settings[name] = {}
        settings = settings[name]
    settings[path[-1]] = value


def launch(
    context: HydraContext,
    task: TaskFunction,
    config: DictConfig,
    compose: Callable[[Sequence[str]], DictConfig],
    job_overrides: Sequence[Sequence[str]],
    first: int,
) -> list[JobReturn]:
    """Run the jobs of a sweep: those that differ in nothing that shapes a program, as one.

    Each has its own directory and result. One that fails leaves the others alone. `compose` gives
    a job's settings from its overrides.
    """
    jobs, returns, group = [], [], Path(config.hydra.sweep.dir).name
    for number, overrides in enumerate(job_overrides, first):
        settings = compose(overrides)
        with open_dict(settings):
            settings.hydra.job.id = settings.hydra.job.num = number
        done = run_job(
            hydra_context=context,
            task_function=lambda settings: jobs.append(Job(*begin(settings), group=group)),
            config=settings,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )
        done.return_value  # noqa: B018  raises what went wrong
        returns.append(done)
    groups = _groups([job.config for job in jobs])
    _LOG.info("%s as %s", _count(jobs, "job"), _count(groups, "program"))
    for numbers in groups:
        for number, outcome in zip(numbers, _train([jobs[n] for n in numbers]), strict=True):
            if isinstance(outcome, Exception) and "optuna" in str(config.hydra.sweeper._target_):
                _LOG.warning("job %s failed: %s", first + number, outcome)
                outcome = _worst(config)  # a study goes on
            returns[number].return_value = outcome
            if isinstance(outcome, Exception):
                returns[number].status = JobStatus.FAILED
    return returns


def _worst(config: DictConfig) -> float:
    """A finite result that no job has, in the direction that Optuna is to go."""
    direction = str(OmegaConf.select(config, "hydra.sweeper.direction", default="minimize"))
    return MAX_FLOAT if "min" in direction.lower() else -MAX_FLOAT


def _count(things: Sequence[Any], noun: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"


def _groups(configs: Sequence[Config]) -> list[list[int]]:
    """The numbers of the jobs that one program can train, for each program."""
    groups: list[tuple[Config, list[int]]] = []
    for number, config in enumerate(configs):
        key = program_key(config)
        found = [numbers for other, numbers in groups if other == key]
        if found and config.population.size is None:  # a population is a program of its own
            found[0].append(number)
        else:
            groups.append((key, [number]))
    return [numbers for _, numbers in groups]


def _train(jobs: Sequence[Job]) -> Sequence[float | Exception]:
    """The results of jobs that one program can train, in halves where it would be too large."""
    try:
        return run_together(jobs, fit=len(jobs) > 1)
    except TooLargeError:
        half = len(jobs) // 2
        there = jax.local_device_count()
        half -= half % there if half > there else 0
        return [*_train(jobs[:half]), *_train(jobs[half:])]
    except Exception as error:  # of this program alone: others go on
        return [error] * len(jobs)


class Check(Callback):
    """Refuses what `prepare` refuses before Hydra makes a directory, and holds that directory.

    Nothing in the directory of a run or of a sweep is written before.
    """

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Check a single run."""
        with _one_line():
            settings = _settings(config, config.hydra)
            if settings.resume is None:
                run_dir = _directory(config, "hydra.run.dir")
                check_run_dir("hydra.run.dir", run_dir)
            else:
                _say_what_is_left_out(Path(settings.resume), settings)
            prepare(settings)
            _look_at_environment(settings)
            if settings.resume is None and not settings.arch.plan_only:
                _claim("hydra.run.dir", run_dir)
                check_run_dir("hydra.run.dir", run_dir)  # nobody was quicker

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Check a sweep."""
        with _one_line():
            sweep_dir = _directory(config, "hydra.sweep.dir")
            _check_sweep_dir(sweep_dir)
            _check_sweep(config.hydra.job.config_name, list(config.hydra.overrides.task))
            _claim("hydra.sweep.dir", sweep_dir)
            _check_sweep_dir(sweep_dir)  # nobody was quicker

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Say what a sweep found, also where some of its jobs failed."""
        with _one_line():
            console = bool(OmegaConf.select(config, "logger.console"))
            sweep.report(Path(config.hydra.sweep.dir), console=console)
            release(Path(config.hydra.sweep.dir))


def _say_what_is_left_out(run_dir: Path, config: Config) -> None:
    """Name the sinks of a run that it does not go on with unless they are typed again."""
    stored = parse(read_config(run_dir)).logger
    for name, again in (("wandb", "logger.wandb=true"), ("sinks", "logger.sinks=[...]")):
        if getattr(stored, name) and not getattr(config.logger, name):
            sys.stderr.write(
                f"resume={run_dir}: logger.{name} is not taken from a run's directory; to go on "
                f"with it, add {again}\n"
            )


def _look_at_environment(config: Config) -> None:
    """Say what is wrong with a user's own class, as far as a second shows it; the run goes on."""
    if config.env.target is not None:
        for finding in glance(config.env):
            sys.stderr.write(
                f"env.target={config.env.target}: {' '.join(finding.split())}; python -m "
                "jaxppo.check_env looks closer\n"
            )


def _directory(config: DictConfig, key: str) -> Path:
    return Path(OmegaConf.select(config, key, throw_on_missing=True) or "")


def _check_sweep_dir(sweep_dir: Path) -> None:
    """`ConfigError` where a sweep cannot be written there; it need not exist yet."""
    check_run_dir("hydra.sweep.dir", sweep_dir)
    for path in sweep_dir.iterdir() if sweep_dir.is_dir() else ():
        of_job = (path / ".hydra").is_dir() or (path / CONFIG).exists()
        if of_job or path.name in (sweep.TABLE, "multirun.yaml"):
            raise ConfigError(
                f"hydra.sweep.dir={sweep_dir}: holds a sweep already ({path.name}); choose another "
                "directory"
            )


def _claim(key: str, folder: Path) -> None:
    """Make a directory and hold it; `ConfigError` where it cannot be, or another process does."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        claim(folder)
    except OSError as error:
        raise ConfigError(
            f"{key}={folder}: cannot be written to ({error.strerror}); choose another"
        ) from error


def _plain(config: DictConfig) -> dict[str, Any]:
    settings = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    plain = OmegaConf.to_container(settings, resolve=True)
    return {str(key): value for key, value in typing.cast(dict[Any, Any], plain).items()}


def _check_sweep(config_name: str, overrides: list[str]) -> None:
    """Every swept value by its own rule; then whole jobs, each value beside the others' first."""
    parsed = OverridesParser.create().parse_overrides(overrides)
    for override in parsed:
        if override.is_discrete_sweep() and override.key_or_group.count(".") == 1:
            group, name = override.key_or_group.split(".")
            for value in override.sweep_string_iterator():
                parse({group: {name: OmegaConf.create(f"value: {value}").value}})
    choices = [
        [f"{o.get_key_element()}={value}" for value in o.sweep_string_iterator()]
        if o.is_discrete_sweep()
        else [o.input_line or ""]
        for o in parsed
        if o.is_discrete_sweep() or not o.is_sweep_override()
    ]
    first = [options[0] for options in choices]
    jobs = [first] + [
        [*first[:i], option, *first[i + 1 :]]
        for i, options in enumerate(choices)
        for option in options[1:]
        if not _is_free(option.partition("=")[0])
    ]
    for job in jobs[:_MAX_COMPOSED]:
        prepare(parse(_plain(hydra.compose(config_name, job))))


def _is_free(key: str) -> bool:
    """Whether the values of a setting need no other check than their own rule."""
    fields = {f"system.{f.name}": f.metadata for f in dataclasses.fields(system_type({}))}
    rule: Any = fields.get(key, {})
    return key == "arch.seed" or ("traced" in rule and not rule.get("coupled"))


@contextlib.contextmanager
def _one_line() -> Iterator[None]:
    """Turn a user's mistake into its one line and an exit status.

    Other exceptions end here too, with their traceback: Hydra would hide them in a callback.
    """
    try:
        if jax.config.jax_enable_x64:  # type: ignore[attr-defined]
            raise ConfigError("JAX_ENABLE_X64: jaxppo computes in 32 bits; unset it")
        yield
    except Interrupted as stopped:
        _refuse(str(stopped), stopped.status)
    except KeyboardInterrupt:
        _refuse("interrupted; what was written so far stays", 130)
    except BrokenPipeError:  # whoever read our output has left
        _close_output()
        raise SystemExit(1) from None
    except Exception as error:
        line = _explain(error)
        if line is None:
            traceback.print_exc()
            raise SystemExit(1) from None
        of_user = isinstance(error, ConfigError | HydraException | ValueError)
        _refuse(line, 2 if of_user or _is_of_platform(error) else 1)


def _open_streams() -> None:
    """Give a process that was started with closed streams some that go nowhere.

    Otherwise the next file that is opened would take their place, and what is printed.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115


def _close_output() -> None:
    """Let what is still to be printed go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _explain(error: Exception) -> str | None:
    """What a user did, in one line; None where it was not the user."""
    if isinstance(error, ConfigError | TrainingError | CheckpointError):
        return str(error)
    if isinstance(error, HydraException | OmegaConfBaseException):
        typed = getattr(error, "override", None)  # where Hydra's grammar stopped
        return _translate(f"parsing override '{typed}'\n{error}" if typed else str(error))
    if isinstance(error, ValueError) and "Config group override" in str(error):
        typed = " ".join(arg for arg in sys.argv[1:] if re.match(r"[+~]*(\w*|\w+/[\w/@.]+)=", arg))
        return f"{typed}: a group takes the name of one of its files; see --help"
    if match := re.match(r"invalid literal for int\(\) with base 10: '(\w+)'", str(error)):
        typed = [arg for arg in sys.argv[1:] if f".{match[1]}=" in arg]  # OmegaConf's, of a list
        if typed:
            key = typed[0].partition("=")[0].rpartition(".")[0].lstrip("+")
            return f"{typed[0]}: {key} is a list; give all of it, such as {key}=[one,two]"
    if isinstance(error, OSError):
        return _explain_os(error)
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        first = str(error).partition("\n")[0] or "no memory is left"
        return (
            f"{first}; lower arch.total_num_envs, system.rollout_length or the number of members; "
            "arch.plan_only=true says what a run needs"
        )
    if _is_of_platform(error):
        return (
            f"JAX_PLATFORMS={os.environ['JAX_PLATFORMS']}: there is no such device here; unset it, "
            "or set it to cpu"
        )
    return None


def _is_of_platform(error: Exception) -> bool:
    """Whether JAX did not find the platform that JAX_PLATFORMS names."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(os.environ.get("JAX_PLATFORMS") and frames) and (
        Path(frames[-1].filename).name == "xla_bridge.py"
    )


def _explain_os(error: OSError) -> str | None:
    """What the file system refused, in one line."""
    name = error.filename
    if name is None:
        try:
            os.getcwd()
        except FileNotFoundError:
            return "the working directory does not exist any more; change to another"
        if error.errno in (errno.ENOSPC, errno.EIO, errno.EBADF):
            _close_output()
            return f"standard output: {error.strerror}; send it elsewhere, or logger.console=false"
        return None
    unreadable = os.path.exists(name) and not os.access(name, os.R_OK)
    if isinstance(error, FileNotFoundError) or unreadable:
        return f"{name}: cannot be read ({error.strerror})"
    return (
        f"{name}: cannot be written ({error.strerror}); choose another directory for hydra.run.dir "
        "(in a sweep, hydra.sweep.dir), or make room"
    )


def _refuse(message: str, status: int) -> NoReturn:
    sys.stderr.write(" ".join(message.split()) + "\n")
    raise SystemExit(status)


def _translate(message: str) -> str:
    """Hydra's words for an override that cannot be, as key, rule and way out."""
    if match := re.search(r"Could not override '([^']+)'", message):
        key = match[1]
        if key.startswith("hydra."):
            return f"{key}: no such key; Hydra's own are in --hydra-help"
        group, _, slot = key.partition("@")
        if slot in _BRANCHES.get(group, ()):
            return f"{key}: this network has none there; add it with a plus sign: +{key}=NAME"
        if key in _BRANCHES:
            return f"{key}: say of which branch, such as {key}@{key.replace('/', '.actor_')}=NAME"
        if key in _layer_keys():
            return f"{key}: the layer there, if any, has no such key; --cfg job shows what there is"
        here = [k for k in _layer_keys() if k.rpartition(".")[0] == key.rpartition(".")[0]]
        return unknown_key(key, sorted(here) or _usual_layer_keys())
    if match := re.search(
        r"Could not find '(.+)/([^/]+)'\s+Available options in .*?:(.*)", message, re.S
    ):
        group, choice, rest = match.groups()
        choices = rest.partition("Config search path")[0].split()
        near = difflib.get_close_matches(choice, choices, 1, 0.0)
        return (
            f"{group}={choice}: no such choice; did you mean {group}={near[0]}? "
            f"(of {', '.join(choices)})"
        )
    if match := re.search(r"Error merging override (.*)", message):
        return f"{match[1]}: the file's value is of another kind; see --cfg job for its form"
    if match := re.search(r"(?:An item is already at '|Multiple values for )([^' ]+)[.']", message):
        return f"+{match[1]}: is in the file already; change it without the plus sign"
    if match := re.search(r"parsing override '(.*)'", message):
        return f"{match[1]}: not an override ({message.splitlines()[1].strip()}); write key=value"
    return message


def _layer_keys() -> set[str]:
    """Settable keys of all layers, wherever in a network they may stand."""
    keys = set()
    for layer in _LAYERS:
        places = _BRANCHES.get(f"network/{layer}", [f"network.{layer}"])
        for file in (config_dir() / "network" / layer).glob("*.yaml"):
            keys |= {f"{place}.{key}" for key in map(str, OmegaConf.load(file)) for place in places}
    return keys


def _usual_layer_keys() -> list[str]:
    """Those of the network that is composed where none is named."""
    keys = []
    for entry in OmegaConf.load(config_dir() / "network" / "mlp.yaml").defaults:
        if entry != "_self_":
            ((group, choice),) = entry.items()
            layer, _, place = group.partition("@")
            file = config_dir() / "network" / layer / f"{choice}.yaml"
            keys += [f"network.{place or layer}.{key}" for key in map(str, OmegaConf.load(file))]
    return keys


def _choices(group: str) -> list[str]:
    """The names of a group's files; those of env are in folders by library too."""
    folder = config_dir() / group
    files = folder.rglob("*.yaml") if group == "env" else folder.glob("*.yaml")
    names = [file.relative_to(folder).with_suffix("").as_posix() for file in files]
    return sorted(names, key=lambda name: ("/" in name, name))


def _help() -> str:
    """The text of `--help`."""
    groups = ("env", "network", "population", *(f"network/{layer}" for layer in _LAYERS))
    choices = "\n".join(f"{group}={', '.join(_choices(group))}" for group in groups)
    return f"""PPO in JAX, compiled end to end.

  python -m jaxppo.ff_ppo env=cartpole arch.total_num_envs=4096
  python -m jaxppo.ff_ppo env=cartpole arch.num_seeds=16
  python -m jaxppo.ff_ppo -m env=cartpole arch.seed=1,2,3 system.gamma=0.98,0.99
  python -m jaxppo.ff_ppo env=cartpole population=pbt population.size=32
  python -m jaxppo.rec_ppo env=t_maze network=gru

{choices}
  network/torso and network/memory are said of a branch: network/torso@network.actor_torso=mlp
hydra.run.dir=DIR is the run directory; --cfg job prints the settings; --hydra-help has the rest.

{help_text("ppo")}"""
