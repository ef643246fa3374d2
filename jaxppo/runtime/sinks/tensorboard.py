"""Write event files for TensorBoard, with the messages and checksums of tensorboardX.

Its SummaryWriter is not used: it needs a thread and an open file per run, and loses errors in the
thread. Here a file is open only while an event is written.
"""

import json
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxppo.ops.histograms import edges
from jaxppo.runtime.sinks import Event, Scope, histograms, scalars

_FILE = "events.out.tfevents."
_START = 1  # SessionLog.START: readers drop earlier points of this step and later ones


class TensorBoard:
    """Writes scalars against environment steps, and the settings as text, in tensorboard/."""

    def __init__(
        self, run_dir: Path, scope: Scope, past: Sequence[Event] = (), resumed: bool = False
    ) -> None:
        folder = run_dir / "tensorboard"
        folder.mkdir(exist_ok=True)
        before = len(list(folder.iterdir()))
        # Files are read in the order of names, and another host's clock may be behind
        stamps = (path.name.split(".")[3] for path in folder.glob(f"{_FILE}*.jaxppo.*"))
        now = max([int(time.time()), *map(int, filter(str.isdecimal, stamps))])
        self._path = folder / f"{_FILE}{now:010}.jaxppo.{before:04}"
        self._settings = f"```json\n{json.dumps(scope.settings, indent=2)}\n```"
        self._path.touch(exist_ok=False)
        self._append(file_version="brain.Event:2")
        self._last = 0
        if resumed:
            # The absolute metric is written with the number of the last step. So the step of the
            # resume is dropped too, and its other points are written again.
            last = past[-1]["steps"] if past else 0
            self._append(step=last, session_log={"status": _START})
            for event in past:
                if event["steps"] == last or not before:
                    self.write(event)
            self._last = last

    def write(self, event: Event) -> None:
        """Append the event's numbers; they are in the file before the next event."""
        from tensorboardX import summary

        if event["event"] == "start":
            text = summary.text("settings", self._settings)
            self._append(step=self._last, summary=text)
        elif event["event"] in ("train", "eval", "absolute"):
            if event["event"] != "absolute":  # this belongs to an earlier policy
                self._last = event["steps"]
            values = [{"tag": tag, "simple_value": x} for tag, x in scalars(event).items()]
            values += [{"tag": tag, "histo": _histogram(x)} for tag, x in histograms(event).items()]
            self._append(step=self._last, summary={"value": values})

    def close(self) -> None:
        """Do nothing, since no file is open."""

    def _append(self, **fields: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event as Message

        message = Message(wall_time=time.time(), **fields)
        with self._path.open("ab") as file:
            file.write(_record(message.SerializeToString()))


def _histogram(counts: Sequence[int]) -> dict[str, Any]:
    """Return the fields of a HistogramProto; its sums take each number as the middle of its bin."""
    bounds = edges()
    filled = np.flatnonzero(counts)
    low, high = (bounds[filled[0]], bounds[filled[-1] + 1]) if len(filled) else (0.0, 0.0)
    middles = (bounds[1:] + bounds[:-1]) / 2
    return {
        "min": low,
        "max": high,
        "num": sum(counts),
        "sum": float(middles @ counts),
        "sum_squares": float(middles**2 @ counts),
        "bucket_limit": bounds[1:].tolist(),
        "bucket": list(counts),
    }


def _record(data: bytes) -> bytes:
    """Return a TFRecord: length (uint64), its checksum, data, its checksum; little-endian."""
    from tensorboardX.record_writer import masked_crc32c

    header = struct.pack("<Q", len(data))
    length_sum, data_sum = (struct.pack("<I", masked_crc32c(part)) for part in (header, data))
    return header + length_sum + data + data_sum
