"""Log to Weights & Biases, one W&B run per run; a resume continues it."""

import uuid
from pathlib import Path

from jaxppo.config.schema import LoggerConfig
from jaxppo.ops.histograms import edges
from jaxppo.runtime.sinks import Event, Scope, histograms, scalars


class WandB:
    """Logs numbers against environment steps; wandb/ has its files and the id of the W&B run."""

    def __init__(self, config: LoggerConfig, run_dir: Path, scope: Scope) -> None:
        import wandb

        kept = run_dir / "wandb" / "run_id"
        kept.parent.mkdir(exist_ok=True)
        if not kept.exists():
            kept.write_text(uuid.uuid4().hex[:12] + "\n", "utf-8")
        try:
            self._run = wandb.init(
                project=config.wandb_project,
                entity=config.wandb_entity,
                group=config.wandb_group or scope.group,
                tags=config.wandb_tags,
                mode=config.wandb_mode,
                name=scope.name or None,
                config=scope.settings,
                dir=run_dir,
                id=kept.read_text("utf-8").strip(),
                resume="allow",
                reinit="create_new",  # besides the W&B runs of other members
                settings={"console": "off", "silent": True},
            )
        finally:
            _remove_links_outside(kept.parent)
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
        """Finish the upload; runs that did not finish are marked as failed."""
        self._run.finish(exit_code=0 if self._status == "finished" else 1)


def _remove_links_outside(folder: Path) -> None:
    """Remove links to W&B's own logs in the home: a resume refuses links that lead outside."""
    for path in folder.rglob("*"):
        if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
            path.unlink()
