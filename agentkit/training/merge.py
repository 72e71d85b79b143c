"""An adapter folded into the model it was trained on: a full model that needs neither PEFT nor this kit.

The merged model, in the data type of the model it came from, must give the tokens of the run's own
trajectories the log-probabilities that model and adapter gave them, with at least 95 % of what the adapter
does; otherwise it is not written. Where rounding loses more, model and adapter
are exported side by side. Leaves out quantised models.
"""

import shutil
from collections.abc import Sequence
from itertools import chain, compress
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from agentkit.policies.engine_weights import bare, folded
from agentkit.policies.loading import pretrained, with_adapter
from agentkit.policies.precision import LEAST_SHARE, precision_of, surviving_share
from agentkit.policies.sync_guard import sampled_logprobs
from agentkit.rollouts.template_probe import end_of_turn_ids
from agentkit.runs import Run, RunError, read_json, secure, write_json
from agentkit.runs.files import adapter_base
from agentkit.training.adapters import replacing
from agentkit.training.saves import STAGE

CHECKED, CHECKED_TOKENS = 8, 2048  # trajectories, and tokens of each


def merge(run: Run, dtype: str | None = None, unmerged: bool = False) -> dict[str, Any]:
    """Fold a run's best adapter (and its SFT adapter under it) into the full model, in ``merged/``.

    With e the effect of the adapter on log-probabilities of the run's own tokens and r what the merged model
    misses of it, the share that survives is 1 - |r|^2 / |e|^2, or that of the weights' change where this is
    less, since a few tokens may show all of it by chance. ``dtype`` is by default that of the model it was
    trained on; ``unmerged`` leaves the adapter as it is, in merged/adapter beside the model. Raises RunError
    where there is no adapter, no trajectory to check with, or less than 95 % survives. Returns what was
    found; differences and effects are in nats a token.
    """
    adapter, out, recipe = run.file("adapter"), run.file("merged"), run.manifest.get("recipe", {})
    if not (adapter / "adapter_config.json").exists():
        raise RunError(f"{adapter} does not exist: train this run first, with notebook 03.")
    rows, kept = _token_rows(run), _kept_in(recipe.get("model", "nano"), dtype)
    model = pretrained(AutoModelForCausalLM, recipe.get("model", "nano"), dtype=kept).eval()
    model = _weights_as(_trained_in(run), model)
    if recipe.get("sft"):
        model = folded(with_adapter(model, run.file("sft")))
    without = logprobs(model.float(), rows)
    model = with_adapter(model, adapter)
    before = logprobs(model, rows)
    of_weights = 1.0 if unmerged else surviving_share(model, kept)
    model = model.unload() if unmerged else model.merge_and_unload()
    model = _weights_as(torch.float32, _weights_as(kept, model))  # rounded as it is written
    misses = logprobs(with_adapter(model, adapter) if unmerged else model, rows) - before
    effect, name = before - without, str(kept).removeprefix("torch.")
    surviving = 1 - float(misses.square().sum() / effect.square().sum()) if effect.any() else 1.0
    surviving = min(surviving, of_weights)
    if not surviving >= LEAST_SHARE:  # NaN is refused too
        raise RunError(
            f"the merged model is not kept: {max(surviving, 0.0):.0%} of what the adapter does to "
            f"log-probabilities survives in {name}, and {LEAST_SHARE:.0%} should: merge with "
            "--dtype float32, or keep the adapter beside the model with --unmerged"
        )
    with replacing(out) as new:
        _write(bare(model).to(kept), AutoTokenizer.from_pretrained(adapter), new)
        if unmerged:
            config = shutil.copytree(adapter, new / "adapter") / "adapter_config.json"
            if recipe.get("sft") or adapter_base(recipe.get("model", "nano")):  # it lies on another adapter
                write_json(config, read_json(config) | {"base_model_name_or_path": str(out.absolute())})
    secure(out)
    return {
        "path": str(out),
        "dtype": name,
        "tokens": len(effect),
        "mean_difference": float(misses.abs().mean()),
        "max_difference": float(misses.abs().max()),
        "adapter_effect": float(effect.abs().mean()),
        "surviving": surviving,
    }


def _kept_in(source: str, dtype: str | None) -> torch.dtype:
    """The half precision that is asked for, or that of the model; else float32."""
    config = pretrained(AutoConfig, source)
    kept = getattr(torch, dtype) if dtype else config.get_text_config().dtype or config.dtype
    return kept if kept in (torch.float16, torch.bfloat16) else torch.float32


def _trained_in(run: Run) -> torch.dtype:
    """The data type that the run was trained in, on whatever machine: auto is another where a GPU is."""
    told = run.manifest["stages"].get(STAGE, {}).get("precision")
    return precision_of(told or run.manifest.get("recipe", {}).get("precision", "auto"))


def _weights_as(dtype: torch.dtype, model: Any) -> Any:
    """The model with its weights in this type, and no buffer: RoPE's frequencies stay in float32."""
    for weight in model.parameters():
        weight.data = weight.data.to(dtype)
    return model


def _write(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a model that ends its turns in any engine as it did in the rollouts."""
    settings = model.generation_config
    settings.eos_token_id = sorted(end_of_turn_ids(tokenizer))
    try:
        settings.validate(strict=True)
    except ValueError:  # it samples at a temperature, and does not say that it samples
        settings.do_sample = True
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def logprobs(model: Any, rows: Sequence[tuple[list[int], list[int]]]) -> torch.Tensor:
    """(tokens,) log-probabilities at temperature 1 of what rows' masks mark; a row is ids and a mask."""
    scores = [compress(sampled_logprobs(model, ids[:1], ids[1:], 1.0), mask[1:]) for ids, mask in rows]
    return torch.tensor([*chain.from_iterable(scores)])


def _token_rows(run: Run) -> list[tuple[list[int], list[int]]]:
    """Token ids and masks of a few trajectories: of the evaluated policy, else of the last step."""
    step = run.steps[-1] if run.steps else None
    name = "grpo" if run.file("eval", "grpo.parquet").exists() else step
    rows = []
    for t in run.trajectories(name) if name is not None else ():
        ids, mask = [*t.prompt_ids, *t.completion_ids], [0] * len(t.prompt_ids) + list(t.action_mask)
        if 1 in mask[1:CHECKED_TOKENS]:
            rows.append((ids[:CHECKED_TOKENS], mask[:CHECKED_TOKENS]))
    if not rows:
        raise RunError(
            f"{run.path} holds no trajectory to check the merged model with: run notebook 03 or 05 first."
        )
    return rows[:: max(len(rows) // CHECKED, 1)][:CHECKED]
