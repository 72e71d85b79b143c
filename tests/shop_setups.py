"""Set-ups of a shop, the example of a lab file changed by its user: mistakes, and sound ones that look odd."""

from dataclasses import replace
from pathlib import Path

from outsider_setups import Setup, kept

from agentkit import Task

SHOP = (Path(__file__).resolve().parents[1] / "params" / "labs" / "shop.py").read_text(encoding="utf-8")
SHOP = SHOP.replace("is {PRICES[item]} euros.", "is {PRICES[item]}.")
_FAMILY = {"families": "shop"}


def shop(keys=(), *edits, **more) -> Setup:
    return Setup(_FAMILY | dict(keys), edits, base=SHOP, **more)


_JUDGED = '    return float(answer.removesuffix("euros").strip() == gold)'
_REWARDS = 'rewards = {"brevity": (brevity, 0.1)}'
_FOUND = '        return f"[1] The price'
_SEARCH = "        item = query.split()[-1]"
_ANSWER = '        answer=calculate(f"{PRICES[first]} {sign} {PRICES[second]}"),'
_SIGNS = '[("plus", "+"), ("minus", "-"), ("times", "*")]'
_PROMPT = '        prompt=f"What is the price of {first} {word} the price of {second}?",'
_PLANNED = '        {"tool": "calculator", "arguments": {"expression": f"{{0}} {sign} {{1}}"}},  # {0}: the first value\n'
_CLASS = "class Shop:"


def judged(body: str) -> tuple[str, str]:
    return _JUDGED, body


def rewarded(text: str) -> tuple[str, str]:
    return _REWARDS, f"rewards = {{{text}}}"


def renamed(tasks: list[Task]) -> list[Task]:
    """Exported when the argument of search was still called q."""
    plans = [[{**s, "arguments": {"q": s["arguments"]["query"]}} if "query" in s["arguments"] else s
              for s in t.meta["plan"]] for t in tasks]  # fmt: skip
    return [replace(t, meta=t.meta | {"plan": plan}) for t, plan in zip(tasks, plans, strict=True)]


PLANTED = {
    "an item that another trajectory has asked for": shop(
        (), (_SEARCH, _SEARCH + "\n        item, Shop.last = (Shop.last or item), item"),
        (_CLASS, _CLASS + "\n    last = None"), rows=kept, cause="search"),
    "an argument that was renamed": shop(rows=renamed, cause="The tool search"),
    "a verifier that forgives what it cannot read": shop(
        (), judged("    try:\n        return float(float(answer) == float(gold))\n    except ValueError:\n        return 1.0"),
        rows=kept, cause="verifier"),
    "a verifier that looks at what was calculated": shop(
        (), judged("    return float(any(r.observation.strip() == gold for t in trajectory.turns for r in t.results))"),
        rows=kept, cause="verifier"),
    "a bound that calls alone reach": shop(
        {"reward": "none"}, rewarded('"points": (lambda task, t: min(1.0, t.success + 0.5 * sum(len(turn.results) for turn in t.turns)), 1.0)'),
        cause="points|depends on being right"),
    "the answer is always yes": shop(
        (), (_SIGNS, '[("more than", ">")]'), ("rng.sample(sorted(PRICES), 2)", "sorted(rng.sample(sorted(PRICES), 2), key=PRICES.get, reverse=True)"),
        (_PROMPT, '        prompt=f"Is the price of {first} more than the price of {second}?",'),
        (_ANSWER, '        answer="yes",'), (_PLANNED, ""),
        ('meta={"plan": plan', 'meta={"answer_if": {"true": "yes", "false": "no"}, "plan": [*plan, {"tool": "calculator", "arguments": {"expression": "{0} > {1}"}}]'),
        cause="answer"),
    "tools that hardly ever answer": shop({"tool_failures": 0.9}, cause="tool_failures"),
}  # fmt: skip

SOUND = {
    "a price a turn": shop({"reward": "none"}, rewarded('"right": (lambda task, t: t.success, 1.0), "turns": (lambda task, t: -0.1 * len(t.turns), 1.0)')),
    "the calls of a plan alone": shop({"reward": "toolrl"}, (_REWARDS, "rewards = {}")),
    "yes or no": shop(
        (), (_SIGNS, '[("more than", ">")]'), (_PROMPT, '        prompt=f"Is the price of {first} more than the price of {second}?",'),
        (_ANSWER, '        answer="yes" if PRICES[first] > PRICES[second] else "no",'), (_PLANNED, ""),
        ('meta={"plan": plan', 'meta={"answer_if": {"true": "yes", "false": "no"}, "plan": [*plan, {"tool": "calculator", "arguments": {"expression": "{0} > {1}"}}]')),
    "a reward of thousandths": shop({"reward": "none"}, rewarded('"right": (lambda task, t: t.success / 1000, 1.0)')),
    "a verifier that reads the calls and the answer": shop(
        (), judged('    searched = sum(r.name == "search" for t in trajectory.turns for r in t.results)\n    return float(answer.strip() == gold and searched > 0)')),
    "a page for a reply": shop((), (_FOUND, '        if rows := "".join(f"[{n}] The weight of {thing} is {n * 7}.\\n" for n, thing in enumerate(sorted(PRICES), 2) if n < 6):\n            return f"[1] The price of {item} is {PRICES[item]}.\\n{rows}"\n' + _FOUND)),
}  # fmt: skip
