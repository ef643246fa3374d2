"""Progress bars: on a terminal, and in a notebook."""

import sys
import time
from typing import Any

from jaxppo.runtime.sinks import Event, Screen


def bar() -> Screen | None:
    """Return the bar for where this program runs; None if nobody would see it move."""
    shell = sys.modules.get("IPython")
    found = shell.get_ipython() if shell else None
    if found is not None and hasattr(found, "kernel"):
        return NotebookBar()
    return TerminalBar() if is_terminal(sys.stderr) else None


def is_terminal(stream: Any) -> bool:
    """Return whether a standard stream is a terminal; Python has None for a closed one."""
    return stream is not None and bool(stream.isatty())


def short(value: float, digits: int = 3) -> str:
    """Format a number with so many digits and a unit: 999.7 is 1k."""
    value = float(f"{value:.{digits}g}")
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def number(value: float | None) -> str:
    """Format a return; a dash if there is none."""
    return "-" if value is None else f"{value:.2f}"


class Bar:
    """What bars show of the events of a run."""

    total = steps = 0
    speed = 0.0
    score: float | None = None

    def write(self, event: Event) -> None:
        """Move the bar."""
        kind = event["event"]
        if kind == "compile":
            self.total = event["total_steps"]
            self.open()
        elif kind == "train":
            if event["episode_return"] is not None:
                self.score = event["episode_return"]
            self.tick(event["steps"], event["steps_per_second"])
        elif kind == "eval":
            self.score = event["episode_return"] if self.score is None else self.score
            self.tick(event["steps"], self.speed)
        elif kind == "end":
            self.close()

    def tick(self, steps: int, speed: float) -> None:
        """Move the bar between two events."""
        self.steps, self.speed = steps, speed
        self.show()

    def open(self) -> None:
        """Make the display."""

    def show(self) -> None:
        """Display the values."""

    def close(self) -> None:
        """Finish the display."""


class TerminalBar(Bar):
    """A bar in the last line of a terminal, which disappears at the end."""

    def __init__(self, output: Any = None) -> None:
        self._output = output or sys.stderr
        self._bar: Any = None
        self._task: Any = None

    def open(self) -> None:
        """Make the bar."""
        from rich import console, progress

        if self._bar is not None:  # a population that narrows compiles again
            return
        self._bar = progress.Progress(
            progress.BarColumn(),
            progress.TaskProgressColumn(),
            progress.TextColumn("{task.fields[steps]} steps  {task.fields[speed]} steps/s"),
            progress.TextColumn("return {task.fields[score]}"),
            progress.TimeRemainingColumn(),
            console=console.Console(file=self._output),
            transient=True,
            redirect_stdout=self._output is sys.stdout or is_terminal(sys.stdout),
        )
        self._task = self._bar.add_task("", total=self.total, steps="0", speed="-", score="-")
        self._bar.start()

    def show(self) -> None:
        """Move the bar."""
        if self._bar is not None:
            values = {"steps": short(self.steps), "speed": short(self.speed)}
            self._bar.update(self._task, completed=self.steps, score=number(self.score), **values)

    def print(self, line: str) -> bool:
        """Print a line above the bar; False if there is no bar."""
        if self._bar is not None:
            self._bar.console.print(line, highlight=False, markup=False, soft_wrap=True)
        return self._bar is not None

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class NotebookBar(Bar):
    """A bar in the output of a notebook's cell."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._start = time.perf_counter()
        self._ended = False
        self._shown = 0.0

    def open(self) -> None:
        """Display the bar."""
        display = sys.modules["IPython.display"].display  # loaded wherever there is a kernel
        if self._handle is None:
            self._start = time.perf_counter()
            self._handle = display(self, display_id=True)

    def show(self) -> None:
        """Update the display, a few times a second at most."""
        now = time.perf_counter()
        if self._handle is not None and (self._ended or now - self._shown > 0.2):
            self._shown = now
            self._handle.update(self)

    def close(self) -> None:
        """Display the last values."""
        self._ended = True
        self.show()

    def __repr__(self) -> str:
        seconds = time.perf_counter() - self._start
        left = f"{(self.total - self.steps) / self.speed:.0f}" if self.speed else "-"
        span = f"{seconds:.0f} s" if self._ended else f"{left} s left"
        return (
            f"{short(self.steps)} of {short(self.total)} steps, {short(self.speed)} steps/s, "
            f"return {number(self.score)}, {span}"
        )

    def _repr_html_(self) -> str:
        return f'<progress value="{self.steps}" max="{self.total}"></progress> {self!r}'
