"""Seeing trajectories: small interactive views that also work offline, in an executed notebook opened as a file.

Every view has ``page`` (a whole HTML document), ``html()`` (a fragment for another page), ``save(path)`` and
``live()`` (an anywidget with a kernel behind it). Leaves out figures (plots).
"""

from agentkit.views.widgets.compare import CompareWidget, compare_trajectories
from agentkit.views.widgets.group import GroupWidget, group_view
from agentkit.views.widgets.notes import read_notes
from agentkit.views.widgets.view import View
from agentkit.views.widgets.xray import XrayWidget, mask_xray

__all__ = [
    "CompareWidget",
    "GroupWidget",
    "View",
    "XrayWidget",
    "compare_trajectories",
    "group_view",
    "mask_xray",
    "read_notes",
]
