"""Can a suite's verifiers be trusted? Every task is scored on its gold answer and on answers that must fail.

A reward bug looks like a flat reward curve; here it is a row with the task's id. Leaves out whether the gold
answer is true.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from agentkit.records import Score, Task, Trajectory
from agentkit.runs import with_progress
from agentkit.tasks import state_audit
from agentkit.tasks.expert import solve, unsolved
from agentkit.tasks.state_audit import perturb
from agentkit.tools import Passages, search_passages
from agentkit.tools.corpus import Corpus
from agentkit.tools.runtime import example
from agentkit.trajectories import plan_of, verifier_kind
from agentkit.verifiers import judges_state, looks_at_calls, normalize, verify

CHECKS = ("data", "gold", "perturbed", "other entity", "empty", "prompt echo", "both answers", "refusal",
          "longest passage", "repeatable")  # fmt: skip
ALL_CHECKS = (*CHECKS, *state_audit.CHECKS)
AT_ONCE = 4  # tasks
NUMBER = re.compile(r"-?\d+(?:\.\d+)?", re.ASCII)
MOST_ALLOWED = 0.25  # of a gold number: a tolerance beyond it takes wrong answers
REFUSAL = "I could not find this."
Environments = Mapping[str, Callable[[], object]]


def audit(tasks: Sequence[Task], environments: Environments = MappingProxyType({})) -> list[dict[str, Any]]:
    """Score every task on answers whose verdict is known, once its gold data can be read.

    The gold answer (``meta["right_answer"]`` where the gold answer is no answer itself, as for a pattern)
    must score 1. A perturbed one, another task's answer, nothing, the prompt, two answers, a refusal and the
    longest passage the tools show on the way must score 0, and the first two are scored twice. Tasks without
    a gold answer are left out where it is needed. Where a verifier looks at the trajectory, the answers are
    put into that of the scripted expert, who works in the family's environment; for a task without a plan
    into one without calls, and then nothing is asked that must score 1; nor of a pattern without
    ``right_answer``, which a row says. Where a verifier judges the state at the end, calls are changed in
    place of answers (state_audit).

    Returns:
        One row for every check and verifier that all tasks passed (``check``, ``verifier``, ``passed``,
        ``tasks``), and one for every task that fails one (``task``, ``answer``, ``why``).
    """
    others = _other_answers(tasks)
    by_check = defaultdict(list)
    with ThreadPoolExecutor(AT_ONCE) as pool:  # programs are tested beside each other
        checked = pool.map(lambda task: _checked(task, others.get(task.id), environments), tasks)
        for rows in with_progress(checked, "audit", "task", len(tasks)):
            for row in rows:
                by_check[ALL_CHECKS.index(row["check"]), row["verifier"]].append(row)
    table = []
    for (check, kind), rows in sorted(by_check.items()):
        passed = {
            "check": ALL_CHECKS[check],
            "verifier": kind,
            "passed": True,
            "tasks": len({row["task"] for row in rows}),
        }
        table += [row for row in rows if not row["passed"]] or [passed]
    if untried := [task.id for task in tasks if _is_pattern(task) and "right_answer" not in task.meta]:
        why = f"no right answer was tried, as meta['right_answer'] of {untried[0]} would say"
        table.append({"check": "gold", "verifier": "regex", "passed": True, "tasks": 0, "why": why})
    return table


def _row(check: str, task: Task, answer: str, passed: bool, score: Score) -> dict[str, Any]:
    row = {"check": check, "verifier": verifier_kind(task), "passed": passed, "task": task.id}
    return row | {"answer": answer[:500], "value": score.value, "why": score.why}


def _checked(task: Task, other: str | None, environments: Environments) -> list[dict[str, Any]]:
    """A row for each check of a task, the first alone where its gold data cannot be used."""
    try:
        tries = list(_tries(task, other, environments))
    except ValueError as error:
        score = Score(None, f"its gold data cannot be used: {error}")
        return [_row("data", task, "", False, score)]
    rows = [_row("data", task, "", True, Score(None))]
    for check, said, tried, right, why in tries:
        score = _score(task, tried)
        passes = score.value is not None and (score.value == 1.0) == right
        told = score if passes or not why else replace(score, why=f"{score.why or 'no reason given'}; {why}")
        rows.append(_row(check, task, said, passes, told))
        if check in ("gold", "perturbed"):
            again = _score(task, tried)
            rows.append(_row("repeatable", task, said, again == score, again))
    return rows


def _tries(
    task: Task, other: str | None, environments: Environments
) -> Iterator[tuple[str, str, str | Trajectory, bool, str]]:
    """Check, what it tries, as it is judged, whether that must pass, and why. Raises ValueError."""
    if judges_state(verifier_kind(task)):
        yield from state_audit.cases(task, _environment(task, environments))
        return
    expert, unplanned = _expert(task, environments), task.meta.get("plan") is None
    for check, answer, right in _cases(task, other):
        if expert is None:
            yield check, answer, answer, right, ""
        elif not (right and unplanned):
            yield check, answer, replace(expert, answer=answer), right, ""


def _expert(task: Task, environments: Environments) -> Trajectory | None:
    """The scripted expert's trajectory where the verifier looks at one, without calls where the task has no
    plan. Raises ValueError where it fails.
    """
    if not looks_at_calls(verifier_kind(task)):
        return None
    if task.meta.get("plan") is None:
        return unsolved(task)
    return solve(task, _environment(task, environments))


def _environment(task: Task, environments: Environments) -> object:
    if task.family not in environments:
        raise ValueError(
            f"its verifier looks at trajectories, and no environment of family {task.family!r} is known"
        )
    return example(environments[task.family])


def _score(task: Task, tried: str | Trajectory) -> Score:
    if judges_state(verifier_kind(task)):  # calls are changed, and only the state counts
        task = replace(task, meta=task.meta | {"required_tools": ()})
    try:
        return verify(task, tried)
    except (TypeError, ValueError) as error:  # an option that the verifier does not have, or no verifier
        return Score(None, str(error))


# ---- answers whose verdict is known
def _cases(task: Task, other: str | None) -> Iterator[tuple[str, str, bool]]:
    """Check, answer, and whether it must pass. Raises ValueError on gold data of another form."""
    aliases = task.verifier.get("aliases")
    aliases = [aliases] if isinstance(aliases, str) else _texts(task.verifier, "aliases")
    right = {normalize(answer) for answer in (task.answer, *aliases)}
    gold = str(task.meta.get("right_answer", "" if _is_pattern(task) else task.answer))
    if gold.strip():
        if verifier_kind(task) == "code":
            wrong = _wrong_program(task)
            both = f"```python\n{gold}\n```\n```python\n{wrong}\n```"
        else:
            wrong = _wrong_answer(task, gold, right)
            both = f"{gold} or {wrong}"
        yield "gold", gold, True
        yield "perturbed", wrong, False
        yield "both answers", both, False
    if other is not None and normalize(other) not in right:
        yield "other entity", other, False
    yield "empty", "", False
    yield "prompt echo", task.prompt, False
    yield "refusal", REFUSAL, False
    if (passage := longest_passage(task)) is not None:
        yield "longest passage", passage, False


def _is_pattern(task: Task) -> bool:
    """Whether the gold answer is a pattern, and no answer that the verifier must take."""
    own = verifier_kind(task) == "regex" and "pattern" not in task.verifier
    return own and bool(re.search(r"[^\w\s]", task.answer))


def _wrong_answer(task: Task, gold: str, right: set[str]) -> str:
    """The gold answer perturbed, again where an alias says that, and beyond a tolerance that can be meant."""
    wrong, found = perturb(gold), NUMBER.search(gold)
    tolerances = [task.verifier.get(name, 0) for name in ("abs_tol", "rel_tol")]
    if found and all(isinstance(x, int | float) and math.isfinite(x) for x in tolerances):
        number, given = float(found[0]), float(NUMBER.search(wrong)[0])
        allowed = max(tolerances[0], tolerances[1] * abs(number))
        if abs(given - number) <= allowed <= MOST_ALLOWED * abs(number):
            beyond = math.ceil(number + 2 * allowed + 1)
            wrong = f"{gold[: found.start()]}{beyond}{gold[found.end() :]}"
    for _ in right:
        if normalize(wrong) in right:
            wrong = perturb(wrong)
    return wrong


def _wrong_program(task: Task) -> str:
    """A near miss that the task names, or a program whose function gives nothing."""
    if near_misses := _texts(task.meta, "near_misses"):
        return near_misses[0]
    name = task.verifier.get("entry")
    return f"def {name}(*arguments, **named):\n    return None" if name else "print()"


def _other_answers(tasks: Iterable[Task]) -> dict[str, str | None]:
    """For each task answered with words: the next answer in other words to a task of its template."""
    alike = defaultdict(lambda: defaultdict(list))
    for task in tasks:
        if verifier_kind(task) == "exact":
            words = tuple(sorted(normalize(task.answer.replace(",", " ")).split()))
            alike[task.family, str(task.meta.get("template", ""))][words].append(task)
    found = {}
    for group in alike.values():
        answers = list(group.values())
        for same, other in zip(answers, [*answers[1:], answers[0]], strict=True):
            found |= {task.id: other[0].answer for task in same if other is not same}
    return found


def _texts(data: dict[str, Any], name: str) -> list[str]:
    values = data.get(name, [])
    if not isinstance(values, list | tuple) or not all(isinstance(text, str) for text in values):
        raise ValueError(f"{name} is {values!r:.80}; it must be a list of texts")
    return list(values)


def longest_passage(task: Task) -> str | None:
    """The longest text the tools show: the task's own passages, or what its plan searches for last."""
    passages = Passages(task.meta.get("passages", ())).texts
    searches = [step for step in plan_of(task) if step["tool"] == "search"]
    match searches[-1:]:
        case [{"arguments": {"query": str(query)}}] if "{" not in query:
            passages = [*passages, search_passages(_corpus(), query)]
        case [step] if not isinstance(step.get("arguments"), dict):
            raise ValueError(f"the plan has the step {step!r:.80}; a search needs arguments with a query")
    return max(passages, key=len, default=None)


@lru_cache(maxsize=1)
def _corpus() -> Corpus:
    return Corpus()
