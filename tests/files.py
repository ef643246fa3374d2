"""The YAML files of settings, as tests read them."""

import re
import typing
from collections.abc import Iterator
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from jaxppo.launch.door import config_dir

CONFIGS = config_dir()


def composed(*overrides: str, executable: str = "ff_ppo") -> dict[str, Any]:
    """The settings of `python -m jaxppo.<executable>` as plain containers."""
    with initialize_config_dir(version_base="1.3", config_dir=str(CONFIGS)):
        settings = compose(executable, [*overrides, "arch.compile_cache=null"])
    return typing.cast(dict[str, Any], OmegaConf.to_container(settings, resolve=True))


def commented(file: str) -> Iterator[tuple[str, str | None]]:
    """Every key of a file that holds a value, in dots, with the comment on its line."""
    parents: list[str] = []
    for line in (CONFIGS / file).read_text().splitlines():
        match = re.fullmatch(r"( *)(- )?([\w@/]+):(.*?)(?:  # (.*))?", line)
        if match is None:
            continue
        indent, item, key, value, comment = match.groups()
        parents[len(indent) // 2 :] = [key]
        if value.strip():
            default = item and parents[0] == "defaults"
            yield ("defaults." + key if default else ".".join(parents)), comment
