"""What checkpoints cost at setting M: part of `make bench`.

A run that saves after every evaluation, and one that saves as often as the default share allows:
seconds that training waited for, and seconds of the background threads, against the whole run.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.speed import SETTINGS, compose
from jaxppo.runtime.run import loop
from jaxppo.runtime.run.saving import Saver
from jaxppo.runtime.store import checkpoint

SIZE = ["arch.total_timesteps=4_000_000", "arch.num_evaluation=10", "logger.console=false"]


class TimedSaver(Saver):
    """Adds up the seconds that training waits for it."""

    waited = 0.0

    def save_within(self, *args: Any) -> None:
        """Between two calls of a block."""
        start = time.perf_counter()
        super().save_within(*args)
        self.waited += time.perf_counter() - start

    def save_block(self, *args: Any) -> bool:
        """After a block."""
        start = time.perf_counter()
        stops = super().save_block(*args)
        self.waited += time.perf_counter() - start
        return stops

    @property
    def written(self) -> float:
        """Seconds of its threads."""
        return sum(writer.seconds for writer in self._writers.values())


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", nargs="*", default=[], help="further settings, key=value")
    arguments = parser.parse_args()
    for share in (1.0, 0.02):
        settings = compose(SETTINGS["M"], *SIZE, f"checkpoint.share={share}", *arguments.set)
        savers: list[TimedSaver] = []

        def make(*args: Any, savers: list[TimedSaver] = savers) -> TimedSaver:
            savers.append(TimedSaver(*args))
            return savers[-1]

        with tempfile.TemporaryDirectory() as made, mock.patch.object(loop, "Saver", make):
            folder = Path(made)
            start = time.perf_counter()
            loop.run(settings, folder)
            seconds = time.perf_counter() - start
            (saver,) = savers
            latest = checkpoint.steps_in(folder / checkpoint.FOLDER)[-1]
            files = checkpoint.path_of(folder, latest).rglob("*")
            size = sum(file.stat().st_size for file in files if file.is_file())
        print(
            f"checkpoint.share={share}: {seconds:.1f} s, waited {saver.waited / seconds:.2%}, "
            f"written beside {saver.written / seconds:.2%}, {size / 1e6:.1f} MB each",
            flush=True,
        )


if __name__ == "__main__":
    main()
