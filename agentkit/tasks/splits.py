"""Splits without leaks: tasks that share an entity combination, or ask nearly the same, go to the same split.

Leaves out what near-duplicates are (near_duplicates).
"""

import dataclasses
import random
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import combinations

from agentkit.records import Task
from agentkit.tasks.near_duplicates import LARGE, joined, near_duplicates

SPLITS = {"train": 0.70, "validation": 0.15, "test": 0.15}


def assign_splits(tasks: list[Task], rng: random.Random) -> list[Task]:
    """70/15/15 within each template; tasks that share entities or ask nearly the same stay together.

    Tasks whose meta says ``new_template``, and what stays together with them, are for the test only.
    """
    new, components = [], []
    for component in _components(tasks):
        (new if any(task.meta.get("new_template") for task in component) else components).append(component)
    rng.shuffle(components)
    components.sort(key=len, reverse=True)
    wanted = Counter(stratum(task) for component in components for task in component)
    given, filled = Counter[tuple[str, str]](), Counter[str]()
    split_of = {task.id: "test" for component in new for task in component}
    for component in components:
        kinds = Counter(map(stratum, component))
        kind = kinds.most_common(1)[0][0]
        need = {  # small suites: no split stays empty
            split: share * wanted[kind] - given[kind, split] - 3 * (filled[split] / (share * wanted.total()))
            for split, share in SPLITS.items()
        }
        chosen = max(SPLITS, key=need.get)
        split_of |= dict.fromkeys([task.id for task in component], chosen)
        given.update({(name, chosen): count for name, count in kinds.items()})
        filled[chosen] += len(component)
    found = [dataclasses.replace(task, split=split_of[task.id]) for task in tasks]
    _warn_if_alike(found)
    return found


def a_fifth(tasks: list[Task], rng: random.Random) -> set[str]:
    """Ids of a fifth of the tasks, less or more where some stay together; none where all do."""
    components, held = _components(tasks), []
    rng.shuffle(components)
    for component in components:
        if len(held) + len(component) <= len(tasks) // 5:
            held += component
    if not held and len(components) > 1:
        held = min(components, key=len)
    return {task.id for task in held}


def _warn_if_alike(tasks: Sequence[Task]) -> None:
    """Warn of a family that is large enough for all splits, with none to train on or none to test with."""
    for name in dict.fromkeys(task.family for task in tasks):
        own = [t.split for t in tasks if t.family == name and not t.meta.get("new_template")]
        for split in sorted({"train", "test"} - set(own)) if len(own) >= LARGE else ():
            warnings.warn(
                f"none of the {len(own)} tasks of family {name} is in the {split} split: their questions ask "
                "nearly the same or share their entities, which keeps them together. Vary them",
                stacklevel=3,
            )


def stratum(task: Task) -> str:
    """What is balanced over the splits: a family's template."""
    return f"{task.family} {task.meta.get('template', '')}"


def entity_combinations(task: Task) -> list[str]:
    """What splits must not share: every pair of the task's entities, or its one entity."""
    entities = sorted(set(task.meta.get("entities", [])))
    return [" + ".join(pair) for pair in combinations(entities, 2)] or entities


def _components(tasks: list[Task]) -> list[list[Task]]:
    """Groups of tasks connected by a shared entity combination or by near-duplicate prompts."""
    owner: dict[str, int] = {}
    first: dict[str, int] = {}  # with that prompt
    links = []
    for i, task in enumerate(tasks):
        links.append((first.setdefault(task.prompt, i), i))
        links += [(owner.setdefault(key, i), i) for key in entity_combinations(task)]
    others = list(first.values())
    alike = near_duplicates(list(first), [tasks[i].family for i in others])
    links += [(others[one], others[other]) for one, other in alike]
    groups = defaultdict(list)
    for root, task in zip(joined(len(tasks), links), tasks, strict=True):
        groups[root].append(task)
    return list(groups.values())
