"""metrics.jsonl and summary.json."""

import json
import math
from pathlib import Path
from typing import Any

from jaxppo.sinks import Event

METRICS, SUMMARY = "metrics.jsonl", "summary.json"


class JsonLines:
    """One object an event of a block or of the end; the `end` event itself is the summary.

    Numbers that JSON does not have (NaN, infinities) become null.
    """

    def __init__(self, run_dir: Path) -> None:
        self._summary = run_dir / SUMMARY
        self._file = (run_dir / METRICS).open("x", encoding="utf-8")

    def write(self, event: Event) -> None:
        """Append a line, complete on disk before the next event."""
        event = _finite(event)
        if event["event"] in ("train", "eval", "selection", "absolute"):
            self._file.write(json.dumps(event, allow_nan=False) + "\n")
            self._file.flush()
        elif event["event"] == "end":
            partial = self._summary.with_suffix(".json.partial")
            partial.write_text(json.dumps(event, indent=2, allow_nan=False) + "\n", "utf-8")
            partial.replace(self._summary)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
