"""The settings of a run as it keeps them: config.yaml, under the SHA-256 of its text."""

import dataclasses
import hashlib
import math
import typing
from pathlib import Path
from typing import Any

from jaxppo.config.fields import ConfigError
from jaxppo.config.messages import brief
from jaxppo.config.schema import Config, LoggerConfig

CONFIG = "config.yaml"


def plain(config: Config) -> dict[str, Any]:
    """Containers that JSON and YAML have words for, and `parse` takes."""

    def one(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: one(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [one(inner) for inner in value]
        return str(value) if isinstance(value, float) and math.isinf(value) else value

    return typing.cast(dict[str, Any], one(dataclasses.asdict(config)))


def keep_config(config: Config, folder: Path) -> None:
    """Write config.yaml, of which `read_config` is the inverse, whole or not at all."""
    from omegaconf import OmegaConf

    text = OmegaConf.to_yaml(OmegaConf.create(plain(config)))
    partial_file = folder / f"{CONFIG}.partial"
    partial_file.write_text(f"{_SEAL}{_digest(text)}\n{text}", "utf-8")
    partial_file.replace(folder / CONFIG)


_SEAL = "# SHA-256 of the lines below: "


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def read_config(folder: Path) -> dict[str, Any]:
    """The settings of a run in plain containers; nothing in them is looked up or called.

    `ConfigError` where the file is not as it was written.
    """
    from omegaconf import OmegaConf

    file = folder / CONFIG
    try:
        seal, _, text = file.read_text("utf-8").partition("\n")
        if seal != f"{_SEAL}{_digest(text)}":
            raise ConfigError(
                f"{file}: is not as the run wrote it (SHA-256 differs); put that in its place. "
                "Settings change on the command line, with resume_allow=[...]"
            )
        found = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read ({brief(error)})") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{file}: holds no settings of a run")
    return typing.cast(dict[str, Any], found)


# Settings that say what this machine is to do, and not what the run is
LOCAL = (
    *("arch.compile_cache", "arch.profile", "logger.sinks"),
    *(f"logger.{name}" for name in LoggerConfig.__dataclass_fields__ if name.startswith("wandb")),
)


def with_local(stored: Config, here: Config) -> Config:
    """The settings of a stored run, but for those of `LOCAL`, which are as `here`."""
    for key in LOCAL:
        group, _, name = key.partition(".")
        section = dataclasses.replace(
            getattr(stored, group), **{name: getattr(getattr(here, group), name)}
        )
        stored = dataclasses.replace(stored, **{group: section})
    return stored
