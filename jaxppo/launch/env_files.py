"""Write settings as a file of configs/env, which `env=NAME` chooses."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import Config
from jaxppo.config.stored import plain, write_atomically
from jaxppo.launch.composing import compose
from jaxppo.launch.door import choices, config_dir

# Keys of arch that belong to a machine or a run, not to an environment
_LOCAL = ("seed", "num_seeds", "profile", "compiler", "compile_cache", "distributed")


def write_files(
    folder: Path,
    name: str,
    command: str,
    typed: Sequence[str],
    best: Config,
    comment: Sequence[str],
) -> None:
    """Write env/NAME.yaml; for an algorithm with files of its own, its settings go there.

    The files hold what differs from the file of `env=` in `typed`, what was typed after `command`.
    `ConfigError` if that is not one file.
    """
    options = dict(each.lstrip("+").partition("=")[::2] for each in typed)
    env, network = options.get("env", "gymnax"), options.get("network")
    if env not in choices("env"):
        raise ConfigError(f"env={env}: must be the name of one file")
    own_files = config_dir() / best.system.algorithm / "env"
    is_apart = own_files.is_dir()  # they do not inherit from configs/env
    is_global = "@package _global_" in (config_dir() / "env" / f"{env}.yaml").read_text()
    base = compose(command, [f"env={env}"])
    changed = _differences(plain(best), plain(base))
    if is_apart:
        over = _differences(plain(best), plain(compose(command, [])))
        apart = {key: value for key, value in over.items() if key != "env"}
        # Of its own file for `env`, which the new one does not inherit, also the layers
        choice = [f"env={env}", *([f"network={network}"] if network else [])]
        without = compose(command, [*choice, f"~{best.system.algorithm}/env@_global_"])
        layers, old = plain(best)["network"], plain(without)["network"]
        if changed_layers := {key: x for key, x in layers.items() if x != old[key]}:
            apart["network"] = changed_layers
        _write(folder / best.system.algorithm / "env" / f"{name}.yaml", apart, comment)
    kept = ("env",) if is_apart else ("env", "arch", "system")
    defaults: list[Any] = [env if is_global else f"{env}@env"]
    defaults += [{"override /network": network}] if network else []
    body = {"defaults": [*defaults, "_self_"], **{k: changed[k] for k in kept if k in changed}}
    _write(folder / "env" / f"{name}.yaml", body, ["@package _global_", *comment])


def _write(file: Path, body: dict[str, Any], comment: Sequence[str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"# {line}\n" for line in comment)
    write_atomically(file, text + OmegaConf.to_yaml(OmegaConf.create(body)))


def _differences(new: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an environment's file must set so that `old` becomes `new`."""
    found: dict[str, Any] = {}
    for group in ("env", "arch", "system"):
        changed = {
            key: value
            for key, value in new[group].items()
            if value != old[group].get(key) and not (group == "arch" and key in _LOCAL)
        }
        if changed:
            found[group] = changed
    found.get("arch", {}).pop("evaluate_first", None)
    return found
