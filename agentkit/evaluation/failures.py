"""How a policy fails: each failure in exactly one class, by the first stated rule that holds.

The rules read the record and, where the task has one, its plan; they do not guess at intent. Leaves out
success and its tests (comparison) and showing trajectories (views.widgets).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from agentkit.evaluation import Samples, flatten, tables
from agentkit.evaluation.evidence import answer_if, stands
from agentkit.records import StopReason, Task, ToolResult, Trajectory
from agentkit.trajectories import needs_tools, plan_of, results_of

FAILURES = {
    "engine failed": "the engine or the environment broke, or the wall clock ran out: not the policy's fault",
    "out of turns": "the last allowed turn still called a tool",
    "out of tokens": "a turn or the whole completion reached its token budget",
    "answer form": "no answer by the protocol, or the right one in a form that does not count",
    "no call worked": "a task that needs a tool was answered without a call that worked",
    "misreported": "a tool had returned the right answer, and another was given",
    "stopped after a failed call": "the last call failed and was not repeated",
    "fact not found": "a fact that the plan needs was never seen",
    "step skipped": "the facts were there, and a later step was done in the head",
    "wrong result": "the tools worked and the answer is wrong",
}
ENDED = {
    StopReason.ERROR: "engine failed",
    StopReason.TIME_LIMIT: "engine failed",
    StopReason.TURN_LIMIT: "out of turns",
    StopReason.TOKEN_LIMIT: "out of tokens",
    StopReason.TRUNCATED_TURN: "out of tokens",
}


def failure_class(t: Trajectory, task: Task) -> str:
    """The one class of FAILURES a failed trajectory belongs to: the first whose rule holds."""
    if t.stop_reason in ENDED:
        return ENDED[t.stop_reason]
    if not (t.answer or "").strip() or stands(task.answer, t.answer):
        return "answer form"
    results = results_of(t)
    worked = [result for result in results if result.ok]
    if needs_tools(task) and not worked:
        return "no call worked"
    if _was_seen(task, worked):
        return "misreported"
    if results and not results[-1].ok:
        return "stopped after a failed call"
    facts = [str(step["expect"]) for step in plan_of(task) if step.get("expect") is not None]
    if not all(any(stands(fact, result.observation) for result in worked) for fact in facts):
        return "fact not found"
    later = {step["tool"] for step in plan_of(task) if step.get("expect") is None}
    is_skipped = later and not later & {result.name for result in worked}
    return "step skipped" if is_skipped else "wrong result"


def unread(trajectories: Iterable[Trajectory]) -> str:
    """One sentence: how many answers the protocol could not read, and why, the most frequent reason first."""
    held = list(trajectories)
    mark = "no answer: "
    reasons = Counter(t.why.removeprefix(mark) for t in held if t.answer is None and t.why.startswith(mark))
    if not reasons:
        return "Every answer that was given could be read."
    listed = "; ".join(f"{why} ({n})" for why, n in reasons.most_common())
    return f"{reasons.total()} of {len(held)} answers could not be read: {listed}."


def _was_seen(task: Task, worked: Sequence[ToolResult]) -> bool:
    """Whether a tool returned the right answer, or what the task says it follows from."""
    if not worked:
        return False
    is_new = not stands(task.answer, task.prompt)
    follows = [key for key, value in answer_if(task).items() if value == task.answer]
    return (is_new and any(stands(task.answer, result.observation) for result in worked)) or any(
        stands(key, worked[-1].observation) for key in follows
    )


@dataclass(frozen=True)
class Failures:
    """Failed trajectories of each policy by class."""

    counts: dict[str, dict[str, int]]  # class -> policy -> failed trajectories, in the order of FAILURES
    totals: dict[str, int]  # policy -> scored trajectories
    unscored: dict[str, int]  # policy -> trajectories the verifier could not judge: in no class

    def table(self) -> pd.DataFrame:
        """One row a class, one column a policy: trajectories and their share of the scored ones."""
        whole = {p: sum(counts[p] for counts in self.counts.values()) for p in self.totals}
        return tables.text_table({
            name: {policy: self._cell(policy, counts[policy]) for policy in self.totals}
            for name, counts in (self.counts | {"all failures": whole}).items()
        })  # fmt: skip

    def _cell(self, policy: str, n: int) -> str:
        return f"{n} ({n / self.totals[policy]:.1%})" if self.totals[policy] else "–"

    def sentences(self) -> list[str]:
        """How many failed under each policy, and how they did most often."""
        said = []
        for policy, total in self.totals.items():
            counts = Counter({name: counts[policy] for name, counts in self.counts.items()})
            words = f"{policy}: {counts.total()} of {total} trajectories failed"
            for worst, n in counts.most_common(1):
                words += f", most often “{worst}” ({n}): {FAILURES[worst]}" if n else ""
            said.append(f"{words}.")
        return said

    def _repr_html_(self) -> str:
        rules = [f"{name}: {FAILURES[name]}." for name in self.counts]
        unscored = "{}: {} trajectories could not be scored and are in no class."
        notes = self.sentences() + [unscored.format(policy, n) for policy, n in self.unscored.items() if n]
        caption = "Failed trajectories, and their share of all scored ones"
        return tables.to_html(self.table(), caption, notes, rules)


def failures(policies: Mapping[str, Samples], tasks: Iterable[Task]) -> Failures:
    """Put every failed trajectory (success below 1) into one class and count the unscored."""
    by_id = {task.id: task for task in tasks}
    counts: dict[str, dict[str, int]] = {name: dict.fromkeys(policies, 0) for name in FAILURES}
    totals, unscored = dict.fromkeys(policies, 0), dict.fromkeys(policies, 0)
    for policy, samples in policies.items():
        for t in flatten(samples):
            (unscored if t.success is None else totals)[policy] += 1
            if t.success is not None and t.success < 1.0:
                counts[failure_class(t, by_id[t.task_id])][policy] += 1
    return Failures({name: c for name, c in counts.items() if any(c.values())}, totals, unscored)
