"""Seeing trajectories: small interactive views that work offline too, in a notebook opened as a file.

Every view has ``page`` (a whole HTML document), ``html()`` (a fragment for another page), ``save(path)`` and
``live()`` (an anywidget with a kernel behind it). Leaves out figures (plots).
"""

from agentkit.views.widgets.base import View
from agentkit.views.widgets.compare import compare_trajectories
from agentkit.views.widgets.group import group_view
from agentkit.views.widgets.states import gallery
from agentkit.views.widgets.xray import mask_xray

__all__ = ["View", "compare_trajectories", "gallery", "group_view", "mask_xray"]
