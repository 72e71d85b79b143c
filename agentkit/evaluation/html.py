"""HTML for notebooks and pages: every text is escaped here, and one style sheet serves light and dark pages.

Text may come from a model or a user and is never markup: characters that act or hide, and halves of
characters, are spelled out. Leaves out what draws itself: figures (plotly) and the widgets' JavaScript, which
take the style sheet only.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup, escape

# no version, no hash and no sentence
_AMOUNT = re.compile(r"(?!.{30})[-+−]?[$€£]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?(?![\w.])")
# control characters, marks of reading direction, invisible ones and lone surrogates
_UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
_NO_FORMULAS = "mathjax_ignore tex2jax_ignore"  # classes that MathJax 3 and 2 look for
_LONG = 40  # characters from which a cell may wrap
OFFLINE = Markup(  # in the head of a page: it loads nothing from elsewhere
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'\">"
)


@cache
def style() -> str:
    """The style sheet that everything shares."""
    return Path(__file__).with_name("style.css").read_text(encoding="utf-8")


def safe(value: Any) -> Markup:
    """A value as HTML: its text escaped, odd characters spelled out as \\u202e; Markup stays as it is."""
    if isinstance(value, Markup):
        return value
    return escape(_UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", str(value)))


def element(tag: str, *children: Any, **attributes: Any) -> Markup:
    """An element; ``class_`` is its class. Children and attributes that are not Markup are escaped."""
    named = "".join(f' {name.rstrip("_")}="{safe(value)}"' for name, value in attributes.items())
    return Markup(f"<{tag}{named}>{joined(children)}</{tag}>")


def joined(parts: Iterable[Any]) -> Markup:
    """Parts one after the other."""
    return Markup("".join(safe(part) for part in parts))


def fragment(*children: Any) -> Markup:
    """What a notebook's cell shows: the style sheet and the children, in which no dollar begins a formula."""
    return element("div", element("style", Markup(style())), *children, class_=f"agentkit {_NO_FORMULAS}")


def page(title: str, *children: Any, look: str = "") -> str:
    """A whole document that UTF-8 can hold and that loads nothing from elsewhere, with more style."""
    head = (
        f'<meta charset="utf-8">{OFFLINE}'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"{element('title', title)}<style>{style()}{look}</style>"
    )
    body = element("body", *children, class_="agentkit")
    document = f'<!doctype html><html lang="en"><head>{head}</head>{body}</html>'
    return document.encode("utf-8", "replace").decode()


def table(columns: Sequence[Any], rows: Iterable[Sequence[Any]], caption: str = "") -> Markup:
    """A table whose first column names the rows. Columns of numbers are set right, columns of words left."""
    rows = list(rows)
    looks = [_look(cells) for cells in zip(*rows, strict=True)] or ["words"] * len(columns)
    head = (element("th", name, class_=look) for name, look in zip(columns, looks, strict=True))
    body = []
    for first, *others in rows:
        cells = (element("td", cell, class_=look) for cell, look in zip(others, looks[1:], strict=True))
        body.append(element("tr", element("th", first, class_=looks[0], scope="row"), *cells))
    above = element("caption", caption) if caption else ""
    inside = (above, element("thead", element("tr", *head)), element("tbody", *body))
    return element("div", element("table", *inside), class_="scroll")


def task_links(*tasks: str) -> Markup:
    """Ids side by side; a click turns the views on the page that hold the task to it."""
    address = partial(quote, safe="", errors="replace")
    return Markup(" ").join(element("a", task, href=f"#task={address(task)}") for task in tasks)


def folded(summary: Any, *children: Any) -> Markup:
    """Content that opens when its summary is pressed."""
    return element("details", element("summary", summary), *children)


def paragraphs(texts: Iterable[Any]) -> Markup:
    """A paragraph for each text."""
    return joined(element("p", text) for text in texts)


def _look(cells: Sequence[Any]) -> str:
    if max((len(Markup(cell).striptags()) for cell in cells if isinstance(cell, str)), default=0) > _LONG:
        return "words long"
    filled = [cell for cell in cells if cell != ""]
    # text may begin with a number; a dash stands for one that is missing
    amounts = [not isinstance(cell, str) or cell.startswith("–") or _AMOUNT.match(cell) for cell in filled]
    return "number" if filled and all(amounts) else "words"
