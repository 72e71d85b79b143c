"""The preflight report: items with a traffic light, a sentence, advice and evidence; as text, HTML and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agentkit.evaluation import html
from agentkit.runs import write_json

LIGHTS = {"green": "good", "amber": "look", "red": "bad"}  # class in the style sheet, from best to worst
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
        verdict = "This run is not worth starting." if self.causes else "This run is worth starting."
        note = f"{verdict} From {self.rollouts} rollouts of the starting policy in {self.seconds:.0f} s."
        rows = [[item.name, _light(item), _finding(item)] for item in self.items]
        return html.fragment(
            html.element("p", html.element("b", note)), html.table(["", "light", "finding"], rows)
        )


def _light(item: Item) -> html.Markup:
    return html.element("b", f"● {WORDS[item.light]}", class_=LIGHTS[item.light])


def _finding(item: Item) -> html.Markup:
    more = " …" if len(item.evidence) > SHOWN else ""
    evidence = html.element("div", ", ".join(item.evidence[:SHOWN]) + more, class_="soft")
    advice = html.element("div", f"→ {item.advice}") if item.advice else ""
    return html.joined([item.finding, advice, evidence if item.evidence else ""])


def ids(found: Sequence[Any]) -> tuple[str, ...]:
    """Trajectories as evidence: task#sample."""
    return tuple(f"{t.task_id}#{t.sample}" for t in found)
