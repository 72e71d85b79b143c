"""What makes every other finding meaningless: tools that do not show what plans expect, limits that no gold
trajectory fits, a verifier that takes anything. These items come first, as the others only show their
symptoms.

Leaves out the reward (reward_checks) and what the starting policy does (checks).
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from agentkit.preflight.report import Item, gold_ids
from agentkit.records import Task, ToolResult, Trajectory
from agentkit.rollouts.chat import CUT
from agentkit.runs import Recipe
from agentkit.tasks.audit import Environments, audit
from agentkit.tasks.expert import shows
from agentkit.trajectories import LIMITS, call_key, met_limit, plan_of, results_of

CUT_MARK, SLOW = CUT.partition("{")[0], "did not answer within"  # how replies say it
ODDS = 0.05  # steps of plans that may go astray: a corpus may hold a fact twice
FITS = 0.5  # share of gold trajectories that must stay within the limits
ANYTHING = {  # a check of the audit, and what a verifier that fails it takes
    "perturbed": "another number or name for the gold one",
    "other entity": "another task's answer",
    "both answers": "any text that holds the gold answer",
    "longest passage": "any text that holds the gold answer",
    "prompt echo": "the question as its own answer",
    "empty": "nothing at all",
    "refusal": "a refusal",
}


def limits(golden: Sequence[Trajectory], recipe: Recipe) -> Item:
    """Whether the expert's trajectories fit the limits of turns, tokens and time."""
    cut = [t for t in golden if met_limit(t)]
    finding = f"{len(cut)} of {len(golden)} gold trajectories meet a limit."
    if len(cut) <= ODDS * len(golden):
        return Item("Limits", "green", finding)
    keys = [LIMITS[reason] for reason, _ in Counter(t.stop_reason for t in cut).most_common()]
    change = f"Raise {', '.join(f'{key} {getattr(recipe, key):g}' for key in keys)}"
    if recipe.tool_failures:
        change += f", or lower tool_failures {recipe.tool_failures:g}"
    light, few = ("red", "most") if len(cut) >= FITS * len(golden) else ("amber", "some")
    return Item("Limits", light, finding, f"{change}: {few} right policies could not finish.", gold_ids(cut))


def tools_as_planned(golden: Sequence[Trajectory], tasks: Mapping[str, Task]) -> Item:
    """Whether calls of the expert work and show the value that the plan expects."""
    total, astray = 0, []
    for t in golden:
        for step, result in zip(plan_of(tasks[t.task_id]), _lasting(t), strict=False):
            total += 1
            expected = step.get("expect")
            if not result.ok or not (expected is None or shows(result.name, result.observation, expected)):
                astray.append((t, result, expected))
                break  # what comes after rests on it
    finding = f"{total - len(astray)} of {total} calls of the expert show what the plan expects."
    if len(astray) <= ODDS * total:
        return Item("Tools and plans", "green", finding)
    advice = _astray([(result, expected) for _, result, expected in astray])
    return Item("Tools and plans", "red", finding, advice, gold_ids(t for t, *_ in astray))


def _lasting(trajectory: Trajectory) -> list[ToolResult]:
    """Its results without failures of the moment, after which the same call was made again."""
    results = results_of(trajectory)
    later = [*map(call_key, results[1:]), None][: len(results)]
    return [r for r, after in zip(results, later, strict=True) if r.ok or call_key(r) != after]


def _astray(cases: Sequence[tuple[ToolResult, str | None]]) -> str:
    """What the tool that goes astray most says in place of what plans expect, and what to change."""
    (tool, _), *_ = Counter(result.name for result, _ in cases).most_common()
    cases = [(result, expected) for result, expected in cases if result.name == tool]
    result, expected = cases[0]
    if sum(SLOW in one.observation for one, _ in cases) > len(cases) / 2:
        change = "Raise tool_timeout_s, or make it faster."
    elif all(CUT_MARK in one.observation for one, _ in cases):
        change = "Raise max_observation: it is cut."
    elif any(one.cached for one, _ in cases):
        change = "Where an older answer is cached, it is not pure: take pure=True away, or raise its version."
    else:
        change = "Mend it, or build the tasks again from what it says now."
    return f"The tool {tool} says {result.observation[:80]!r} where the plan expects {expected!r}. {change}"


def verifier(tasks: Sequence[Task], environments: Environments) -> Item:
    """Whether the verifiers of these tasks tell wrong answers from right ones (tasks.audit)."""
    rows = [row for row in audit(tasks, environments) if not row["passed"]]
    unjudged = [row for row in rows if row["answer"] and row["value"] is None]
    taken = [row for row in rows if row["check"] in ANYTHING]
    if len({row["task"] for row in unjudged}) > ODDS * len(tasks):
        failed, does = unjudged, "gives no verdict"
        advice = "Mend it or them; until then their trajectories have no reward"
    elif len(taken) > ODDS * len(tasks):
        (check, _), *_ = Counter(row["check"] for row in taken).most_common()
        failed, does = [row for row in taken if row["check"] == check], f"takes {ANYTHING[check]}"
        advice = "Compare the whole answer with the gold one"
    else:
        return Item(
            "Verifier", "green", f"The verifiers of {len(tasks)} tasks refuse answers that are wrong."
        )
    row, of = failed[0], tuple(dict.fromkeys(row["task"] for row in failed))
    finding = f"The verifier {row['verifier']!r} {does} in {len(of)} of {len(tasks)} tasks."
    return Item(
        "Verifier", "red", finding, f"{advice} ({row['answer'][:80]!r}: {str(row['why'])[:160]}).", of
    )
