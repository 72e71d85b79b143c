"""GRPO-TCR's five sources in small: rows of Open-AgentRL's schema, drafted here for a rehearsal.

Each is a task of family C written as a row of that source and read back by the code that reads the real ones:
questions for the three of mathematics, functions for the two of programming, tested as TACO and as LeetCode
write it. The families have the names under which ``tasks: open_agentrl`` loads the real problems, which this
file leaves out. The reward is the preset ``tcr``, or ``tcr_paper``.
"""

import json
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from agentkit import Family, Task, Trajectory
from agentkit.tasks.families import code
from agentkit.tasks.public import rows
from agentkit.tasks.relabel import relabel_code
from agentkit.tools.corpus import Corpus
from agentkit.tools.environments import InterpreterEnvironment
from agentkit.trajectories import results_of, wholly_right

TRIES = 200  # drafts of family C until one is usable
STEPS = {"deepscaler": (1, 2), "numina_math": (3,), "omni_math": (4, 5)}  # in the chain that is asked about


def draft(source: str, corpus: Corpus, rng: Random) -> Task | None:
    """A task of this source, with the plan by which an expert solves it."""
    question = source in STEPS
    lengths = {length: code.LENGTHS[length] for length in STEPS.get(source, code.LENGTHS)}
    made = next(filter(None, (code.draft(corpus, rng, lengths, question) for _ in range(TRIES))), None)
    if made is None:
        return None
    task = rows.SOURCES["open_agentrl"].convert(as_row(source, made))
    plan = [step | {"tool": task.tools[0]} for step in made.meta["plan"]]
    return replace(task, id="", answer=made.answer, meta=made.meta | {"plan": plan})


def as_row(source: str, task: Task) -> dict[str, Any]:
    """A task of family C as a row of Open-AgentRL."""
    tests = task.verifier.get("tests", ())
    match source:
        case "taco_code":
            given, gives = [x for x, _ in tests], [[y] for _, y in tests]  # APPS wraps what is returned
            truth = json.dumps({"inputs": given, "outputs": gives, "fn_name": task.verifier["entry"]})
        case "leetcode_code":
            asserts = [f"    assert candidate({', '.join(map(repr, x))}) == {y!r}" for x, y in tests]
            truth = "\n".join(["def check(candidate):", *asserts, "", f"check({task.verifier['entry']})"])
        case _:
            truth = task.answer
    return {
        "data_source": source,
        "prompt": [{"role": "user", "content": task.prompt}],
        "ability": "math" if source in STEPS else "code",
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {},
    }


def accuracy(task: Task, trajectory: Trajectory) -> float | None:
    """Right, for a program in all of its tests; success is the share of them."""
    return wholly_right(trajectory)


def called(task: Task, trajectory: Trajectory) -> float:
    """Whether a tool was called at all."""
    return float(bool(results_of(trajectory)))


MEASURES = {"accuracy": accuracy, "called a tool": called}
SOURCES = (*STEPS, "taco_code", "leetcode_code")
REAL = (*rows.AGENTRL, "open_agentrl")  # the names of real rows' families; not all are drafted here
families = {
    name: Family(
        partial(draft, name) if name in SOURCES else None, InterpreterEnvironment, relabel_code, MEASURES
    )
    for name in REAL
}
