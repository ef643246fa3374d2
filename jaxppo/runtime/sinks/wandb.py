"""Weights & Biases: a run of theirs for each of ours, which a resume continues."""

import uuid
from pathlib import Path

from jaxppo.config.schema import LoggerConfig
from jaxppo.runtime.sinks import Event, Scope, scalars


class WandB:
    """Numbers against environment steps; its files and the run's id lie in wandb/."""

    def __init__(self, config: LoggerConfig, run_dir: Path, scope: Scope) -> None:
        import wandb

        kept = run_dir / "wandb" / "run_id"
        kept.parent.mkdir(exist_ok=True)
        if not kept.exists():
            kept.write_text(uuid.uuid4().hex[:12] + "\n", "utf-8")
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
            reinit="create_new",  # beside those of other members
            settings={"console": "off", "silent": True},
        )
        self._status = "ended early"

    def write(self, event: Event) -> None:
        """Log numbers; the absolute metric and the end go into the summary.

        Steps that a resumed run repeats are there already, and W&B drops them.
        """
        if event["event"] in ("train", "eval"):
            self._run.log(scalars(event), step=event["steps"])
        elif event["event"] == "absolute":
            self._run.summary.update(scalars(event))
        elif event["event"] == "end":
            self._status = event["status"]
            self._run.summary.update({"status": self._status})

    def close(self) -> None:
        """Upload or write what is left; runs that did not finish are marked as failed."""
        self._run.finish(exit_code=0 if self._status == "finished" else 1)
