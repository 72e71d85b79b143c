"""One trajectory as a reader sees it at once: as text, and as what a notebook shows of it.

Leaves out several side by side, filters and states (widgets).
"""

import json
import sys
from collections.abc import Iterable, Iterator

from agentkit.evaluation import html
from agentkit.records import Task, Trajectory, Turn
from agentkit.views.widgets.base import ENDINGS, View, clip
from agentkit.views.widgets.group import group_view


def turn_text(turn: Turn) -> str:
    """What the policy wrote in a turn, and what its tools replied."""
    replies = (f"    -> {clip(result.observation)}" for result in turn.results)
    return "\n".join([clip(turn.text.strip()), *replies])


def _ending(trajectory: Trajectory) -> str:
    verdict = {1.0: "right", 0.0: "wrong", None: "not judged"}.get(trajectory.success, trajectory.success)
    reward = "" if trajectory.reward is None else f", reward {trajectory.reward:.4g}"
    parts = json.dumps({name: value for name, value in trajectory.components.items() if value is not None})
    why = f" ({clip(trajectory.why, 200)})" if trajectory.why else ""
    return f"{ENDINGS[trajectory.stop_reason]}: {verdict}{why}{reward}{f' {parts}' if reward else ''}"


def as_text(trajectory: Trajectory) -> str:
    """Turns, verdict and reward as plain text."""
    return "\n".join([*map(turn_text, trajectory.turns), _ending(trajectory)])


def as_html(trajectory: Trajectory) -> str:
    """The same as HTML, in which nothing that a model wrote is markup."""
    return html.fragment(*_turns(trajectory), html.element("p", html.element("b", _ending(trajectory))))


def _turns(trajectory: Trajectory) -> Iterator[str]:
    for number, turn in enumerate(trajectory.turns):
        yield html.element("pre", f"{number}  {clip(turn.text.strip())}")
        for result in turn.results:
            yield html.element("blockquote", html.element("pre", clip(result.observation)))


def show(*trajectories: Trajectory, tasks: Iterable[Task] = ()) -> View | None:
    """In a notebook a widget, with rewards and advantages; elsewhere the text is printed.

    Args:
        tasks: for prompts and gold answers.
    """
    if in_notebook():
        return group_view(trajectories, tasks)
    print(*map(as_text, trajectories), sep="\n\n")
    return None


def in_notebook() -> bool:
    """Whether a Jupyter kernel runs this."""
    known = sys.modules.get("IPython")  # a kernel has loaded it
    return known is not None and hasattr(known.get_ipython(), "kernel")
