"""learning_curve.png: returns against environment steps."""

from pathlib import Path

from jaxppo.sinks import Event


class Plot:
    """Draws once, when the run ends, from the events that it saw."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._events: list[Event] = []

    def write(self, event: Event) -> None:
        """Keep the event."""
        self._events.append(event)

    def close(self) -> None:
        """Draw, if anything was evaluated."""
        evaluations = [e for e in self._events if e["event"] == "eval"]
        if not evaluations:
            return
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7, 4.2), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        training = [e for e in self._events if e["event"] == "train" and e["episodes"]]
        axes.plot(
            [e["steps"] for e in training],
            [e["episode_return"] for e in training],
            color="tab:gray",
            linewidth=1.2,
            label="training episodes (sampled actions)",
        )
        steps = [e["steps"] for e in evaluations]
        mean = [e["episode_return"] for e in evaluations]
        std = [e["episode_return_std"] for e in evaluations]
        axes.fill_between(
            steps,
            [m - s for m, s in zip(mean, std, strict=True)],
            [m + s for m, s in zip(mean, std, strict=True)],
            color="tab:blue",
            alpha=0.2,
            linewidth=0,
        )
        axes.plot(
            steps, mean, "o-", color="tab:blue", markersize=4, label="evaluation, mean and std"
        )
        for event in self._events:
            if event["event"] == "absolute":
                axes.axhline(
                    event["episode_return"],
                    color="tab:orange",
                    linestyle="--",
                    label=f"absolute metric {event['episode_return']:.4g}",
                )
            elif event["event"] == "start":
                axes.set_title(f"{event['environment']}, seed {event['seed']}")
        axes.set(xlabel="environment steps", ylabel="episode return")
        axes.grid(alpha=0.3)
        axes.legend(loc="best", frameon=False)
        figure.savefig(self._path, dpi=130)
