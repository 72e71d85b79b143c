"""What it costs the agents of a run when its test questions are asked in other words.

    python tests/compare_paraphrases.py outputs/demo --agents base sft grpo

Every test task is asked as it stands and in ten other ways, once each at the recipe's
temperature with the same random numbers. Prints a table: success by kind, and the difference over all kinds with
its 95 % interval, templates as the evidence. Leaves out synonyms inside the question.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable

import numpy as np
import pandas as pd

from agentkit import Lab, load_run
from agentkit.evaluation import statistics
from agentkit.policies.loading import agent_of, make_policy
from agentkit.rollouts import rollout
from agentkit.tasks.splits import stratum

_MOVABLE = ["Round to 2 decimals.", "What is the result?", "Example: f(", "If the question assumes"]


def reordered(prompt: str) -> str:
    """The last sentence first, where there is one that can stand there."""
    for start in _MOVABLE:
        before, found, after = prompt.rpartition(f" {start}")
        if found:
            return f"{start}{after} {before}"
    return prompt


PARAPHRASES: dict[str, Callable[[str], str]] = {
    "help": lambda q: f"Please help me with this question: {q}",
    "please": lambda q: f"Please tell me. {q}",
    "polite": lambda q: f"{q} Thank you!",
    "greeting": lambda q: f"Good morning. {q}",
    "framed": lambda q: f"Question: {q}",
    "story": lambda q: f"I am preparing a quiz and need one answer. {q}",
    "hurry": lambda q: f"{q} Please be quick.",
    "both ends": lambda q: f"Hello! {q} Thanks a lot.",
    "order": reordered,
    "new line": lambda q: f"Answer the following.\n{q}",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--agents", nargs="+", default=["grpo"])
    arguments = parser.parse_args()
    run = load_run(arguments.run)
    lab = Lab.of(run)
    tasks = lab.load(run).split("test")
    clusters = np.unique([stratum(task) for task in tasks], return_inverse=True)[1]
    ways = {"as it stands": lambda question: question, **PARAPHRASES}
    table = {}
    for name in arguments.agents:
        agent, tokenizer = agent_of(run, lab.recipe, name)
        success = {}
        with make_policy(agent, tokenizer, name, lab.recipe) as policy:
            for way, say in ways.items():
                asked = [dataclasses.replace(task, prompt=say(task.prompt)) for task in tasks]
                rolled = rollout(
                    asked, policy, **lab.options(seed=lab.recipe.seed, progress=f"{name}, {way}")
                )
                success[way] = np.array([t.success or 0.0 for t in rolled])
        differences = np.mean([success[way] - success["as it stands"] for way in PARAPHRASES], axis=0)
        found = statistics.clustered(differences, clusters)
        table[name] = {way: f"{100 * own.mean():.1f}" for way, own in success.items()}
        low, high = found["ci95"]
        table[name]["difference"] = f"{100 * differences.mean():+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
    print(pd.DataFrame(table).to_string())


if __name__ == "__main__":
    main()
