"""Training in step and ahead: steps an hour, success and effective samples of max_staleness 0 and 1.

    OMP_NUM_THREADS=1 python tests/compare_staleness.py --seeds 3 --steps 12

Two processes train the small agent from one cold start, or with ``--servers N`` one that N servers of vLLM sample
for, with tools that take 50 ms; the two take turns, seed by seed. The clock leaves validation and the first step out: that one samples what it trains on in both.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from options import options

from agentkit.lab import Lab
from agentkit.policies.loading import load_agent
from agentkit.runs import Recipe, Run, project_root, read_jsonl, read_recipe, write_tasks
from agentkit.training.launch import Work
from agentkit.training.sft import cold_start, demonstrations

LAB = """
from dataclasses import replace

from benchmarks.rollouts import _slow
from agentkit.tasks import shipped_families
from agentkit.tools.corpus import Corpus

corpus = Corpus.open()
families = dict(
    (name, replace(family, environment=_slow({latency}, corpus)))
    for name, family in shipped_families(corpus).items()
    if name in ("A", "B")
)
"""
CHANGES = {
    "families": "A,B", "n_tasks": 400, "measure_base": False, "deterministic": False, "processes": 2, "save_every": 0,
    "prompts_per_step": 8, "group_size": 4, "micro_batch": 8, "val_tasks": 60, "tool_cache": "off", "sft_tasks": 64,
}  # fmt: skip


def one(folder: Path, values: dict, seed: int, bound: int) -> dict[str, float]:
    run = Run.create(folder / f"seed-{seed}-staleness-{bound}")
    write_tasks(run.file("tasks.jsonl"), Run(folder / "start").tasks)
    os.symlink(folder / "start" / "sft", run.file("sft"))
    Work(Lab.open(Recipe.from_mapping(values | {"seed": seed, "max_staleness": bound})), run).train()
    rows = read_jsonl(run.file("train", "metrics.jsonl"))
    seconds = [row["seconds"] - row.get("val_seconds", 0.0) for row in rows if row["step"] > 1]
    waited = [row["rollout_seconds"] for row in rows if row["step"] > 1]
    return {
        "seed": seed,
        "max_staleness": bound,
        "steps_an_hour": 3600 / fmean(seconds),
        "rollout_seconds": fmean(waited),
        "update_seconds": fmean(seconds) - fmean(waited),
        "success_before": rows[0]["val_success"],
        "success": rows[-1]["val_success"],
        "effective_samples": min(row.get("effective_samples", 1.0) for row in rows[1:]),
        "load": os.getloadavg()[0],
    }


def cold_started(folder: Path, chosen: Any, **changes: Any) -> dict[str, Any]:
    """The values of a recipe with slow tools; its suite and its cold start are in the run ``start``."""
    (folder / "slow.py").write_text(LAB.format(latency=chosen.latency_ms / 1000))
    values = read_recipe(project_root() / "params" / "nano-careless.yaml") | CHANGES | changes
    values |= {"lab": str(folder / "slow.py"), "steps": chosen.steps, "val_every": chosen.steps}
    values |= {"prompts_per_step": chosen.prompts, "micro_batch": min(8, 2 * chosen.prompts)}
    lab, start = Lab.open(Recipe.from_mapping(values | {"lab": ""})), Run.create(folder / "start")
    suite = lab.suite()
    write_tasks(start.file("tasks.jsonl"), suite.tasks)
    model, tokenizer = load_agent("nano")
    found = demonstrations(lab, suite.split("train")[: lab.recipe.sft_tasks], tokenizer)
    cold_start(model, tokenizer, found, lab.recipe, start.file("sft"))
    return values


def main() -> int:
    chosen = options(__doc__, seeds=3, steps=12, latency_ms=50, prompts=8, servers=0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        changes = {}
        if chosen.servers:
            changes = {
                "engine": "vllm",
                "topology": "split",
                "replicas": chosen.servers,
                "processes": 1,
                "weight_sync": "lora",
            }
        values, found = cold_started(folder, chosen, **changes), []
        for seed in range(1, chosen.seeds + 1):
            for bound in (0, 1):
                found.append(one(folder, values, seed, bound))
                print(json.dumps(found[-1]), flush=True)
    for name in ("steps_an_hour", "success"):
        means = [fmean(row[name] for row in found if row["max_staleness"] == bound) for bound in (0, 1)]
        print(f"{name}: {means[0]:.3f} in step, {means[1]:.3f} ahead, ratio {means[1] / means[0]:.2f}")
    print(f"lowest effective_samples: {min(row['effective_samples'] for row in found):.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
