"""What the families hold: the table of docs/tasks.md, which ``python tests/catalogue.py`` prints.

Difficulty is the number of tool calls of the scripted expert: easy 1-2, medium 3-4, hard 5 or more. Leaves
out families of a lab file.
"""

from collections import Counter
from collections.abc import Iterable

from agentkit.records import Task
from agentkit.tasks.suite import DEFAULT_FAMILIES, Suite

_FACTS = "films CC0 (Wikidata); GeoNames and Gapminder CC BY 4.0; mendeleev MIT"
ABOUT = {
    "A": ("arithmetic over looked-up facts", _FACTS),
    "B": ("chains of two or three facts", _FACTS),
    "C": ("functions to write and test", "generated here, MIT"),
}
COLUMNS = ("family", "asks for", "kinds", "tasks", "easy", "medium", "hard", "tools", "data")


def catalogue(
    n_tasks: int = 1200, seed: int = 0, families: Iterable[str] = DEFAULT_FAMILIES
) -> list[dict[str, str | int]]:
    """A row for each family, counted in a suite of a family's equal share of ``n_tasks``."""
    rows = []
    for family in families:
        spec = {"families": [family], "seed": seed}
        suite = Suite.build(spec | {"n_tasks": n_tasks // len(DEFAULT_FAMILIES)})
        counts = Counter(task.difficulty for task in suite)
        shares = {name: f"{100 * counts[name] / len(suite):.0f} %" for name in ("easy", "medium", "hard")}
        asks, data = ABOUT[family]
        tools = ", ".join(dict.fromkeys(tool for task in suite for tool in task.tools))
        row = {"family": family, "asks for": asks, "kinds": len(kinds(suite))}
        rows.append(row | {"tasks": len(suite), **shares, "tools": tools, "data": data})
    return rows


def kinds(tasks: Iterable[Task]) -> set[str]:
    """The different kinds of question: templates, and for code tasks the specifications they are made of."""
    names: set[str] = set()
    for task in tasks:
        tags = [tag.removeprefix("code:") for tag in task.meta.get("entities", ()) if tag.startswith("code:")]
        names |= set("+".join(tags).split("+")) if tags else {str(task.meta.get("template", ""))}
    return names


def markdown(rows: list[dict[str, str | int]]) -> str:
    lines = [COLUMNS, ["---"] * len(COLUMNS), *([str(row[c]) for c in COLUMNS] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    print(markdown(catalogue()))
