"""What checkpoints cost at setting M: part of `make bench`.

A run that saves after every evaluation, and one that saves as often as the default share allows:
seconds that training waited for, and seconds of the threads beside it, against the whole run.
"""

import dataclasses
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.speed import compose
from jaxppo.runtime import checkpoint, experiment


def main() -> None:
    """Measure both."""
    real = experiment._Run.save
    for share in (1.0, 0.02):
        settings = compose("M")
        settings = dataclasses.replace(
            settings,
            arch=dataclasses.replace(settings.arch, total_timesteps=4_000_000, num_evaluation=10),
            checkpoint=dataclasses.replace(settings.checkpoint, share=share),
            logger=dataclasses.replace(settings.logger, console=False),
        )
        waited: list[float] = []
        writers: dict[int, checkpoint.Writer] = {}

        def save(self: Any, *args: Any, waited: Any = waited, writers: Any = writers) -> None:
            start = time.perf_counter()
            real(self, *args)
            waited.append(time.perf_counter() - start)
            writers.update(self.writers)

        experiment._Run.save = save  # type: ignore[method-assign]
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            experiment.run(settings, Path(folder))
            seconds = time.perf_counter() - start
            (writer,) = writers.values()
            steps = checkpoint.steps_in(writer.folder)
            size = sum(
                file.stat().st_size
                for file in checkpoint.path_of(Path(folder), steps[-1]).rglob("*")
                if file.is_file()
            )
        print(
            f"checkpoint.share={share}: {seconds:.1f} s, waited {100 * sum(waited) / seconds:.2f}%,"
            f" written beside {100 * writer.seconds / seconds:.2f}%, {size / 1e6:.1f} MB each",
            flush=True,
        )


if __name__ == "__main__":
    main()
