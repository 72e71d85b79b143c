"""Rules about what the policy does: calls, answers, actions, lengths; and about its tools."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agentkit.diagnostics.finding import START, Finding, History, Z, change, first, last, unpaid

ABANDONED, SILENT = (0.5, 0.4)  # calls, as a share of those at the start; trajectories without any call
CUT_OFF = 0.2  # share of trajectories that met a limit, above that at the start
SLOW, SLOWER = 1.0, 4.0  # seconds of a call (90th percentile) that hurt; times those at the start
TIMEOUTS = 0.05  # share of calls that ended at their time limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Habit:
    """A measure that is a fault where it has grown: when that is too much, and what is said of it."""

    measure: str
    least: float  # the mean now is at least this,
    by: float = 0.0  # at least so much above the mean then,
    times: float = 1.0  # at least so many times it,
    errors: float = 0.0  # and so many standard errors above it
    excused: bool = True  # success that rose with it makes it no fault
    severity: str = "warning"
    cause: str  # with {then} and {now}
    advice: str


HABITS = {
    "call_inflation": Habit(
        measure="calls",
        least=0.85,
        times=1.7,  # healthy runs of the small agent reach 1.5
        errors=Z,
        cause="Tool calls rose from {then:.2f} to {now:.2f} a trajectory while success did not: calls are "
        "paid for in "
        "themselves, or the policy repeats calls that do not help.",
        advice="Bound or remove the bonus for calls, raise reward_efficiency, lower max_turns.",
    ),
    "length_explosion": Habit(
        measure="completion_tokens",
        least=1.8,
        times=1.8,
        errors=Z,
        cause="Completions grew from {then:.0f} to {now:.0f} tokens while success did not rise. Usual "
        "causes: a loss averaged "
        "over each sequence, which favours long wrong answers; a bonus for turns; repetition.",
        advice="Use loss_type dapo or dr_grpo, add an overlong penalty, lower max_turn_tokens.",
    ),
    "answer_collapse": Habit(
        measure="answer_top",
        least=0.5,
        by=0.2,
        severity="critical",
        cause="One answer makes up {now:.0%} of all answers ({then:.0%} before): the policy no longer reads "
        "the task. Usual "
        "causes: it is the commonest gold answer, or the verifier accepts it too easily.",
        advice="Balance the gold answers, check the verifier on that answer, go back to an earlier adapter.",
    ),
    "mode_collapse": Habit(
        measure="identical",
        least=0.8,  # a sharp but healthy small agent reaches 0.65
        by=0.2,
        excused=False,
        cause="{now:.0%} of the rollouts in unsolved groups repeat another one ({then:.0%} at the start): "
        "nothing is explored "
        "any more.",
        advice="Raise temperature or beta, lower learning_rate, or go back to an earlier adapter.",
    ),
    "template_collapse": Habit(  # varied wording may hide that the first action no longer depends on the task
        measure="template",
        least=0.5,
        by=0.25,
        excused=False,
        cause="{now:.0%} of the trajectories begin with an action that other tasks' trajectories begin with "
        "too ({then:.0%} at "
        "the start): the first action has become a template that does not depend on the task.",
        advice="Filter out groups with little spread, raise temperature, lower beta's pull or the learning "
        "rate.",
    ),
}


def grown(habit: Habit, history: History) -> Finding | None:
    """A habit has grown beyond what is healthy."""
    moves = unpaid(history, habit.measure) if habit.excused else [change(history, habit.measure)]
    for then, now, errors in filter(None, moves):
        if now >= max(habit.least, then + habit.by, habit.times * then) and errors >= habit.errors:
            cause = habit.cause.format(then=then, now=now)
            return Finding(now, habit.severity, cause, habit.advice, habit.measure)
    return None


def tool_abandonment(history: History) -> Finding | None:
    """The policy has stopped calling tools, and success did not rise for it."""
    silent = last(history, "no_tool")
    gone = [m for m in unpaid(history, "calls") if m[0] >= 0.2 and m[1] <= ABANDONED * m[0] and m[2] <= -Z]
    mute = [m for m in unpaid(history, "no_tool") if m[1] >= SILENT and m[1] - m[0] >= 0.25]
    calls = change(history, "calls")
    if calls is None or not (gone or mute):
        return None
    cause = (
        f"Tool calls fell from {calls[0]:.2f} to {calls[1]:.2f} a trajectory; {silent.mean():.0%} of the "
        "trajectories call none. "
        "Usual causes: a turn or length penalty that outweighs being right, tools that fail, or answers that "
        "pass by guessing."
    )
    advice = "Lower reward_efficiency, mend failing tools, or require tools in the tasks."
    return Finding(calls[1], "warning", cause, advice, "no_tool")


def truncation(history: History) -> Finding | None:
    """Many trajectories end at a limit."""
    cut, start = last(history, "truncated"), first(history, "truncated")
    if (
        len(cut) < 3
        or len(start) < 3
        or cut.mean() < CUT_OFF + (start.mean() if len(history) > 2 * START else 0.0)
    ):
        return None
    cause = (
        f"{cut.mean():.0%} of the trajectories end at a limit of turns, tokens or time ({start.mean():.0%} "
        "at the start) and "
        "earn nothing for what they had found."
    )
    advice = "Raise max_tokens or max_turns, or mask truncated trajectories; read how they end."
    return Finding(float(cut.mean()), "warning", cause, advice, "truncated")


def slow_tools(history: History) -> Finding | None:
    """Tool calls have become slow, or run into their time limit."""
    late, seconds, start = (
        last(history, "timeouts"),
        last(history, "call_seconds"),
        first(history, "call_seconds"),
    )
    if len(late) >= 3 and late.mean() >= TIMEOUTS:
        cause = (
            f"{late.mean():.0%} of the tool calls of the last {len(late)} steps ended at their time limit."
        )
        advice = "Look at that tool's service; cache it, or bound how many calls it gets at once."
        return Finding(float(late.mean()), "warning", cause, advice, "timeouts")
    if len(seconds) < 3 or len(start) < 3:
        return None
    now, then = float(np.median(seconds)), float(np.median(start))
    if now < max(SLOW, SLOWER * then if len(history) > 2 * START else 0.0):
        return None
    cause = f"One call in ten takes {now:.2g} s or longer ({then:.2g} s at the start)."
    advice = "Declare pure tools cacheable, raise their concurrency, or look at their service."
    return Finding(now, "warning", cause, advice, "call_seconds")


def stale_cache(history: History) -> Finding | None:
    """A cached reply differs from a fresh one to the same call."""
    mismatches = float(np.nansum([history[-1]["cache_conflicts"], history[-1]["cache_mismatches"]]))
    if mismatches <= 0:
        return None
    cause = (
        f"{mismatches:.0f} cached tool replies of this step differ from fresh replies to the same call: the "
        "tool is not pure, or "
        "its data changed."
    )
    advice = "Raise the tool's version, or declare it stateful; empty the cache."
    return Finding(mismatches, "critical", cause, advice, "cache_conflicts")
