"""One HTML page that needs nothing beside it: no script, no font, no file; text is escaped here."""

import base64
import dataclasses
import html
from collections.abc import Sequence
from pathlib import Path

# Readable from 320 pixels to print: tables become cards where they do not fit.
_STYLE = """
:root { color-scheme: light dark; --ink: #1d2530; --soft: #566072; --line: #d9dee5;
  --paper: #fff; --tint: #f3f5f8; --mark: #8a5a00; --marked: #fff6e0; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e8ee; --soft: #a3adbb; --line: #3a424e; --paper: #15191f;
    --tint: #1f252d; --mark: #f0c667; --marked: #2b2413; }
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
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 22rem), 1fr)); }
figure { margin: 0; }
figure.wide { grid-column: 1 / -1; overflow-x: auto; }
figure img { display: block; width: 100%; max-width: 34rem; height: auto; background: #fff;
  border-radius: 4px; }
figure.wide img { min-width: 40rem; max-width: 100%; }
figcaption { color: var(--soft); font-size: .875rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; margin: .6rem 0; }
th, td { text-align: left; vertical-align: top; padding: .35rem .7rem .35rem 0;
  border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--soft); }
th { white-space: nowrap; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums;
  white-space: nowrap; }
.scroll { overflow-x: auto; }
td:last-child, th:last-child { padding-right: 0; }
pre { background: var(--tint); padding: .6rem .8rem; border-radius: 4px; font-size: .82rem;
  white-space: pre-wrap; margin: .3rem 0 .8rem; }
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
  figure.wide img { min-width: 0; }
  h2, h3, h2 + p { break-after: avoid; }
  figure, tr, pre, .notes { break-inside: avoid; }
  thead { display: table-header-group; }
  .figures { grid-template-columns: 1fr 1fr; }
  details::details-content { content-visibility: visible; display: block; }
}
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of text below names of columns; those of numbers are set to the right."""

    names: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: frozenset[str] = frozenset()


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph; `kind` is a class of the page's style."""
    return f"<p{_kind(kind)}>{html.escape(text)}</p>"


def listing(lines: Sequence[str]) -> str:
    """Points that stand out; of none, nothing."""
    points = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return f'<div class="notes"><ul>{points}</ul></div>' if lines else ""


def heading(text: str) -> str:
    """Of a part of a section."""
    return f"<h3>{html.escape(text)}</h3>"


def code(text: str) -> str:
    """Commands, as they are typed."""
    return f"<pre><code>{html.escape(text)}</code></pre>"


def folded(title: str, inner: str) -> str:
    """What only some will want to see; print shows it."""
    return f"<details><summary>{html.escape(title)}</summary>{inner}</details>"


def table(content: Table) -> str:
    """A table; on a narrow screen every row is a card, whose title is its first cell."""

    def kind(name: str) -> str:
        return _kind("number" if name in content.numbers else "")

    head = "".join(f'<th scope="col"{kind(n)}>{html.escape(n)}</th>' for n in content.names)
    rows = "".join(
        "<tr>"
        + "".join(
            f'<td{kind(name)} data-name="{html.escape(name)}"><span>{html.escape(cell)}</span></td>'
            for name, cell in zip(content.names, row, strict=True)
        )
        + "</tr>"
        for row in content.rows
    )
    inner = f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody>"
    return f'<div class="scroll"><table>{inner}</table></div>'


def figure(path: Path, alt: str, *, caption: str = "", wide: bool = False) -> str:
    """A PNG, inside the page."""
    data = path.read_bytes()
    width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
    below = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
    return (
        f'<figure{_kind("wide" if wide else "")}><img alt="{html.escape(alt)}" width="{width}" '
        f'height="{height}" src="data:image/png;base64,{base64.b64encode(data).decode()}">'
        f"{below}</figure>"
    )


def figures(parts: Sequence[str]) -> str:
    """Pictures beside each other, as many as fit."""
    return f'<div class="figures">{"".join(parts)}</div>'


def section(title: str, *parts: str) -> str:
    """A section with its heading."""
    return f"<section><h2>{html.escape(title)}</h2>{''.join(parts)}</section>"


def page(title: str, *parts: str) -> str:
    """The whole document."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<main><h1>{html.escape(title)}</h1>\n"
        + "\n".join(parts)
        + "\n</main>\n</body>\n</html>\n"
    )


def _kind(name: str) -> str:
    return f' class="{name}"' if name else ""
