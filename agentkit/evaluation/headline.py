"""The first sentence of a result, the last policy against the best of the others, and what goes before it.

Leaves out the tests (comparison) and the sentence on each pair (tables).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from agentkit.evaluation import tables
from agentkit.recipe import SCRIPTED

NAMES = {
    "base": "base",
    "sft": "SFT",
    "sft_more": "SFT with more data",
    "rft": "rejection sampling",
    "grpo": "GRPO",
}


def untrained(step: int | None, measured: int | None = None) -> str:
    """What to say where validation kept the agent that GRPO started from, though perhaps the last step was
    ``measured`` in its place; nothing where it kept a later one.
    """
    if step != 0:
        return ""
    if measured:
        return (
            f"Validation preferred the start to what training made of it; the last step, {measured}, was "
            "measured in its place, so that harm can be seen."
        )
    return (
        "GRPO kept the adapter of step 0: no step improved on its start, so this is the agent before "
        "training, compared with itself."
    )


def early(step: int, steps: int) -> str:
    """What to say where more than half of the steps came after the kept one; where none was kept, nothing."""
    return f"{steps - step} of the {steps} steps came after the kept one." if 0 < 2 * step < steps else ""


def spoilt(pair: Mapping[str, Any]) -> str:
    """A warning where the pair (base, sft) shows a cold start that did harm."""
    points = tables.spanned(pair["diff"], pair["ci95"])
    told = f"**The cold start made the agent worse than it was before: {points} points.**"
    return told if pair["ci95"][1] < 0 else ""


def planted(flaws: Mapping[str, float]) -> str:
    """What to say of demonstrations by an expert that errs on purpose; nothing where it does not."""
    told = ", ".join(f"{name} {rate:g}" for name, rate in flaws.items() if rate)
    more = "so a gain over SFT may be no more than these mistakes unlearnt"
    return f"SFT imitates an expert with planted flaws ({told}), {more}." if told else ""


def stand_in(recipe: Mapping[str, Any]) -> str:
    """What to say of a recipe's agent where it is a stand-in; nothing where it is a model."""
    if recipe.get("model") != SCRIPTED:
        return ""
    return "A scripted stand-in was measured, which plays the tasks' plans: no figure here is a model's."


def headline(
    policies: Mapping[str, Mapping[str, Any]], paired: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """comparison.json's headline, from its entries and pairs; None where one policy was measured."""
    *others, policy = policies
    if not others:
        return None
    best = max(reversed(others), key=lambda name: policies[name]["success"])
    pair = next(pair for pair in paired if (pair["a"], pair["b"]) == (best, policy))
    tests = sum(other["p"] is not None for other in paired)
    sentence = _sentence(policies, pair, others, tests)
    figures = {"diff": pair["diff"], "ci95": pair["ci95"], "p": pair["p_holm"]}
    return {"policy": policy, "best_other": best} | figures | {"sentence": sentence}


def _sentence(
    policies: Mapping[str, Mapping[str, Any]], pair: Mapping[str, Any], others: Sequence[str], tests: int
) -> str:
    own, name = policies[pair["b"]], NAMES.get(pair["b"], pair["b"])
    # a mean of shares, such as of tests passed, is no share of tasks
    solves = "scores {} on {} held-out tasks" if own.get("partial") else "solves {} of {} held-out tasks"
    solves = solves.format(tables.percent(own["success"]), own["n"])
    mark = untrained(own.get("trained_step"), own.get("measured_step"))
    if mark and not own.get("measured_step"):
        return f"{mark} It {solves}, and no gain is claimed."
    *first, last = (NAMES.get(other, other) for other in others)
    best = NAMES.get(pair["a"], pair["a"])
    against = f"{best}, the best of {', '.join(first)} and {last}" if first else best
    how, (low, high) = _how(pair, own["n"], tests), pair["ci95"]
    if pair["verdict"] not in ("better", "worse"):
        rate, points = (
            tables.percent(policies[pair["a"]]["success"]),
            tables.spanned(pair["diff"], pair["ci95"]),
        )
        against += "," if first else ""
        said = f"{name} {solves}, and {against} {rate}: a difference is not shown ({points} points, {how})."
    else:
        near, far = (100 * bound for bound in ((low, high) if pair["diff"] > 0 else (-high, -low)))
        more = "more" if pair["diff"] > 0 else "fewer"
        points = f"{100 * abs(pair['diff']):.1f} points [{near:.1f}, {far:.1f}] {more} than {against}"
        said = f"{name} {solves}, {points} ({how}).{_by_template(pair)}"
    said = said[0].upper() + said[1:] if pair["b"] in NAMES else said
    return f"{mark} {said}".strip()


def _how(pair: Mapping[str, Any], n: int, tests: int) -> str:
    """How it was tested, in brackets."""
    by = "task and training seed" if pair["test"] == "seeds_and_tasks_t" else "task"
    said = "two training seeds are too few for a test"
    if pair["p_holm"] is not None:
        said = tables.said_p(pair["p_holm"]) + f", corrected for {tests} comparisons" * (tests > 1)
    some = f", on the {pair['n']} tasks scored for both" * (pair["n"] != n)
    return f"{said}{some}, clustered by {by}"


def _by_template(pair: Mapping[str, Any]) -> str:
    """A second sentence where tasks of one template are too alike for the first to hold."""
    low, high = (pair.get("by_template") or pair)["ci95"]
    if not low <= 0 <= high:
        return ""
    return f" Clustered by template it is not shown: {tables.spanned(pair['diff'], [low, high])} points."
