"""Set-ups of a railway's ticket office, written without having read preflight: 16 mistakes, and 9 sound ones that look odd.

Each is a recipe, a lab file made from one office by replacing lines, and sometimes given tasks. Leaves out running them.
"""

from dataclasses import dataclass, replace

import outsider_setups
from outsider_setups import kept

from agentkit import Task

TOWNS = """Berlo Tarden Olmar Wenna Castel Dorin Felsa Garmo Hulven Istra Jorland Kelmar Luvina Marden Norvik Ostea
Pellin Quarto Rondal Selva Trona Ulmen Verano Zorin""".split()
_FARES = (38, 45, 12, 27, 61, 9, 83, 54, 16, 72, 33, 95, 20, 48, 7, 66, 29, 58, 14, 41, 77, 24, 89, 35)
_HEIGHTS = (412, 875, 130, 264, 951, 346, 508, 719, 187, 633, 290, 844, 105, 577, 461, 738, 219, 396, 682, 153,
            904, 325, 549, 781)  # fmt: skip
FARES, HEIGHTS = dict(zip(TOWNS, _FARES, strict=True)), dict(zip(TOWNS, _HEIGHTS, strict=True))
JUNCTIONS = {town: TOWNS[(n + 7) % 24] for n, town in enumerate(TOWNS)}
ROUTES = {town: ", ".join(TOWNS[(n + k) % 24] for k in (3, 8, 13)) for n, town in enumerate(TOWNS)}

LINE = (
    f"""
import random

from agentkit import Family, Task, tool
from agentkit.tools import calculate

FARES = {FARES!r}
HEIGHTS = {HEIGHTS!r}
JUNCTIONS = {JUNCTIONS!r}
ROUTES = {ROUTES!r}
"""
    + '''TABLES = {"fare": FARES, "height": HEIGHTS, "junction": JUNCTIONS, "route": ROUTES}


class Office:
    """A ticket office: a traveller's pass has so many stamps, and each lookup takes one."""

    def reset(self, **row) -> None:
        self.stamps = 12
        self.asked = []

    def search(self, query: str) -> str:
        """Search facts.

        Args:
            query: What to look up.
        """
        self.stamps -= 1
        if self.stamps < 0:
            raise ValueError("this pass has no stamps left")
        town = next((town for town in FARES if town in query), None)
        if town is None:
            raise ValueError("the line has no such station")
        what = next((word for word in TABLES if word in str(query).lower()), "fare")
        self.asked.append(town)
        return f"[1] The {what} of {town} is {TABLES[what][town]}."

    @tool(pure=True)
    def calculator(self, expression: str) -> str:
        """Compute arithmetic.

        Args:
            expression: The arithmetic.
        """
        return calculate(expression)


def lookup(what, town):
    """A step of a plan."""
    return {"tool": "search", "arguments": {"query": f"{what} of {town}"}, "expect": str(TABLES[what][town])}


def draft(corpus, rng: random.Random) -> Task:
    what = rng.choice(["fare", "height"])
    first, second = rng.sample(sorted(FARES), 2)
    word, sign = rng.choice([("plus", "+"), ("minus", "-"), ("times", "*")])
    table = TABLES[what]
    plan = [lookup(what, first), lookup(what, second),
            {"tool": "calculator", "arguments": {"expression": f"{{0}} {sign} {{1}}"}}]
    return Task(
        id="",
        prompt=f"What is the {what} of {first} {word} the {what} of {second}?",
        answer=calculate(f"{table[first]} {sign} {table[second]}"),
        verifier={"kind": "stamp"},
        tools=("search", "calculator"),
        meta={"plan": plan, "entities": [first, second]},
    )


def stamp(answer, gold):
    return float(answer.strip() == gold)


families = {"line": Family(draft, environment=Office)}
verifiers = {"stamp": stamp}
rewards = {}
'''
)


@dataclass(frozen=True)
class Setup(outsider_setups.Setup):
    """A set-up of the office."""

    base: str = LINE
    families: str = "line"


def swapped(tasks: list[Task]) -> list[Task]:
    """Somebody moved cells of the answer column: two rows in four have each other's answers."""
    given = list(tasks)
    for n in range(0, len(given) - 1, 4):
        given[n] = replace(tasks[n], answer=tasks[n + 1].answer)
        given[n + 1] = replace(tasks[n + 1], answer=tasks[n].answer)
    return given


def unasked(tasks: list[Task]) -> list[Task]:
    """The column with the question was left out, that with its occasion was taken."""
    asked = "A traveller at the ticket office is interested in {} and {}."
    return [replace(task, prompt=asked.format(*task.meta["entities"])) for task in tasks]


def junctions(tasks: list[Task]) -> list[Task]:
    """Names for answers, written as names are; the plans were recorded from a tool that lowers all it says."""
    rows = []
    for town, gold in JUNCTIONS.items():
        step = {"tool": "search", "arguments": {"query": f"junction of {town}"}, "expect": gold.lower()}
        meta = {"plan": [step], "entities": [town]}
        for asked in (f"What is the junction of {town}?", f"Tell me the junction of {town}."):
            rows.append(Task("", asked, gold, {"kind": "stamp"}, family="line", meta=meta))
    return rows


_IMPORT = "import random\n"
_RESET = "    def reset(self, **row) -> None:\n"
_SEARCH = "    def search(self, query: str) -> str:\n"
_STAMP = "        self.stamps -= 1\n"
_FOUND = '        return f"[1] The {what} of {town} is {TABLES[what][town]}."'
_DRAFT = '    what = rng.choice(["fare", "height"])\n'
_PROMPT = '        prompt=f"What is the {what}'
_VERIFIER = '        verifier={"kind": "stamp"},'
_ENTITIES = '"entities": [first, second]}'
_STAMPED = "def stamp(answer, gold):\n"
_JUDGED = "    return float(answer.strip() == gold)"
_FAMILIES = 'families = {"line": Family(draft, environment=Office)}'
_REWARDS = "rewards = {}"
_TWO_FAMILIES = (
    _FAMILIES,
    'families = {"line": Family(draft, environment=Office), "coach": Family(draft, environment=Office)}',
)


def rewarded(text: str) -> tuple[str, str]:
    return _REWARDS, f"rewards = {{{text}}}"


def judged(body: str, extra: str = "") -> tuple[tuple[str, str], ...]:
    return (_JUDGED, body), (_STAMPED, f"def stamp(answer, gold{extra}):\n")


def totals(count: int) -> str:
    """Lines that draft a question about so many stations, whose combination is one entity."""
    names = ", ".join(f"{{towns[{n}]}}" for n in range(count - 1)) + f" and {{towns[{count - 1}]}}"
    return f"""        what = rng.choice(["fare", "height"])
        towns = rng.sample(sorted(FARES), {count})
        signs = " + ".join(f"{{{{{{n}}}}}}" for n in range({count}))
        plan = [*(lookup(what, town) for town in towns), {{"tool": "calculator", "arguments": {{"expression": signs}}}}]
        return Task(
            id="",
            prompt=f"What is the total {{what}} of {names}?",
            answer=str(sum(TABLES[what][town] for town in towns)),
            verifier={{"kind": "stamp"}},
            meta={{"template": "total", "plan": plan, "entities": [" ".join(sorted(towns))]}},
        )
"""


_PAGE = '''        others = [name for name in sorted(FARES) if name != town][:20]
        rest = "".join(f"\\n[{n}] The {what} of {name} is {TABLES[what][name]}." for n, name in enumerate(others, 2))
        return f"[1] The {what} of {town} is {TABLES[what][town]}.{rest}"'''

PLANTED = {
    "a search that wants a list": Setup(
        edits=((_SEARCH, "    def search(self, query: list[str]) -> str:\n"),), rows=kept,
        cause=r"(?is)\b(search|tools?)\b.*(fail|error|refus|reject|\blist\b|type|argument|must be|does not|do not|never)"),
    "the verifier compares the answer with itself": Setup(
        edits=judged("    return float(answer.strip() == trajectory.answer.strip())", ", *, trajectory=None"), rows=kept,
        cause=r"(?i)verifier|\bstamp\b|wrong answers? (is|are|count|pass|score)"),
    "the verifier looks for the gold in the answer": Setup(
        edits=judged("    return float(gold in answer)"), rows=kept,
        cause=r"(?i)verifier|\bstamp\b|wrong answers? (is|are|count|pass|score)"),
    "a debug line with the expected answer": Setup(
        edits=((_RESET, '    def reset(self, answer="", **row) -> None:\n        self.expected = answer\n'),
               (_FOUND, _FOUND[:-1] + '\\n[debug] expected answer: {self.expected}"')),
        cause=r"(?is)leak|give.{0,20}away|(search|tools?|observations?|repl(y|ies))\b.{0,150}\b(show|tell|give|hold|contain|state|stand|said|say|reveal|return|print)\w*.{0,80}\b(gold|answer)|\b(gold|answer)s?\b.{0,120}\b(stands?|shown|told|given|found|in|by|from)\b.{0,80}(search|tools?|observation|repl(y|ies))"),
    "the only reward reads what nobody writes": Setup(
        {"reward": "none"}, (rewarded('"ride": (lambda task, t: float(t.components.get("correct") or 0.0), 1.0)'),),
        cause=r"(?i)\bride\b|being right|right answers? earn|nobody writes|input is never written"),
    "a learning rate with a digit of its exponent lost": Setup(
        {"learning_rate": 1.5e-1}, cause=r"(?i)learning[_ ]rate"),
    "a budget that the first page fills": Setup(
        {"max_tokens": 320}, ((_FOUND, _PAGE),),
        cause=r"(?is)max_tokens|\btokens?\b.{0,80}(limit|budget|few|small|fit|room|enough)|(limit|budget|fit|room|long)\w*\b.{0,80}\btoken"),
    "answers of two rows exchanged": Setup(
        rows=swapped,
        cause=r"(?is)\b(gold|answers?)\b.*(plan|expert|tools?|reach|lead|differ|disagree|another|other|swap|comput|(is|are) (wrong|not))|plan.*\b(gold|answer)|verifier refuses.*gold answers"),
    "prices that follow the clock": Setup(
        edits=((_IMPORT, "import random\nimport time\n"),
               (_FOUND, "        surge = 1 + time.time_ns() // 1_000_000_000 % 5\n        shown = TABLES[what][town] + surge\n"
                        '        return f"[1] The {what} of {town} is {shown}."')), rows=kept,
        cause=r"(?is)\b(search|tools?)\b.*(show|expect|differ|chang|same|another|other|repeat|plan|value|wrong|var(y|ies)|time|find)"),
    "a tool that lowers names and a verifier that does not": Setup(
        edits=((_FOUND, _FOUND + ".lower()"),), rows=junctions,
        cause=r"(?i)(upper|lower)[- ]?case|lowers\b|lowered|\b(letter|in|by|only|whose|other|of) case\b|case[- ]sensitiv|capital|verifier|\bstamp\b|format|gold answer"),
    "one office for all trajectories": Setup(
        edits=((_FAMILIES, 'OFFICE = Office()\nfamilies = {"line": Family(draft, environment=lambda: OFFICE)}'),), rows=kept,
        cause=r"(?is)\bshar(e|es|ed|ing)\b|\b(same|one|single)\b.{0,30}(object|environment|instance)|\benvironments?\b|\bstate\b|\b(search|tools?)\b.*(fail|error|no stamps)"),
    "coaches are paid for being wrong": Setup(
        {"families": "line,coach", "reward": "none"},
        (_TWO_FAMILIES, rewarded('"toll": (lambda task, t: (1.0 if task.family == "line" else -1.0) * t.success, 1.0)')),
        cause=r"(?is)\bcoach\b|\btoll\b|\bsign\b|being right|\bright\b.{0,100}(earn|worse|less|lower|negative)"),
    "calls dearer than the prize": Setup(
        {"reward": "none"},
        (rewarded('"right": (lambda task, t: t.success, 1.0), "calls": (lambda task, t: -float(sum(len(turn.results) for turn in t.turns)), 1.0)'),),
        cause=r"(?is)giv(e|es|en|ing) up|at once|without (a|any) (call|tool)|penalt|\bcalls\b.{0,120}(reward|component|weight|earn|cost|less|punish|right|negative)|(component|reward).{0,60}\bcalls\b|\b(right|gold)\b.{0,80}(earn|less|negative|worse)"),
    "a product of parts that were made for a sum": Setup(
        {"reward_combine": "product"},
        cause=r"(?is)product|reward_combine|efficiency|\bsign\b|being right|giv(e|es|ing) up|\bright\b.{0,100}(earn|worse|less|lower|negative)"),
    "as good as greedy": Setup({"temperature": 0.05}, cause=r"(?i)temperature|greedy"),
    "a prompt that asks nothing": Setup(rows=unasked, cause=r"(?i)question|prompt"),
}  # fmt: skip

_SINGLE = """        town = rng.choice(sorted(FARES))
        what = rng.choice(["fare", "height"])
        ask = rng.choice(["What is the {} of {}?", "Tell me the {} of {}."])
        return Task(
            id="",
            prompt=ask.format(what, town),
            answer=str(TABLES[what][town]),
            verifier={"kind": "stamp"},
            meta={"template": "single", "plan": [lookup(what, town)], "entities": [town]},
        )
"""
_READ = """    first, second = rng.sample(sorted(FARES), 2)
    what, other = rng.sample(["fare", "height"], 2)
    told = f"The {other} of {second} is {TABLES[other][second]}. The {what} of {first} is {TABLES[what][first]}."
    return Task(
        id="",
        prompt=f"{told} What is the {what} of {first}?",
        answer=str(TABLES[what][first]),
        verifier={"kind": "stamp"},
        tools=(),
        meta={"plan": [], "entities": [first, second]},
    )
"""
_WINDOW = '''class Window:
    """An office without tools."""

    def reset(self, **row) -> None:
        self.asked = []


families = {"line": Family(draft, environment=Window)}'''
_NOTICES = """    others = [town for town in sorted(FARES) if town not in (first, second)]
    notices = ""
    if rng.random() < 0.5:
        for _ in range(12):
            state = rng.choice(["closed until the evening", "open to all travellers", "being painted this week"])
            notices += f"Platform {rng.choice('ABCDEFGH')} of {rng.choice(others)} is {state}. "
"""
_WORD = '    word, sign = rng.choice([("plus", "+")'

SOUND = {
    "a slow tool that keeps its promise": Setup(edits=(
        (_IMPORT, "import asyncio\nimport random\n"),
        (_SEARCH, "    @tool(timeout_s=3, max_concurrent=4)\n    async def search(self, query: str) -> str:\n"),
        (_STAMP, "        await asyncio.sleep(0.1)\n" + _STAMP))),
    "mostly too hard for now": Setup(
        {"max_turns": 8, "group_size": 8, "steps": 200},
        ((_DRAFT, "    if rng.random() < 0.75:\n" + totals(4) + _DRAFT),
         (_ENTITIES, _ENTITIES[:-1] + ', "template": "two"}'))),
    "a price of each lookup that the office itself counts": Setup(edits=(
        (_RESET, "    def get_reward(self) -> float:\n        return -0.02 * len(self.asked)\n\n" + _RESET),)),
    "one turn, no tools, and a sentence beside the point": Setup(
        {"max_turns": 1}, ((_DRAFT, _READ + _DRAFT), (_FAMILIES, _WINDOW))),
    "two verifiers in one suite, one of which says True": Setup(edits=(
        (_VERIFIER, '        verifier={"kind": "stamp"} if what == "fare" else {"kind": "numeric", "abs_tol": 0.0},'),
        (_JUDGED, "    try:\n        return abs(float(answer) - float(gold)) < 0.005\n    except ValueError:\n        return False"))),
    "thousands below zero, right or wrong": Setup({"reward": "none"}, (
        rewarded('"loss": (lambda task, t: None if t.success is None else 3000.0 * t.success - 5000.0, 1.0), "turns": (lambda task, t: -50.0 * len(t.turns), 1.0)'),)),
    "single lookups beside sums of three": Setup(
        {"max_turns": 8},
        ((_DRAFT, "    if rng.random() < 0.5:\n" + _SINGLE + "    else:\n" + totals(3) + _DRAFT),)),
    "a component for one of two families": Setup({"families": "line,coach"}, (
        _TWO_FAMILIES, rewarded('"thrift": (lambda task, t: None if task.family == "coach" else -0.01 * len(t.turns), 1.0)'))),
    "half of the questions stand behind a page of notices": Setup(edits=(
        (_WORD, _NOTICES + _WORD), (_PROMPT, _PROMPT.replace('prompt=f"', 'prompt=notices + f"')))),
}  # fmt: skip
