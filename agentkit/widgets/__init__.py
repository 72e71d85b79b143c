"""Seeing trajectories: small interactive views that also work in an executed notebook opened as a file, offline."""

from agentkit.widgets.compare import CompareWidget, compare_trajectories

__all__ = ["CompareWidget", "compare_trajectories"]
