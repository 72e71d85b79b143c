"""The preflight report: items with a traffic light, a sentence, advice and evidence; as text, HTML and JSON.

Leaves out where the items come from (checks, reward_checks).
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agentkit.evaluation import html
from agentkit.records import TrainingError, Trajectory
from agentkit.runs import read_json, write_json
from agentkit.trajectories import trajectory_id

LIGHTS = {"green": ("good", "good"), "amber": ("warning", "look"), "red": ("stop", "bad")}  # word and class
BY_WEIGHT = list(LIGHTS).index
EVIDENCE = 6  # ids in the table


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
        return max((item.light for item in self.items), key=BY_WEIGHT)

    @property
    def causes(self) -> list[Item]:
        return [item for item in self.items if item.light == "red"]

    @property
    def verdict(self) -> str:
        if self.causes:
            return "not worth starting"
        look = [item.name for item in self.items if item.light == "amber"]
        return f"worth starting, with warnings: {', '.join(look)}" if look else "worth starting"

    def require(self) -> None:
        """Raises TrainingError naming the causes, when there are any."""
        causes = [f"({i}) {c.name}: {c.finding} {c.advice}" for i, c in enumerate(self.causes, 1)]
        if causes:
            way_out = "Set preflight to warn to start it all the same."
            raise TrainingError(f"this run is not worth starting. {' '.join(causes)} {way_out}")

    def text(self) -> str:
        lines = []
        for item in self._worst_first():
            lines.append(f"[{LIGHTS[item.light][0]:>7}] {item.name}: {item.finding}")
            if item.advice:
                lines.append(f"          -> {item.advice}")
        lines.append(
            f"{self.verdict}: {self.rollouts} trajectories of the starting policy, {self.seconds:.0f} s"
        )
        return "\n".join(lines)

    def save(self, path: Path) -> Path:
        return write_json(path, {"light": self.light, **asdict(self)})

    @classmethod
    def load(cls, path: Path) -> "Preflight":
        """The report that ``save`` wrote."""
        kept = read_json(path)
        items = (Item(**item | {"evidence": tuple(item["evidence"])}) for item in kept["items"])
        return cls(tuple(items), kept["rollouts"], kept["seconds"])

    def _worst_first(self) -> list[Item]:
        return sorted(self.items, key=lambda item: -BY_WEIGHT(item.light))

    def _repr_html_(self) -> str:
        """The verdict, what is not good, and folded what is."""
        good = [item for item in self.items if item.light == "green"]
        others = [item for item in self._worst_first() if item not in good]
        said = f" From {self.rollouts} trajectories of the starting policy in {self.seconds:.0f} s."
        return html.fragment(
            html.element("p", html.element("b", f"This run is {self.verdict}."), said),
            _table(others) if others else "",
            html.folded(f"{len(good)} checks are good", _table(good)) if good else "",
        )


def _table(items: Iterable[Item]) -> html.Markup:
    rows = []
    for item in items:
        word, tone = LIGHTS[item.light]
        mark, evidence = html.element("b", word, class_=tone), ", ".join(item.evidence[:EVIDENCE])
        rows.append([item.name, mark, item.finding, item.advice, evidence])
    return html.table(("check", "", "finding", "advice", "evidence"), rows)


def ids(trajectories: Iterable[Trajectory]) -> tuple[str, ...]:
    return tuple(map(trajectory_id, trajectories))


def gold_ids(golden: Iterable[Trajectory]) -> tuple[str, ...]:
    """Told apart from trajectories of the same tasks, which are stored with the report."""
    return tuple(f"gold:{name}" for name in ids(golden))
