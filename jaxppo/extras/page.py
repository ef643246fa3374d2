"""Elements of a self-contained HTML page, without fonts or other files.

Every function returns HTML and escapes the text it is given.
"""

import base64
import html
import itertools
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from jaxppo.analysis.charts import Spot

# For screens from 320 pixels on, and for print. Tables too wide for the screen become cards.
_STYLE = """
:root { color-scheme: light dark; --ink: #1d2530; --soft: #566072; --line: #d9dee5;
  --paper: #fff; --tint: #f3f5f8; --mark: #8a5a00; --marked: #fff6e0; --link: #0b5cad; }
@media screen and (prefers-color-scheme: dark) {
  .picture { filter: invert(.9) hue-rotate(180deg); }
  :root { --ink: #e4e8ee; --soft: #a3adbb; --line: #3a424e; --paper: #15191f;
    --tint: #1f252d; --mark: #f0c667; --marked: #2b2413; --link: #8ab8f0; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1.25rem 3rem; max-width: 68rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto,
  "Helvetica Neue", Arial, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.25rem; margin: 2.4rem 0 .4rem; padding-top: .9rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
p, ul { max-width: 46rem; margin: .4rem 0 .8rem; }
.soft { color: var(--soft); }
.notes { background: var(--marked); border-left: 4px solid var(--mark); padding: .6rem 1rem;
  max-width: none; }
.notes ul { margin: 0; padding-left: 1.1rem; max-width: none; }
.figures { display: grid; gap: 1rem; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); }
figure { margin: 0; }
figure.wide { grid-column: 1 / -1; overflow-x: auto; }
.picture { position: relative; max-width: 34rem; }
.picture img { display: block; width: 100%; height: auto; background: #fff; border-radius: 4px; }
.picture svg { position: absolute; inset: 0; width: 100%; height: 100%; font-size: 22px; }
.picture .area { fill: transparent; }
.picture .shown { visibility: hidden; pointer-events: none; }
.picture g:hover > .shown { visibility: visible; }
.picture .shown rect { fill: #fff; fill-opacity: .92; stroke: #d9dee5; }
.picture circle { fill: none; stroke-width: 3; }
figure.wide .picture { min-width: 40rem; max-width: 100%; }
figcaption { color: var(--soft); font-size: .875rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; margin: .6rem 0; }
th, td { text-align: left; vertical-align: top; padding: .35rem .7rem .35rem 0;
  border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--soft); }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
td.number { white-space: nowrap; }
.scroll { overflow-x: auto; }
td:last-child, th:last-child { padding-right: 0; }
pre { background: var(--tint); padding: .6rem .8rem; border-radius: 4px; font-size: .82rem;
  white-space: pre-wrap; margin: .3rem 0 .8rem; }
.copy { position: relative; }
.copy pre { padding-right: 5.2rem; }
button { position: absolute; top: .4rem; right: .4rem; font: inherit; font-size: .8rem;
  padding: .1rem .6rem; color: var(--ink); background: var(--paper); cursor: pointer;
  border: 1px solid var(--line); border-radius: 4px; }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; padding: .5rem 0; font-size: .9rem;
  background: var(--paper); }
a { color: var(--link); }
@media (min-width: 44rem) { nav { position: sticky; top: 0; z-index: 1;
  border-bottom: 1px solid var(--line); } section { scroll-margin-top: 1.5rem; } }
summary { cursor: pointer; color: var(--soft); padding: .3rem 0; }
@media (max-width: 44rem) {
  body { padding: 1rem .9rem 2rem; }
  thead { position: absolute; clip-path: inset(50%); height: 1px; width: 1px; overflow: hidden; }
  table, tbody, tr, td { display: block; }
  tr { border: 1px solid var(--line); border-radius: 4px; padding: .3rem .7rem; margin: .6rem 0; }
  td span { min-width: 0; overflow-wrap: anywhere; }
  td, td.number { display: flex; justify-content: space-between; gap: 1rem; text-align: right;
    padding: .2rem 0; border: 0; white-space: normal; }
  td::before { content: attr(data-name); color: var(--soft); text-align: left; flex: none; }
  td:first-child { display: block; text-align: left; font-weight: 600; }
  td:first-child::before { content: none; }
}
@media print {
  :root { --ink: #000; --soft: #444; --line: #bbb; --paper: #fff; --tint: #f5f5f5;
    --mark: #777; --marked: #fff; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  table { font-size: 7.5pt; }
  th, td { padding-right: .5em; }
  .scroll, figure.wide { overflow: visible; }
  figure.wide .picture { min-width: 0; }
  nav, button { display: none; }
  h2, h3, h2 + p { break-after: avoid; }
  figure, tr, pre, .notes { break-inside: avoid; }
  thead { display: table-header-group; }
  .figures { grid-template-columns: 1fr 1fr; }
  details::details-content { content-visibility: visible; display: block; }
}
"""

# Copies commands; where a browser does not let a page, the commands are left selected
SCRIPT = """
for (const button of document.querySelectorAll(".copy button")) button.onclick = async () => {
  const code = button.previousElementSibling;
  getSelection().selectAllChildren(code);
  try { await navigator.clipboard.writeText(code.textContent); }
  catch { if (!document.execCommand("copy")) return; }
  button.textContent = "copied";
  setTimeout(() => { button.textContent = "copy"; }, 1500);
};
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
    """Return a block of commands with a button that copies them."""
    button = '<button type="button">copy</button>'
    return f'<div class="copy"><pre><code>{html.escape(text)}</code></pre>{button}</div>'


def folded(title: str, inner: str) -> str:
    """Return a part that is folded on the screen and shown in print."""
    return f"<details><summary>{html.escape(title)}</summary>{inner}</details>"


def table(names: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[str]) -> str:
    """Return a table of text; the columns `numbers` are aligned to the right.

    On a narrow screen every row is a card with its first cell as the title.
    """
    kinds = [_kind("number" if name in numbers else "") for name in names]
    escaped = [html.escape(name) for name in names]
    head = "".join(
        f'<th scope="col"{kind}>{name}</th>' for kind, name in zip(kinds, escaped, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f'<td{kind} data-name="{name}"><span>{html.escape(cell)}</span></td>'
            for kind, name, cell in zip(kinds, escaped, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    inner = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll"><table>{inner}</table></div>'


def figure(
    path: Path, alt: str, *, caption: str = "", wide: bool = False, spots: Sequence[Spot] = ()
) -> str:
    """Return a figure with a PNG, which the page contains, and values to point at."""
    data = path.read_bytes()
    width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
    below = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
    return (
        f'<figure{_kind("wide" if wide else "")}><div class="picture"><img alt="{html.escape(alt)}"'
        f' width="{width}" height="{height}" '
        f'src="data:image/png;base64,{base64.b64encode(data).decode()}">'
        f"{_values(spots, width, height)}</div>{below}</figure>"
    )


def _values(spots: Sequence[Spot], width: int, height: int) -> str:
    """Return an SVG to lay over a picture: where a reader points, it shows the values there."""
    places = [spot.x * width for spot in spots]
    between = [(left + right) / 2 for left, right in itertools.pairwise(places)]
    edges = [0.0, *between, float(width)]
    parts = []
    for spot, x, left, right in zip(spots, places, edges, edges[1:], strict=False):
        lines = [(spot.title, "#1d2530"), *((text, color) for text, color, _ in spot.rows)]
        wide = 12.5 * max(len(text) for text, _ in lines) + 16
        start = min(max(x + 12 if x < width / 2 else x - 12 - wide, 0), max(width - wide, 0))
        tall = 28 * len(lines) + 10
        above = sum(y for _, _, y in spot.rows) > 0.5 * len(spot.rows)  # the half without the dots
        top = 34 if above else max(34, min(height * 0.42, height - tall))
        box = f'<rect x="{start:.0f}" y="{top:.0f}" width="{wide:.0f}" height="{tall}"/>'
        words = "".join(
            f'<text x="{start + 8:.0f}" y="{top + 26 + 28 * n:.0f}" fill="{color}">'
            f"{html.escape(text)}</text>"
            for n, (text, color) in enumerate(lines)
        )
        dots = "".join(
            f'<circle cx="{x:.0f}" cy="{y * height:.0f}" r="9" stroke="{color}"/>'
            for _, color, y in spot.rows
        )
        parts.append(
            f'<g><rect class="area" x="{left:.0f}" y="0" width="{right - left:.0f}" '
            f'height="{height}"/><g class="shown">{box}{words}{dots}</g></g>'
        )
    view = f'viewBox="0 0 {width} {height}" aria-hidden="true"'
    return f"<svg {view}>{''.join(parts)}</svg>" if parts else ""


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
        + f"\n</main>\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _kind(name: str) -> str:
    return f' class="{name}"' if name else ""
