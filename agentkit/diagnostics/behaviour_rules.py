"""Rules about what the policy does: calls, answers, actions, lengths; and about its tools."""

from __future__ import annotations

import numpy as np

from agentkit.diagnostics.finding import START, Finding, History, Z, change, first, last, unpaid

ABANDONED, SILENT = 0.5, 0.4  # calls, as a share of those at the start; trajectories without any call
INFLATED = 1.7  # calls, as a multiple of those at the start; healthy runs of the small agent reach 1.5
COLLAPSED = 0.5  # share of one answer or one action over tasks whose answers differ
REPEATED = 0.8  # share of repeats in a group; a sharp but healthy small agent reaches 0.65
LONGER = 1.8  # completion tokens, as a multiple of those at the start
CUT_OFF = 0.2  # share of trajectories that met a limit, above that at the start
SLOW, SLOWER = 1.0, 4.0  # seconds of a call (90th percentile) that hurt; times those at the start
TIMEOUTS = 0.05  # share of calls that ended at their time limit


def tool_abandonment(history: History) -> Finding | None:
    """The policy has stopped calling tools, and success did not rise for it."""
    silent = last(history, "no_tool")
    gone = [m for m in unpaid(history, "calls") if m[0] >= 0.2 and m[1] <= ABANDONED * m[0] and m[2] <= -Z]
    mute = [m for m in unpaid(history, "no_tool") if m[1] >= SILENT and m[1] - m[0] >= 0.25]
    calls = change(history, "calls")
    if calls is None or not (gone or mute):
        return None
    cause = (
        f"Tool calls fell from {calls[0]:.2f} to {calls[1]:.2f} a trajectory; {silent.mean():.0%} of the trajectories call none. "
        "Usual causes: a turn or length penalty that outweighs being right, tools that fail, or answers that pass by guessing."
    )
    advice = "Lower reward_efficiency, mend failing tools, or require tools in the tasks."
    return Finding(calls[1], "warning", cause, advice, "no_tool")


def call_inflation(history: History) -> Finding | None:
    """Ever more tool calls without more success."""
    for then, now, z in unpaid(history, "calls"):
        if now >= INFLATED * max(then, 0.5) and z >= Z:
            cause = (
                f"Tool calls rose from {then:.2f} to {now:.2f} a trajectory while success did not: calls are paid for in "
                "themselves, or the policy repeats calls that do not help."
            )
            advice = "Bound or remove the bonus for calls, raise reward_efficiency, lower max_turns."
            return Finding(now, "warning", cause, advice, "calls")
    return None


def answer_collapse(history: History) -> Finding | None:
    """One answer is given to most tasks."""
    for then, now, _ in unpaid(history, "answer_top"):
        if now >= COLLAPSED and now - then >= 0.2:
            cause = (
                f"One answer makes up {now:.0%} of all answers ({then:.0%} before): the policy no longer reads the task. "
                "Usual causes: it is the commonest gold answer, or the verifier accepts it too easily."
            )
            advice = "Balance the gold answers, check the verifier on that answer, go back to an earlier adapter."
            return Finding(now, "critical", cause, advice, "answer_top")
    return None


def mode_collapse(history: History) -> Finding | None:
    """The rollouts of a group are copies of each other, though not all are right."""
    same = change(history, "identical")
    if same is None or same[1] < REPEATED or same[1] - same[0] < 0.2:
        return None
    cause = (
        f"{same[1]:.0%} of the rollouts in unsolved groups repeat another one ({same[0]:.0%} at the start): "
        "nothing is explored any more."
    )
    return Finding(
        same[1],
        "warning",
        cause,
        "Raise temperature or beta, lower learning_rate, or go back to an earlier adapter.",
        "identical",
    )


def template_collapse(history: History) -> Finding | None:
    """The same first action for different tasks: varied wording may hide that it no longer depends on the task."""
    same = change(history, "template")
    if same is None or same[1] < COLLAPSED or same[1] - same[0] < 0.25:
        return None
    cause = (
        f"{same[1]:.0%} of the trajectories begin with an action that other tasks' trajectories begin with too "
        f"({same[0]:.0%} at the start): the first action has become a template that does not depend on the task."
    )
    return Finding(
        same[1],
        "warning",
        cause,
        "Filter out groups with little spread, raise temperature, lower beta's pull or the learning rate.",
        "template",
    )


def length_explosion(history: History) -> Finding | None:
    """Ever longer completions without more success."""
    for then, now, z in unpaid(history, "completion_tokens"):
        if now >= LONGER * max(then, 1.0) and z >= Z:
            cause = (
                f"Completions grew from {then:.0f} to {now:.0f} tokens while success did not rise. Usual causes: a loss "
                "averaged over each sequence, which favours long wrong answers; a bonus for turns; repetition."
            )
            advice = "Use loss_type dapo or dr_grpo, add an overlong penalty, lower max_turn_tokens."
            return Finding(now, "warning", cause, advice, "completion_tokens")
    return None


def truncation(history: History) -> Finding | None:
    """Many trajectories end at a limit."""
    cut = last(history, "truncated")
    start = first(history, "truncated")
    if len(cut) < 3 or len(start) < 3 or cut.mean() < CUT_OFF + (start.mean() if len(history) > 2 * START else 0.0):
        return None
    cause = (
        f"{cut.mean():.0%} of the trajectories end at a limit of turns, tokens or time ({start.mean():.0%} at the "
        "start) and earn "
        "nothing for what they had found."
    )
    return Finding(
        float(cut.mean()),
        "warning",
        cause,
        "Raise max_tokens or max_turns, or mask truncated trajectories; read how they end.",
        "truncated",
    )


def slow_tools(history: History) -> Finding | None:
    """Tool calls have become slow, or run into their time limit."""
    late, now, then = last(history, "timeouts"), last(history, "call_seconds"), first(history, "call_seconds")
    if len(late) >= 3 and late.mean() >= TIMEOUTS:
        cause = f"{late.mean():.0%} of the tool calls of the last {len(late)} steps ended at their time limit."
        return Finding(
            float(late.mean()),
            "warning",
            cause,
            "Look at that tool's service; cache it, or bound how many calls it gets at once.",
            "timeouts",
        )
    if (
        len(now) < 3
        or len(then) < 3
        or np.median(now) < max(SLOW, SLOWER * np.median(then) if len(history) > 2 * START else SLOW)
    ):
        return None
    cause = f"One call in ten takes {np.median(now):.2g} s or longer ({np.median(then):.2g} s at the start)."
    return Finding(
        float(np.median(now)),
        "warning",
        cause,
        "Declare pure tools cacheable, raise their concurrency, or look at their service.",
        "call_seconds",
    )


def stale_cache(history: History) -> Finding | None:
    """A cached reply differs from a fresh one to the same call."""
    mismatches = float(np.nansum([history[-1]["cache_conflicts"], history[-1]["cache_mismatches"]]))
    if mismatches <= 0:
        return None
    cause = (
        f"{mismatches:.0f} cached tool replies of this step differ from fresh replies to the same call: the tool "
        "is not pure, or its data changed."
    )
    return Finding(
        mismatches, "critical", cause, "Raise the tool's version, or declare it stateful; empty the cache.", "cache_conflicts"
    )
