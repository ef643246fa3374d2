"""Compose the settings of a resumed run: the stored ones and those typed with `resume`."""

import re
import sys
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from jaxppo.config.fields import ConfigError, as_override, quoted
from jaxppo.config.parse import known_keys, parse, unknown_key
from jaxppo.config.schema import ALGORITHMS, ArchConfig, Config
from jaxppo.config.stored import CONFIG, LOCAL, plain, read_config, with_local
from jaxppo.config.trust import check_trust
from jaxppo.launch.composing import composed, for_hydra, literal, plain_settings, typed_text
from jaxppo.runtime.run.jobs import algorithm_name
from jaxppo.runtime.run.resuming import other_updates
from jaxppo.runtime.store.directories import check_is_run, check_tree

SWEEP = "multirun.yaml"  # what Hydra writes of its settings in the directory of a sweep
OF_RESUME = ("resume", "resume_allow", "trust", *LOCAL)  # change nothing of a stored run
_BUDGET = ("arch.total_timesteps", "arch.num_updates")


def resume_overrides(arguments: Sequence[str]) -> list[str]:
    """Return overrides that make Hydra use the resumed directory and write no files of its own."""
    typed, run_dir = _resumed(arguments)
    if run_dir is None:
        return []
    if {"-m", "--multirun"} & set(arguments):
        raise ConfigError(f"{typed}: resumes one run at a time; leave out -m")
    check_is_run(typed, Path(run_dir))
    for argument in arguments:
        if re.match(r"\+{0,2}hydra\.run\.dir=", argument):
            raise ConfigError(f"{argument}: a resumed run stays in its directory; leave it out")
    return [f"hydra.run.dir={quoted(literal(run_dir))}", "hydra.output_subdir=null"]


def resumed_here(arguments: Sequence[str]) -> list[str]:
    """Return arguments in which `resume=true` is the directory of the command, if that has begun.

    If it has not, `resume=true` is left out. `ConfigError` if the arguments name no directory, or
    if those of a sweep are not the ones that began it.
    """
    typed, value = _resumed(arguments)
    if (value or "").lower() != "true":
        return list(arguments)
    sweeps = bool({"-m", "--multirun"} & set(arguments))
    key = "hydra.sweep.dir" if sweeps else "hydra.run.dir"
    places = [each for each in arguments if is_setting(each, key)]
    folder = typed_text(places[-1].partition("=")[2]) if places else None
    if folder is None:
        raise ConfigError(f"{typed}: goes on in the directory of the command; add {key}=DIR")
    others = [each for each in arguments if not is_setting(each, "resume")]
    if not (Path(folder) / (SWEEP if sweeps else CONFIG)).is_file():
        return others
    if sweeps:
        _check_same_sweep(Path(folder), others)
        return [as_override("resume", folder)]
    return [*(each for each in others if each not in places), as_override("resume", folder)]


def _check_same_sweep(folder: Path, arguments: Sequence[str]) -> None:
    """Raise `ConfigError` if a sweep was begun with other settings than these."""
    begun = [
        for_hydra(each.lstrip("+"))
        for each in OmegaConf.select(
            OmegaConf.load(folder / SWEEP), "hydra.overrides.task", default=[]
        )
    ]
    now = [for_hydra(each.lstrip("+")) for each in arguments if not each.startswith("-")]
    now = [each for each in now if not each.startswith("hydra")]
    if differ := sorted({*begun} ^ {*now}):
        raise ConfigError(
            f"resume=true: the sweep in {folder} was begun with other settings "
            f"({', '.join(x.lstrip('+') for x in differ)}); give the same ones, or another "
            "hydra.sweep.dir"
        )


def sweep_of(arguments: Sequence[str]) -> Path | None:
    """Return the sweep that `resume` names; None if it names a run, or there is none."""
    folder = _resumed(arguments)[1]
    if folder is None or (Path(folder) / CONFIG).exists():
        return None
    return Path(folder) if (Path(folder) / SWEEP).is_file() else None


def _resumed(arguments: Sequence[str]) -> tuple[str, str | None]:
    """Return the argument `resume=DIR`, the last if there are several, and its directory."""
    given = [each for each in arguments if is_setting(each, "resume")]
    return (given[-1], typed_text(given[-1].partition("=")[2])) if given else ("", None)


def is_setting(argument: str, *keys: str) -> bool:
    """Return whether an argument sets one of `keys`."""
    return "=" in argument and argument.partition("=")[0].lstrip("+") in keys


def compose_run(config_name: str, overrides: Sequence[str]) -> Config:
    """Return the settings of a command as `settings_of` does, outside of a Hydra application."""
    found, typed = composed(config_name, overrides)
    run_dir = literal(str(found.get("resume")))
    here = {"overrides": {"task": typed}, "run": {"dir": run_dir}}
    return settings_of(found, OmegaConf.create(here))


def settings_of(settings: DictConfig, hydra_config: Any) -> Config:
    """Return composed settings; for a resume, the stored settings with the typed changes.

    Only config.yaml of the run's directory is read here. Settings about this machine (`LOCAL`) are
    taken from the command line instead.
    """
    config = parse(plain_settings(settings, hydra_config.overrides.task))
    if config.resume is None:
        _check_allowed(config.resume_allow, [config])
        return config
    run_dir = Path(config.resume)
    if Path(hydra_config.run.dir).resolve() != run_dir.resolve():
        raise ConfigError(
            f"resume={run_dir}: must be on the command line, as resume=DIR, without hydra.run.dir"
        )
    check_is_run(f"resume={run_dir}", run_dir)
    check_tree("resume", run_dir)
    stored = read_config(run_dir)
    trust = check_trust({**stored, "logger": {}}, config.trust)
    old = with_local(parse(stored), config)
    own = old.system.algorithm
    typed_command = OmegaConf.select(hydra_config, "job.config_name")  # None in Python
    if typed_command and own in ALGORITHMS and own != config.system.algorithm:
        raise ConfigError(
            f"resume={run_dir}: {typed_command} does not continue a run of {own}; "
            f"python -m jaxppo.{algorithm_name(old)} {as_override('resume', str(run_dir))} does"
        )
    _check_allowed(config.resume_allow, [config, old])
    before = OmegaConf.create(plain(old))
    refused = []
    typed = dict(_typed(hydra_config, OmegaConf.create(plain(config))))
    may_change = {*config.resume_allow, *(_BUDGET if _grows(old, typed) else ())}
    if may_change & {*_BUDGET} & {*typed}:  # `_misfits` checks their interval
        may_change.add("arch.num_evaluation")
    for key, value in typed.items():
        was = OmegaConf.select(before, key)
        if was != value and not may_change & {*accumulate(key.split("."), "{}.{}".format)}:
            shown = as_override(key, was).partition("=")[2]
            if key in _BUDGET and old.arch.num_updates is None:
                shown += f", {_num_updates(old, old.arch)} updates"
            refused.append(f"{as_override(key, value)} (was {shown})")
        OmegaConf.update(before, key, value, merge=False, force_add=True)
    was = old.arch.total_num_envs, old.system.rollout_length
    now = before.arch.total_num_envs, before.system.rollout_length
    if line := other_updates(was, now, run_dir):
        raise ConfigError(line)
    if refused:
        names = ",".join(change.partition("=")[0] for change in refused)
        raise ConfigError(
            f"resume={run_dir}: a run keeps its settings, and these differ: {', '.join(refused)}; "
            f"leave them out, or allow them: resume_allow=[{names}]"
        )
    again = ("resume", "resume_allow", "trust")
    container = typing.cast(dict[str, Any], OmegaConf.to_container(before))
    merged = parse({**container, **{name: getattr(config, name) for name in again}})
    check_trust({**plain(merged), "logger": {}}, trust)
    return merged


def _check_allowed(names: Sequence[str], configs: Sequence[Config]) -> None:
    """Raise `ConfigError` if a name of resume_allow is neither a setting, a group nor log."""
    own = [f"system.{field.name}" for each in configs for field in fields(each.system)]
    known = {"log", *known_keys(), *own}
    known |= {key.partition(".")[0] for key in known}
    for name in names:
        if ".".join(name.split(".")[:2]) not in known:  # deeper keys are not checked
            raise ConfigError(f"resume_allow: {unknown_key(name, own)}")


def _grows(old: Config, typed: Mapping[str, Any]) -> bool:
    """Return whether the typed budget has at least the updates of the stored one.

    `ConfigError` if it changes total_timesteps of a run whose budget is num_updates.
    """
    changes = {key.partition(".")[2]: typed[key] for key in _BUDGET if key in typed}
    new = replace(old.arch, **changes)
    counts = "num_updates" in changes or old.arch.num_updates is None
    if new.total_timesteps != old.arch.total_timesteps and not counts:
        raise ConfigError(
            f"arch.total_timesteps={new.total_timesteps}: the run has "
            f"arch.num_updates={new.num_updates} instead; type a larger arch.num_updates"
        )
    return _num_updates(old, new) >= _num_updates(old, old.arch)


def _num_updates(old: Config, arch: ArchConfig) -> int:
    """Return the updates of the budget in `arch`, at the stored steps per update."""
    if arch.num_updates is not None:
        return arch.num_updates
    return -(-(arch.total_timesteps or 0) // (old.arch.total_num_envs * old.system.rollout_length))


def _typed(hydra_config: Any, composed: DictConfig) -> Iterator[tuple[str, Any]]:
    """Yield the key and composed value of each setting that was typed together with `resume`.

    A group chosen by name counts as all settings of its section (env=cartpole: all of env), but
    not what its file sets in other sections.
    """
    overrides = OmegaConf.to_container(hydra_config.overrides.task, resolve=False)
    parser = OverridesParser.create()
    for override in parser.parse_overrides(typing.cast(list[str], overrides)):
        key = override.package or override.key_or_group.replace("/", ".")
        if key in OF_RESUME:
            continue
        if override.is_delete():
            raise ConfigError(f"{override.input_line}: a run keeps its settings; set it to null")
        if "." in key:
            yield key, OmegaConf.select(composed, key)
        else:
            for name, value in composed[key].items():
                if f"{key}.{name}" not in LOCAL:
                    yield f"{key}.{name}", value


def warn_of_omitted_sinks(run_dir: Path, config: Config) -> None:
    """Warn of sinks of a stored run that are not used unless they are typed again."""
    stored = parse(read_config(run_dir)).logger
    for name, again in (("wandb", "logger.wandb=true"), ("sinks", "logger.sinks=[...]")):
        if getattr(stored, name) and not getattr(config.logger, name):
            sys.stderr.write(
                f"resume={run_dir}: logger.{name} is not taken from a run's directory; to use "
                f"it again, add {again}\n"
            )
