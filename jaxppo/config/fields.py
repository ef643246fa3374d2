"""Declare settings (default, help and rule) and check their values."""

import dataclasses
import difflib
import math
import re
import secrets
import shlex
import types
import typing
from collections.abc import Mapping
from typing import Any

from jaxppo.config.messages import OneLineError


class ConfigError(OneLineError, ValueError):
    """A wrong setting. The message is one line: key, value, rule and way out."""


def setting(default: Any, help: str, **rule: Any) -> Any:
    """Make a dataclass field with a help text and a rule.

    Rules for numbers are `low`, `high`, `above` and `infinite`. Rules for text are `choices`, a
    tuple of names, `importable`, which also accepts import paths such as my_module.my_choice, and
    `steps`, which also accepts a number of steps. An integer that is `drawn` is random if null.

    `needs` maps names of other settings to the values of which they must have one, unless this
    setting has its default; see `check_needs`.
    """
    if isinstance(default, dict | list):
        return dataclasses.field(
            default_factory=lambda: type(default)(default), metadata={"help": help, **rule}
        )
    return dataclasses.field(default=default, metadata={"help": help, **rule})


def traced(default: Any, help: str, **rule: Any) -> Any:
    """Make a setting that is a traced hyperparameter: it shapes no array, and members may differ.

    If the value is null, the setting that `follows` names is used; without one, the program has no
    such number. With `switch`, the program depends on whether the value is a finite number. With
    `coupled`, checks compare it with other settings.
    `tune=(low, high)` are the bounds between which `jaxppo.tune` searches; without, it does not.
    """
    return setting(default, help, traced=True, **rule)


def other_default(cls: type, name: str, default: Any) -> Any:
    """Return the setting `name` of a class with another default, for a subclass."""
    (field,) = (field for field in dataclasses.fields(cls) if field.name == name)
    return dataclasses.field(default=default, metadata=field.metadata)


def traced_names(settings: Any) -> list[str]:
    """Return the names of the traced settings of a class or instance."""
    return [field.name for field in dataclasses.fields(settings) if "traced" in field.metadata]


def variable_names(settings: Any) -> list[str]:
    """Return the names of the traced settings that are numbers, not flags."""
    return [
        field.name
        for field in dataclasses.fields(settings)
        if "traced" in field.metadata and not isinstance(field.default, bool)
    ]


def numbers(settings: Any) -> dict[str, float]:
    """Return the traced numbers of an algorithm's settings, by name, but for those that are off."""
    found = {}
    for field in dataclasses.fields(settings):
        if "traced" in field.metadata:
            value, leader = getattr(settings, field.name), field.metadata.get("follows")
            if value is None and leader is not None:
                value = getattr(settings, leader)
            if value is not None:
                found[field.name] = float(value)
    return found


class Static:
    """The settings of an algorithm that are not traced.

    Reading a traced setting here would compile it in as a constant: it raises `AttributeError`.
    """

    def __init__(self, settings: Any) -> None:
        self._traced = traced_names(settings)
        for field in dataclasses.fields(settings):
            if field.name not in self._traced:
                setattr(self, field.name, getattr(settings, field.name))

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and name in self._traced:
            raise AttributeError(f"{name} is traced: read it from agent.hyperparameters")
        raise AttributeError(f"no setting {name}")


def check(
    key: str, value: Any, hint: Any, rule: Mapping[str, Any], way_out_of_text: str = ""
) -> Any:
    """Return `value` as the type `hint`; `ConfigError` if it breaks the rule of its field.

    `way_out_of_text` is added to the error if the value is text and the type is another.
    """
    wanted, optional = _without_none(hint)
    if value is None:
        if optional:
            return None
        if rule.get("drawn"):
            return secrets.randbelow(rule["high"] + 1)
        raise ConfigError(f"{key}=null: must be {_kind(wanted, rule)}")
    kind = typing.get_origin(wanted) or wanted
    if kind is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if rule.get("steps") and isinstance(value, int | float):  # a number beside names
        value = f"{value:.0f}"
    if rule.get("infinite") and value in ("inf", ".inf"):  # Hydra and YAML read these as text
        value = math.inf
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        or_null = " or null" if optional else ""
        way_out = way_out_of_text if isinstance(value, str) else ""
        if kind is str and isinstance(value, int | float):
            way_out = f"; in quotes it is text: \"{key}='{value}'\""
        if kind is dict and isinstance(value, str):
            way_out = way_out_of_text or f"; write {key}.KEY=VALUE"
        if kind is list and typing.get_args(wanted)[0] in (Any, type(value)):
            way_out = f"; write {as_override(key, [value])}"
        raise ConfigError(
            f"{key}={value}: must be {_kind(wanted, rule)}{or_null}, not {type(value).__name__}"
            f"{way_out}"
        )
    if kind in (int, float):
        _check_number(key, value, rule)
    if value == "":
        raise ConfigError(f"{key}='': must be text that is not empty")
    if kind is list:
        (inner,) = typing.get_args(wanted)
        wanted_item = typing.get_origin(inner) or inner
        if wanted_item is not Any and not all(type(item) is wanted_item for item in value):
            raise ConfigError(f"{key}={value}: must be {_kind(wanted, rule)}")
    choices = rule.get("choices")
    importable = bool(rule.get("importable"))
    if choices and value not in choices and not (importable and is_import_path(value)):
        near = difflib.get_close_matches(value.lower(), choices, 1, 0.0)[0]
        path = ", and no import path such as my_module.mine" if importable else ""
        raise ConfigError(
            f"{key}={value}: no such choice{path}; did you mean {near}? (of {', '.join(choices)})"
        )
    return value


IMPORTED = "an import path"  # stands for any, among the values of `needs`


def check_needs(group: str, settings: Any) -> None:
    """Raise `ConfigError` if a setting that is not at its default lacks what its field `needs`."""

    def shown(value: Any) -> str:
        return as_override("", value).removeprefix("=")

    for field in dataclasses.fields(settings):
        value, default = getattr(settings, field.name), field.default
        if default is dataclasses.MISSING:
            default = field.default_factory() if callable(field.default_factory) else None
        for name, choices in field.metadata.get("needs", {}).items() if value != default else ():
            other = getattr(settings, name)
            if other not in choices and not (IMPORTED in choices and is_import_path(other)):
                raise ConfigError(
                    f"{group}.{field.name}={shown(value)} needs {group}.{name}="
                    f"{' or '.join(IMPORTED if x == IMPORTED else shown(x) for x in choices)}, not "
                    f"{shown(other)}; or set it to {shown(default)}"
                )


def _without_none(hint: Any) -> tuple[Any, bool]:
    """Return a type without its option `None`, and whether it had that option."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return next(option for option in options if option is not type(None)), type(None) in options


def is_import_path(choice: str) -> bool:
    """Return whether a choice is an import path rather than a name."""
    return "." in choice


MAX_INT, MAX_FLOAT = 2**31 - 1, float.fromhex("0x1.fffffep+127")  # of int32 and float32

_TYPE_NAMES: dict[Any, str] = {
    int: "an integer (1e7 is one)",
    float: "a number",
    bool: "true or false",
    str: "text",
    dict[str, Any]: "keys and values",
    list[str]: "a list of names, such as [one,two]",
    list[int]: "a list of integers, such as [1,3]",
    list[float]: "a list of numbers",
    list[Any]: "a list",
    list[dict[str, Any]]: "a list of keys and values, such as [{_target_: my_module.MySink}]",
}


def _kind(kind: Any, rule: Mapping[str, Any]) -> str:
    choices = rule.get("choices")
    if not choices:
        return _TYPE_NAMES[kind]
    return f"one of {', '.join(choices)}{', or an import path' if rule.get('importable') else ''}"


def takes(hint: Any, rule: Mapping[str, Any]) -> str:
    """Describe in words which values a setting with this type and rule takes."""
    wanted, optional = _without_none(hint)
    bounds = _bounds(rule)
    words = [
        _kind(wanted, rule) + (f", {bounds}" if bounds else ""),
        ".inf" if rule.get("infinite") else "",
        "null" if optional or rule.get("drawn") else "",
    ]
    return "; or ".join(word for word in words if word)


def _bounds(rule: Mapping[str, Any]) -> str:
    names = {"low": "at least", "above": "above", "high": "at most"}
    return " and ".join(
        f"{words} {rule[name]}" for name, words in names.items() if rule.get(name) is not None
    )


def _check_number(key: str, value: float, rule: Mapping[str, Any]) -> None:
    low, high, above, rules = rule.get("low"), rule.get("high"), rule.get("above"), _bounds(rule)
    if math.isnan(value) or (math.isinf(value) and not rule.get("infinite")):
        raise ConfigError(f"{key}={value}: must be a finite number{', ' if rules else ''}{rules}")
    if (
        (low is not None and value < low)
        or (above is not None and value <= above)
        or (high is not None and value > high)
    ):
        nearest = high if high is not None and value > high else low if low is not None else None
        way_out = f"; the nearest that is: {nearest}" if nearest is not None else ""
        raise ConfigError(f"{key}={value}: must be {rules}{way_out}")
    most = high if high is not None else MAX_INT if isinstance(value, int) else MAX_FLOAT
    if abs(value) > most and not math.isinf(value):
        raise ConfigError(f"{key}={value}: must be at most {most}, the largest in 32 bits")


def as_argument(key: str, value: Any) -> str:
    """Return `key=value` as typed in a shell, quoted for Hydra and for the shell."""
    return shlex.quote(as_override(key, value))


def as_override(key: str, value: Any) -> str:
    """Return `key=value` as Hydra reads it; values are numbers, text, null, arrays, lists, dicts.

    Text that Hydra would read as something else is quoted.
    """

    def one(value: Any) -> str:
        value = value.tolist() if hasattr(value, "tolist") else value  # NumPy, JAX
        if isinstance(value, list | tuple):
            return f"[{','.join(map(one, value))}]"
        if isinstance(value, Mapping):
            return f"{{{','.join(f'{name}: {one(inner)}' for name, inner in value.items())}}}"
        if value is None or isinstance(value, bool):
            return {None: "null", True: "true", False: "false"}[value]
        text = str(value)
        if isinstance(value, int | float):
            return text
        word = re.fullmatch(r"[A-Za-z_./][\w./@%:+-]*", text, re.ASCII)
        special = re.fullmatch(r"true|false|null|inf|nan|[.\d]+(e\d*)?", text, re.I)
        return text if word and not special else quoted(text)

    return f"{key}={one(value)}"


def quoted(text: str) -> str:
    """Quote text for Hydra, which reads a backslash as an escape only before a quote."""
    escaped = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), text)
    return f"'{escaped}'"
