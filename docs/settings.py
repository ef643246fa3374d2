"""Makes docs/settings.md from the dataclasses of the settings and the files of configs/.

It also makes jaxppo/config/keywords.pyi, their types for editors. `make docs` runs this;
tests/project/test_docs.py compares the files with `settings()` and `keywords()`.
"""

import dataclasses
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from jaxppo.config import parse
from jaxppo.config.fields import takes
from jaxppo.config.parse import system_type
from jaxppo.config.schema import ALGORITHMS, Config, SystemConfig
from jaxppo.deploy.evaluation import Evaluation
from jaxppo.deploy.export import Export
from jaxppo.extras.chips.plan import Planning
from jaxppo.extras.films import Rendering
from jaxppo.extras.hub import Pull, Push
from jaxppo.extras.report import Reporting
from jaxppo.extras.tournament import Tournament
from jaxppo.extras.tuning import Tuning
from jaxppo.launch.door import choices as names_of
from jaxppo.launch.door import config_dir

HERE = Path(__file__).parent
KEYWORDS = HERE.parent / "jaxppo" / "config" / "keywords.pyi"
COMMANDS = {
    "jaxppo.evaluate": Evaluation,
    "jaxppo.render": Rendering,
    "jaxppo.export": Export,
    "jaxppo.report": Reporting,
    "jaxppo.tournament": Tournament,
    "jaxppo.plan": Planning,
    "jaxppo.tune": Tuning,
    "jaxppo.hub push": Push,
    "jaxppo.hub pull": Pull,
}
OF_FILES = ("env", "network")  # groups whose values come from a file of configs/
BEGINNING = """\
# Settings

Every key with its default, what it means and what it takes; and what `group=NAME` offers.

Keys are typed as `key=value` after `python -m jaxppo.ff_ppo`, `rec_ppo`, `ff_pqn`, `rec_pqn`,
`ff_reppo` or `rec_reppo`. `--cfg job` prints what a command line amounts to, and
`python -m jaxppo.plan` what it would run. Integers may be typed as `1e7`.

Settings marked *traced* are hyperparameters, which are data of a compiled program: changing one
does not recompile, and agents that train in one program may differ in them, and in `arch.seed`.

To change this page, edit the dataclasses of `jaxppo/config/schema.py` and of the algorithms, or the
files of `configs/`, and run `make docs`.
"""


def settings() -> str:
    """The whole page."""
    parts = [BEGINNING]
    for group in dataclasses.fields(Config):
        cls: Any = typing.get_type_hints(Config)[group.name]
        if dataclasses.is_dataclass(cls):
            parts += [f"## {group.name}\n", f"{(cls.__doc__ or '').strip()}\n"]
            names = [field.name for field in dataclasses.fields(cls)]
            if cls is SystemConfig:
                names = [name for name in in_file("ppo") if name in names]
            parts.append(table(cls, f"{group.name}.", names, defaults=group.name != "network"))
            if cls is SystemConfig:
                parts += own_settings()
            parts += choices(group.name)
    alone = [field for field in dataclasses.fields(Config) if "help" in field.metadata]
    parts += ["## Resuming an earlier run\n", table(Config, "", [f.name for f in alone])]
    for module, command in COMMANDS.items():
        sentence = (command.__doc__ or "").strip().splitlines()[0]
        parts += [f"## {module}\n", f"{sentence}\n", table(command, "")]
    return "\n".join(parts)


def own_settings() -> Iterator[str]:
    """What each algorithm adds to the settings that all have."""
    common = {field.name for field in dataclasses.fields(SystemConfig)}
    for algorithm in ALGORITHMS:
        cls = system_type({"algorithm": algorithm})
        own = [name for name in in_file(algorithm) if name not in common]
        yield f"### system.algorithm={algorithm}\n"
        yield table(cls, "system.", own)


def in_file(algorithm: str) -> list[str]:
    """The settings of `system` in the order of the algorithm's file."""
    return [str(key) for key in OmegaConf.load(config_dir() / "system" / f"{algorithm}.yaml")]


def table(cls: type, prefix: str, names: list[str] | None = None, *, defaults: bool = True) -> str:
    """The fields of a dataclass of `config.setting`s, in rows."""
    hints = typing.get_type_hints(cls)
    heads = ["key", *(["default"] if defaults else []), "meaning", "takes"]
    rows = [heads, ["---"] * len(heads)]
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for name in fields if names is None else names:
        default = [default_of(cls, name)] if defaults else []
        words = takes(hints[name], fields[name].metadata).replace(" (1e7 is one)", "")
        words += ", *traced*" if "traced" in fields[name].metadata else ""
        rows.append([f"`{prefix}{name}`", *default, fields[name].metadata["help"], words])
    return "\n".join(map(row, rows)) + "\n"


def row(cells: list[str]) -> str:
    """A line of a table."""
    escaped = [cell.replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(escaped)} |"


def default_of(cls: type, name: str) -> str:
    """The default in words; of a setting of `system`, also of algorithms that have another."""
    if cls is not SystemConfig:
        return f"`{written(getattr(cls(), name))}`"
    own = {each: default_of(system_type({"algorithm": each}), name) for each in ALGORITHMS}
    if len(set(own.values())) == 1:
        return next(iter(own.values()))
    return ", ".join(f"{algorithm}: {value}" for algorithm, value in own.items())


def written(value: Any) -> str:
    """A value as YAML writes it."""
    if value == "":
        return "''"
    if isinstance(value, list):
        return f"[{','.join(map(written, value))}]"
    return OmegaConf.to_yaml(OmegaConf.create({"x": value})).strip().removeprefix("x: ")


def choices(group: str) -> Iterator[str]:
    """What `group=` offers, if more than one file, and so for the groups within it."""
    folder = config_dir() / group
    files = sorted(folder.glob("*.yaml"))
    if group != "system" and len(files) > 1:
        rows = [
            f"| [`{path.stem}`](../configs/{group}/{path.name}) | {says(path)} |" for path in files
        ]
        yield "\n".join([f"| `{typed(group)}=` | |", "| --- | --- |", *rows, ""])
    for inner in sorted(path for path in folder.glob("*") if path.is_dir()):
        yield from choices(f"{group}/{inner.name}")


def typed(group: str) -> str:
    """How the choice of a group begins; torsos and memories have several places."""
    kind = group.rpartition("/")[2]
    place = {"torso": "@network.actor_torso", "memory": "@network.actor_memory"}
    return group + place.get(kind, "")


def says(path: Path) -> str:
    """The first comment of a file that is a sentence."""
    comments = [line[2:] for line in path.read_text().splitlines() if line.startswith("# ")]
    return next(line for line in comments if not line.startswith("@"))


KEYWORDS_BEGINNING = '''\
# ruff: noqa: E501
# fmt: off
"""The types of the keywords of `jaxppo.compose`. Made by `make docs` of their classes."""

from typing import Any, Literal, TypedDict

class Keywords(TypedDict, total=False):
    """Settings as keywords, each with what it means."""
'''


def keywords() -> str:
    """The whole module of the types of keywords."""
    found = {key: name for name, key in parse.keywords().items()}
    lines = [KEYWORDS_BEGINNING]
    for group in dataclasses.fields(Config):
        cls: Any = typing.get_type_hints(Config)[group.name]
        if "help" in group.metadata:
            lines += keyword(found[group.name], [(Config, group)])
            continue
        if group.name in found:
            lines += group_keyword(group.name)
        classes = [cls]
        if cls is SystemConfig:
            classes = [system_type({"algorithm": name}) for name in ALGORITHMS]
        fields: dict[str, list[tuple[Any, Any]]] = {}
        for each in classes:
            for field in dataclasses.fields(each):
                fields.setdefault(field.name, []).append((each, field))
        for name, places in fields.items():
            lines += keyword(found[f"{group.name}.{name}"], places)
    return "\n".join(lines) + "\n"


def group_keyword(group: str) -> list[str]:
    """A group, which takes one of the names of its files, or that of a file of the user."""
    names = ", ".join(f'"{name}"' for name in names_of(group))
    return [f"    {group}: Literal[{names}] | str", f'    """{group}=NAME"""']


def keyword(name: str, places: list[tuple[Any, Any]]) -> list[str]:
    """A setting: the types that it has in the classes of settings, and its help."""
    options: list[str] = []
    for cls, field in places:
        hint, rule = typing.get_type_hints(cls)[field.name], field.metadata
        kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        for kind in kinds:
            options += kinds_of(kind, rule)
        options += ["None"] if rule.get("drawn") else []
    options = sorted(dict.fromkeys(options), key=lambda option: option == "None")
    return [f"    {name}: {' | '.join(options)}", f'    """{places[0][1].metadata["help"]}"""']


def kinds_of(kind: Any, rule: Any) -> list[str]:
    """A type as source. Large integers may also be typed as 1e7, and text is one of its choices."""
    if kind is type(None):
        return ["None"]
    if kind is int and (rule.get("high") or 0) >= 2**32:
        return ["int", "float"]
    if kind is str and rule.get("choices"):
        names = ", ".join(f'"{name}"' for name in rule["choices"])
        return [f"Literal[{names}]", *(["str"] if rule.get("importable") else [])]
    if kind is str and rule.get("steps"):
        return ["str", "int"]
    return [kind.__name__ if typing.get_origin(kind) is None else str(kind).replace("typing.", "")]


if __name__ == "__main__":
    KEYWORDS.write_text(keywords())
    (HERE / "settings.md").write_text(settings())
