"""Elements of a self-contained HTML page, without fonts or other files.

Every function returns HTML and escapes the text it is given.
"""

import base64
import html
import re
from collections.abc import Collection, Sequence
from pathlib import Path

# For light and dark screens from 320 pixels on, and for print
_STYLE = """
:root { color-scheme: light dark; --line: #8885; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1.25rem 3rem; max-width: 68rem; overflow-wrap: break-word;
  font: 1rem/1.55 system-ui, sans-serif; }
h2 { font-size: 1.25rem; margin: 2.4rem 0 .4rem; padding-top: .9rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1rem; }
p { max-width: 46rem; }
.soft, figcaption, th, summary { opacity: .75; }
.notes { border-left: 4px solid #c80; background: #fc82; padding: .6rem 1rem; }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; }
.figures { display: grid; gap: 1rem; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); }
figure { margin: 0; max-width: 34rem; }
figure.wide { grid-column: 1 / -1; max-width: none; overflow-x: auto; }
figure.wide img { min-width: 40rem; }
img { width: 100%; height: auto; background: #fff; border-radius: 4px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; vertical-align: top; padding: .35rem .7rem .35rem 0;
  border-bottom: 1px solid var(--line); }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
td.number { white-space: nowrap; }
pre { background: #8881; padding: .6rem .8rem; font-size: .82rem; white-space: pre-wrap; }
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; }
  table { font-size: 7.5pt; }
  .scroll, figure.wide { overflow: visible; }
  figure.wide img { min-width: 0; }
  nav { display: none; }
  figure, tr, pre, .notes { break-inside: avoid; }
  .figures { grid-template-columns: 1fr 1fr; }
  details::details-content { content-visibility: visible; display: block; }
}
"""


def paragraph(text: str) -> str:
    """Return a paragraph in a soft colour; nothing for empty text."""
    return f'<p class="soft">{html.escape(text)}</p>' if text else ""


def listing(lines: Sequence[str]) -> str:
    """Return a highlighted list; nothing without lines."""
    points = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return f'<div class="notes"><ul>{points}</ul></div>' if lines else ""


def heading(text: str) -> str:
    """Return a heading within a section."""
    return f"<h3>{html.escape(text)}</h3>"


def code(text: str) -> str:
    """Return a block of commands."""
    return f"<pre><code>{html.escape(text)}</code></pre>"


def folded(title: str, inner: str) -> str:
    """Return a part that is folded on the screen and shown in print."""
    return f"<details><summary>{html.escape(title)}</summary>{inner}</details>"


def table(names: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[str]) -> str:
    """Return a table of text; the columns `numbers` are aligned to the right."""
    kinds = [_kind("number" if name in numbers else "") for name in names]

    def row(tag: str, cells: Sequence[str]) -> str:
        pairs = zip(kinds, cells, strict=True)
        inner = "".join(f"<{tag}{kind}>{html.escape(cell)}</{tag}>" for kind, cell in pairs)
        return f"<tr>{inner}</tr>"

    body = "".join(row("td", cells) for cells in rows)
    inner = f"<thead>{row('th', names)}</thead><tbody>{body}</tbody>"
    return f'<div class="scroll"><table>{inner}</table></div>'


def figure(path: Path, alt: str, *, caption: str = "", wide: bool = False) -> str:
    """Return a figure with a PNG, which the page contains."""
    data = base64.b64encode(path.read_bytes()).decode()
    below = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
    image = f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{data}">'
    return f"<figure{_kind('wide' if wide else '')}>{image}{below}</figure>"


def figures(parts: Sequence[str]) -> str:
    """Return figures side by side, as many in a row as fit."""
    return f'<div class="figures">{"".join(parts)}</div>'


def section(title: str, intro: str, *parts: str) -> str:
    """Return a section with its heading, to which the page links, and a paragraph before parts."""
    head = f'<section id="{_anchor(title)}"><h2>{html.escape(title)}</h2>'
    return f"{head}{paragraph(intro)}{''.join(parts)}</section>"


def contents(sections: Sequence[str]) -> str:
    """Return links to what `section` returned."""
    titles = re.findall(r'<section id="(.*?)"><h2>(.*?)</h2>', "".join(sections))
    links = (f'<a href="#{anchor}">{title}</a>' for anchor, title in titles)
    return f"<nav>{' '.join(links)}</nav>"


def page(title: str, *parts: str) -> str:
    """Return the whole document."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<main><h1>{html.escape(title)}</h1>\n"
        + "\n".join(parts)
        + "\n</main>\n</body>\n</html>\n"
    )


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _kind(name: str) -> str:
    return f' class="{name}"' if name else ""
