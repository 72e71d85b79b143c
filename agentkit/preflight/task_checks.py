"""Are the tasks what they are meant to be? Answers that stand in the question, a test that was trained on.

No rollout of the expert is needed, so that tasks without a plan are looked at too. Leaves out what the audit
asks of every suite (tasks.audit).
"""

from collections import defaultdict
from collections.abc import Sequence

from agentkit.preflight.report import Item
from agentkit.records import Task
from agentkit.trajectories import needs_tools, plan_of
from agentkit.verifiers import normalize

MOST, FEW = 0.5, 0.05  # shares of tasks
LOOKED = 200  # tasks that are asked about, at the most
LEAST = 4  # words or tasks from which something can be said


def given_away(tasks: Sequence[Task]) -> Item:
    """Whether gold answers stand in the questions, where tools are needed to find them."""
    asked = [task for task in tasks if needs_tools(task) and task.answer.strip()]
    told = [t for t in asked if f" {normalize(t.answer)} " in f" {normalize(t.prompt)} "]
    finding = f"The gold answer stands in the question of {len(told)} of {len(asked)} tasks that need tools."
    if len(told) <= MOST * len(asked) or len(told) < LEAST:
        return Item("Questions", "green", finding)
    shown = f"{told[0].prompt[:120]!r}"
    advice = f"Unless they are choices, take it out ({shown}): copying it is all there is to learn."
    return Item("Questions", "amber", finding, advice, tuple(task.id for task in told))


def held_out(train: Sequence[Task], test: Sequence[Task]) -> Item:
    """Whether test questions are training questions again: one gold answer, and one plan or all its words."""
    by_answer, test = defaultdict(list), evenly(test)
    for task in train:
        by_answer[task.answer].append((task, _words(task)))
    seen = [task for task in test if _asked_in(task, by_answer[task.answer])]
    finding = f"{len(seen)} of {len(test)} test tasks ask what a training task asks."
    if len(seen) <= FEW * len(test):
        return Item("Test and training", "green", finding)
    advice = f"Split the tasks again ({seen[0].prompt[:120]!r}): what is memorised would count as learnt."
    light = "red" if len(seen) > MOST * len(test) else "amber"
    return Item("Test and training", light, finding, advice, tuple(task.id for task in seen))


def evenly(tasks: Sequence[Task], n: int = LOOKED) -> list[Task]:
    """At most ``n`` tasks, evenly spread over the list, so that every family and difficulty has its share."""
    return [tasks[i * len(tasks) // n] for i in range(n)] if len(tasks) > n else list(tasks)


def _words(task: Task) -> frozenset[str]:
    return frozenset(normalize(task.prompt).split())


def _world(task: Task) -> dict:
    """What the environment is told besides: the same question in another world is another task."""
    return {name: value for name, value in task.meta.items() if name not in ("plan", "pass_rate", "band")}


def _asked_in(task: Task, others: Sequence[tuple[Task, frozenset[str]]]) -> bool:
    words, plan = _words(task), plan_of(task)
    for other, theirs in others:
        contained = min(len(words), len(theirs)) >= LEAST and (words <= theirs or theirs <= words)
        if (contained or (plan and plan == plan_of(other))) and _world(task) == _world(other):
            return True
    return False
