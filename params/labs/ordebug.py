"""OR-debug (arXiv 2601.21008): an infeasible linear or mixed-integer program, to be repaired where it was
mistyped, from an irreducible infeasible subset of its constraints (IIS).

The actions are get_iis, drop_constraint, relax_constraint and submit, and there are nine kinds of fault A to
I. What was published names the letters only; what they stand for here is in FAULTS. A program with a known
optimum gets a fault that makes it infeasible; each line still says what was meant, so that one repair is
right, and a draft where another one would keep the optimum too is no task. One page: environment, measures,
programs, faults, tasks, verifier, rewards. Leaves out reading and solving programs (linear).
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from itertools import product
from random import Random
from typing import Any

import linear

from agentkit import Family, Score, Task, Trajectory, tool
from agentkit.records import Table, ToolResult, Unscored
from agentkit.runs import parse_json
from agentkit.tools.corpus import Corpus
from agentkit.trajectories import results_of
from agentkit.verifiers import check

REPAIRS = ("drop_constraint", "relax_constraint")
TOOLS = ("get_iis", *REPAIRS, "submit")
SENSES = {"cap": "<=", "need": ">=", "tie": "="}
ASKED = "Repair this program."


class RepairEnvironment:
    """A program to repair.

    Each repair is answered with the conflict that is left. A submission is judged, and then the program is as
    it was at first, so that one may try again.
    """

    system_prompt = (
        "A line of this program was mistyped, so it has no solution. Each line says what was meant (cap: at "
        "most, need: at least, tie: exactly, old: remove) and what was typed. Repair only what is wrong, "
        'submit, and end with a line "Answer: ..." that gives the optimum.'
    )

    def reset(self, prompt: Any = "", answer: str = "", planted: Any = (), **row: Any) -> None:
        """The program in the question. Raises ValueError where there is none."""
        self._text = prompt if isinstance(prompt, str) else str(prompt[-1]["content"])
        self._optimum, self._planted = float(answer), tuple(planted)
        self._names = linear.read(self._text).names
        self._repairs: linear.Repairs = {}

    @tool(timeout_s=120)
    def get_iis(self) -> str:
        """List constraints in conflict."""
        return self._conflict(self._repairs)

    @tool(timeout_s=120)
    def drop_constraint(self, name: str) -> str:
        """Remove a constraint.

        Args:
            name: Its name.
        """
        return self._repair(name, None)

    @tool(timeout_s=120)
    def relax_constraint(self, name: str, amount: float) -> str:
        """Loosen a constraint.

        Args:
            name: Its name.
            amount: By how much.
        """
        return self._repair(name, amount)

    @tool(timeout_s=120)
    def submit(self) -> str:
        """Submit the repairs."""
        repairs = linear.frozen(self._repairs)
        reply = linear.outcome_of(self._text, repairs, self._optimum, self._planted)
        self._repairs = {}
        return reply

    @classmethod
    def render(cls, task: Task, trajectory: Trajectory, turn: int) -> Table:
        """The program after a turn: what is dropped or relaxed, and what a tool said is in conflict."""
        results = [result for each in trajectory.turns[: turn + 1] for result in each.results if result.ok]
        repairs, _ = replayed(linear.read(task.prompt).names, results)
        told = results[-1].observation if results and results[-1].name != "submit" else "[]"
        conflict = json.loads(told)
        return Table(
            ("program", "state"),
            tuple((line, _state(line, repairs, conflict)) for line in task.prompt.splitlines()[1:]),
        )

    def _repair(self, name: str, amount: float | None) -> str:
        before = self._repairs
        repairs = linear.changed(self._names, before, name, amount)
        reply = self._conflict(repairs)
        if self._repairs is before:  # else this call ran out of time, and others came since
            self._repairs = repairs  # only where the call went well: the verifier replays those
        return reply

    def _conflict(self, repairs: linear.Repairs) -> str:
        return linear.conflict_in(self._text, linear.frozen(repairs))


def _state(line: str, repairs: linear.Repairs, conflict: Sequence[str]) -> str:
    name = line.split(" ")[0]
    amount = repairs.get(name, 0.0)
    repaired = "dropped" if amount is None else f"relaxed by {linear.plain(amount)}" if amount else ""
    return ", ".join(filter(None, [repaired, "✗ in conflict" if name in conflict else ""]))


# ---- measures beside success
def recovered(turns: int) -> Callable[[Task, Trajectory], float | None]:
    """RR@k: whether the program is repaired by a submission in one of the first ``turns`` turns."""

    def within(task: Task, trajectory: Trajectory) -> float | None:
        if trajectory.success is None:
            return None
        last = max(
            (i for i, t in enumerate(trajectory.turns, 1) if any(r.name == "submit" for r in t.results)),
            default=0,
        )
        return float(trajectory.success == 1.0 and last <= turns)

    return within


def diagnosed(task: Task, trajectory: Trajectory) -> float | None:
    """Whether the first repair is of a constraint that is wrong; 0 where nothing is repaired."""
    if trajectory.success is None or "planted" not in task.meta:
        return None
    first = next((r for r in results_of(trajectory) if r.name in REPAIRS and r.ok), None)
    return float(first is not None and first.arguments.get("name") in task.meta["planted"])


MEASURES = {"RR@5": recovered(5), "RR@20": recovered(20), "diagnosis accuracy": diagnosed}


# ---- programs that are right
@dataclass(frozen=True, slots=True)
class Line:
    """What was meant, and what was typed: the same, until a fault is planted."""

    kind: str  # cap, need, tie, or old: to be removed
    terms: tuple[tuple[int, str], ...]  # coefficient and variable
    meant: int
    sense: str = ""  # typed in place of the kind's
    typed: int | None = None  # in place of what was meant
    amount: int | None = None  # of the relaxation that repairs it; None: it is to be dropped

    @property
    def faulty(self) -> bool:
        return bool(self.sense) or self.typed is not None

    def text(self, name: str) -> str:
        note = "old" if self.kind == "old" else f"{self.kind} {self.meant}"
        typed = self.meant if self.typed is None else self.typed
        return f"{name} {note}: {summed(self.terms)} {self.sense or SENSES[self.kind]} {typed}"


@dataclass(frozen=True, slots=True)
class Model:
    objective: tuple[tuple[int, str], ...]  # to be maximised
    lines: tuple[Line, ...]
    whole: bool = False  # whether its variables are integers

    def text(self) -> str:
        rows = [line.text(f"c{number}") for number, line in enumerate(self.lines, 1)]
        integer = [f"integer {', '.join(v for _, v in self.objective)}"] * self.whole
        return "\n".join([f"max {summed(self.objective)}", *rows, *integer])

    def as_meant(self) -> "Model":
        """The program without its faults."""
        lines = (replace(line, sense="", typed=None) for line in self.lines if line.kind != "old")
        return replace(self, lines=tuple(lines))


def summed(terms: tuple[tuple[int, str], ...]) -> str:
    """3x + 2y - z."""
    words = (f"{'-' if k < 0 else '+'} {'' if abs(k) == 1 else abs(k)}{v}" for k, v in terms)
    return " ".join(words).removeprefix("+ ")


def model(rng: Random, variables: str, more: int) -> Model:
    """A program that is right: a cap and a need for each variable, a cap on their sum, ``more`` caps."""
    objective = tuple(zip(rng.sample(range(1, 10), len(variables)), variables, strict=True))
    lines = [Line("cap", ((1, v),), rng.randint(11, 49)) for v in variables]
    lines += [Line("need", ((1, v),), rng.randint(2, 9)) for v in variables]
    total = sum(line.meant for line in lines if line.kind == "cap")
    lines.append(Line("cap", tuple((1, v) for v in variables), rng.randint(total // 2, total + 9)))
    for _ in range(more):
        terms = tuple((rng.randint(1, 4), v) for v in sorted(rng.sample(variables, 2)))
        lines.append(Line("cap", terms, rng.randint(40, 160)))
    return Model(objective, tuple(lines), rng.random() < 0.2)


# ---- faults
@dataclass(frozen=True, slots=True)
class Fault:
    words: str
    of: str  # the kind of line it befalls; "" where it adds one
    plant: Callable[[Random, Line], Line]


def _digit_more(rng: Random, line: Line) -> Line:
    more = 10 * rng.randint(1, 5)
    return replace(line, typed=line.meant + more, amount=more)


def _digit_less(rng: Random, line: Line) -> Line:
    first = 10 ** (len(str(line.meant)) - 1)
    less = line.meant // first * first
    return replace(line, typed=line.meant - less, amount=less)


def _outdated(rng: Random, line: Line) -> Line:
    above = line.kind == "cap"
    typed = line.meant + rng.randint(2, 30) if above else rng.randint(1, max(1, line.meant - 1))
    return Line("old", line.terms, typed, ">=" if above else "<=")


def _minus_lost(rng: Random, line: Line) -> Line:
    (_, one), (_, other), *_ = rng.sample(line.terms, len(line.terms))
    difference = rng.randint(11, 49)
    return Line("need", ((1, one), (-1, other)), -difference, typed=difference)


def _odd(rng: Random, line: Line) -> Line:
    meant = 2 * rng.randint(max(8, line.meant // 2), line.meant)
    return Line("tie", tuple((2, v) for _, v in line.terms), meant, typed=meant - 1, amount=1)


FAULTS = {
    "A": Fault("the sense is turned round", "cap", lambda rng, line: replace(line, sense=">=")),
    "B": Fault("a digit too many before the number", "need", _digit_more),
    "C": Fault("the first digit is missing", "cap", _digit_less),
    "D": Fault("a line that should have been removed", "", _outdated),
    "E": Fault("an equation in place of a limit", "cap", lambda rng, line: replace(line, sense="=")),
    "F": Fault("a minus is lost", "", _minus_lost),
    "G": Fault("a number in another unit", "need", lambda rng, line: replace(line, typed=100 * line.meant)),
    "H": Fault("whole numbers that cannot add up", "", _odd),
    "I": Fault("two faults at once", "", _outdated),  # of the kinds in PAIRED
}
PAIRED = "ABCDEG"
TRIES = 60  # at one kind, before another is drawn


def draft(corpus: Corpus, rng: Random, wide: bool = False) -> Task | None:
    """A program of two variables and five or six lines; a wide one of three to five, and eight to fifteen."""
    variables, more = ("xyzuv"[: rng.randint(3, 5)], rng.randint(1, 4)) if wide else ("xy", 0)
    letter = rng.choice(sorted(FAULTS))
    letters = rng.sample(PAIRED, 2) if letter == "I" else [letter]
    tries = (_task(letter, _planted(rng, letters, model(rng, variables, more))) for _ in range(TRIES))
    return next(filter(None, tries), None)


def _planted(rng: Random, letters: list[str], right: Model) -> Model:
    """The program with its lines in a new order, and a fault of each of these kinds."""
    lines = list(right.lines)
    for fault in map(FAULTS.get, letters):
        whole = [line for line in lines if not line.faulty]
        fits = [line for line in whole if line.kind == fault.of]
        sums = [line for line in whole if len(line.terms) > 1]
        chosen = rng.choice(fits or (sums if fault.plant in (_minus_lost, _odd) else whole))
        lines = [line for line in lines if line is not chosen or not fault.of]
        lines.append(fault.plant(rng, chosen))
    rng.shuffle(lines)
    return replace(right, lines=tuple(lines), whole=right.whole or "H" in letters)


def _task(letter: str, faulty: Model) -> Task | None:
    """The task, or None where its fault does no harm, or another repair would do as well."""
    text = faulty.text()
    gold = {f"c{i}": line.amount for i, line in enumerate(faulty.lines, 1) if line.faulty}
    program, (status, optimum) = linear.read(text), linear.solve(linear.read(faulty.as_meant().text()))
    if status != "optimal" or not isinstance(linear.plain(optimum), int) or linear.feasible(program):
        return None

    def keeps(repairs: linear.Repairs) -> bool:
        status, value = linear.solve(program.repaired(repairs))
        return status == "optimal" and linear.same(value, optimum)

    if not keeps(gold) or any(keeps(gold | {name: None}) for name, amount in gold.items() if amount):
        return None
    iis = linear.conflict(program)
    steps = list(_steps(program, gold, iis))
    instead = [
        gold | {step["arguments"]["name"]: 0.0, wrong["name"]: None}
        for step in steps
        for wrong in step["wrong"]
        if wrong["name"] not in gold
    ]
    if len(steps) < len(gold) or (len(iis) < 2 and letter != "H") or any(map(keeps, instead)):
        return None
    played = product(*([step["arguments"], *step["wrong"]] for step in steps))
    tries = [{each["name"]: each.get("amount") for each in own} for own in played]  # the first is right
    reply, *replies = (
        linear.outcome_of(text, linear.frozen(repairs), optimum, tuple(gold)) for repairs in tries
    )
    if not linear.verdict_in(reply)["preserved"]:
        return None
    plan = [{"tool": "get_iis", "arguments": {}, "expect": json.dumps(iis)}, *steps]
    plan.append({"tool": "submit", "arguments": {}, "expect": reply})
    answer, planted = str(linear.plain(optimum)), sorted(gold)
    meta = {"template": letter, "case": f"{letter}: {FAULTS[letter].words}", "plan": plan, "iis": iis}
    meta |= {"planted": planted, "constraints": program.names}
    meta["answer_if"] = dict.fromkeys(replies, "none") | {reply: answer}
    verifier = {"kind": "repair", "planted": planted}
    return Task("", f"{ASKED}\n{text}", answer, verifier, tools=TOOLS, meta=meta)


def _steps(program: linear.Program, gold: linear.Repairs, left: list[str]) -> Iterator[dict[str, Any]]:
    """The expert's repairs, each when a conflict names its line, and what a careless one does instead."""
    done: dict[str, float | None] = {}
    while wrong := [name for name in left if name in gold and name not in done]:
        name, amount = wrong[0], gold[wrong[0]]
        by = {} if amount is None else {"amount": amount}
        others = [{"name": other} | by for other in left if other not in gold]
        done[name] = amount
        left = linear.conflict(program.repaired(done))
        step = {
            "tool": REPAIRS[amount is not None],
            "arguments": {"name": name} | by,
            "expect": json.dumps(left),
        }
        yield step | {"wrong": others or [{"name": name, "amount": 3}] * bool(by)}


# ---- the verifier
def repaired(
    answer: str,
    gold: str,
    *,
    trajectory: Trajectory | None = None,
    question: str = "",
    planted: Sequence[str] = (),
) -> Score:
    """The verifier: 1 when the last submission is a repair that keeps the optimum, and the answer names that.

    Calls are replayed on the program and what was submitted last is solved anew: nothing that a tool replied
    is believed.

    Args:
        answer: the optimum of the repaired program.
        gold: the known optimum.
        trajectory: with calls of drop_constraint, relax_constraint and submit; each submission begins anew.
        question: the text that holds the program (linear.read).
        planted: names of the constraints that are wrong; without them any that had to be changed may be.
    """
    program = linear.read(question)
    _, submitted = replayed(program.names, results_of(trajectory) if trajectory else ())
    if submitted is None:
        return Score(0.0, "nothing was submitted")
    try:
        reply = linear.outcome_of(question, linear.frozen(submitted), float(gold), tuple(planted))
    except linear.Unsolved as error:
        raise Unscored(str(error)) from None
    status = linear.verdict_in(reply)["status"]
    if status == "overdone":
        return Score(0.0, f"more was changed than was wrong: {', '.join(submitted)}")
    if status != "optimal":
        return Score(0.0, f"the repaired program is {status}")
    return check("numeric", answer, gold, rel_tol=linear.TOLERANCE)


def replayed(
    names: Sequence[str], results: Sequence[ToolResult]
) -> tuple[linear.Repairs, linear.Repairs | None]:
    """The repairs under way after these calls, and those that were submitted last; None where none were."""
    repairs, submitted = {}, None
    for result in filter(lambda r: r.ok, results):
        if result.name == "submit":
            repairs, submitted = {}, repairs
        elif result.name in REPAIRS:
            amount = result.arguments["amount"] if result.name == "relax_constraint" else None
            repairs = linear.changed(names, repairs, result.arguments["name"], amount)
    return repairs, submitted


# ---- rewards: read from parsed calls and their replies, never by a pattern over prose. In the published run
# an unanchored pattern took 20 from almost every text. The natural way (get_iis, one right repair, submit)
# earns 112 with the solver and 27 without it.
def of_problem(component: Callable[[Task, Trajectory], float]) -> Callable[[Task, Trajectory], float | None]:
    """A component that is None for tasks without a problem to repair."""

    @wraps(component)
    def scored(task: Task, trajectory: Trajectory) -> float | None:
        return component(task, trajectory) if {"constraints", "iis"} <= task.meta.keys() else None

    return scored


def _named(trajectory: Trajectory, *names: str) -> list[ToolResult]:
    return [result for result in results_of(trajectory) if result.name.lower() in names]


def _valid(task: Task, call: ToolResult) -> bool:
    """A repair of a constraint that the problem has; a relaxation by a finite amount above 0."""
    amount = call.arguments.get("amount")
    fits = call.name.lower() == "drop_constraint" or (type(amount) in (int, float) and 0 < amount < math.inf)
    return fits and call.arguments.get("name") in task.meta["constraints"]


# ---- without a solver, as published (GRPO v1)
@of_problem
def repair(task: Task, trajectory: Trajectory) -> float:
    """+20 for a valid targeted repair, +5 for only asking for the IIS, else 0."""
    repairs = _named(trajectory, *REPAIRS)
    if any(_valid(task, call) for call in repairs):
        return 20.0
    return 5.0 if not repairs and _named(trajectory, "get_iis") else 0.0


@of_problem
def step(task: Task, trajectory: Trajectory) -> float:
    """-1 for each attempted call, not for each turn, and -1 for a trajectory without one."""
    return -1.0 * max(len(results_of(trajectory)), 1)


@of_problem
def target(task: Task, trajectory: Trajectory) -> float:
    """+10 when there is a valid repair and each one is of a constraint in the IIS."""
    targets = {call.arguments["name"] for call in _named(trajectory, *REPAIRS) if _valid(task, call)}
    return 10.0 if targets and targets <= set(task.meta["iis"]) else 0.0


@of_problem
def faithfulness(task: Task, trajectory: Trajectory) -> float:
    """-20 when a repair names a constraint that the problem does not have."""
    names = [call.arguments.get("name") for call in _named(trajectory, *REPAIRS)]
    return -20.0 if any(name not in task.meta["constraints"] for name in names) else 0.0


# ---- with a solver behind the tools
def _reply(result: ToolResult) -> Any:
    """The JSON in a reply's first line, which may be anybody's tool's; None where there is none."""
    try:
        return parse_json(result.observation.partition("\n")[0])
    except ValueError:
        return None


def _last_submit(trajectory: Trajectory) -> dict:
    """The JSON object that the last submit() replied; empty where there is none."""
    submitted = _named(trajectory, "submit")
    reply = _reply(submitted[-1]) if submitted else None
    return reply if isinstance(reply, dict) else {}


@of_problem
def solved(task: Task, trajectory: Trajectory) -> float:
    """+100 when the last submit() replies {"status": "optimal"}, else -50: also where there is none.

    The shipped tool says so of the known optimum only; another one is "changed", and one for which more was
    changed than was wrong "overdone". The published -50 for syntax has no component of its own: a call
    that cannot be read costs its step, and a trajectory that submits nothing has this -50 already.
    """
    return 100.0 if _last_submit(trajectory).get("status") == "optimal" else -50.0


@of_problem
def preserved(task: Task, trajectory: Trajectory) -> float:
    """+5 when the last submit() replies that the model's meaning was preserved: "preserved": true."""
    return 5.0 if _last_submit(trajectory).get("preserved") is True else 0.0


@of_problem
def iis_shrinks(task: Task, trajectory: Trajectory) -> float:
    """+10 each time get_iis() or a repair replies with a shorter list than any before, the task's too.

    Than any: a submission puts the program back, and whoever begins anew should not earn it again.
    """
    shortest, shrunk = len(task.meta["iis"]), 0
    for result in _named(trajectory, "get_iis", *REPAIRS):
        reply = _reply(result)
        if isinstance(reply, list) and len(reply) < shortest:
            shortest, shrunk = len(reply), shrunk + 1
    return 10.0 * shrunk


@of_problem
def contradiction(task: Task, trajectory: Trajectory) -> float:
    """-20 for each repair of what the IIS replied last does not hold; a submission begins anew."""
    iis, contradictions = None, 0
    for result in _named(trajectory, "get_iis", *REPAIRS, "submit"):
        name, reply = result.name.lower(), _reply(result)
        if name in REPAIRS and iis is not None and result.arguments.get("name") not in iis:
            contradictions += 1
        if name == "submit":
            iis = None
        elif isinstance(reply, list):
            iis = reply
    return -20.0 * contradictions


def _weighted(*parts: Callable[..., float | None]) -> dict[str, tuple]:
    return {part.__name__: (part, 1.0) for part in parts}


families = {"ordebug": Family(draft, RepairEnvironment, measures=MEASURES)}
verifiers = {"repair": repaired}
rewards = _weighted(solved, iis_shrinks, step, contradiction, preserved)
without_solver = _weighted(repair, step, target, faithfulness)  # 29 for a perfect repair, as published
