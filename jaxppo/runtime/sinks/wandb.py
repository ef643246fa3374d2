"""Log to Weights & Biases, one W&B run per run; a resume continues it."""

import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxppo.config.fields import ConfigError
from jaxppo.config.importing import is_installed
from jaxppo.config.messages import installing
from jaxppo.config.schema import LoggerConfig
from jaxppo.ops.histograms import edges
from jaxppo.runtime.sinks import Event, Scope, histograms, scalars

ID = "wandb/run_id"
PICTURES = ("learning_curve.png", "population.png")


class WandB:
    """Logs numbers against environment steps; wandb/ has its files and the id of the W&B run."""

    def __init__(self, config: LoggerConfig, run_dir: Path, scope: Scope) -> None:
        kept, self._run_dir = run_dir / ID, run_dir
        kept.parent.mkdir(exist_ok=True)
        is_new = not kept.exists()
        if is_new:
            kept.write_text(f"{_new_id(scope)}\n", "utf-8")
        self._run = _join(
            config,
            run_dir,
            group=config.wandb_group or scope.group,
            tags=config.wandb_tags,
            name=(scope.name or None) if is_new else None,
            config=scope.settings,
            reinit="create_new",  # besides the W&B runs of other members
        )
        self._status = "ended early"

    def write(self, event: Event) -> None:
        """Log numbers; the absolute metric and the status go into the summary.

        W&B drops steps that a resumed run repeats.
        """
        if event["event"] in ("train", "eval"):
            import wandb

            drawn = {
                name: wandb.Histogram(np_histogram=(counts, edges()))
                for name, counts in histograms(event).items()
            }
            self._run.log({**scalars(event), **drawn}, step=event["steps"])
        elif event["event"] == "absolute":
            self._run.summary.update(scalars(event))
        elif event["event"] == "end":
            self._status = event["status"]
            self._run.summary.update({"status": self._status})

    def close(self) -> None:
        """Send the pictures and finish; runs that did not finish are marked as failed."""
        _send(self._run, [self._run_dir / name for name in PICTURES])
        self._run.finish(exit_code=0 if self._status == "finished" else 1)


def send_films(config: LoggerConfig, run_dir: Path, files: Sequence[Path]) -> None:
    """Send films and pictures to the W&B run of a run; `ConfigError` if it has none."""
    check_is_logged(run_dir)
    run = _join(config, run_dir)
    try:
        _send(run, files)
    finally:
        run.finish()
        _remove_links_outside(run_dir / "wandb")


def check_is_logged(run_dir: Path) -> None:
    """Raise `ConfigError` if a run has no W&B run, or W&B is not installed."""
    if not is_installed("wandb"):
        raise ConfigError(f"wandb=true: W&B is not installed; {installing('wandb')}")
    if not (run_dir / ID).is_file():
        raise ConfigError(
            f"wandb=true: {run_dir} has no W&B run ({ID}); train with logger.wandb=true, or leave "
            "it out"
        )


def _join(logger: LoggerConfig, run_dir: Path, **given: Any) -> Any:
    """Begin or continue the W&B run whose id is in wandb/."""
    import wandb

    try:
        return wandb.init(
            project=logger.wandb_project,
            entity=logger.wandb_entity,
            mode=logger.wandb_mode,
            dir=run_dir,
            id=(run_dir / ID).read_text("utf-8").strip(),
            resume="allow",
            settings={"console": "off", "silent": True},
            **given,
        )
    finally:
        _remove_links_outside(run_dir / "wandb")


def _send(run: Any, files: Sequence[Path]) -> None:
    """Log the files that exist, each under its name without the ending."""
    import wandb

    found = {file.stem: file for file in files if file.is_file()}

    def medium(file: Path) -> Any:
        if file.suffix == ".svg":
            return wandb.Html(file.read_text("utf-8"))
        is_film = file.suffix == ".gif"
        return wandb.Video(str(file), format="gif") if is_film else wandb.Image(str(file))

    media = {name: medium(file) for name, file in found.items()}
    if media:
        run.log(media)  # after the last step


def _new_id(scope: Scope) -> str:
    """Return the id that an agent of a W&B sweep has chosen for its run, or a new one."""
    chosen = os.environ.get("WANDB_RUN_ID") if "WANDB_SWEEP_ID" in os.environ else None
    is_alone = scope.group is None and not scope.is_member
    return chosen if chosen and is_alone else uuid.uuid4().hex[:12]


def _remove_links_outside(folder: Path) -> None:
    """Remove links to W&B's own logs in the home: a resume refuses links that lead outside."""
    for path in folder.rglob("*"):
        if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
            path.unlink()
