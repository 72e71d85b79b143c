"""What makes every other finding meaningless: tools that do not show what plans expect, limits that no gold
trajectory fits, an adapter that cannot move, a sampler that is not the trainer, a verifier that takes
anything. These items come first, as the others only show their symptoms.

Leaves out the reward (reward_checks) and what the starting policy does (checks).
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

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
APART = 0.1  # nats between sampler and trainer; engines in half precision differ by 0.01 to 0.03
EXACT = 2e-3  # nats that no sure policy exceeds in single precision, whatever the temperatures
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
    met = Counter(t.stop_reason for t in cut)
    at_limit = [t for t in cut if t.stop_reason == StopReason.TOKEN_LIMIT]
    context = any(len(t.completion_ids) < recipe.max_tokens for t in at_limit)
    keys = {reason: f"{key} {getattr(recipe, key):g}" for reason, key in LIMITS.items()}
    keys[StopReason.TOKEN_LIMIT] += " or the model's context" * context
    named = ", ".join(keys[reason] for reason, _ in met.most_common())
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
            if not result.ok or (
                expected is not None and not shows(result.name, result.observation, expected)
            ):
                astray.append((t, result, expected))
                break  # what comes after rests on it
    total = looked.total()
    if not total:
        return Item(name, "green", "No plan calls a tool.")
    finding = f"{total - len(astray)} of {total} calls of the expert show what the plan expects."
    values = {"calls": total, "astray": len(astray)}
    if len(astray) <= ODDS * total:
        longer, early = _told_early(golden, tasks)
        if len(early) > longer / 2:
            tool = _lasting(early[0])[0].name
            told = f"{finding} The first reply of {len(early)} of {longer} longer plans holds the answer."
            advice = f"Read what {tool} says: where it tells the answer, no other call is needed."
            return Item(name, "amber", told, advice, gold_ids(early), values | {"tool": tool})
        return Item(name, "green", finding, evidence=gold_ids(t for t, *_ in astray), values=values)
    tool, times = Counter(result.name for _, result, _ in astray).most_common(1)[0]
    advice = _astray(tool, [(r, e) for _, r, e in astray if r.name == tool], looked[tool])
    return Item(name, "red", finding, advice, gold_ids(t for t, *_ in astray), values | {"tool": tool})


def _told_early(golden: Sequence[Trajectory], tasks: Mapping[str, Task]) -> tuple[int, list[Trajectory]]:
    """How many plans have several calls, the first not meant to give the answer; those where it does."""
    longer, early = 0, []
    for t in golden:
        task, results = tasks[t.task_id], _lasting(t)
        expected = [str(step.get("expect")) for step in plan_of(task)]
        if len(expected) > 1 and results and task.answer and task.answer not in expected[:1]:
            longer += 1
            given = re.search(rf"(?<![\w.]){re.escape(task.answer)}(?!\w|\.\d)", results[0].observation)
            early += [t] * bool(given)
    return longer, early


def _lasting(trajectory: Trajectory) -> list[ToolResult]:
    """Its results without failures of the moment, after which the same call was made again."""
    results = results_of(trajectory)
    later = [*map(call_key, results[1:]), None][: len(results)]
    return [r for r, after in zip(results, later, strict=True) if r.ok or call_key(r) != after]


def cache(golden: Sequence[Trajectory], fresh: Sequence[Trajectory]) -> Item:
    """Whether tools that are asked again say what their cache says; ``fresh`` are the same calls, asked."""
    pairs = [
        (t, one, two)
        for t, again in zip(golden, fresh, strict=True)
        for one, two in zip(results_of(t), results_of(again), strict=False)
        if one.cached and one.ok and two.ok and one.arguments == two.arguments
    ]
    other = [(t, one, two) for t, one, two in pairs if one.observation != two.observation]
    finding = (
        f"{len(pairs) - len(other)} of {len(pairs)} cached answers are what the tool says when asked again."
    )
    if not other:
        return Item("Cached tools", "green", finding)
    _, one, two = other[0]
    advice = (
        f"{one.name} is declared pure and is not ({one.observation[:60]!r}, then {two.observation[:60]!r}): "
        "it depends on more than its arguments, such as on reset, or has changed. Take pure=True away, or "
        "raise its version."
    )
    light = "red" if len(other) > ODDS * len(pairs) else "amber"
    return Item("Cached tools", light, finding, advice, gold_ids(t for t, *_ in other))


def _astray(tool: str, cases: Sequence[tuple[ToolResult, str | None]], calls: int) -> str:
    """What is wrong with a tool: it fails, says one thing or nothing, or says something else."""
    replies = Counter(result.observation for result, _ in cases)
    reply, times = replies.most_common(1)[0]
    failed = sum(not result.ok for result, _ in cases)
    result, expected = cases[0]
    late = [r.observation for r, _ in cases if SLOW in r.observation and not r.ok]
    if len(late) > len(cases) / 2:
        share = f"{len(late)} of {calls} calls of the expert"
        return f"Raise tool_timeout_s, or make {tool} faster: {share} end with {late[0][:80]!r}."
    if all(CUT_MARK in result.observation for result, _ in cases):
        end = result.observation[-80:]
        return f"Raise max_observation: {tool} is cut before what the plan expects ({end!r})."
    example = f"{result.observation[:80]!r} where the plan expects {expected!r}"
    if failed > len(cases) / 2:
        what = f"fails in {failed} of {calls} calls of the expert ({reply[:80]!r})"
    elif times > len(cases) / 2 and times > 1:
        what = f"is dead: it says {reply[:80]!r} in {times} of {calls} calls of the expert"
    else:
        what = f"is stale or answers something else in {len(cases)} of {calls} calls ({example})"
    return f"The tool {tool} {what}. Mend it, or build the tasks again from what it says now."


def movement(model: Any, recipe: Recipe) -> Item:
    """Whether what is to be trained can move at all: an adapter that is frozen or empty cannot."""
    name = "Adapter"
    adapters = {n: p for n, p in model.named_parameters() if "lora_" in n or "modules_to_save" in n}
    if not adapters:  # training makes one
        linear = [n for n, m in model.named_modules() if type(m).__name__.startswith(("Linear", "Conv1D"))]
        found = f"LoRA of rank {recipe.lora_r} on {len(linear)} linear layers will be trained."
        why = "" if linear else "The model has no linear layer for LoRA: nothing would be trained."
        return Item(name, "green" if linear else "red", found, why)
    free = sum(p.numel() for p in adapters.values() if p.requires_grad)
    layers = [m.scaling for m in model.modules() if isinstance(getattr(m, "scaling", None), dict)]
    scales = [scale for layer in layers for scale in layer.values()]
    finding = (
        f"{free:,} of {sum(p.numel() for p in adapters.values()):,} entries of the adapter can be trained."
    )
    if not free:
        return Item(name, "red", finding, "The adapter is frozen: load it with is_trainable=True.")
    if scales and not any(scales):
        return Item(name, "red", finding, "The adapter's scale is 0, so it changes nothing: set lora_alpha.")
    return Item(name, "green", finding, values={"free": free})


def sampler(model: Any, sampled: Sequence[Trajectory], temperature: float) -> Item | None:
    """Whether the sampler's log-probabilities are the trainer's; None where it gave none."""
    from agentkit.rollouts.tokens import token_logprobs

    chosen = [t for t in sampled if any(t.old_logprobs) and any(t.action_mask)]
    chosen = chosen[:: max(1, len(chosen) // COMPARED)][:COMPARED]
    if not chosen:
        return None

    places = [np.flatnonzero(t.action_mask) for t in chosen]
    places = [at[:: -(-len(at) // TOKENS)] for at in places]
    logits = [
        [values[at] for values in sampled_logits(model, t.prompt_ids, t.completion_ids)]
        for t, at in zip(chosen, places, strict=True)
    ]
    engine = np.concatenate([np.array(t.old_logprobs)[at] for t, at in zip(chosen, places, strict=True)])

    def apart(at: float) -> float:
        """Mean distance over sampled tokens, in nats, with the trainer at a temperature."""
        own = [token_logprobs(*of_one, at or 1.0)[0].cpu().numpy() for of_one in logits]
        return float(np.abs(np.concatenate(own) - engine).mean())

    name, now = "Sampler and trainer", apart(temperature)
    finding = f"Log-probabilities of sampled tokens differ by {now:.2g} nats on average."
    values = {"apart": now}
    if now < EXACT:
        return Item(name, "green", finding, values=values)
    best = minimize_scalar(lambda log: apart(math.exp(log)), bounds=(-1.6, 1.6), options={"xatol": 0.01})
    warmer, left = math.exp(best.x), float(best.fun)
    if left < now / 3 and abs(math.log(warmer / (temperature or 1.0))) > 0.05:  # noise is at no temperature
        advice = (
            f"The sampler's are those of temperature {warmer:.2g} (they differ by {left:.2g} there), the "
            f"trainer's of {temperature:g}: give both the same temperature."
        )
        return Item(name, "red", finding, advice, ids(chosen), values | {"temperature": warmer})
    if now < APART:
        return Item(name, "green", finding, values=values)
    advice = "Load the same weights into both, and reset the engine's caches."
    return Item(name, "red", finding, advice, ids(chosen), values)


def verifier(tasks: Sequence[Task], environments: Environments) -> Item:
    """Whether the verifiers of these tasks tell wrong answers from right ones (tasks.audit)."""
    name = "Verifier"
    rows = audit(tasks, environments)
    judged = [row for row in rows if not row["passed"] and row["answer"] and row["value"] is None]
    judged = list({row["task"]: row for row in judged}.values())
    if len(judged) > ODDS * len(tasks):
        row, times = judged[0], f"{len(judged)} of {len(tasks)} tasks"
        finding = f"The verifier {row['verifier']!r} gives no verdict in {times}."
        why = f"{row['answer'][:80]!r}: {str(row['why'])[:160]}"
        advice = f"Mend it or them ({why}); until then their trajectories have no reward."
        return Item(name, "red", finding, advice, tuple(row["task"] for row in judged))
    failed = [row for row in rows if not row["passed"] and row["check"] in ANYTHING]
    tried = Counter(row["check"] for row in failed)
    if len(failed) <= ODDS * len(tasks):
        return Item(name, "green", f"The verifiers of {len(tasks)} tasks refuse answers that are wrong.")
    check, times = tried.most_common(1)[0]
    row = next(row for row in failed if row["check"] == check)
    finding = f"The verifier {row['verifier']!r} takes {ANYTHING[check]} in {times} of {len(tasks)} tasks."
    accepted = f"It accepts {row['answer'][:80]!r} ({str(row['why'])[:120]})"
    advice = f"{accepted}: compare the whole answer with the gold one."
    return Item(name, "red", finding, advice, tuple(row["task"] for row in failed), dict(tried))
