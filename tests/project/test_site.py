"""The website of docs/: it builds, without a link that leads nowhere, and has all pages."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(out)]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert made.returncode == 0, made.stderr[-2000:]
    return out


def test_every_page_is_in_the_navigation(site: Path) -> None:
    menu = (site / "index.html").read_text()
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")} - {"README"}
    assert [page for page in pages if f'href="{page}.html"' not in menu] == []


def test_functions_are_shown_with_their_docstrings(site: Path) -> None:
    page = (site / "api.html").read_text()
    for name in re.findall(r"^::: (\S+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE):
        assert f'id="{name}"' in page, name
    assert "TrainingError" in page  # from the docstring of `jaxppo.train`


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    page = (site / "index.html").read_text()
    assert re.findall(r'(?:src|<link[^>]*href)="(?:https?:)?//[^"]*"', page) == []


def test_files_outside_docs_are_copied(site: Path) -> None:
    assert (site / "configs" / "env" / "cartpole.yaml").read_text() == (
        ROOT / "configs" / "env" / "cartpole.yaml"
    ).read_text()


def test_the_tutorial_is_a_page_with_its_pictures(site: Path) -> None:
    page = (site / "tutorial.html").read_text()
    assert page.count('src="data:image/png;base64,') == 7
    assert "largest difference" in page
    assert "<math" in page
    assert "\\gamma" not in page
    assert 'href="tutorial.html"' in (site / "quickstart.html").read_text()
