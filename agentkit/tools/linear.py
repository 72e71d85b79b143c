"""Linear and mixed-integer programs as text: read, repaired, solved with HiGHS, and what contradicts in them.

    max 3x + 2y
    c1 cap 14: x + y <= 14
    c2 need 3: x >= 3
    integer x

Text before the objective is prose. A line has a name, a note of what was meant, and what was typed; variables
are at least 0. Solving happens in a process that is killed when its time is up (``apart``). Leaves out what a
repair is worth (verifiers.repairs).
"""

import json
import math
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from agentkit.tools.execution import in_process
from agentkit.tools.runtime import run_blocking

MAX_TEXT, MAX_LINES, MAX_VARIABLES = 20_000, 200, 100
MAX_NUMBER = 1e7  # of a coefficient or a bound; HiGHS takes 1e20 for infinity
MAX_AMOUNT = 1_000.0  # of a relaxation: further than any mistyped number, and far from infinity
SOLVE_S, LIMIT_S = 5.0, 20.0  # for one solve, and for a process with all of its solves
TOLERANCE = 1e-6  # relative, of an optimum
_NUMBER = r"\d{1,12}(?:\.\d{1,12})?"
_LINE = re.compile(rf"([A-Za-z]\w{{0,30}})( [^:]{{0,80}})?: ([^<>=]{{1,2000}}?) ?(<=|>=|=) ?(-? ?{_NUMBER})")
_TERM = re.compile(rf" ?([+-]?) ?({_NUMBER})? ?\*? ?((?![eE]\d)[A-Za-z]\w{{0,30}})")
_NO_NAMES = {"nan", "inf", "infinity", "integer", "max", "min"}
_at_once = threading.BoundedSemaphore(
    os.cpu_count() or 1
)  # processes; every call has an event loop of its own

Repairs = Mapping[str, float | None]  # by constraint: how far it is relaxed, None where it is dropped


class Unsolved(RuntimeError):
    """The solver gave no verdict in its time, or ended."""


@dataclass(frozen=True, slots=True)
class Constraint:
    name: str
    terms: Mapping[str, float]  # coefficients by variable
    sense: str  # <=, >= or =
    bound: float
    slack: float = 0.0  # how far it was relaxed

    @property
    def limits(self) -> tuple[float, float]:
        low = -math.inf if self.sense == "<=" else self.bound - self.slack
        return low, math.inf if self.sense == ">=" else self.bound + self.slack


@dataclass(frozen=True, slots=True)
class Program:
    maximise: bool
    objective: Mapping[str, float]
    constraints: tuple[Constraint, ...]
    variables: tuple[str, ...]
    integer: frozenset[str] = frozenset()

    @property
    def names(self) -> list[str]:
        return [constraint.name for constraint in self.constraints]

    def repaired(self, repairs: Repairs) -> "Program":
        kept = [
            replace(c, slack=repairs.get(c.name, 0.0))
            for c in self.constraints
            if repairs.get(c.name, 0.0) is not None
        ]
        return replace(self, constraints=tuple(kept))


# ---- reading
def read(text: str) -> Program:
    """The program in a text. Raises ValueError naming the line that is none."""
    if len(text) > MAX_TEXT:
        raise ValueError(f"the program has {len(text)} characters; {MAX_TEXT} is the limit")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    start = next((i for i, line in enumerate(lines) if line.startswith(("max ", "min "))), None)
    if start is None:
        raise ValueError("there is no program: it begins with a line such as 'max 3x + 2y'")
    objective, *rest = filter(None, lines[start:])
    integer = frozenset(
        name for line in rest if line.startswith("integer ") for name in re.findall(r"\w+", line)[1:]
    )
    constraints = tuple(_constraint(line) for line in rest if not line.startswith("integer "))
    names = [constraint.name for constraint in constraints]
    if len(set(names)) < len(names):
        raise ValueError("two constraints have one name")
    terms = _terms(objective[4:], objective)
    variables = tuple(dict.fromkeys(v for each in (terms, *(c.terms for c in constraints)) for v in each))
    if not constraints or len(constraints) > MAX_LINES or len(variables) > MAX_VARIABLES:
        raise ValueError(f"a program has 1 to {MAX_LINES} constraints and at most {MAX_VARIABLES} variables")
    if unknown := integer - set(variables):
        raise ValueError(f"integer names {min(unknown)!r}, which is no variable")
    return Program(objective.startswith("max"), terms, constraints, variables, integer)


def _constraint(line: str) -> Constraint:
    found = _LINE.fullmatch(line)
    if not found:
        raise ValueError(f"{line[:60]!r} is no constraint: write one such as 'c1 cap 14: x + 2y <= 14'")
    name, _, left, sense, bound = found.groups()
    return Constraint(name, _terms(left, line), sense, _number(bound, line))


def _terms(text: str, line: str) -> dict[str, float]:
    terms: dict[str, float] = {}
    at = 0
    while at < len(text):
        found = _TERM.match(text, at)
        if not found or (at and not found[1]) or found[3].casefold() in _NO_NAMES:
            raise ValueError(f"{line[:60]!r}: {text[at:][:20]!r} is no term such as + 2y")
        terms[found[3]] = terms.get(found[3], 0.0) + _number(f"{found[1]}{found[2] or 1}", line)
        at = found.end()
    return terms


def _number(text: str, line: str) -> float:
    value = float(text.replace(" ", ""))
    if abs(value) > MAX_NUMBER:
        raise ValueError(f"{line[:60]!r}: {text} is beyond {MAX_NUMBER:g}")
    return value


# ---- solving
def solve(program: Program, feasible_only: bool = False) -> tuple[str, float | None]:
    """optimal with the optimum, infeasible or unbounded. Raises Unsolved where HiGHS does not decide."""
    import numpy as np
    from scipy.optimize import LinearConstraint, milp

    sign = -1.0 if program.maximise else 1.0
    costs = np.array(
        [0.0 if feasible_only else sign * program.objective.get(v, 0.0) for v in program.variables]
    )
    rows = np.array([[c.terms.get(v, 0.0) for v in program.variables] for c in program.constraints])
    bounds = (
        [LinearConstraint(rows, *np.array([c.limits for c in program.constraints]).T)] if rows.size else []
    )
    whole = np.array([v in program.integer for v in program.variables], dtype=int)
    found = milp(
        costs, integrality=whole, constraints=bounds, options={"time_limit": SOLVE_S, "mip_rel_gap": 0.0}
    )
    status = {0: "optimal", 2: "infeasible", 3: "unbounded"}.get(found.status)
    if (
        status is None and not feasible_only and found.status == 4
    ):  # infeasible or unbounded: presolve saw which
        status = "infeasible" if solve(program, feasible_only=True)[0] == "infeasible" else "unbounded"
    if status is None:
        raise Unsolved(f"the solver did not decide within {SOLVE_S:g} s ({found.message})"[:200])
    return status, sign * float(found.fun) + 0.0 if status == "optimal" else None


def feasible(program: Program) -> bool:
    return solve(program, feasible_only=True)[0] != "infeasible"


def conflict(program: Program) -> list[str]:
    """An irreducible infeasible subset, by a deletion filter (Chinneck and Dravnieks 1991); or []."""
    if feasible(program):
        return []
    kept = program
    for constraint in program.constraints:
        without = replace(kept, constraints=tuple(c for c in kept.constraints if c is not constraint))
        kept = kept if feasible(without) else without
    return kept.names


def same(value: float, optimum: float) -> bool:
    return abs(value - optimum) <= TOLERANCE * max(1.0, abs(optimum))


# ---- in a process that can be killed
def conflict_in(text: str, repairs: tuple) -> str:
    """The IIS of a repaired program, as a JSON list of names."""
    return json.dumps(conflict(read(text).repaired(dict(repairs))))


def outcome_of(text: str, repairs: tuple, optimum: float, wrong: tuple) -> str:
    """What a repaired program comes to: as JSON ``status`` and whether it was ``preserved``, then its value.

    ``optimal`` is the known optimum. A program with another one is ``changed``, one that has it without being
    preserved ``overdone``, so that nobody is paid for dropping more than was wrong. Preserved means that only
    what was needed was changed: nothing but constraints in ``wrong`` (where any are named), and none that
    could stay as it was.
    """
    program, repairs = read(text), dict(repairs)
    status, value = solve(program.repaired(repairs))
    if status == "optimal" and not same(value, optimum):
        status = "changed"
    elif status == "optimal" and (
        (wrong and not repairs.keys() <= set(wrong))
        or any(feasible(program.repaired(repairs | {name: 0.0})) for name in repairs)
    ):
        status = "overdone"  # the known optimum, with more changed than was wrong
    reply = json.dumps({"status": status, "preserved": status == "optimal"})
    return reply if value is None else f"{reply}\n{plain(value)}"


def verdict_in(reply: str) -> dict[str, Any]:
    """``status`` and ``preserved`` of what ``outcome_of`` gave."""
    return json.loads(reply.partition("\n")[0])


def plain(value: float) -> int | float:
    """A number as people write it: 24 for 24.0000000001."""
    value = round(value, 6)
    return int(value) if value.is_integer() else value


@lru_cache(maxsize=8192)
def apart(function: Callable[..., str], *arguments: object) -> str:
    """What a pure function gives, run in another process, once for the same arguments.

    Raises:
        ValueError: what the function says of its arguments.
        Unsolved: it did not end in LIMIT_S and was killed, or failed.
    """
    with _at_once:
        try:
            return run_blocking(in_process(partial(function, *arguments), LIMIT_S))
        except TimeoutError:
            raise Unsolved(f"the solver did not end within {LIMIT_S:g} s") from None
        except RuntimeError as error:
            raise Unsolved(str(error)) from None


def frozen(repairs: Repairs) -> tuple:
    return tuple(sorted(repairs.items()))


def changed(names: Iterable[str], repairs: Repairs, name: str, amount: float | None) -> Repairs:
    """The repairs with one more: a constraint dropped, or relaxed by ``amount``. Raises ValueError."""
    if name not in names:
        raise ValueError(f"there is no constraint {name[:40]!r}; there are {', '.join(names)}")
    before = repairs.get(name, 0.0)
    if before is None:
        raise ValueError(f"{name} is dropped already")
    if amount is None:
        return {**repairs, name: None}
    if not 0 < amount <= MAX_AMOUNT - before:  # NaN is neither
        raise ValueError(
            f"{name} cannot be relaxed by {amount:g}: give more than 0, {MAX_AMOUNT:g} in all at most"
        )
    return {**repairs, name: before + amount}
