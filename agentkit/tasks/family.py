"""A family: how one random task is drafted, the environment it is solved in, and how hindsight relabels it.

One record for shipped families, public data sets and a user's own. Leaves out building a suite of them
(suite) and how often a policy solves a task (pass_rates).
"""

import hashlib
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from agentkit.records import Task, Trajectory
from agentkit.tools.corpus import Corpus
from agentkit.tools.environments import CorpusEnvironment

Draft = Callable[[Corpus, random.Random], Task | None]
Relabel = Callable[[Task, Trajectory], Task | None]
Measure = Callable[[Task, Trajectory], float | None]  # a value in [0, 1]; None: not to be counted


@dataclass(frozen=True, slots=True)
class Family:
    """What the kit has to know of a kind of task."""

    draft: Draft | None = None  # makes one random task, or None to try again; a task file needs none
    environment: Callable[[], object] = CorpusEnvironment  # one a trajectory; public methods are the tools
    relabel: Relabel | None = None  # the task that a trajectory did solve, for hindsight
    measures: Mapping[str, Measure] = field(default_factory=dict)  # what policies are compared by besides


def difficulty(calls: int) -> str:
    """easy 1-2, medium 3-4, hard 5 or more tool calls of the scripted expert."""
    return "easy" if calls <= 2 else "medium" if calls <= 4 else "hard"


def with_content_id(task: Task) -> Task:
    """The task with an id that is a hash of its content: equal ids mean equal tasks, in any suite on any
    machine.

    Split and difficulty are not content: they depend on the suite around a task and on its measured solution.
    """
    content = [task.family, task.prompt, task.answer, task.verifier, list(task.tools), task.meta]
    text = json.dumps(content, sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:10]
    return replace(task, id=f"{task.family}-{digest}")
