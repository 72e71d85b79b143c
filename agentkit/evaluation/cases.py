"""The table of cases by policies, and what so few cases can show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations
from statistics import fmean

import pandas as pd

from agentkit.evaluation.comparison import paired_test, with_verdicts
from agentkit.evaluation.summary import Samples, task_success
from agentkit.evaluation.wording import sentence
from agentkit.records import Task


def case_of(task: Task) -> str:
    """The case a task is listed under: its own meta["case"], else the shape of its plan, from no tool to a
    full pipeline.
    """
    if case := task.meta.get("case"):
        return str(case)
    if not isinstance(plan := task.meta.get("plan"), list):
        return f"Family {task.family}"
    tools = {step.get("tool") for step in plan}
    if len(plan) < 2:
        return "One tool call" if plan else "No tools needed"
    if len(tools) == 1:
        return "Multi-step, one tool"
    if len(plan) == 2:
        return "Two tools, one call each"
    return "Full pipeline, 4 or more calls" if len(plan) > 3 else "Multi-step, several tools"


def case_scores(trajectories: Samples, tasks: Iterable[Task]) -> dict[str, float]:
    """Mean success of the tasks of each case, for ``case_table``."""
    success, cases = task_success(trajectories), {}
    for task in tasks:
        if task.id in success:
            cases.setdefault(case_of(task), []).append(success[task.id])
    return {case: fmean(own) for case, own in cases.items()}


def case_table(scores: Mapping[str, Mapping[str, float]]) -> tuple[pd.DataFrame, list[str]]:
    """Cases by policies with the average over cases, and what such a table can show: one sentence a pair of
    policies.

    The cases are the sample here, so the test is over cases. Six of them rarely show anything.

    Args:
        scores: mean score in [0, 1] by policy and case, the baseline first.

    Raises:
        ValueError: policies are scored on different cases.
    """
    (first, cases), *others = scores.items()
    for name, own in others:
        if own.keys() != cases.keys():
            raise ValueError(
                f"{first} and {name} are scored on different cases: {sorted(own.keys() ^ cases.keys())}."
            )
    table = pd.DataFrame({name: {case: f"{own[case]:.2f}" for case in cases} for name, own in scores.items()})
    table.loc["Average"] = {name: f"{fmean(own.values()):.2f}" for name, own in scores.items()}
    values = {name: {case: [[own[case]]] for case in cases} for name, own in scores.items()}
    pairs = with_verdicts([paired_test(a, b, values[a], values[b]) for a, b in combinations(values, 2)])
    return table, [sentence(pair, None, len(pairs), unit="cases") for pair in pairs]
