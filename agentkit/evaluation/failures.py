"""How a policy fails: each failure in exactly one class, by the first stated rule that holds.

The rules read the record and, where the task has one, its plan; they do not guess at intent. Leaves out
success and its tests (comparison) and showing trajectories (views.widgets).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from agentkit.evaluation import Samples, flatten
from agentkit.evaluation.evidence import answer_if, stands
from agentkit.records import StopReason, Task, ToolResult, Trajectory
from agentkit.trajectories import expected_of, needs_tools, plan_of, results_of, verifier_kind
from agentkit.verifiers import judges_state

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
    "wrong result": "the tools worked and the answer, or the state, is wrong",
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
    by_state = judges_state(verifier_kind(task))
    if not by_state and (not (t.answer or "").strip() or stands(task.answer, t.answer)):
        return "answer form"
    results = results_of(t)
    worked = [result for result in results if result.ok]
    if needs_tools(task) and not worked:
        return "no call worked"
    if not by_state and _was_seen(task, worked):
        return "misreported"
    if results and not results[-1].ok:
        return "stopped after a failed call"
    facts = [str(fact) for fact in map(expected_of, plan_of(task)) if fact is not None]
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


def failures(policies: Mapping[str, Samples], tasks: Iterable[Task]) -> pd.DataFrame:
    """How many trajectories failed (success below 1) in each class that occurs, one column a policy.

    Those that are not scored are in no class.
    """
    return failed_tasks(policies, tasks).map(len).astype(int)


def failed_tasks(policies: Mapping[str, Samples], tasks: Iterable[Task]) -> pd.DataFrame:
    """The same with the ids of the tasks that failed so, once for each trajectory."""
    by_id = {task.id: task for task in tasks}
    table = pd.DataFrame({policy: [[] for _ in FAILURES] for policy in policies}, list(FAILURES))
    for policy, samples in policies.items():
        for t in flatten(samples):
            if t.success is not None and t.success < 1.0:
                table.loc[failure_class(t, by_id[t.task_id]), policy].append(t.task_id)
    return table[table.map(len).any(axis=1)]
