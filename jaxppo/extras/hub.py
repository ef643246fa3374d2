"""Runs on the Hugging Face hub: a run directory is a repository of models, and back."""

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxppo.config.fields import ConfigError, setting
from jaxppo.config.importing import is_installed
from jaxppo.config.messages import brief, installing
from jaxppo.config.stored import SUMMARY
from jaxppo.runtime.sinks.console import print_lines
from jaxppo.runtime.store.directories import check_is_run, check_tree, sign_of_run

CARD = "README.md"
# Locks, files of other services, and Hydra's, which name folders of this machine
PRIVATE = [".lock", "**/.lock", ".hydra/**", "wandb/**", "**/wandb/**"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Push:
    """Upload a run to the Hugging Face hub: python -m jaxppo.hub push DIR user/name

    The repository is made if there is none. The token is that of `hf auth login`, or HF_TOKEN.
    Hydra's files, locks and those of W&B stay here.
    """

    run: str = setting("", "run directory")
    repo: str = setting("", "repository, such as user/name")
    private: bool = setting(False, "make a new repository private")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pull:
    """Download a run from the Hugging Face hub: python -m jaxppo.hub pull user/name [out=DIR]

    Nothing of it is imported or run. Commands that load it then refuse classes that are not of this
    package or its libraries, unless trust=[...] names them.
    """

    repo: str = setting("", "repository, such as user/name")
    out: str | None = setting(None, "the new directory; null: the name of the repository, here")
    revision: str | None = setting(None, "branch, tag or commit; null: the newest")


def push(settings: Push) -> None:
    """Upload the files of a run, and a card that says what it is."""
    hub, run_dir = _client(settings.repo), Path(settings.run)
    check_is_run(f"run={settings.run}", run_dir)
    check_tree("run", run_dir)
    api = hub.HfApi()
    with _one_line(settings.repo):
        api.create_repo(settings.repo, private=settings.private, exist_ok=True)
        api.upload_folder(repo_id=settings.repo, folder_path=run_dir, ignore_patterns=PRIVATE)
        if not (run_dir / CARD).exists():
            text = card(run_dir, settings.repo).encode()
            api.upload_file(repo_id=settings.repo, path_or_fileobj=text, path_in_repo=CARD)
    print_lines(f"{run_dir} is at {settings.repo}: python -m jaxppo.hub pull {settings.repo}")


def pull(settings: Pull) -> None:
    """Download a run into a new directory."""
    hub = _client(settings.repo)
    out = Path(settings.out or settings.repo.rpartition("/")[2])
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"out={out}: is there already; choose another directory")
    with _one_line(settings.repo):
        hub.snapshot_download(settings.repo, revision=settings.revision, local_dir=out)
    check_tree("out", out)
    if sign_of_run(out) is None:
        raise ConfigError(
            f"repo={settings.repo}: holds no run of jaxppo; what it holds is in {out}"
        )
    print_lines(f"{settings.repo} is in {out}: python -m jaxppo.evaluate run={out}")


def card(run_dir: Path, repo: str) -> str:
    """Return a README.md with the tags by which the hub finds it, and how to load the policy."""
    try:
        summary: dict[str, Any] = json.loads((run_dir / SUMMARY).read_text("utf-8"))
    except (OSError, ValueError):  # it has not ended
        summary = {}
    told = {
        "environment": summary.get("environment"),
        "environment steps": summary.get("steps"),
        "absolute metric (best policy, new episodes)": summary.get("absolute_metric"),
        "final policy": summary.get("final_return"),
    }
    rows = "\n".join(f"- {name}: {value}" for name, value in told.items() if value is not None)
    name = repo.rpartition("/")[2]
    return f"""---
library_name: jaxppo
tags: [reinforcement-learning, jaxppo]
---

# {name}

An agent of jaxppo.

{rows}

    python -m jaxppo.hub pull {repo}
    python -m jaxppo.evaluate run={name}
"""


@contextlib.contextmanager
def _one_line(repo: str) -> Iterator[None]:
    """Context in which errors become `ConfigError`."""
    try:
        yield
    except Exception as error:  # of the network, or of the client
        raise ConfigError(f"repo={repo}: the hub says: {brief(error)}") from error


def _client(repo: str) -> Any:
    """Return the library; `ConfigError` if it, or a name as hub repositories have, is missing."""
    if not is_installed("huggingface_hub"):
        raise ConfigError(
            f"jaxppo.hub: needs huggingface_hub, which is not installed; {installing('hub')}"
        )
    owner, _, name = repo.partition("/")
    if not owner or not name or "/" in name:
        raise ConfigError(f"repo={repo}: must be a name such as user/name")
    import huggingface_hub

    return huggingface_hub
