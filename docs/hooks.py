"""Hooks of mkdocs for files outside docs/.

README.md becomes the front page, and files that pages link to are copied.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = re.compile(r"\]\(\.\./([\w./-]+)")


def on_files(files: Files, config: Any) -> Files:
    """Add the front page and the files outside docs/ that pages link to."""
    front = (ROOT / "README.md").read_text().replace("](docs/README.md)", "](quickstart.md)")
    files.append(File.generated(config, "index.md", content=front.replace("](docs/", "](")))
    pages = [file.content_string for file in files.documentation_pages()]
    for path in sorted({path for page in pages for path in OUTSIDE.findall(page)}):
        if (ROOT / path).is_file():
            files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return a page whose links to files outside docs/ lead to their copies."""
    return OUTSIDE.sub(r"](\1", markdown).replace("](README.md", "](index.md")
