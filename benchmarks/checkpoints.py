"""What checkpoints cost at setting M: part of `make bench`.

A run that saves after every evaluation, and one that saves as often as the default share allows:
seconds that training waited for, and seconds of the background threads, against the whole run.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.speed import SETTINGS, compose
from jaxppo.runtime.run import loop, saving
from jaxppo.runtime.store import checkpoint

SIZE = ["arch.total_timesteps=4_000_000", "arch.num_evaluation=10", "logger.console=false"]


class Timed:
    """Adds up the seconds that training waits for checkpoints."""

    def __init__(self) -> None:
        self.waited = 0.0
        self.writers: list[checkpoint.Writer] = []

    def of(self, save: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of `saving` that is timed."""

        def timed(run: Any, *args: Any) -> Any:
            start = time.perf_counter()
            found = save(run, *args)
            self.waited += time.perf_counter() - start
            self.writers = list(run.writers.values())
            return found

        return timed

    @property
    def written(self) -> float:
        """Seconds of the threads that write."""
        return sum(writer.seconds for writer in self.writers)


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", nargs="*", default=[], help="further settings, key=value")
    arguments = parser.parse_args()
    for share in (1.0, 0.02):
        settings = compose(SETTINGS["M"], *SIZE, f"checkpoint.share={share}", *arguments.set)
        timed = Timed()
        within, block = timed.of(saving.save_within), timed.of(saving.save_block)
        patched = mock.patch.multiple(saving, save_within=within, save_block=block)
        with tempfile.TemporaryDirectory() as made, patched:
            folder = Path(made)
            start = time.perf_counter()
            loop.run(settings, folder)
            seconds = time.perf_counter() - start
            latest = checkpoint.steps_in(folder / checkpoint.FOLDER)[-1]
            files = checkpoint.path_of(folder, latest).rglob("*")
            size = sum(file.stat().st_size for file in files if file.is_file())
        print(
            f"checkpoint.share={share}: {seconds:.1f} s, waited {timed.waited / seconds:.2%}, "
            f"written beside {timed.written / seconds:.2%}, {size / 1e6:.1f} MB each",
            flush=True,
        )


if __name__ == "__main__":
    main()
