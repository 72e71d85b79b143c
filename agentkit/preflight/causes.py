"""What makes every other finding meaningless: tools that do not show what plans expect, limits that no gold
trajectory fits, a verifier that takes anything, answers that stand in the question, a test that was trained
on. These items come first, as the others only show their symptoms.

Leaves out the reward (reward_checks) and what the starting policy does (checks).
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from agentkit.preflight.report import Item, gold_ids
from agentkit.records import Task, ToolResult, Trajectory
from agentkit.rollouts.chat import CUT
from agentkit.runs import Recipe
from agentkit.tasks.audit import Environments, audit
from agentkit.tasks.expert import shown
from agentkit.training.selection import spread_over
from agentkit.trajectories import LIMITS, call_key, met_limit, needs_tools, plan_of, results_of
from agentkit.verifiers import normalize

CUT_MARK, SLOW = CUT.partition("{")[0], "did not answer within"  # how replies say it
ODDS = 0.05  # steps of plans that may go astray: a corpus may hold a fact twice
MOST = 0.5  # share of tasks or test tasks
LOOKED = 200  # tasks that are asked about, at the most
LEAST = 4  # words or tasks from which something can be said
FITS = 0.5  # share of gold trajectories that must stay within the limits
ANYTHING = {  # a check of the audit, and what a verifier that fails it takes
    "perturbed": "another number or name for the gold one",
    "other entity": "another task's answer",
    "both answers": "any text that holds the gold answer",
    "longest passage": "any text that holds the gold answer",
    "prompt echo": "the question as its own answer",
    "empty": "nothing at all",
    "refusal": "a refusal",
    "calls alone": "the plan's calls where they changed nothing",
    "no calls": "that nothing was done",
    "call dropped": "the plan without one of its calls",
    "call repeated": "a call that was made twice",
    "another argument": "a call with another argument",
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
            if not result.ok or (expected is not None and shown(result.observation, expected) is None):
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
        advice = "Compare all of the answer, or of the state, with what is right"
    else:
        return Item(
            "Verifier", "green", f"The verifiers of {len(tasks)} tasks refuse answers that are wrong."
        )
    row, of = failed[0], tuple(dict.fromkeys(row["task"] for row in failed))
    finding = f"The verifier {row['verifier']!r} {does} in {len(of)} of {len(tasks)} tasks."
    return Item(
        "Verifier", "red", finding, f"{advice} ({row['answer'][:80]!r}: {str(row['why'])[:160]}).", of
    )


# ---- the tasks themselves
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
    by_answer, test = defaultdict(list), spread_over(test, LOOKED)
    for task in train:
        by_answer[task.answer].append((task, _words(task)))
    seen = [task for task in test if _asked_in(task, by_answer[task.answer])]
    finding = f"{len(seen)} of {len(test)} test tasks ask what a training task asks."
    if len(seen) <= ODDS * len(test):
        return Item("Test and training", "green", finding)
    advice = f"Split the tasks again ({seen[0].prompt[:120]!r}): what is memorised would count as learnt."
    light = "red" if len(seen) > MOST * len(test) else "amber"
    return Item("Test and training", light, finding, advice, tuple(task.id for task in seen))


def _words(task: Task) -> frozenset[str]:
    return frozenset(normalize(task.prompt).split())


def _world(task: Task) -> dict:
    """What the environment is told besides: the same question in another world is another task."""
    return {name: value for name, value in task.meta.items() if name not in ("plan", "pass_rate")}


def _asked_in(task: Task, others: Sequence[tuple[Task, frozenset[str]]]) -> bool:
    words, plan = _words(task), plan_of(task)
    for other, theirs in others:
        contained = min(len(words), len(theirs)) >= LEAST and (words <= theirs or theirs <= words)
        if (contained or (plan and plan == plan_of(other))) and _world(task) == _world(other):
            return True
    return False
