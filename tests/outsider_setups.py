"""Set-ups written by somebody who had not read preflight: mistakes people make before a run, and sound ones.

Each is a recipe, a lab file made from one desk of facts by replacing lines, and sometimes given tasks.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml

from agentkit import Lab, Task
from agentkit.runs import write_tasks
from agentkit.tasks.expert import fill
from agentkit.tools import calculate

DESK = '''
import re
import time
from dataclasses import replace

from agentkit import Family, tool
from agentkit.tasks.families import lookup
from agentkit.tools import calculate
from agentkit.tools.corpus import Corpus
from agentkit.tools.search import search_passages

OPENING = ""

class Shelf:
    def reset(self, **row) -> None:
        pass

    @tool(pure=True, version="1")
    def search(self, query: str) -> str:
        """Search facts.

        Args:
            query: What to look up.
        """
        text = search_passages(Corpus(), query, 3)
        return text.replace("[1] ", "[1] " + OPENING)

    @tool(pure=True)
    def calculator(self, expression: str) -> str:
        """Compute arithmetic.

        Args:
            expression: The arithmetic.
        """
        return calculate(expression)

class Desk(Shelf):
    pass

def draft(corpus, rng):
    task = lookup.draft(corpus, rng)
    if task is None or len(task.meta["plan"]) != 3 or "." in str(task.meta["plan"]):
        return None
    if not task.answer.lstrip("-").isdecimal():
        return None
    return replace(task, verifier={"kind": "amount"})

def amount(answer, gold, *, trajectory=None):
    return float(answer.strip() == gold)

families = {"desk": Family(draft, environment=Desk)}
verifiers = {"amount": amount}
rewards = {}
'''
RECIPE = {"families": "desk", "n_tasks": 40, "seed": 1, "max_turns": 6, "max_turn_tokens": 96, "max_tokens": 512, "steps": 40,
          "deterministic": True, "test_samples": 2, "prompts_per_step": 6, "group_size": 4, "micro_batch": 12,
          "learning_rate": 1.5e-3, "beta": 0.02, "val_every": 20, "val_tasks": 6}  # fmt: skip


@dataclass(frozen=True)
class Setup:
    """One set-up: what is changed in the recipe and the lab file, tasks that are given, and the cause to be named."""

    keys: dict = field(default_factory=dict)
    edits: tuple[tuple[str, str], ...] = ()
    rows: Callable[[list[Task]], list[Task]] | None = None  # given tasks, from those that the desk drafts
    cause: str = ""  # a pattern that what is named first must match; "" for a sound set-up
    base: str = DESK  # of the lab file
    families: str = "desk"

    def write(self, folder: Path) -> Path:
        """The recipe's path, its lab file and tasks beside it."""
        text = self.base
        for old, new in self.edits:
            assert old in text, old
            text = text.replace(old, new)
        recipe = RECIPE | {"families": self.families} | self.keys
        keys = dict(recipe)
        if self.rows:
            (folder / "sound.py").write_text(self.base)
            sound = Lab.open(recipe | {"lab": str(folder / "sound.py")}).suite()
            rows = self.rows(list(sound))
            write_tasks(folder / "tasks.jsonl", [replace(t, id=f"row-{n}") for n, t in enumerate(rows)])
            keys |= {"tasks": str(folder / "tasks.jsonl")}
        (folder / "desk.py").write_text(text)
        (folder / "recipe.yaml").write_text(yaml.safe_dump(keys | {"lab": str(folder / "desk.py")}))
        return folder / "recipe.yaml"


kept = list  # tasks exported to a file as they are, plans included


def without_plans(tasks: list[Task]) -> list[Task]:
    """Questions and answers only, as most data sets are."""
    return [replace(task, meta={}) for task in tasks]


def half_annotated(tasks: list[Task]) -> list[Task]:
    """A column that only some rows have."""
    return [replace(t, meta=t.meta | {"shortest": 4}) if n % 2 else t for n, t in enumerate(tasks)]


def test_in_train(tasks: list[Task]) -> list[Task]:
    """A test set written from the training questions in other words of politeness."""
    train = [task for task in tasks if task.split == "train"]
    asked = [replace(t, split="test", prompt=f"please: {t.prompt.lower()}") for t in train[: len(train) // 2]]
    return train + asked


def two_editions(tasks: list[Task]) -> list[Task]:
    """Every question once more about the second edition, in which everything has grown by one: the row says which."""
    second = []
    for task in tasks:
        *lookups, last = task.meta["plan"]
        lookups = [step | {"expect": str(int(step["expect"]) + 1)} for step in lookups]
        gold = calculate(fill(last["arguments"], [step["expect"] for step in lookups])["expression"])
        meta = task.meta | {"plan": [*lookups, last], "edition": 2}
        second.append(replace(task, answer=gold, prompt=f"{task.prompt} (edition 2)", meta=meta))
    return [task for pair in zip(tasks, second, strict=True) for task in pair]


_RESET = "    def reset(self, **row) -> None:\n        pass"
_SEARCH = "        text = search_passages"
_REWARDS = "rewards = {}"
_JUDGED = "    return float(answer.strip() == gold)"
PLANTED = {
    "the answer stands in the question": Setup(
        edits=(("    return replace(task, ", '    return replace(task, prompt=f"{task.prompt} (checked: {task.answer})", '),), cause="question|prompt"),
    "a component in milliseconds": Setup(
        edits=((_REWARDS, 'rewards = {"latency": (lambda task, t: -1000 * sum(turn.seconds for turn in t.turns), 1.0)}'),),
        cause="latency"),
    "a KL weight that holds everything": Setup({"beta": 10}, cause="beta|KL"),
    "a tool slower than its limit": Setup(
        {"tool_timeout_s": 0.2}, ((_SEARCH, "        time.sleep(0.5)\n" + _SEARCH),), kept, cause="tool_timeout_s"),
    "observations cut before the fact": Setup(
        {"max_observation": 24}, (('OPENING = ""', 'OPENING = "Our register was founded by two sisters and has told facts to all the villages of the valley ever since. "'),),
        cause="max_observation"),
    "the test asks what was trained on": Setup(rows=test_in_train, cause="test tasks ask"),
    "a pure tool that is not pure": Setup(
        edits=((_RESET, "    def reset(self, edition=1, **row) -> None:\n        self.edition = edition"),
               ("        return text.", '        text = re.sub(r" is (\\d+)", lambda m: f" is {int(m[1]) + self.edition - 1}", text)\n        return text.')),
        rows=two_editions, cause="pure|cache"),
    "a quota that all trajectories share": Setup(
        edits=((_SEARCH, '        Shelf.asked += 1\n        if Shelf.asked > 10:\n            raise RuntimeError("429: daily quota exceeded")\n' + _SEARCH),
               ("class Shelf:", "class Shelf:\n    asked = 0\n")), rows=kept, cause="tool"),
    "a reward reads a column that half the rows lack": Setup(
        edits=((_REWARDS, 'rewards = {"short": (lambda task, t: float(len(t.turns) <= task.meta["shortest"]), 0.2)}'),),
        rows=half_annotated, cause="short"),
}  # fmt: skip
SOUND = {
    "the desk": Setup(),
    "tasks without tools": Setup(edits=(
        ("class Desk(Shelf):\n    pass", "class Desk:\n    def reset(self, **row) -> None:\n        pass"),
        ("    return replace(task, ", '    said, value = task.meta["plan"][0]["arguments"]["query"], task.meta["plan"][0]["expect"]\n    return replace(task, prompt=f"The {said} is {value}. What is the {said}?", answer=value, meta={"plan": [], "entities": task.meta["entities"]}, tools=(), '))),
    "a reward from -1 to 0": Setup({"reward": "none"}, (
        (_REWARDS, 'rewards = {"wrong": (lambda task, t: None if t.success is None else t.success - 1, 1.0), "turns": (lambda task, t: -len(t.turns) / 100, 1.0)}'),)),
    "a shaped reward": Setup({"reward": {"correctness": 1, "format": 0.1, "efficiency": 1, "process": 0.3, "overlong": 0.1}}),
    "a slow tool within its limit": Setup(
        {"tool_timeout_s": 5.0}, ((_SEARCH, "        time.sleep(0.2)\n" + _SEARCH),), kept),
    "questions and answers only": Setup(rows=without_plans),
    "a verifier that gives half points": Setup(edits=(
        (_JUDGED, '    said = answer.strip()\n    near = said.lstrip("-").isdecimal() and abs(int(said) - int(gold)) == 2\n    return 1.0 if said == gold else 0.5 * near'),)),
}  # fmt: skip
