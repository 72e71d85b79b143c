"""What makes every other finding meaningless: tools that do not show what plans expect, limits that no gold
trajectory fits, a sampler that is not the trainer, a verifier that takes anything. These items come first,
as the others only show their symptoms.

Leaves out the reward (reward_checks) and what the starting policy does (checks).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agentkit.policies.sync_guard import sampled_logits
from agentkit.preflight.report import Item, gold_ids, ids
from agentkit.records import StopReason, Task, ToolResult, Trajectory
from agentkit.rollouts.chat import CUT
from agentkit.runs import Recipe
from agentkit.tasks.audit import Environments, audit
from agentkit.tasks.expert import shows
from agentkit.tools.outages import momentary
from agentkit.trajectories import LIMITS, call_key, met_limit, plan_of, results_of

CUT_MARK, SLOW = CUT.partition("{")[0], "did not answer within"  # how replies say it
ODDS = 0.05  # steps of plans that may go astray: a corpus may hold a fact twice
FITS = 0.5  # share of gold trajectories that must stay within the limits
APART, EXACT = 0.1, 0.01  # nats between sampler and trainer, in half precision (0.01 to 0.03) and single
COMPARED, TOKENS = 6, 256  # trajectories whose log-probabilities are computed again, and tokens of each
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
    name = "Limits"
    if not golden:
        return Item(name, "green", "There are no gold trajectories to try them on.")
    cut = [t for t in golden if met_limit(t)]
    keys = {reason: f"{key} {getattr(recipe, key):g}" for reason, key in LIMITS.items()}
    at_limit = [t for t in cut if t.stop_reason == StopReason.TOKEN_LIMIT]
    if any(len(t.completion_ids) < recipe.max_tokens for t in at_limit):
        keys[StopReason.TOKEN_LIMIT] += " or the model's context"
    named = ", ".join(keys[reason] for reason, _ in Counter(t.stop_reason for t in cut).most_common())
    finding = f"{len(cut)} of {len(golden)} gold trajectories meet a limit{f' ({named})' * bool(cut)}."
    light = "red" if len(cut) >= FITS * len(golden) else "amber" if len(cut) > ODDS * len(golden) else "green"
    few, change = "most" if light == "red" else "some", "Raise"
    if all(any(map(momentary, results_of(t))) for t in cut):
        change = f"Lower tool_failures {recipe.tool_failures:g}, or raise"
    advice = f"{change} {named}: {few} right policies could not finish." if light != "green" else ""
    return Item(name, light, finding, advice, gold_ids(cut), {"cut": len(cut) / len(golden)})


def tools_as_planned(golden: Sequence[Trajectory], tasks: Mapping[str, Task]) -> Item:
    """Whether calls of the expert work and show the value that the plan expects."""
    name, looked, astray = "Tools and plans", Counter(), []
    for t in golden:
        for step, result in zip(plan_of(tasks[t.task_id]), _lasting(t), strict=False):
            looked[step["tool"]] += 1
            expected = step.get("expect")
            is_shown = expected is None or shows(result.name, result.observation, expected)
            if not result.ok or not is_shown:
                astray.append((t, result, expected))
                break  # what comes after rests on it
    total = looked.total()
    if not total:
        return Item(name, "green", "No plan calls a tool.")
    finding = f"{total - len(astray)} of {total} calls of the expert show what the plan expects."
    evidence = gold_ids(t for t, *_ in astray)
    values = {"calls": total, "astray": len(astray)}
    if len(astray) <= ODDS * total:
        return Item(name, "green", finding, evidence=evidence, values=values)
    tool, _ = Counter(result.name for _, result, _ in astray).most_common(1)[0]
    advice = _astray(tool, [(r, e) for _, r, e in astray if r.name == tool], looked[tool])
    return Item(name, "red", finding, advice, evidence, values | {"tool": tool})


def _lasting(trajectory: Trajectory) -> list[ToolResult]:
    """Its results without failures of the moment, after which the same call was made again."""
    results = results_of(trajectory)
    later = [*map(call_key, results[1:]), None][: len(results)]
    return [r for r, after in zip(results, later, strict=True) if r.ok or call_key(r) != after]


def _astray(tool: str, cases: Sequence[tuple[ToolResult, str | None]], calls: int) -> str:
    """What is wrong with a tool: it is slow, cut, fails, says one thing, or says something else."""
    reply, times = Counter(result.observation for result, _ in cases).most_common(1)[0]
    failed = [result.observation for result, _ in cases if not result.ok]
    result, expected = cases[0]
    if sum(SLOW in text for text in failed) > len(cases) / 2:
        return f"Raise tool_timeout_s, or make {tool} faster: {len(failed)} of {calls} calls end by time."
    if all(CUT_MARK in result.observation for result, _ in cases):
        return f"Raise max_observation: {tool} is cut before what the plan expects."
    if len(failed) > len(cases) / 2:
        what = f"fails in {len(failed)} of {calls} calls of the expert ({reply[:80]!r})"
    elif times > len(cases) / 2 and times > 1:
        what = f"is dead: it says {reply[:80]!r} in {times} of {calls} calls of the expert"
    else:
        example = f"{result.observation[:80]!r} where the plan expects {expected!r}"
        what = f"is stale or answers something else in {len(cases)} of {calls} calls ({example})"
    return f"The tool {tool} {what}. Mend it, or build the tasks again from what it says now."


def cache(golden: Sequence[Trajectory], fresh: Sequence[Trajectory]) -> Item:
    """Whether tools that are asked again say what their cache says; ``fresh`` are the same calls, asked."""
    pairs = [
        (t, one, two)
        for t, again in zip(golden, fresh, strict=True)
        for one, two in zip(results_of(t), results_of(again), strict=False)
        if one.cached and one.ok and two.ok and one.arguments == two.arguments
    ]
    other = [(t, one, two) for t, one, two in pairs if one.observation != two.observation]
    same = len(pairs) - len(other)
    finding = f"{same} of {len(pairs)} cached answers are what the tool says when asked again."
    if not other:
        return Item("Cached tools", "green", finding)
    _, one, two = other[0]
    advice = (
        f"{one.name} is declared pure and is not ({one.observation[:60]!r}, then {two.observation[:60]!r}): "
        "it depends on more than its arguments, or has changed. Take pure=True away, or raise its version."
    )
    light = "red" if len(other) > ODDS * len(pairs) else "amber"
    return Item("Cached tools", light, finding, advice, gold_ids(t for t, *_ in other))


def sampler(model: Any, sampled: Sequence[Trajectory], temperature: float) -> Item | None:
    """Whether the sampler's log-probabilities are the trainer's; None where it gave none."""
    from agentkit.rollouts.tokens import token_logprobs

    chosen = [t for t in sampled if any(t.old_logprobs) and any(t.action_mask)]
    chosen = chosen[:: max(1, len(chosen) // COMPARED)][:COMPARED]
    if not chosen:
        return None
    apart = []
    for t in chosen:
        places = np.flatnonzero(t.action_mask)
        places = places[:: -(-len(places) // TOKENS)]
        logits, ids_at = (values[places] for values in sampled_logits(model, t.prompt_ids, t.completion_ids))
        own = token_logprobs(logits, ids_at, temperature or 1.0)[0].cpu().numpy()
        apart.append(np.abs(own - np.array(t.old_logprobs)[places]))
    now, allowed = float(np.concatenate(apart).mean()), EXACT if model.dtype.itemsize == 4 else APART
    finding = f"Log-probabilities of sampled tokens differ by {now:.2g} nats on average."
    if now < allowed:
        return Item("Sampler and trainer", "green", finding, values={"apart": now})
    advice = "Give both the same weights and the same temperature, and reset the engine's caches."
    return Item("Sampler and trainer", "red", finding, advice, ids(chosen), {"apart": now})


def verifier(tasks: Sequence[Task], environments: Environments) -> Item:
    """Whether the verifiers of these tasks tell wrong answers from right ones (tasks.audit)."""
    name, few = "Verifier", ODDS * len(tasks)
    rows = [row for row in audit(tasks, environments) if not row["passed"]]
    silent = {row["task"]: row for row in rows if row["answer"] and row["value"] is None}
    if len(silent) > few:
        row = next(iter(silent.values()))
        finding = f"The verifier {row['verifier']!r} gives no verdict in {len(silent)} of {len(tasks)} tasks."
        why = f"{row['answer'][:80]!r}: {str(row['why'])[:160]}"
        advice = f"Mend it or them ({why}); until then their trajectories have no reward."
        return Item(name, "red", finding, advice, tuple(silent))
    failed = [row for row in rows if row["check"] in ANYTHING]
    if len(failed) <= few:
        return Item(name, "green", f"The verifiers of {len(tasks)} tasks refuse answers that are wrong.")
    tried = Counter(row["check"] for row in failed)
    check, times = tried.most_common(1)[0]
    row = next(row for row in failed if row["check"] == check)
    finding = f"The verifier {row['verifier']!r} takes {ANYTHING[check]} in {times} of {len(tasks)} tasks."
    accepted = f"It accepts {row['answer'][:80]!r} ({str(row['why'])[:120]})"
    advice = f"{accepted}: compare the whole answer with the gold one."
    return Item(name, "red", finding, advice, tuple(row["task"] for row in failed), dict(tried))
