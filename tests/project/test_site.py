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


@pytest.mark.long
def test_every_page_is_in_the_navigation_and_loads_nothing_from_elsewhere(site: Path) -> None:
    menu = (site / "index.html").read_text()
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")} - {"README"}
    assert [page for page in pages if f'href="{page}.html"' not in menu] == []
    assert re.findall(r'(?:src|<link[^>]*href)="(?:https?:)?//[^"]*"', menu) == []


@pytest.mark.long
def test_functions_files_and_pictures_are_there(site: Path) -> None:
    page = (site / "api.html").read_text()
    for name in re.findall(r"^::: (\S+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE):
        assert f'id="{name}"' in page, name
    file = Path("configs") / "env" / "cartpole.yaml"
    assert (site / file).read_text() == (ROOT / file).read_text()
    page = (site / "tutorial.html").read_text()
    assert page.count('src="data:image/png;base64,') == 7
    assert "<math" in page
    assert "\\gamma" not in page
