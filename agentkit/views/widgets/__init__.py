"""Seeing trajectories: small interactive views that work offline too, in a notebook opened as a file.

Every view has ``page`` (a whole HTML document), ``html()`` (a fragment for another page), ``save(path)`` and
``live()`` (an anywidget with a kernel behind it). Leaves out figures (plots).
"""

from agentkit.views.widgets.base import View
from agentkit.views.widgets.group import group_view
from agentkit.views.widgets.states import gallery
from agentkit.views.widgets.tokens import mask_xray
from agentkit.views.widgets.trajectories import compare_trajectories

__all__ = ["View", "compare_trajectories", "gallery", "group_view", "mask_xray"]
