"""Trajectories side by side, task by task.

One ES module (compare.js) draws both the live anywidget and the static page, a sandboxed iframe without network that an
executed notebook keeps. What a model wrote is data all the way: JSON here, textContent there, never markup. Leaves out:
measuring (evaluation) and reading files (runs).
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from agentkit.evaluation import SOLVED, task_success
from agentkit.records import Task, Trajectory, Turn

_MODULE = Path(__file__).with_name("compare.js")
_TEXT_LIMIT = 4000  # characters of one observation or turn that are kept
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"  # nothing is ever loaded

# JupyterLab tells its theme on <body>, which a sandboxed frame cannot see. This tells the frame, and again on a change.
_TELL_THEME = """
(() => {
  const frame = document.currentScript?.previousElementSibling;
  if (!frame) return;
  const tell = () => {
    const light = document.body.dataset.jpThemeLight;
    const theme = { agentkitTheme: light === "true" ? "light" : "dark" };
    if (light !== undefined) frame.contentWindow?.postMessage(theme, "*");
  };
  frame.addEventListener("load", tell);
  tell();
  new MutationObserver(tell).observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light"] });
})();
"""


class LiveCompare(anywidget.AnyWidget):
    """The same view with a kernel behind it: ``task_id`` is the task on screen, readable and settable from Python."""

    _esm = _MODULE
    payload = traitlets.Dict().tag(sync=True)
    task_id = traitlets.Unicode("").tag(sync=True)


class CompareWidget:
    """What a notebook shows: a self-contained static view. ``live()`` gives the one that talks to the kernel."""

    def __init__(self, payload: dict[str, Any], height: int = 680):
        self.payload = payload
        self.height = height

    def live(self) -> LiveCompare:
        """An anywidget for a running kernel. Its view does not survive the kernel."""
        return LiveCompare(payload=self.payload, task_id=self.payload["tasks"][0]["id"])

    @cached_property
    def page(self) -> str:
        """A complete HTML document that needs neither network nor kernel."""
        data = json.dumps(self.payload, allow_nan=False).replace("<", "\\u003c")  # ASCII: lone surrogates are escaped
        return (
            '<!doctype html><html><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"><title>Trajectories</title>'
            "<style>html, body {margin: 0; height: 100%}</style></head><body>"
            "<noscript>This view needs JavaScript.</noscript>"
            f'<script type="application/json" id="payload">{data}</script>'
            f'<script type="module">{_MODULE.read_text(encoding="utf-8")}\n'
            'show(document.body, JSON.parse(document.getElementById("payload").textContent));</script></body></html>'
        )

    def _repr_html_(self) -> str:
        style = f"width: 100%; height: {self.height}px; border: 0; display: block"
        hint = "Trajectories side by side: trust this notebook to see them (jupyter trust FILE)."  # if frames are cut
        frame = f'<iframe sandbox="allow-scripts" title="Trajectories side by side" style="{style}"'
        return f'<div>{frame} srcdoc="{html.escape(self.page)}">{hint}</iframe><script>{_TELL_THEME}</script></div>'

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/html": self._repr_html_(), "text/plain": repr(self)}

    def __repr__(self) -> str:
        return f"CompareWidget({len(self.payload['tasks'])} tasks, policies {', '.join(self.payload['policies'])})"


def compare_trajectories(
    tasks: Iterable[Task],
    policies: Mapping[str, Sequence[Trajectory]],
    *,
    max_samples: int = 4,
    height: int = 680,
) -> CompareWidget:
    """Page through tasks with each policy's trajectories side by side.

    Args:
        tasks: the suite, in the order to page; tasks without a trajectory are left out.
        policies: trajectories by policy name; "flipped" compares the first policy with the last.
        max_samples: samples of a task and policy that are kept; rates count all of them.
        height: of the view in a notebook, in pixels.

    Raises:
        ValueError: there is no policy, no trajectory, or a trajectory's task is not in ``tasks``.
    """
    if not policies:
        raise ValueError("there is no policy to show. Pass {'sft': trajectories, 'grpo': trajectories}.")
    tasks = list(tasks)
    by_task: dict[str, dict[str, list[Trajectory]]] = {}
    for name, trajectories in policies.items():
        for trajectory in trajectories:
            by_task.setdefault(trajectory.task_id, {}).setdefault(name, []).append(trajectory)
    unknown = sorted(by_task.keys() - {task.id for task in tasks})
    if unknown:
        raise ValueError(f"the tasks lack {len(unknown)} that trajectories are about: {', '.join(unknown[:5])}.")
    if not by_task:
        raise ValueError("there is no trajectory to show. Roll out the policies first.")
    rates = {name: task_success(trajectories) if trajectories else {} for name, trajectories in policies.items()}
    rows = [_task(task, by_task[task.id], rates, max_samples) for task in tasks if task.id in by_task]
    return CompareWidget({"policies": list(policies), "tasks": rows}, height)


def _task(task: Task, own: dict[str, list[Trajectory]], rates: dict[str, dict[str, float]], limit: int) -> dict:
    columns = []
    for name, known in rates.items():
        samples, rate = sorted(own.get(name, []), key=lambda t: t.sample), known.get(task.id)
        solved = None if rate is None else rate > SOLVED
        kept = [_trajectory(t) for t in samples[:limit]]
        columns.append({"rate": _number(rate), "solved": solved, "count": len(samples), "samples": kept})
    fields = {"id": task.id, "prompt": task.prompt, "answer": task.answer}
    return fields | {"family": task.family, "difficulty": task.difficulty, "columns": columns}


def _trajectory(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "sample": trajectory.sample,
        "turns": [_turn(turn) for turn in trajectory.turns],
        "stop": trajectory.stop_reason.value,
        "answer": None if trajectory.answer is None else _clip(trajectory.answer),
        "success": _number(trajectory.success),
        "right": None if trajectory.success is None else trajectory.success > SOLVED,
        "why": _clip(trajectory.why),
        "reward": _number(trajectory.reward),
        "components": {name: _number(value) for name, value in trajectory.components.items()},
        "tokens": len(trajectory.completion_ids),
    }


def _turn(turn: Turn) -> dict[str, Any]:
    results = [
        {
            "name": result.name,
            "arguments": _clip(json.dumps(result.arguments, ensure_ascii=False, default=str)),
            "observation": _clip(result.observation),
            "ok": result.ok,
        }
        for result in turn.results
    ]
    return {"text": _clip(turn.text), "results": results}


def _clip(text: str) -> str:
    rest = len(text) - _TEXT_LIMIT
    return text if rest <= 0 else f"{text[:_TEXT_LIMIT]} … ({rest} more characters)"


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(float(value), 4)
