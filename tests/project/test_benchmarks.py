"""What benchmarks measure with: processes in turn, and traces."""

import json
import sys
import time
from pathlib import Path

import pytest

from benchmarks import accelerator, blocks
from benchmarks.contestants import Contestant, ContestantError, in_turn

SERVES = """
import sys, time
from benchmarks.blocks import serve
serve(lambda: time.sleep(float(sys.argv[1])), 100, 1.5, twice=lambda: {"two": 2})
"""


def test_contestants_answer_in_turn() -> None:
    """The slower one has the lower speed; other questions have their own answers."""
    slow, fast = (Contestant([sys.executable, "-c", SERVES, x]) for x in ("0.2", "0.05"))
    assert slow.answer() == {"compile_seconds": 1.5}
    fast.answer()
    assert slow.ask("twice") == {"two": 2}
    in_turn([slow, fast], rounds=2)
    in_turn([slow, fast], rounds=2, deadline=time.monotonic() - 1)
    assert len(slow.speeds) == len(fast.speeds) == 2
    assert max(slow.speeds) <= 100 / 0.2
    assert max(slow.speeds) < min(fast.speeds)
    with pytest.raises(ContestantError, match="no answer after"):
        slow.ask("block", limit=0.01)
    slow.close()
    fast.close()


def test_a_contestant_that_fails_says_why() -> None:
    """By the last line of its errors."""
    broken = Contestant([sys.executable, "-c", "raise ValueError('no such size')"])
    with pytest.raises(ContestantError, match="ValueError: no such size"):
        broken.answer()
    with pytest.raises(ContestantError):
        broken.ask("block", limit=1)
    broken.close()


def test_the_busy_share_counts_overlaps_once() -> None:
    """Of 10 units, [0, 4] and [8, 10] are covered."""
    assert accelerator.busy([(8, 10), (0, 3), (1, 2), (2, 4)]) == pytest.approx(0.6)


@pytest.mark.long
def test_a_row_of_the_accelerators_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU it times us and the plain PPO, and says why others are missing."""
    for module in (accelerator, blocks):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    arguments = ["S", "--small", "--profile", "--rounds", "2"]
    monkeypatch.setattr(sys, "argv", ["accelerator", *arguments])
    accelerator.main()
    systems = json.loads((tmp_path / "accelerator.json").read_text())["rows"]["S"]
    for name in ("jaxppo", "plain"):
        assert len(systems[name]["speeds"]) == 2
        assert min(systems[name]["speeds"]) > 0
    assert sum(systems["jaxppo"]["profile"]["phases"].values()) > 0
    assert "arch.fused" in systems["jaxppo, fused"]["missing"]
    assert "jaxppo" in (tmp_path / "accelerator.md").read_text()
