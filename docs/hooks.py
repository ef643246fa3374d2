"""Hooks of mkdocs for what is not a page of docs/.

README.md becomes the front page, other pages of the root are added, the tutorial's notebook becomes
a page with the outputs that are stored in it, files that pages link to are copied, and cells of
tables get the head of their column.
"""

import json
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
FORMULA = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$")
TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
OUTSIDE = re.compile(r"\]\(\.\./([\w./-]+)")
ROOT_PAGES = {  # file beside docs/: its page
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}


def on_files(files: Files, config: Any) -> Files:
    """Add the front page, the tutorial, and the files outside docs/ that pages link to."""
    for file, page in ROOT_PAGES.items():
        text = (ROOT / file).read_text().replace("](docs/README.md)", "](quickstart.md)")
        files.append(File.generated(config, page, content=text.replace("](docs/", "](")))
    tutorial = json.loads((ROOT / "docs" / "tutorial.ipynb").read_text())
    files.append(File.generated(config, "tutorial.md", content=page_of(tutorial)))
    pages = [file.content_string for file in files.documentation_pages()]
    for path in sorted({path for page in pages for path in OUTSIDE.findall(page)}):
        if (ROOT / path).is_file():
            files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return a page whose links lead to the pages and copies that were added."""
    markdown = OUTSIDE.sub(r"](\1", markdown).replace("](tutorial.ipynb", "](tutorial.md")
    for file, page in ROOT_PAGES.items():
        markdown = markdown.replace(f"]({file}", f"]({page}")
    return markdown


def on_page_content(html: str, **_: Any) -> str:
    """Return a page whose table cells know the head of their column, for narrow windows."""
    return TABLE.sub(lambda found: headed(found[0]), html)


def headed(table: str) -> str:
    """A table whose cells after the first of each row have the text of their head."""
    heads = [re.sub(r"<.*?>", "", head) for head in re.findall(r"<th\b.*?>(.*?)</th>", table)]

    def row(found: re.Match[str]) -> str:
        places = iter([None, *heads[1:]])

        def cell(start: re.Match[str]) -> str:
            head = next(places, None)
            return f'{start[0][:-1]} data-head="{head}">' if head else start[0]

        return re.sub(r"<td\b[^>]*>", cell, found[0])

    return re.sub(r"<tr>.*?</tr>", row, table, flags=re.DOTALL)


def page_of(notebook: dict[str, Any]) -> str:
    """The Markdown of a notebook: text, formulas as MathML, code, and outputs with pictures."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(
                FORMULA.sub(lambda m: convert(m[1] or m[2], "block" if m[1] else "inline"), source)
            )
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                image = "".join(data["image/png"]).replace("\n", "")
                parts.append(f"![Output of the code above](data:image/png;base64,{image})")
            elif text := output.get("text"):
                parts.append(f"```text\n{''.join(text).rstrip()}\n```")
    return "\n\n".join(parts)
