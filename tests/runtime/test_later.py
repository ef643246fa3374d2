"""Libraries that wait until they are used."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxppo.envs.later import imported_later


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a package of two parts, and of a module beside it, `uses_it`."""
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "__init__.py").write_text("here = 1\n")
    (tmp_path / "late" / "one.py").write_text("from late.two import value\ndouble = 2 * value\n")
    (tmp_path / "late" / "two.py").write_text("value = 3\n")
    uses = "import late\nimport late.one as first\nfrom late import two\n"
    (tmp_path / "uses_it.py").write_text(uses)
    (tmp_path / "asks_at_once.py").write_text(uses + "found = first.double\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield "late"
    for name in set(sys.modules) - before:
        del sys.modules[name]


NAMES = ("late", "late.one", "late.two")


def test_packages_and_their_parts_wait_for_their_use(package: str) -> None:
    with imported_later(*NAMES):
        import uses_it
    assert not set(NAMES) & set(sys.modules)
    assert uses_it.first.double == 6
    assert set(NAMES) <= set(sys.modules)
    assert (uses_it.late.here, uses_it.two.value) == (1, 3)


def test_what_is_asked_at_once_is_there_and_what_is_there_stays(package: str) -> None:
    with imported_later(*NAMES):
        import asks_at_once
    assert asks_at_once.found == 6
    import late

    assert asks_at_once.late.here == late.here == 1
    with imported_later(*NAMES):
        assert sys.modules["late"] is late


@pytest.mark.long
def test_gymnax_comes_without_what_it_draws_with() -> None:
    script = (
        "import sys; import jaxppo.envs.gymnax as adapter;"
        "print([name for name in ('matplotlib', 'seaborn', 'pandas') if name in sys.modules]);"
        "from gymnax.visualize import visualizer; print(visualizer.plt.figure().__class__.__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[:2] == ["[]", "Figure"]
