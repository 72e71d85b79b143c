"""How a policy fails: each failure in exactly one class, by the first stated rule that holds.

The rules read the record and, where the task has one, its plan; they do not guess at intent. Leaves out
success and its tests (evaluation) and showing trajectories (widgets).
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from agentkit.evaluation import Samples, flatten, tables
from agentkit.evaluation.evidence import answer_if, gave_up, stands, was_run, writes_code
from agentkit.records import StopReason, Task, ToolResult, Trajectory
from agentkit.trajectories import call_key, needs_tools, plan_of, results_of, verifier_kind

FAILURES = {
    "engine failed": "the engine or the environment broke, not the policy",
    "out of time": "the trajectory's wall-clock budget ran out",
    "went in circles": "a limit was reached after one and the same call at least three times",
    "out of turns": "the last allowed turn still called a tool",
    "out of tokens": "a turn or the whole completion reached its token budget",
    "no answer": "the last turn held no answer that could be read",
    "gave up": "the answer says that there is none",
    "answer form": "the right answer stands in it, but with others, or in a form that does not count",
    "no tool used": "a task that needs a tool was answered without any",
    "no call worked": "every tool call failed",
    "untested program": "the program in the answer was never run",
    "wrong program": "a program was run, and it does something else than was asked for",
    "lookup skipped": "a fact the plan needs was never seen, and fewer lookups were made than planned",
    "lookup missed": "a fact the plan needs was never seen: enough lookups asked for the wrong thing",
    "misreported": "a tool had returned the right answer, and another was given",
    "stopped after a failed call": "the last call failed and was not repaired",
    "step skipped": "the facts were there, and a later step, such as the calculation, was done in the head",
    "wrong operands": "the later step was called without one of the facts, a copying error for instance",
    "wrong operation": "the later step was called with all facts found and did something else with them",
    "wrong result": "the tools worked and the answer is wrong; the task has no plan that says more",
}
ENDED = {
    StopReason.ERROR: "engine failed",
    StopReason.TIME_LIMIT: "out of time",
    StopReason.TURN_LIMIT: "out of turns",
    StopReason.TOKEN_LIMIT: "out of tokens",
    StopReason.TRUNCATED_TURN: "out of tokens",
}


def failure_class(t: Trajectory, task: Task) -> str:
    """The one class of FAILURES a failed trajectory belongs to: the first whose rule holds."""
    if ended := _ended(t):
        return ended
    if not (t.answer or "").strip():
        return "no answer"
    if gave_up(t.answer, task):
        return "gave up"
    if stands(task.answer, t.answer):
        return "answer form"
    results = results_of(t)
    if not results and needs_tools(task):
        return "no tool used"
    if results and not any(r.ok for r in results):
        return "no call worked"
    if writes_code(task):
        return _program(task, t.answer, results)
    return _evidence(task, results) or _steps(task, results)


def _ended(t: Trajectory) -> str | None:
    """A class that the stop reason alone decides."""
    ended = ENDED.get(t.stop_reason)
    if ended in ("out of turns", "out of tokens"):
        calls = Counter(call_key(result) for result in results_of(t) if result.name)
        if max(calls.values(), default=0) >= 3:
            return "went in circles"
    return ended


def _program(task: Task, answer: str, results: Sequence[ToolResult]) -> str:
    """What went wrong with writing, running and reporting a program."""
    if verifier_kind(task) == "code":
        return "wrong program" if was_run(answer, results) else "untested program"
    if any(r.ok and stands(task.answer, r.observation) for r in results):
        return "misreported"
    return "wrong program" if results[-1].ok else "stopped after a failed call"


def _evidence(task: Task, results: Sequence[ToolResult]) -> str | None:
    """What went wrong with finding and reporting facts, or None."""
    seen = [r.observation for r in results if r.ok]
    needed = [step for step in plan_of(task) if step.get("expect") is not None]
    missing = [step["tool"] for step in needed if not any(stands(str(step["expect"]), text) for text in seen)]
    if missing:
        planned = sum(step["tool"] in missing for step in needed)
        lookups = {call_key(r) for r in results if r.ok and r.name in missing}
        return "lookup skipped" if len(lookups) < planned else "lookup missed"
    is_in_prompt = stands(task.answer, task.prompt)
    was_seen = not is_in_prompt and any(stands(task.answer, text) for text in seen)
    keys = [key for key, value in answer_if(task).items() if value == task.answer]
    if was_seen or (seen and any(stands(key, seen[-1]) for key in keys)):
        return "misreported"
    searched = any(r.name == "search" for r in results)
    if searched and not plan_of(task) and verifier_kind(task) == "exact" and not is_in_prompt:
        return "lookup missed"
    return None


def _steps(task: Task, results: Sequence[ToolResult]) -> str:
    """What went wrong with the steps that come after finding the facts."""
    if results and not results[-1].ok:
        return "stopped after a failed call"
    later = {step["tool"] for step in plan_of(task) if step.get("expect") is None}
    facts = [str(step["expect"]) for step in plan_of(task) if step.get("expect") is not None]
    calls = [r.arguments for r in results if r.ok and r.name in later]
    if later and not calls:
        return "step skipped"
    if not (later and facts):
        return "wrong result"
    texts = [json.dumps(arguments, ensure_ascii=False, default=str) for arguments in calls]
    used_all = all(any(stands(fact, text) for text in texts) for fact in facts)
    return "wrong operation" if used_all else "wrong operands"


@dataclass(frozen=True)
class Failures:
    """Failed trajectories of each policy by class."""

    counts: dict[str, dict[str, int]]  # class -> policy -> failed trajectories, in the order of FAILURES
    totals: dict[str, int]  # policy -> scored trajectories
    unscored: dict[str, int]  # policy -> trajectories the verifier could not judge: in no class

    def table(self) -> pd.DataFrame:
        """One row a class, one column a policy: trajectories and their share of the scored ones."""
        whole = {p: sum(counts[p] for counts in self.counts.values()) for p in self.totals}
        rows = self.counts | {"all failures": whole}
        for name, counts in rows.items():
            rows[name] = {policy: self._cell(policy, counts[policy]) for policy in self.totals}
        return tables.text_table(rows)

    def _cell(self, policy: str, n: int) -> str:
        return f"{n} ({n / self.totals[policy]:.1%})" if self.totals[policy] else "–"

    def sentences(self) -> list[str]:
        """How many failed and how under each policy, and what shrank or grew most from first to last."""
        sentences = []
        for policy, total in self.totals.items():
            counts = Counter({name: counts[policy] for name, counts in self.counts.items()})
            words = f"{policy}: {counts.total()} of {total} trajectories failed"
            for worst, n in counts.most_common(1):
                words += f", most often “{worst}” ({n}): {FAILURES[worst]}" if n else ""
            sentences.append(f"{words}.")
        first, last = list(self.totals)[0], list(self.totals)[-1]
        changes = {name: self._share(last, c) - self._share(first, c) for name, c in self.counts.items()}
        fallen = {name: change for name, change in changes.items() if change < 0}
        risen = {name: change for name, change in changes.items() if change > 0}
        moved = [_change(fallen, min(fallen, key=fallen.get), "fell")] if fallen else []
        moved += [_change(risen, max(risen, key=risen.get), "rose")] if risen else []
        return sentences + ([f"From {first} to {last}, {' and '.join(moved)}."] if moved else [])

    def _share(self, policy: str, counts: Mapping[str, int]) -> float:
        return counts[policy] / max(self.totals[policy], 1)

    def _repr_html_(self) -> str:
        rules = [f"{name}: {FAILURES[name]}." for name in self.counts]
        unscored = "{}: {} trajectories could not be scored and are in no class."
        notes = self.sentences() + [unscored.format(policy, n) for policy, n in self.unscored.items() if n]
        caption = "Failed trajectories, and their share of all scored ones"
        return tables.to_html(self.table(), caption, notes, rules)


def _change(changes: Mapping[str, float], name: str, verb: str) -> str:
    return f"“{name}” {verb} most ({100 * changes[name]:+.1f} points)"


def failures(policies: Mapping[str, Samples], tasks: Iterable[Task]) -> Failures:
    """Put every failed trajectory (success below 1) into one class and count the unscored."""
    by_id = {task.id: task for task in tasks}
    counts: dict[str, dict[str, int]] = {name: dict.fromkeys(policies, 0) for name in FAILURES}
    totals, unscored = dict.fromkeys(policies, 0), dict.fromkeys(policies, 0)
    for policy, samples in policies.items():
        for t in flatten(samples):
            if t.success is None:
                unscored[policy] += 1
                continue
            totals[policy] += 1
            if t.success < 1.0:
                counts[failure_class(t, by_id[t.task_id])][policy] += 1
    return Failures({name: c for name, c in counts.items() if any(c.values())}, totals, unscored)
