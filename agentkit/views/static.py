"""Executed notebooks as pages that open offline, without secrets.

nbconvert knows nothing of plotly's type: ``Figures`` gives each figure a page's form too, here and in
``jupyter nbconvert --to html``. Leaves out viewers that run no script, such as GitHub's.
"""

from pathlib import Path
from typing import Any

import nbformat
from nbconvert.preprocessors import Preprocessor

from agentkit.evaluation.html import OFFLINE
from agentkit.runs import write_bytes
from agentkit.views import plots
from agentkit.views.redact import redact

PLOTLY = "application/vnd.plotly.v1+json"
_URLS = ("require_js_url", "jquery_url", "mathjax_url", "mermaid_js_url")  # of what a page would load


class Figures(Preprocessor):
    """Secrets masked; each figure as HTML too, the first with plotly's library (5 MB)."""

    def preprocess(self, notebook: Any, resources: dict) -> tuple[Any, dict]:
        notebook = nbformat.from_dict(redact(notebook))
        shown = [out["data"] for cell in notebook.cells for out in cell.get("outputs", ()) if "data" in out]
        for number, data in enumerate(data for data in shown if PLOTLY in data):
            data["text/html"] = plots.embedded(data[PLOTLY], with_library=number == 0)
        return notebook, resources


def write_page(notebook: Path) -> Path:
    """The notebook as a page beside it, written anew where the notebook is newer."""
    from nbconvert import HTMLExporter

    page = notebook.with_suffix(".html")
    if not page.exists() or page.stat().st_mtime < notebook.stat().st_mtime:
        exporter = HTMLExporter(preprocessors=[Figures], **dict.fromkeys(_URLS, ""))
        body = exporter.from_filename(str(notebook))[0].replace("<head>", f"<head>{OFFLINE}", 1)
        write_bytes(page, body.encode("utf-8", "replace"))
    return page
