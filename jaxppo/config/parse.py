"""Parse plain containers into settings; errors are one line each."""

import dataclasses
import difflib
import re
import typing
from collections.abc import Sequence
from typing import Any

from jaxppo.config.fields import ConfigError, as_override, check
from jaxppo.config.importing import imported
from jaxppo.config.schema import ALGORITHMS, Config, SystemConfig

# Old names of settings, and their current names
RENAMED = {
    "arch.plan_only": "python -m jaxppo.plan",
    "arch.target": "python -m jaxppo.plan target=",
    "system.gradient_chunk": "system.microbatch_size",
    "system.kl_stop": "system.target_kl",
    "system.kl_target": "system.kl_coef_target",
    "system.recompute_advantages": "system.recompute_targets",
    "system.refresh_carries": "system.recompute_carries",
}

# Names in other libraries, in lower case, and the settings they are here (docs/migration.md)
ELSEWHERE = {
    "lr": "system.actor_lr and system.critic_lr",
    "learning_rate": "system.actor_lr and system.critic_lr",
    "anneal_lr": "system.decay_learning_rates",
    "n_steps": "system.rollout_length",
    "num_steps": "system.rollout_length",
    "n_epochs": "system.epochs",
    "num_epochs": "system.epochs",
    "update_epochs": "system.epochs",
    "batch_size": "system.num_minibatches",
    "clip_range": "system.clip_eps",
    "clip_coef": "system.clip_eps",
    "n_envs": "arch.total_num_envs",
    "num_envs": "arch.total_num_envs",
    "num_evals": "arch.num_evaluation",
    "env_id": "env.name",
}


def parse(raw: dict[str, Any]) -> Config:
    """Parse plain containers into a `Config`; `ConfigError` on unknown keys and wrong values.

    The keys of `system` depend on `system.algorithm`; if that is an import path, it is imported.
    """
    return typing.cast(Config, _parse(Config, {"system": {}, **raw}, ""))


def parse_as(cls: type, raw: dict[str, Any]) -> Any:
    """Parse plain containers into another dataclass of settings, which has no groups."""
    names = [field.name for field in dataclasses.fields(cls)]
    for name in raw:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1, 0.0)
            raise ConfigError(f"{name}: no such key; did you mean {near[0]}?")
    return _parse(cls, raw, "")


def _parse(cls: type, raw: Any, prefix: str) -> Any:
    if not isinstance(raw, dict):
        example = next(key for key in known_keys() if key.startswith(prefix))
        raise ConfigError(f"{prefix.rstrip('.')}={raw!r}: must hold keys, such as {example}")
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    values = {}
    for name, value in raw.items():
        key = f"{prefix}{name}"
        if name not in fields and key in known_keys():
            chosen = raw.get("algorithm", "ppo")
            usual = ELSEWHERE.get(name)
            way_out = f"did you mean {usual}?" if usual else "leave it out"
            raise ConfigError(f"{key}: system.algorithm={chosen} has no such setting; {way_out}")
        if name not in fields:
            more = [f"{prefix}{known}" for known in fields] if prefix else []
            raise ConfigError(unknown_key(key, more))
        hint: Any = hints[name]
        if hint is SystemConfig:
            hint = system_type(value)
        if dataclasses.is_dataclass(hint):
            values[name] = _parse(typing.cast(type, hint), value, f"{key}.")
        else:
            values[name] = check(key, value, hint, fields[name].metadata, _group_of_layer(key))
    return cls(**values)


def system_type(raw: Any) -> type[SystemConfig]:
    """Return the settings class of the algorithm in `raw`; `ConfigError` if there is none."""
    (field,) = (f for f in dataclasses.fields(SystemConfig) if f.name == "algorithm")
    given = raw.get("algorithm", field.default) if isinstance(raw, dict) else field.default
    name = check("system.algorithm", given, str, field.metadata)
    algorithm = algorithm_class(name)
    return typing.cast(
        type[SystemConfig], algorithm.settings_type(raw if isinstance(raw, dict) else {})
    )


def algorithm_class(name: str) -> Any:
    """Return the class that `system.algorithm` names; `ConfigError` if there is none."""
    found = imported("system.algorithm", ALGORITHMS.get(name, name), "class", ALGORITHMS)
    settings = getattr(found, "Settings", None)
    extends = isinstance(settings, type) and issubclass(settings, SystemConfig)
    if not (extends and callable(getattr(found, "settings_type", None))):
        raise ConfigError(
            f"system.algorithm={name}: must be a class that extends "
            "jaxppo.algorithms.algorithm.Algorithm, with Settings that extend "
            "jaxppo.config.schema.SystemConfig; or one of "
            f"{', '.join(ALGORITHMS)}; see docs/algorithms.md"
        )
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        raise ConfigError(
            f"system.algorithm={name}: has no {', '.join(missing)}; define what "
            "jaxppo.algorithms.algorithm.Algorithm leaves open; see docs/algorithms.md"
        )
    return found


def known_keys(algorithms: Sequence[str] = tuple(ALGORITHMS)) -> list[str]:
    """Return all keys, such as `system.gamma`, of these algorithms."""
    hints = typing.get_type_hints(Config)
    keys = []
    for field in dataclasses.fields(Config):
        types = [hints[field.name]]
        if types == [SystemConfig]:
            types = [system_type({"algorithm": name}) for name in algorithms]
        for each in types:
            inner = dataclasses.fields(each) if dataclasses.is_dataclass(each) else ()
            keys += [f"{field.name}.{part.name}" for part in inner] or [field.name]
    return list(dict.fromkeys(keys))


def keywords() -> dict[str, str]:
    """Return the key that each keyword of `jaxppo.compose` stands for.

    Settings of `arch` and `system`, and those without a group, have their own name. Others have
    that of their group before it: `population_size`. A group, such as `env`, takes a name.
    """
    short = {key: key.removeprefix("arch.").removeprefix("system.") for key in known_keys()}
    groups = [field.name for field in dataclasses.fields(Config) if "help" not in field.metadata]
    named = {name: name for name in groups if name != "system"}
    return named | {name.replace(".", "_"): key for key, name in short.items()}


def key_of_keyword(keyword: str) -> str:
    """Return the key that a keyword stands for; `ConfigError` if it stands for none."""
    known = keywords()
    if keyword in known:
        return known[keyword]
    usual = re.sub(r"\b(arch|system)\.", "", ELSEWHERE.get(keyword, "")).replace(".", "_")
    near = usual or difflib.get_close_matches(keyword.lower(), known, 1, 0.0)[0]
    raise ConfigError(f"{keyword}: no such keyword; did you mean {near}?")


def unknown_key(key: str, more: Sequence[str] = ()) -> str:
    """Return the error line for an unknown key, with the most similar known key.

    `more` are further known keys.
    """
    if key in RENAMED:
        return f"{key}: is called {RENAMED[key]} now"
    known = [*known_keys(), *more]
    lower = key.lower()
    groups = [field.name for field in dataclasses.fields(Config) if "help" not in field.metadata]
    if "." not in key and (alike := difflib.get_close_matches(lower, groups, 1, 0.7)):
        return f"{key}: no such key; did you mean {alike[0]}=NAME, or {alike[0]}.KEY=VALUE?"
    last = lower.rpartition(".")[2]
    by_name = {k.rpartition(".")[2]: k for k in known}
    begun = [k for k in known if k.startswith(lower)]
    usual = ELSEWHERE.get(last) or by_name.get(last)
    near = [usual] if usual else difflib.get_close_matches(lower, begun, 1, 0.0)
    near = near or difflib.get_close_matches(lower, known, 1, 0.5)
    near = near or [by_name[n] for n in difflib.get_close_matches(last, list(by_name), 1, 0.0)]
    return f"{key}: no such key; did you mean {near[0]}?"


def _group_of_layer(key: str) -> str:
    """Return a hint how to choose the layer `key` by name; empty for other keys."""
    section, _, place = key.partition(".")
    if section != "network":
        return ""
    kind = place.rpartition("_")[2]
    group = f"network/{kind}@{key}" if kind in ("torso", "memory") else f"network/{place}"
    return f"; by name with a slash: {group}=NAME"


def help_text(algorithm: str, system: Sequence[tuple[str, str, str]] | None = None) -> str:
    """Return all keys with their help and default, for `--help` of an algorithm's command.

    `system` are name, help and default of its own settings; None: those of its class, which needs
    JAX.
    """
    lines, hints = [], typing.get_type_hints(Config)
    alone = [field for field in dataclasses.fields(Config) if "help" in field.metadata]
    for group in dataclasses.fields(Config):
        cls = hints[group.name]
        if group in alone:
            continue
        if cls is SystemConfig and system is not None:
            lines.append(f"system: Settings of {algorithm.upper()}.")
            lines += [f"  {f'system.{name}':<30} {help} [{value}]" for name, help, value in system]
            lines.append("")
            continue
        if cls is SystemConfig:
            cls = system_type({"algorithm": algorithm})
        lines.append(f"{group.name}: {(cls.__doc__ or '').strip()}")
        for field in dataclasses.fields(cls):
            key, default = f"{group.name}.{field.name}", ""
            if group.name != "network":  # whose layers are chosen by name; others as one types them
                shown = as_override(key, getattr(cls(), field.name)).partition("=")[2]
                default = f" [{'.inf' if shown == 'inf' else shown}]"
            lines.append(f"  {key:<30} {field.metadata['help']}{default}")
        lines.append("")
    lines.append("Resuming an earlier run:")
    lines += [f"  {field.name:<30} {field.metadata['help']}" for field in alone]
    return "\n".join(lines)
