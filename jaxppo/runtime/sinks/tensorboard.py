"""Event files for TensorBoard, made of tensorboardX's messages and checksums.

Its SummaryWriter has a thread and an open file for each run and loses errors in the thread; here a
file is open only while an event is written, as with metrics.jsonl.
"""

import json
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxppo.runtime.sinks import Event, Scope, scalars

_START = 1  # SessionLog.START: what has this step or a later one is dropped by who reads


class TensorBoard:
    """Scalars against environment steps, and the settings as text, in tensorboard/."""

    def __init__(
        self, run_dir: Path, scope: Scope, past: Sequence[Event] = (), resumed: bool = False
    ) -> None:
        folder = run_dir / "tensorboard"
        folder.mkdir(exist_ok=True)
        before = len(list(folder.iterdir()))  # files are read in the order of their names
        self._path = folder / f"events.out.tfevents.{int(time.time()):010}.jaxppo.{before:04}"
        self._settings = f"```json\n{json.dumps(scope.settings, indent=2)}\n```"
        self._path.touch(exist_ok=False)
        self._append(file_version="brain.Event:2")
        self._last = 0
        if resumed:
            # The absolute metric, written after the last step, has the number of that step: so the
            # step at which the run goes on is dropped too, and its other points are written anew.
            last = past[-1]["steps"] if past else 0
            self._append(step=last, session_log={"status": _START})
            for event in past:
                if event["steps"] == last or not before:
                    self.write(event)
            self._last = last

    def write(self, event: Event) -> None:
        """Append the event's numbers, complete in the file before the next event."""
        from tensorboardX import summary

        if event["event"] == "start":
            text = summary.text("settings", self._settings)
            self._append(step=self._last, summary=text)
        elif event["event"] in ("train", "eval", "absolute"):
            if event["event"] != "absolute":  # which is of an earlier step's policy
                self._last = event["steps"]
            values = [{"tag": tag, "simple_value": x} for tag, x in scalars(event).items()]
            self._append(step=self._last, summary={"value": values})

    def close(self) -> None:
        """Nothing is open."""

    def _append(self, **fields: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event as Message

        message = Message(wall_time=time.time(), **fields)
        with self._path.open("ab") as file:
            file.write(_record(message.SerializeToString()))


def _record(data: bytes) -> bytes:
    """A TFRecord: the length (uint64), its checksum, the data, its checksum; little-endian."""
    from tensorboardX.record_writer import masked_crc32c

    header = struct.pack("<Q", len(data))
    length_sum, data_sum = (struct.pack("<I", masked_crc32c(part)) for part in (header, data))
    return header + length_sum + data + data_sum
