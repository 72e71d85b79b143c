"""Beneath the live comparison: change what a tool said or the policy wrote, and see how it goes on.

Leaves out sampling: whoever has a policy gives the function that continues a trajectory.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import ipywidgets

from agentkit.evaluation import html
from agentkit.records import Task, Trajectory

Fork = Callable[..., Sequence[Trajectory]]
GO = "Continue from here"


class ForkPanel(ipywidgets.VBox):
    """A live comparison (``view``), and what continues a trajectory of the task that it shows.

    Args:
        view: tells the task by ``task_id``.
        fork: see ``CompareWidget.live``.
        tasks: by id.
        policies: by name, each with its trajectories by task id.
        compare: draws trajectories of some tasks by column name.
    """

    def __init__(
        self,
        view: Any,
        fork: Fork,
        tasks: Mapping[str, Task],
        policies: Mapping[str, Mapping[str, Sequence[Trajectory]]],
        compare: Callable[..., Any],
    ):
        self.view, self._fork, self._beside = view, fork, compare
        self._tasks, self._policies = tasks, policies
        self.place = ipywidgets.Dropdown(description="Change", layout={"width": "auto"})
        self.words = ipywidgets.Textarea(rows=5, layout={"width": "auto"})
        self.button = ipywidgets.Button(description=GO, layout={"width": "max-content"})
        self.said = ipywidgets.HTML()
        super().__init__([view, self.place, self.words, self.button, self.said])
        self.place.observe(self._placed, "value")
        self.button.on_click(self._go)
        view.observe(self._turned, "task_id")
        self._turned()

    def _turned(self, _: Any = None) -> None:
        here = ((name, own.get(self.view.task_id, ())) for name, own in self._policies.items())
        places = [place for name, own in here for t in own for place in _places(name, t)]
        self.place.options = places
        self.place.index = 0 if places else None
        self.button.disabled = not places

    def _placed(self, change: Any) -> None:
        self.words.value = change["new"][-1] if change["new"] else ""

    def _go(self, _: Any) -> None:
        original, turn, *_ = self.place.value
        task, edit = self._tasks[original.task_id], _edit(self.place.value, self.words.value)
        self.button.description, self.button.disabled = "Sampling …", True
        try:
            found = self._fork(task=task, trajectory=original, turn=turn, **edit)
            shown = [self._beside([task], {"as it was": [original], "continued": found}).live()]
            said = effect(original, found, "after the edit" if edit else "without an edit")
        except Exception as error:  # of the engine, of an environment, of a function of the user's
            said, shown = f"Not continued: {str(error) or type(error).__name__}", []
        finally:
            self.button.description, self.button.disabled = GO, False
        self.said.value = html.fragment(html.element("p", said))  # not a Label: that would draw formulas
        self.children = [*self.children[:5], *shown]


def effect(original: Trajectory, found: Sequence[Trajectory], how: str) -> str:
    """The paired effect in one sentence."""
    judged = [t.success for t in found if t.success is not None]
    if original.success is None or not judged:
        return f"{len(found)} continuations {how}, and no verdict to compare."
    before, after = original.success, fmean(judged)
    return (
        f"Success is {before:.0%} as it was and {after:.0%} in {len(judged)} continuations {how}: "
        f"{100 * (after - before):+.0f} points."
    )


def _places(policy: str, trajectory: Trajectory) -> Iterator[tuple[str, tuple]]:
    for number, turn in enumerate(trajectory.turns):
        where = _sendable(f"{policy}, sample {trajectory.sample}, turn {number + 1}")
        for call, result in enumerate(turn.results):
            label = f"{where}: reply {call + 1}, of {_sendable(result.name) or 'a malformed call'}"
            yield label, (trajectory, number, call, _sendable(result.observation))
        yield f"{where}: what it wrote", (trajectory, number, None, _sendable(turn.text))


def _edit(place: tuple, words: str) -> dict[str, Any]:
    trajectory, number, call, before = place
    if words == before:
        return {}
    if call is None:
        return {"text": words.rstrip()}
    replies = [result.observation for result in trajectory.turns[number].results]
    return {"observation": [*replies[:call], words, *replies[call + 1 :]]}


def _sendable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()  # no message can hold halves of characters
