"""GRPO of the small agent in float32 and in bfloat16: does half precision cost validation success?

    OMP_NUM_THREADS=1 python tests/compare_precisions.py outputs/precisions --seeds 1 2 3

For each seed one careless cold start in float32, from which both precisions go on: the same tasks and the same
recipe, which is params/nano-careless.yaml with fewer tasks and steps. Prints a line of JSON for each training and, in the end, the
difference of the means with its 95 % interval over seeds. Leaves out GPUs, whose kernels round otherwise
(tests/gpu).
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from statistics import mean, stdev

import yaml

from agentkit import Lab
from agentkit.policies.loading import agent_of, load_agent
from agentkit.recipe import Recipe
from agentkit.runs import Run, project_root
from agentkit.training.loop import GRPO
from agentkit.training.sft import cold_start, demonstrations

SHORTER = {"families": "A", "n_tasks": 400, "sft_transcripts": 1, "prompts_per_step": 4,
           "save_every": 0, "preflight": "off"}  # fmt: skip
T_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}  # Student's quantile for n seeds


def trained(folder: Path, recipe: Recipe) -> dict:
    """One training, its cold start taken from the seed's folder, or made there."""
    lab, started = Lab.open(recipe), time.monotonic()
    suite, run = lab.suite(), Run.create(folder)
    tasks, sft = lab.train_tasks(suite), folder.parent / f"sft-{recipe.seed}"
    if not sft.exists():
        model, tokenizer = load_agent("nano", precision="float32")
        cold_start(model, tokenizer, demonstrations(lab, tasks, tokenizer), recipe, sft)
    shutil.copytree(sft, run.file("sft"), dirs_exist_ok=True)
    trainer = GRPO(lab, *agent_of(run, recipe, "sft"), tasks, suite.split("validation"), run)
    trainer.train()
    rows = run.metrics
    return {
        "precision": recipe.precision,
        "seed": recipe.seed,
        "steps": recipe.steps,
        "tasks": recipe.val_tasks,
        "validation": rows["val_success"].dropna().round(4).tolist(),
        "training, last ten steps": round(float(rows["success"].tail(10).mean()), 4),
        "mismatch": round(float(rows.get("mismatch", rows["success"] * 0).dropna().mean()), 5),
        "least share": round(float(rows["mismatch_share"].min()), 3) if "mismatch_share" in rows else None,
        "clip fraction": float(rows["clip_fraction"].max()),
        "seconds": round(time.monotonic() - started),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--tasks", type=int, default=60, help="validation tasks")
    chosen = parser.parse_args()
    values = yaml.safe_load((project_root() / "params" / "nano-careless.yaml").read_text()) | SHORTER
    values |= {"steps": chosen.steps, "val_every": chosen.steps, "val_tasks": chosen.tasks}
    last: dict[str, list[float]] = {"float32": [], "bfloat16": []}
    for seed in chosen.seeds:
        for precision, found in last.items():
            recipe = Recipe.from_mapping(values | {"seed": seed, "precision": precision})
            row = trained(chosen.out / f"{precision}-{seed}", recipe)
            found.append(row["validation"][-1])
            print(json.dumps(row), flush=True)
    pairs = [b - a for a, b in zip(*last.values(), strict=True)]
    half = T_95.get(len(pairs), float("nan")) * stdev(pairs) / len(pairs) ** 0.5 if len(pairs) > 1 else 0.0
    means = {name: round(mean(found), 4) for name, found in last.items()}
    print(json.dumps(means | {"difference": round(mean(pairs), 4), "95 % interval": round(half, 4)}))


if __name__ == "__main__":
    main()
