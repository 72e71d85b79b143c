"""What every view shares: a document that needs neither network nor kernel, its frame, and the live widget.

A view is a payload (JSON) and a JavaScript module (common.js and its own file) that draws the static page and
the live anywidget alike. The payload travels gzipped, in base64, so nothing in it can end the element that
holds it; on the page it is text only, never markup. A long one travels in blocks, each read when it is looked
at. In a notebook the page lies in a sandboxed frame that reaches neither the notebook nor the network; a
small script beside the frame (relay.js) tells it theme, address and stored notes. Leaves out what
each view shows of its records (trajectories, tokens, group).
"""

import base64
import gzip
import json
import math
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from agentkit.evaluation import html
from agentkit.records import StopReason, Task, ToolResult, Trajectory, Turn
from agentkit.runs import write_bytes

_FOLDER = Path(__file__).parent
_FILL = "html, body.agentkit {margin: 0; padding: 0; max-width: none; height: 100%}"

TEXT_LIMIT = 4000  # characters of one observation, call or turn that are kept
ENDINGS = {
    StopReason.ANSWER: "ended with an answer",
    StopReason.TURN_LIMIT: "stopped: no turn was left (max_turns), and it still called a tool",
    StopReason.TOKEN_LIMIT: "stopped: no token was left (max_tokens)",
    StopReason.TRUNCATED_TURN: "stopped: a turn was cut off at max_turn_tokens",
    StopReason.TIME_LIMIT: "stopped: its time was up (trajectory_timeout_s)",
    StopReason.ERROR: "stopped: the engine or the environment failed",
}


def source(name: str) -> str:
    """A JavaScript file of this folder."""
    return (_FOLDER / f"{name}.js").read_text(encoding="utf-8")


def packed(value: Any) -> bytes:
    """JSON, gzipped. ASCII: lone surrogates are escaped."""
    return gzip.compress(json.dumps(value, allow_nan=False).encode("ascii"), compresslevel=5, mtime=0)


class LiveView(anywidget.AnyWidget):
    """The same view with a kernel behind it. It does not survive the kernel."""

    _esm = traitlets.Unicode().tag(sync=True)
    _css = html.style()
    data = traitlets.List(traitlets.Bytes()).tag(sync=True)  # as in View.data


class View:
    """What a notebook shows: a self-contained static view. ``live()`` gives one that talks to the kernel."""

    def __init__(self, name: str, title: str, payload: dict[str, Any], height: int):
        self.name, self.title = name, title  # of its JavaScript file; of the page
        self.payload, self.height = payload, height  # JSON values with finite numbers; pixels of the frame

    @cached_property
    def data(self) -> list[bytes]:
        """The payload, packed; what a view reads later follows in blocks."""
        return [packed(self.payload)]

    @property
    def source(self) -> str:
        """The JavaScript module that draws it."""
        return source("common") + source(self.name)

    @property
    def page(self) -> str:
        """A complete HTML document that needs neither network nor kernel."""
        data = "\n".join(base64.b64encode(block).decode("ascii") for block in self.data)
        payload = html.element("script", html.Markup(data), type="text/plain", id="payload")
        module = html.element("script", html.Markup(f"{self.source}\nstart();"), type="module")
        hint = html.element("noscript", "This view needs JavaScript.")
        return html.page(self.title, hint, payload, module, look=_FILL)

    def save(self, path: str | Path) -> Path:
        """Write the page to a file, readable by its owner only."""
        return write_bytes(path, self.page.encode("utf-8"))

    def html(self) -> str:
        """The page as a fragment for another page: a sandboxed frame and the script that talks to it."""
        frame = html.element(
            "iframe",
            f"{self.title}: trust this notebook to see them (jupyter trust FILE).",  # without frames
            sandbox="allow-scripts allow-downloads",
            title=self.title,
            style=f"width: 100%; height: {self.height}px; border: 0; display: block",
            srcdoc=self.page,
        )
        return html.element("div", frame, html.element("script", html.Markup(source("relay"))))

    def live(self) -> LiveView:
        """An anywidget for a running kernel."""
        return LiveView(_esm=self.source, data=self.data)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/html": self.html(), "text/plain": self.title}


# ---- records as the JSON that views show: long texts cut with a mark, numbers finite or None
def task_fields(task: Task) -> dict[str, str]:
    """What a view says about a task."""
    fields = {"id": task.id, "family": task.family, "difficulty": task.difficulty}
    return fields | {"prompt": clip(task.prompt), "answer": clip(task.answer)}


def trajectory_fields(trajectory: Trajectory, states: Sequence[dict | None]) -> dict[str, Any]:
    """What a view says about a trajectory, turn by turn, with the states (states) after its turns."""
    turns = [_turn(turn, None) for turn in trajectory.turns[:-1]]
    turns += [_turn(turn, trajectory.answer) for turn in trajectory.turns[-1:]]
    for turn, state in zip(turns, states, strict=False):
        turn |= {"state": state} if state else {}
    return {
        "sample": trajectory.sample,
        "turns": turns,
        "stop": ENDINGS[trajectory.stop_reason],
        "answer": None if trajectory.answer is None else clip(trajectory.answer),
        "right": None if trajectory.success is None else trajectory.success == 1.0,
        "why": clip(trajectory.why),
        "reward": number(trajectory.reward),
        "advantage": number(trajectory.advantage),
        "components": [[name, number(value)] for name, value in trajectory.components.items()],
        "tokens": len(trajectory.completion_ids),
        "ending": None
        if trajectory.state is None
        else clip(json.dumps(trajectory.state, ensure_ascii=False)),
    }


def _turn(turn: Turn, answer: str | None) -> dict[str, Any]:
    """A turn and its actions, by which turns differ: the calls it made, else its answer, else its text."""
    calls = [(result.name or "malformed call", _arguments(result)) for result in turn.results]
    actions = [clip(f"{name} {{{', '.join(parts)}}}" if parts else name) for name, parts in calls]
    words = turn.text.strip() if answer is None else f"answer: {answer}"
    results = [
        [clip(result.observation), result.ok, *call] for result, call in zip(turn.results, calls, strict=True)
    ]
    return {"text": clip(turn.text), "actions": actions or [clip(words)], "results": results}


def _arguments(result: ToolResult) -> list[str]:
    """The arguments one by one, as JSON writes them: '"query": "Peru"'."""
    written = partial(json.dumps, ensure_ascii=False, sort_keys=True, default=str)
    return [clip(f"{written(name)}: {written(value)}") for name, value in sorted(result.arguments.items())]


def clip(text: str, limit: int = TEXT_LIMIT) -> str:
    """The text, or its beginning and how much was left out."""
    rest = len(text) - limit
    return text if rest <= 0 else f"{text[:limit]} … ({rest} more characters)"


def number(value: float | None, places: int = 4) -> float | None:
    """The value, rounded; None where it is missing, infinite or NaN."""
    return None if value is None or not math.isfinite(value) else round(float(value), places)
