"""Splits without leaks: tasks that share an entity combination, or ask nearly the same, go to the same split.

Near-duplicates are found exactly, by a prefix-filtered similarity join (Chaudhuri et al. 2006; Xiao et al.,
PPJoin, 2008) over the word pairs of normalised prompts: two prompts that alike must share one of their few
rarest pairs, so only prompts with a rare pair in common are compared. What most prompts of a family say, such
as its rules, does not count, nor what most of so many alike say that they would fill half of a split, such as
the rules of one of its sources. Leaves out paraphrases.
"""

import dataclasses
import random
import warnings
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import combinations
from math import ceil

from agentkit.records import Task
from agentkit.verifiers import normalize

SPLITS = {"train": 0.70, "validation": 0.15, "test": 0.15}
LARGE = 20  # tasks of a family, of which some belong into every split
SIMILAR = 0.85  # Jaccard similarity of word pairs from which two prompts are near-duplicates
MANY = min(SPLITS.values()) / 2  # of a family's prompts: as near-duplicates they would fill half of a split


def assign_splits(tasks: list[Task], rng: random.Random) -> list[Task]:
    """70/15/15 within each template; tasks that share entities or ask nearly the same stay together.

    Tasks whose meta says ``new_template``, and what stays together with them, are for the test only.
    """
    new, tasks_of = [], _components(tasks)
    components = []
    for component in tasks_of:
        (new if any(task.meta.get("new_template") for task in component) else components).append(component)
    rng.shuffle(components)
    components.sort(key=len, reverse=True)
    others = [task for component in components for task in component]
    wanted = Counter(stratum(task) for task in others)
    given: Counter[tuple[str, str]] = Counter()
    filled: Counter[str] = Counter()
    split_of: dict[str, str] = {}
    for component in components:
        kind = Counter(stratum(task) for task in component).most_common(1)[0][0]

        def need(split: str, kind: str = kind) -> float:
            share = filled[split] / (SPLITS[split] * len(others))  # small suites: no split stays empty
            return SPLITS[split] * wanted[kind] - given[kind, split] - 3 * share

        chosen = max(SPLITS, key=need)
        for task in component:
            split_of[task.id] = chosen
            given[stratum(task), chosen] += 1
            filled[chosen] += 1
    split_of |= {task.id: "test" for component in new for task in component}
    found = [dataclasses.replace(task, split=split_of[task.id]) for task in tasks]
    _warn_if_alike(found, components)
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


def _warn_if_alike(tasks: Sequence[Task], components: Sequence[Sequence[Task]]) -> None:
    """Warn of a family that is large enough for all splits, with none to train on or none to test with, or
    with so many that stay together that they are most of a split.
    """
    why = "their questions ask nearly the same or share their entities, which keeps them together. Vary them"
    for name in dict.fromkeys(task.family for task in tasks):
        own = {t.id: t.split for t in tasks if t.family == name and not t.meta.get("new_template")}
        held = Counter(own.values())
        lacking = sorted({"train", "test"} - set(held)) if len(own) >= LARGE else []
        for split in lacking:
            warnings.warn(
                f"none of the {len(own)} tasks of family {name} is in the {split} split: {why}", stacklevel=3
            )
        for together in components if not lacking else ():
            splits = [own[task.id] for task in together if task.id in own]
            if len(splits) >= LARGE and 2 * len(splits) > held[splits[0]]:
                warnings.warn(
                    f"{len(splits)} of the {held[splits[0]]} tasks of family {name} in the {splits[0]} split "
                    f"stay together: {why}",
                    stacklevel=3,
                )


def stratum(task: Task) -> str:
    """What is balanced over the splits: a family's template."""
    return f"{task.family} {task.meta.get('template', '')}"


def entity_combinations(task: Task) -> list[str]:
    """What splits must not share: every pair of the task's entities, or its one entity."""
    entities = sorted(set(task.meta.get("entities", [])))
    return [" + ".join(pair) for pair in combinations(entities, 2)] or entities


def near_duplicates(prompts: Sequence[str], families: Sequence[str] = ()) -> Iterator[tuple[int, int]]:
    """Pairs of positions of prompts whose word pairs have a Jaccard similarity of at least ``SIMILAR``.

    Pairs of words in more than half of a family's prompts, where it has ``LARGE`` or more, are left out; a
    prompt that holds nothing else keeps them. Where more than the share ``MANY`` of a family's prompts are
    near-duplicates of each other all the same, so are those in more than half of these.
    """
    families = families or [""] * len(prompts)
    pairs = _own_pairs([_word_pairs(prompt) for prompt in prompts], families)
    roots, sizes = _joined(len(prompts), _alike(pairs)), Counter(families)
    held = Counter(roots)
    groups = [root if held[root] > MANY * sizes[families[i]] else i for i, root in enumerate(roots)]
    return _alike(_own_pairs(pairs, groups))


def _own_pairs(pairs: Sequence[frozenset[str]], groups: Sequence[Hashable]) -> list[frozenset[str]]:
    """Without those in more than half of a group, where it has ``LARGE`` prompts or more."""
    sizes, counts = Counter(groups), defaultdict(Counter)
    for group, words in zip(groups, pairs, strict=True):
        counts[group].update(words)
    common = {
        name: {pair for pair, count in own.items() if 2 * count > sizes[name] >= LARGE}
        for name, own in counts.items()
    }
    return [words - common[group] or words for group, words in zip(groups, pairs, strict=True)]


def _alike(pairs: Sequence[frozenset[str]]) -> Iterator[tuple[int, int]]:
    frequency = Counter(pair for words in pairs for pair in words)
    index: dict[str, list[int]] = defaultdict(list)
    for i, words in enumerate(pairs):
        rare_first = sorted(words, key=lambda pair: (frequency[pair], pair))
        rarest = rare_first[: len(words) - ceil(SIMILAR * len(words)) + 1]
        for j in dict.fromkeys(j for pair in rarest for j in index[pair]):
            small, large = sorted((len(words), len(pairs[j])))
            needed = SIMILAR / (1 + SIMILAR) * (small + large)  # pairs in common, for that Jaccard similarity
            if small >= SIMILAR * large and len(words & pairs[j]) >= needed:
                yield j, i
        for pair in rarest:
            index[pair].append(i)


def _word_pairs(prompt: str) -> frozenset[str]:
    words = ["", *normalize(prompt).split(), ""]
    return frozenset(f"{a} {b}" for a, b in zip(words, words[1:], strict=False))


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
    for root, task in zip(_joined(len(tasks), links), tasks, strict=True):
        groups[root].append(task)
    return list(groups.values())


def _joined(count: int, links: Iterable[tuple[int, int]]) -> list[int]:
    """For each position one that stands for all those it is connected to."""
    from scipy.cluster.hierarchy import DisjointSet

    joined = DisjointSet(range(count))
    for one, other in links:
        joined.merge(one, other)
    return [joined[i] for i in range(count)]
