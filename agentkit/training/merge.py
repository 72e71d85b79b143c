"""An adapter folded into the model it was trained on: a full model that needs neither PEFT nor this kit.

The merged model is written in the data type of the model it came from, read back from the disk, and must then
give the tokens of the run's own trajectories the log-probabilities that model and adapter gave them;
otherwise it is not kept. Leaves out quantised models, whose weights an adapter cannot be folded into without
loss.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from agentkit.nano import model_path
from agentkit.rollouts.tokens import completion_logprobs
from agentkit.runs import Run, RunError, secure
from agentkit.training.adapters import replace_folder

# nats a token on average, by what rounding costs
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
CHECKED, CHECKED_TOKENS = 8, 2048  # trajectories, and tokens of each
NAMES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Merged:
    """A merged model and what the check found, in nats a sampled token."""

    path: Path
    dtype: str
    tokens: int  # compared
    mean_difference: float  # between merged model, and model with adapter
    max_difference: float
    adapter_effect: float  # mean difference between model with adapter, and without


def merge(run: Run, dtype: str | None = None) -> Merged:
    """Fold a run's best adapter (and its SFT adapter under it) into the full model, in ``merged/``.

    Args:
        run: with ``adapter/`` and trajectories.
        dtype: float32, float16 or bfloat16; by default that of the model it was trained on.

    Raises:
        RunError: there is no adapter, no trajectory to check with, or the merged model gives other
            log-probabilities.
    """
    adapter, merged, recipe = run.file("adapter"), run.file("merged"), run.manifest.get("recipe", {})
    if not (adapter / "adapter_config.json").exists():
        raise RunError(f"{adapter} does not exist: train this run first, with notebook 03.")
    source = str(model_path(recipe.get("model", "nano")))
    kept = NAMES[dtype] if dtype else _stored_dtype(source)
    rows = _token_rows(run)
    model = _load(source, torch.float32)
    if recipe.get("sft"):
        model = PeftModel.from_pretrained(model, str(run.file("sft"))).merge_and_unload()
    without = logprobs(model, rows)
    model = PeftModel.from_pretrained(model, str(adapter))
    before = logprobs(model, rows)
    new = run.file(".merged.new")
    shutil.rmtree(new, ignore_errors=True)
    model.merge_and_unload().to(kept).save_pretrained(new)
    AutoTokenizer.from_pretrained(adapter).save_pretrained(new)
    del model
    after = logprobs(_load(str(new), kept).float(), rows)
    mean, largest = _differences(before, after)
    if not mean <= TOLERANCE[kept]:  # NaN is refused too
        shutil.rmtree(new)
        raise RunError(
            f"the merged model is not kept: its log-probabilities differ from the adapter's by {mean:.2g} "
            f"nats a token on average ({largest:.2g} at most), more than {TOLERANCE[kept]:g}; merge with "
            "another --dtype, such as float32."
        )
    replace_folder(new, merged)
    secure(merged)
    effect, _ = _differences(before, without)
    return Merged(merged, str(kept).removeprefix("torch."), len(torch.cat(before)), mean, largest, effect)


def logprobs(model: Any, rows: Sequence[tuple[list[int], list[int]]]) -> list[torch.Tensor]:
    """Log-probabilities at temperature 1 of the tokens that were sampled.

    Args:
        model: a causal language model.
        rows: token ids with a mask of the same length, 1 on sampled tokens; the first token is never scored.

    Returns:
        For each row a float32 tensor as long as its mask has ones.
    """
    scores = []
    with torch.inference_mode():
        for ids, mask in rows:
            row = torch.tensor([ids])
            values, _ = completion_logprobs(model, row, torch.ones_like(row), len(ids) - 1, 1.0)
            scores.append(values[0, torch.tensor(mask[1:], dtype=torch.bool)])
    return scores


def _differences(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> tuple[float, float]:
    gaps = (torch.cat(list(one)) - torch.cat(list(other))).abs()
    return float(gaps.mean()), float(gaps.max())


def _token_rows(run: Run) -> list[tuple[list[int], list[int]]]:
    """Token ids and masks of a few trajectories: of the evaluated policy, else of the last step."""
    trajectories = []
    if run.file("eval", "grpo.parquet").exists():
        trajectories = run.trajectories("grpo")
    elif run.steps:
        trajectories = run.trajectories(run.steps[-1])
    rows = []
    for t in trajectories:
        ids, mask = [*t.prompt_ids, *t.completion_ids], [0] * len(t.prompt_ids) + list(t.action_mask)
        if 1 in mask[1:CHECKED_TOKENS]:
            rows.append((ids[:CHECKED_TOKENS], mask[:CHECKED_TOKENS]))
    if not rows:
        raise RunError(
            f"{run.path} holds no trajectory to check the merged model with: run notebook 03 or 05 first."
        )
    return rows[:: max(len(rows) // CHECKED, 1)][:CHECKED]


def _stored_dtype(source: str) -> torch.dtype:
    dtype = AutoConfig.from_pretrained(source).dtype
    return dtype if dtype in TOLERANCE else torch.float32


def _load(source: str, dtype: torch.dtype) -> Any:
    try:
        return AutoModelForCausalLM.from_pretrained(source, dtype=dtype).eval()
    except (OSError, ValueError) as error:
        raise RunError(f"cannot load the model {source!r}: {' '.join(str(error).split())[:200]}") from None
