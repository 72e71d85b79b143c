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
    pair = next((pair for pair in paired if (pair["a"], pair["b"]) == (best, policy)), None)
    if pair is None:  # of a file that was edited
        return None
    found = {"policy": policy, "best_other": best, "diff": pair["diff"], "ci95": pair["ci95"], "p": _p(pair)}
    tests = sum(_p(other) is not None for other in paired)
    return found | {"sentence": _sentence(policies, pair, others, tests)}


def _p(pair: Mapping[str, Any]) -> float | None:
    """The p that decides: Holm's, as the interval is at its level; none for two training seeds."""
    return pair.get("p_holm", pair["p"])


def _sentence(
    policies: Mapping[str, Mapping[str, Any]], pair: Mapping[str, Any], others: Sequence[str], tests: int
) -> str:
    policy, best = pair["b"], pair["a"]
    own, (low, high) = policies[policy], pair["ci95"]
    name = _called(policy)
    name = name[0].upper() + name[1:] if policy in NAMES else name
    solves = f"solves {tables.percent(own['success'])} of {own['n']} held-out tasks"
    if said := untrained(own.get("trained_step")):
        return f"{said} It {solves}, and no gain is claimed."
    against = _called(best)
    if len(others) > 1:
        *first, last = map(_called, others)
        against += f", the best of {', '.join(first)} and {last}"
    how = _how(pair, own["n"], tests)
    if low <= 0 <= high or _p(pair) is None:
        against += "," * (len(others) > 1)
        rate, points = tables.percent(policies[best]["success"]), tables.briefly(pair)
        return f"{name} {solves}, and {against} {rate}: a difference is not shown ({points}, {how})."
    near, far = sorted((100 * abs(low), 100 * abs(high)))
    points = f"{100 * abs(pair['diff']):.1f} points [{near:.1f}, {far:.1f}]"
    more = "more" if low > 0 else "fewer"
    return f"{name} {solves}, {points} {more} than {against} ({how}).{_by_template(pair)}"


def _called(policy: str) -> str:
    return NAMES.get(policy, policy)


def _how(pair: Mapping[str, Any], n: int, tests: int) -> str:
    """How it was tested, in brackets."""
    p, by = _p(pair), "task and training seed" if pair["test"] == "seeds_and_tasks_t" else "task"
    said = ["two training seeds are too few for a test"]
    if p is not None:
        said = ["p < 0.0001" if p < 1e-4 else f"p = {p:.2g}"]
        if tests > 1 and "p_holm" in pair:
            said.append(f"p and interval corrected for {tests} comparisons")
    if pair["n"] != n:
        said.append(f"on the {pair['n']} tasks scored for both")
    return ", ".join([*said, f"clustered by {by}"])


def _by_template(pair: Mapping[str, Any]) -> str:
    """A second sentence where tasks of one template are too alike for the first to hold."""
    low, high = (pair.get("by_template") or pair)["ci95"]
    if not low <= 0 <= high:
        return ""
    return f" Clustered by template it is not shown: {tables.spanned(pair['diff'], [low, high])} points."
