"""End to end: wall clock of GRPO from the same SFT agent to the target on the small recipe, ours and stock
TRL's.

Families A and B only: TRL gives every trajectory the same tools. Both train one after the other from the same
cold start, with the same hyperparameters, reward and validation (training.race says what the peer is).
Validation is not on the clock.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from agentkit.bench.common import report, spread
from agentkit.runs import project_root
from agentkit.runs.recipe import Recipe, read_recipe

TARGET, EVERY = 0.85, 6  # success on the validation tasks, steps between validations
SEEDS = (1, 2, 3)
PATIENCE = (
    5.0  # the peer is stopped after this many times our seconds: the ratio of that seed is then at least this
)


def bench_end_to_end(quick: bool = False) -> dict[str, Any]:
    """Seconds of training until 85 % of the validation tasks are solved.

    Args:
        quick: two steps from the agent as it ships, one seed, seconds a step: ends within 50 seconds.

    Returns:
        The bench JSON. ``ratio`` is peer / ours: above 1 is faster. ``levers`` splits a step's mean seconds
        into rollouts and the rest; ``reached`` counts the seeds that came to the target; one that did not
        counts with the seconds after which it was stopped, so its ratio is a lower bound where only the peer
        was.
    """
    runs = [_seed(seed, quick) for seed in SEEDS[: 1 if quick else None]]
    measure = (lambda r: r["seconds"] / r["steps"]) if quick else (lambda r: r["seconds"])
    sides = {side: [measure(run[side]) for run in runs] for side in ("ours", "peer")}
    levers = {
        name: {side: fmean(run[side][f"{name}_seconds"] for run in runs) for side in ("ours", "peer")}
        for name in ("rollout", "update")
    }
    case = {
        "case": "trl_env",
        "unit": "s/step" if quick else f"s to {TARGET:.0%}",
        **{side: spread(values) for side, values in sides.items()},
        "ratio": spread([b / a for a, b in zip(*sides.values(), strict=True)]),
        "levers": levers,
        "steps": {side: [run[side]["steps"] for run in runs] for side in sides},
        "reached": {side: sum(run[side]["reached"] for run in runs) for side in sides},
        "success": {side: [run[side]["success"] for run in runs] for side in sides},
    }
    return report("end-to-end", [case])


def _seed(seed: int, quick: bool) -> dict[str, dict[str, Any]]:
    from agentkit.bench.race import race_ours, race_trl
    from agentkit.lab import Lab
    from agentkit.policies.loading import load_agent
    from agentkit.training.sft import cold_start, demonstrations

    changes = {"families": "A,B", "seed": seed, "suite_seed": seed} | (
        {"steps": 2, "n_tasks": 60, "prompts_per_step": 2} if quick else {}
    )
    recipe = Recipe.from_mapping(read_recipe(project_root() / "params" / "nano.yaml") | changes)
    lab = Lab.open(recipe)
    suite = lab.suite()
    train, validation = suite.split("train"), suite.split("validation")
    with tempfile.TemporaryDirectory() as folder:
        adapter = Path(folder) / "sft"
        if not quick:
            agent, tokenizer = load_agent("nano")
            cold_start(agent, tokenizer, demonstrations(lab, train, tokenizer), recipe, adapter)
        start = [] if quick else [adapter]
        rest = (train, validation, lab, EVERY, TARGET)
        ours = race_ours(*load_agent("nano", start), *rest)
        return {"ours": ours, "peer": race_trl(*load_agent("nano", start), *rest, PATIENCE * ours["seconds"])}
