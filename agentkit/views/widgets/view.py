"""What every view shares: a document that needs neither network nor kernel, its frame, and the live widget.

A view is a payload (JSON) and a JavaScript module (common.js and its own file) that draws the static page and
the live anywidget alike. The payload travels gzipped, in base64, so nothing in it can end the element that
holds it; on the page it is text only, never markup. A long one travels in blocks, each read when it is looked
at. In a notebook the page lies in a sandboxed frame that reaches neither the notebook nor the network; a
small script beside the frame (relay.js) tells it theme, address and stored notes. Leaves out what the
payloads hold (payload, compare, xray, group).
"""

from __future__ import annotations

import base64
import gzip
import json
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import anywidget
import traitlets

from agentkit.evaluation import html
from agentkit.runs import write_bytes

_FOLDER = Path(__file__).parent
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'"
)
_FILL = "html, body.agentkit {margin: 0; padding: 0; max-width: none; height: 100%}"


def _file(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def packed(value: Any) -> bytes:
    """JSON, gzipped. ASCII: lone surrogates are escaped."""
    return gzip.compress(json.dumps(value, allow_nan=False).encode("ascii"), compresslevel=5, mtime=0)


class LiveView(anywidget.AnyWidget):
    """The same view with a kernel behind it. It does not survive the kernel."""

    _esm = traitlets.Unicode().tag(sync=True)
    _css = html.style()
    data = traitlets.List(traitlets.Bytes()).tag(sync=True)  # as in View.data


class View:
    """What a notebook shows: a self-contained static view. ``live()`` gives the one that talks to the kernel.

    Args:
        payload: what the view shows, as JSON values. Numbers must be finite.
        height: of the frame in a notebook or report, in pixels.
    """

    name: ClassVar[str]  # of its JavaScript file
    title: ClassVar[str]

    def __init__(self, payload: dict[str, Any], height: int):
        self.payload = payload
        self.height = height

    @cached_property
    def data(self) -> list[bytes]:
        """The payload, packed; what a view reads later follows in blocks."""
        return [packed(self.payload)]

    @property
    def source(self) -> str:
        """The JavaScript module that draws it."""
        return _file("common.js") + _file(f"{self.name}.js")

    @property
    def page(self) -> str:
        """A complete HTML document that needs neither network nor kernel."""
        data = "\n".join(base64.b64encode(block).decode("ascii") for block in self.data)
        payload = html.element("script", html.Markup(data), type="text/plain", id="payload")
        module = html.element("script", html.Markup(f"{self.source}\nstart();"), type="module")
        hint = html.element("noscript", "This view needs JavaScript.")
        return html.page(self.title, hint, payload, module, policy=_POLICY, look=_FILL)

    def save(self, path: str | Path) -> Path:
        """Write the page to a file, readable by its owner only."""
        return write_bytes(path, self.page.encode("utf-8"))

    def html(self) -> str:
        """The page as a fragment for another page: a sandboxed frame and the script that talks to it."""
        frame = html.element(
            "iframe",
            f"{self.title}: trust this notebook to see them (jupyter trust FILE).",  # where frames are cut out
            sandbox="allow-scripts allow-downloads",
            title=self.title,
            style=f"width: 100%; height: {self.height}px; border: 0; display: block",
            srcdoc=self.page,
        )
        return html.element("div", frame, html.element("script", html.Markup(_file("relay.js"))))

    def live(self) -> LiveView:
        """An anywidget for a running kernel."""
        return LiveView(_esm=self.source, data=self.data)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/html": self.html(), "text/plain": repr(self)}
