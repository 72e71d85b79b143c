"""The preflight report: items with a traffic light, a sentence, advice and evidence; as text, HTML and JSON."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agentkit.runs import write_json

LIGHTS = {"green": "#1f9a74", "amber": "#c77f0a", "red": "#d0406a"}
WORDS = {"green": "good", "amber": "look", "red": "stop"}
SHOWN = 6  # evidence ids in the table


class PreflightError(RuntimeError):
    """The run is not worth starting. The message names every cause."""


@dataclass(frozen=True, slots=True)
class Item:
    """One thing looked at."""

    name: str
    light: str  # green, amber or red; red refuses the run
    finding: str  # one sentence with the numbers
    advice: str = ""  # one sentence computed from them; empty where there is nothing to do
    evidence: tuple[str, ...] = ()  # trajectories or tasks that show it
    values: dict[str, Any] = field(default_factory=dict)  # the numbers, for figures and tests


@dataclass(frozen=True, slots=True)
class Preflight:
    """All items, and whether the run is worth starting."""

    items: tuple[Item, ...]
    rollouts: int  # trajectories of the starting policy it rests on
    seconds: float  # it took

    def __getitem__(self, name: str) -> Item:
        return next(item for item in self.items if item.name == name)

    @property
    def light(self) -> str:
        """The worst light."""
        return max((item.light for item in self.items), key=list(LIGHTS).index)

    @property
    def causes(self) -> list[Item]:
        """What refuses the run."""
        return [item for item in self.items if item.light == "red"]

    def require(self) -> None:
        """Raises PreflightError naming the causes, when there are any."""
        if self.causes:
            listed = " ".join(f"({i}) {c.name}: {c.finding} {c.advice}" for i, c in enumerate(self.causes, 1))
            raise PreflightError(
                f"this run is not worth starting. {listed} Set preflight to warn to start it all the same."
            )

    def text(self) -> str:
        """The report for a terminal."""
        lines = [
            f"[{WORDS[i.light]:>4}] {i.name}: {i.finding}" + f"\n       -> {i.advice}" * bool(i.advice)
            for i in self.items
        ]
        verdict = "not worth starting" if self.causes else "worth starting"
        return "\n".join(
            [*lines, f"{verdict}: {self.rollouts} rollouts of the starting policy, {self.seconds:.0f} s"]
        )

    def save(self, path: Path) -> Path:
        """Write it as JSON."""
        return write_json(path, {"light": self.light, **asdict(self)})

    def _repr_html_(self) -> str:
        rows = "".join(_row(item) for item in self.items)
        verdict = "This run is not worth starting." if self.causes else "This run is worth starting."
        note = f"{verdict} From {self.rollouts} rollouts of the starting policy in {self.seconds:.0f} s."
        return f'<div class="agentkit-preflight"><style>{_CSS}</style><p><b>{note}</b></p><table>{rows}</table></div>'


_CSS = """
.agentkit-preflight {font: 14px/1.45 system-ui, sans-serif; color: inherit; max-width: 980px}
.agentkit-preflight table {border-collapse: collapse; width: 100%}
.agentkit-preflight td {border: 0; border-bottom: 1px solid rgba(128,128,128,.3); padding: .5em .7em; vertical-align: top}
.agentkit-preflight td {text-align: left !important; background: none; white-space: normal}
.agentkit-preflight td:first-child {width: 4.5em; white-space: nowrap}
.agentkit-preflight td:nth-child(2) {width: 13em; font-weight: 600}
.agentkit-preflight .light {white-space: nowrap; font-weight: 600}
.agentkit-preflight .light i {display: inline-block; width: .75em; height: .75em; border-radius: 50%; margin-right: .45em}
.agentkit-preflight .advice {margin-top: .25em}
.agentkit-preflight .evidence {margin-top: .25em; opacity: .7; font-size: 12px; overflow-wrap: anywhere}
"""


def _row(item: Item) -> str:
    light = f'<span class="light"><i style="background:{LIGHTS[item.light]}"></i>{WORDS[item.light]}</span>'
    cell = html.escape(item.finding)
    if item.advice:
        cell += f'<div class="advice">→ {html.escape(item.advice)}</div>'
    if item.evidence:
        shown = ", ".join(item.evidence[:SHOWN]) + (" …" if len(item.evidence) > SHOWN else "")
        cell += f'<div class="evidence">{html.escape(shown)}</div>'
    return f"<tr><td>{light}</td><td>{html.escape(item.name)}</td><td>{cell}</td></tr>"


def ids(found: Sequence[Any]) -> tuple[str, ...]:
    """Trajectories as evidence: task#sample."""
    return tuple(f"{t.task_id}#{t.sample}" for t in found)
