"""Figures of an executed notebook for ``jupyter nbconvert --to html``, which knows nothing of plotly's type.

The notebook stays as it is: the page gets plotly's library, once (5 MB). Leaves out viewers that run no
script, such as GitHub's, and widgets, which nbconvert fetches the code of.
"""

from typing import Any

from nbconvert.preprocessors import Preprocessor

from agentkit.views import plots

PLOTLY = "application/vnd.plotly.v1+json"


class Figures(Preprocessor):
    """Each figure as HTML too, the first with the library."""

    def preprocess(self, notebook: Any, resources: dict) -> tuple[Any, dict]:
        shown = [out["data"] for cell in notebook.cells for out in cell.get("outputs", ()) if "data" in out]
        for number, data in enumerate(data for data in shown if PLOTLY in data):
            data["text/html"] = plots.embedded(data[PLOTLY], with_library=number == 0)
        return notebook, resources
