"""The first sentence of a result: the last policy against the best of the others.

Leaves out the tests (comparison) and the sentence on each pair (tables).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from agentkit.evaluation import tables

NAMES = {
    "base": "base",
    "sft": "SFT",
    "sft_more": "SFT with more data",
    "rft": "rejection sampling",
    "grpo": "GRPO",
}


def untrained(step: int | None) -> str:
    """What to say where GRPO kept the agent that it started from; nothing where it kept a later one."""
    if step != 0:
        return ""
    return (
        "GRPO kept the adapter of step 0: no step improved on its start, so this is the agent before "
        "training, compared with itself."
    )


def headline(
    policies: Mapping[str, Mapping[str, Any]], paired: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """comparison.json's headline, from its entries and pairs; None where one policy was measured."""
    *others, policy = policies
    if not others:
        return None
    best = max(reversed(others), key=lambda name: policies[name]["success"])
    pair = next(pair for pair in paired if (pair["a"], pair["b"]) == (best, policy))
    found = {
        "policy": policy,
        "best_other": best,
        "diff": pair["diff"],
        "ci95": pair["ci95"],
        "p": pair["p_holm"],
    }
    tests = sum(other["p"] is not None for other in paired)
    return found | {"sentence": _sentence(policies, pair, others, tests)}


def _sentence(
    policies: Mapping[str, Mapping[str, Any]], pair: Mapping[str, Any], others: Sequence[str], tests: int
) -> str:
    policy, best = pair["b"], pair["a"]
    own, name = policies[policy], _called(policy)
    name = name[0].upper() + name[1:] if policy in NAMES else name
    solves = f"solves {tables.percent(own['success'])} of {own['n']} held-out tasks"
    if own.get("partial"):  # a mean of shares, such as of tests passed, is no share of tasks
        solves = f"scores {tables.percent(own['success'])} on {own['n']} held-out tasks"
    if said := untrained(own.get("trained_step")):
        return f"{said} It {solves}, and no gain is claimed."
    against = _called(best)
    if len(others) > 1:
        *first, last = map(_called, others)
        against += f", the best of {', '.join(first)} and {last}"
    how = _how(pair, own["n"], tests)
    low, high = pair["ci95"]
    if pair["verdict"] not in ("better", "worse"):
        against += "," * (len(others) > 1)
        rate, points = tables.percent(policies[best]["success"]), tables.briefly(pair)
        return f"{name} {solves}, and {against} {rate}: a difference is not shown ({points}, {how})."
    near, far = (100 * bound for bound in ((low, high) if pair["diff"] > 0 else (-high, -low)))
    points = f"{100 * abs(pair['diff']):.1f} points [{near:.1f}, {far:.1f}]"
    more = "more" if pair["diff"] > 0 else "fewer"
    return f"{name} {solves}, {points} {more} than {against} ({how}).{_by_template(pair)}"


def _called(policy: str) -> str:
    return NAMES.get(policy, policy)


def _how(pair: Mapping[str, Any], n: int, tests: int) -> str:
    """How it was tested, in brackets."""
    by = "task and training seed" if pair["test"] == "seeds_and_tasks_t" else "task"
    said = ["two training seeds are too few for a test"]
    if pair["p_holm"] is not None:
        corrected = f", corrected for {tests} comparisons" * (tests > 1)
        said = [f"{tables.said_p(pair['p_holm'])}{corrected}"]
    if pair["n"] != n:
        said.append(f"on the {pair['n']} tasks scored for both")
    return ", ".join([*said, f"clustered by {by}"])


def _by_template(pair: Mapping[str, Any]) -> str:
    """A second sentence where tasks of one template are too alike for the first to hold."""
    low, high = (pair.get("by_template") or pair)["ci95"]
    if not low <= 0 <= high:
        return ""
    return f" Clustered by template it is not shown: {tables.spanned(pair['diff'], [low, high])} points."
