"""Train the real small agent, healthy and with one fault planted in each run, and count the alarms.

    python tests/planted.py --folder outputs/planted

Ten healthy trainings differ in their seed; each fault is planted in one more. All start from the same cold
start on the same
suite and take the shipped recipe but for what SHORT changes: fewer steps and fewer rollouts in each, so that
a training costs a minute of an idle machine. A training that the folder holds is judged again, not repeated.
Too short for `stalled_learning` and `overfitting`, which wait for more steps and validations.
"""

from __future__ import annotations

import argparse
import random
import time
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from agentkit import Suite
from agentkit.diagnostics import stored_alarms
from agentkit.lab import Lab
from agentkit.recipe import Recipe, read_recipe
from agentkit.records import Task, Trajectory
from agentkit.rewards import Reward, correctness
from agentkit.runs import Run, write_json
from agentkit.tasks.family import Family
from agentkit.tools.environments import CorpusEnvironment
from agentkit.tools.runtime import tool

RECIPE = Path(__file__).resolve().parents[1] / "params" / "nano-careless.yaml"
SHORT = {
    "steps": 12,
    "prompts_per_step": 6,
    "group_size": 4,
    "micro_batch": 12,
    "val_every": 6,
    "val_tasks": 12,
    "save_every": 0,
}
FAMILIES = "AB"  # programs of C run in processes of their own, which takes most of the time on a busy machine
HEALTHY = 10
ONSET = 6  # the first step with a fault that sets in during training


# ---- faults of tools
class Broken(CorpusEnvironment):
    """Search that is slow, hangs at times, or fails, from step ONSET on. ``trained`` holds the last step that
    ended.
    """

    def __init__(self, fault: str, trained: list[int], top_k: int):
        super().__init__(top_k=top_k)
        self._fault, self._trained = fault, trained

    @tool(pure=False)
    def search(self, query: str) -> str:
        """Search facts.

        Args:
            query: What to look up.
        """
        if self._trained[0] + 1 >= ONSET:
            if self._fault == "slow tool":
                time.sleep(1.5)
            elif self._fault == "hung tool" and zlib.crc32(query.encode()) % 4 == 0:
                time.sleep(4)
            elif self._fault == "failing tool":
                raise RuntimeError("503 Service Unavailable")
        return super().search(query)


class Impure(CorpusEnvironment):
    """Search that is declared pure, but whose data changes every few steps."""

    def __init__(self, trained: list[int], top_k: int):
        super().__init__(top_k=top_k)
        self._trained = trained

    @tool(pure=True, version="1")
    def search(self, query: str) -> str:
        """Search facts.

        Args:
            query: What to look up.
        """
        return super().search(query) + " " * (self._trained[0] // ONSET)


# ---- faults of rewards
def constant(task: Task, trajectory: Trajectory) -> float:
    """A correctness that is never right from ONSET on, as with a verifier whose data went missing."""
    return correctness(task, trajectory) if trajectory.step < ONSET else 0.0


def noise(task: Task, trajectory: Trajectory) -> float:
    """Nothing but noise."""
    return random.Random(f"{trajectory.seed} {trajectory.completion_ids}").gauss(0, 1)


def calls(task: Task, trajectory: Trajectory) -> float:
    """Pays for every call."""
    return 0.3 * sum(len(turn.results) for turn in trajectory.turns)


def brevity(task: Task, trajectory: Trajectory) -> float:
    """A price for every turn that outweighs being right."""
    return -0.5 * len(trajectory.turns)


# ---- trainings
@dataclass(frozen=True)
class Planted:
    """One fault, and what may be said of it."""

    expected: tuple[str, ...]  # any of these alarms names it
    recipe: dict[str, Any] = field(default_factory=dict)
    reward: Callable[[Reward], Reward] | None = None  # of the recipe's reward
    environment: Callable[[list[int], int], object] | None = None  # of the steps trained and top_k
    at_temperature: float | None = None  # of the trainer, where it differs from the engine's


def broken(fault: str) -> Callable[[list[int], int], object]:
    """The environment of a fault."""
    return partial(Broken, fault)


FAULTS: dict[str, Planted] = {
    "constant reward": Planted(
        ("zero_variance", "dead_component"), reward=lambda r: {"correctness": (constant, 1.0)}
    ),
    "noise for reward": Planted(
        ("dominance",), reward=lambda r: {"correctness": (correctness, 0.0), "noise": (noise, 1.0)}
    ),
    "reward pays for calls": Planted(
        ("reward_hacking", "call_inflation", "dominance"), reward=lambda r: r | {"calls": (calls, 1.0)}
    ),
    "reward pays for brevity": Planted(
        ("tool_abandonment", "dominance", "reward_hacking"), reward=lambda r: r | {"brevity": (brevity, 1.0)}
    ),
    "learning rate x 30": Planted(
        ("kl_spike", "gradient_spike", "clip_drift", "entropy_collapse", "mode_collapse"),
        {"learning_rate": 4.5e-2},
    ),
    "too few tokens": Planted(("truncation",), {"max_tokens": 160}),
    "slow tool": Planted(("slow_tools",), environment=broken("slow tool")),
    "hung tool": Planted(("slow_tools",), {"tool_timeout_s": 1.0}, environment=broken("hung tool")),
    "failing tool": Planted(("zero_variance", "dead_component"), environment=broken("failing tool")),
    "impure tool": Planted(("stale_cache",), environment=Impure),
    "trainer at another temperature": Planted(
        ("engine_mismatch",), {"mismatch": "token_truncate"}, at_temperature=1.4
    ),
}


def start(folder: Path) -> tuple[Recipe, Suite]:
    """The suite and the cold start that all trainings share, made once."""
    from agentkit.policies.loading import load_agent
    from agentkit.training.sft import cold_start, demonstrations

    recipe, run = Recipe.from_mapping(read_recipe(RECIPE) | SHORT), Run.create(folder / "start")
    if not run.file("tasks.jsonl").exists():
        Lab.open(recipe).suite().save(run.path)
    suite = Suite.load(run.path)
    if not run.file("sft", "adapter_model.safetensors").exists():
        agent, tokenizer = load_agent(recipe.model)
        transcripts = demonstrations(Lab.open(recipe), suite.split("train"), tokenizer)
        cold_start(agent, tokenizer, transcripts, recipe, run.file("sft"))
    return recipe, suite


def train_one(
    folder: Path, name: str, seed: int, planted: Planted | None, recipe: Recipe, suite: Suite
) -> Run:
    """One training, in a run of its own; what a stopped attempt left goes on."""
    from agentkit.policies.loading import load_agent
    from agentkit.records import TrainingError
    from agentkit.training.loop import GRPO

    run, planted, trained = Run.create(folder / name.replace(" ", "-")), planted or Planted(()), [0]
    recipe = recipe.but(seed=seed, **planted.recipe)
    lab = Lab.open(recipe)
    if planted.environment:
        lab = Lab.open(recipe)
        families = Family(environment=partial(planted.environment, trained, recipe.top_k))
        lab = lab.extended(families=dict.fromkeys(FAMILIES, families))
    if planted.reward:
        lab = replace(lab, recipe=lab.recipe.but(reward="none"), own_rewards=planted.reward(lab.reward))
    agent, tokenizer = load_agent(recipe.model, merge=[folder / "start" / "sft"])

    def done(row: dict[str, Any]) -> None:
        trained[0] = row["step"]

    tasks, validation = (
        [t for t in suite.split(split) if t.family in FAMILIES] for split in ("train", "validation")
    )
    trainer = GRPO(lab, agent, tokenizer, tasks, validation, run, on_metrics=done)
    trainer.temperature = planted.at_temperature or trainer.temperature
    try:
        trainer.train()
    except TrainingError as error:
        print(f"{name} was stopped: {error}", flush=True)
    write_json(run.file("planted.json"), {"seed": seed, "fault": name if planted.expected else None})
    return run


def judged(run: Run, name: str, planted: Planted | None) -> dict[str, Any]:
    """One row of the table: how the training went, and what fired."""
    steps = run.metrics[run.metrics["step"] > 0]
    fired = [a for a in stored_alarms(run) if a.severity != "info"]
    right = [a for a in fired if planted and a.alarm in planted.expected]
    return {
        "run": name,
        "steps": len(steps),
        "success": f"{steps['success'].head(4).mean():.2f} to {steps['success'].tail(4).mean():.2f}",
        "seconds": round(float(steps["seconds"].sum())),
        "named at": right[0].step if right else np.nan,
        "alarms": ", ".join(f"{a.alarm} {a.step}" for a in fired),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--healthy", type=int, default=HEALTHY, help="healthy trainings")
    parser.add_argument("--faults", nargs="*", choices=FAULTS, default=list(FAULTS), help="which to plant")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    recipe, suite = start(options.folder)
    healthy = [(f"healthy {seed}", seed, None) for seed in range(1, options.healthy + 1)]
    faulty = [(name, 1, FAULTS[name]) for name in options.faults]
    wanted = [
        one for pair in zip_longest(healthy, faulty) for one in pair if one
    ]  # half of it says something of both
    rows = []
    for name, seed, planted in wanted:
        run = Run.create(options.folder / name.replace(" ", "-"))
        if not run.file("planted.json").exists():
            run = train_one(options.folder, name, seed, planted, recipe, suite)
        rows.append(judged(run, name, planted))
        print(
            f"{name}: {rows[-1]['success']}, {rows[-1]['seconds']} s; {rows[-1]['alarms'] or 'no alarm'}",
            flush=True,
        )
    table = pd.DataFrame(rows).set_index("run")
    print(table.to_string())
    false = sum(table.loc[[name for name, *_ in healthy], "alarms"] != "")
    named = int(table["named at"].notna().sum())
    print(
        f"{false} of {options.healthy} healthy trainings raised an alarm; {named} of {len(options.faults)} faults were named"
    )
    return int(false > 1 or named < len(options.faults))


if __name__ == "__main__":
    raise SystemExit(main())
