"""The files of a run; its settings in config.yaml, with a SHA-256 checksum in the first line."""

import contextlib
import dataclasses
import hashlib
import math
import os
import typing
from pathlib import Path
from typing import Any

from jaxppo.config.fields import ConfigError
from jaxppo.config.messages import brief
from jaxppo.config.schema import Config, LoggerConfig

CONFIG, METRICS, SUMMARY = "config.yaml", "metrics.jsonl", "summary.json"
TOURNAMENT = "tournament.json"  # of `jaxppo.tournament`
OVERRIDES = ".hydra/overrides.yaml"


def plain(config: Config) -> dict[str, Any]:
    """Return settings as plain containers, as JSON and YAML store them and `parse` reads them."""

    def one(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: one(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [one(inner) for inner in value]
        return str(value) if isinstance(value, float) and math.isinf(value) else value

    return typing.cast(dict[str, Any], one(dataclasses.asdict(config)))


def keep_config(config: Config, folder: Path) -> None:
    """Write config.yaml atomically; `read_config` reads it."""
    from omegaconf import OmegaConf

    text = OmegaConf.to_yaml(OmegaConf.create(plain(config)))
    write_atomically(folder / CONFIG, f"{_SEAL}{_digest(text)}\n{text}")


def overrides(run_dir: Path) -> list[str]:
    """Return the overrides that Hydra started a run with, as typed; none without Hydra.

    They are text: nothing of them is composed.
    """
    from omegaconf import OmegaConf

    file = run_dir / OVERRIDES
    if not file.is_file():  # a pipe would never end
        return []
    try:
        lines = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    except Exception:  # the parser's errors have no common class
        return []
    # The command line puts ++ before keys of open groups, which the user did not type
    return [str(line).removeprefix("++") for line in lines] if isinstance(lines, list) else []


def make_folder(key: str, folder: str | Path, other: str) -> Path:
    """Make a folder (`~` is the home); `ConfigError` if that fails, which advises `other`."""
    path = Path(folder).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{key}={folder}: cannot be made ({error.strerror}); choose {other}"
        ) from error
    return path


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that it is complete, or as it was before."""
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        with contextlib.suppress(OSError):  # some file systems have no fsync
            os.fsync(file.fileno())
    partial.replace(path)


_SEAL = "# SHA-256 of the lines below: "


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def read_config(folder: Path) -> dict[str, Any]:
    """Return the settings of a run as plain containers, without resolving or calling anything.

    `ConfigError` if the file was changed or cannot be read.
    """
    from omegaconf import OmegaConf

    file = folder / CONFIG
    try:
        seal, _, text = file.read_text("utf-8").partition("\n")
        if seal != f"{_SEAL}{_digest(text)}":
            raise ConfigError(
                f"{file}: is not as the run wrote it (SHA-256 differs); restore that file. "
                "To change settings, use the command line with resume_allow=[...]"
            )
        found = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read ({brief(error)})") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{file}: holds no settings of a run")
    return current(typing.cast(dict[str, Any], found))


def current(settings: dict[str, Any]) -> dict[str, Any]:
    """Return stored settings, also those of earlier versions, in the form of this version."""
    gone, found = ("plan_only", "target"), dict(settings)  # of arch, until 0.2
    if "arch" in found:
        found["arch"] = {name: x for name, x in found["arch"].items() if name not in gone}
    if "system" in found:
        found["system"] = {"obs_norm_share": 1.0, **found["system"]}
    return found


# Settings about this machine, not about the run; a resume takes them from the command line
LOCAL = (
    *("arch.compile_cache", "arch.distributed", "arch.profile", "logger.sinks"),
    *(f"logger.{name}" for name in LoggerConfig.__dataclass_fields__ if name.startswith("wandb")),
)


def with_local(stored: Config, here: Config) -> Config:
    """Return the settings of a stored run, with the `LOCAL` settings taken from `here`."""
    for key in LOCAL:
        group, _, name = key.partition(".")
        section = dataclasses.replace(
            getattr(stored, group), **{name: getattr(getattr(here, group), name)}
        )
        stored = dataclasses.replace(stored, **{group: section})
    return stored
