"""LoRA adapters: their settings, folding them in for sampling, saving them whole.

Leaves out training them (sft, grpo) and exporting them with their model (merge).
"""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from peft.tuners.tuners_utils import BaseTunerLayer

from agentkit.policies.shards import sharded
from agentkit.recipe import Recipe
from agentkit.runs import writing

# in the names of MLPs and of what chooses among experts
_MLP = re.compile("expert|mlp|moe|router|feed_forward|ffn")


def lora(recipe: Recipe, model: Any) -> LoraConfig:
    """LoRA on every linear layer that text goes through, no dropout: sampling and training must see the same
    network, and vLLM knows no adapter of what sees or hears. A mixture of experts has it outside its MLPs.
    """
    names = [name for name, _ in model.named_modules()]
    others = [word for word in ("vision", "visual", "audio") if any(word in name for name in names)]
    return LoraConfig(
        r=recipe.lora_r,
        lora_alpha=recipe.lora_alpha,
        lora_dropout=0.0,
        target_modules=_outside_mlps(model) if any("expert" in name for name in names) else "all-linear",
        exclude_modules=rf".*({'|'.join(others)}).*" if others else None,
        task_type="CAUSAL_LM",
    )


def _outside_mlps(model: Any) -> list[str]:
    """Last names of the linear layers outside MLPs. Told all layers, or one that an MLP has as well, PEFT
    would also wrap fused experts and routers, in a form that can be neither folded nor handed over.
    """
    head, names = model.get_output_embeddings(), {True: set(), False: set()}
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Linear) and layer is not head:
            names[bool(_MLP.search(name))].add(name.rpartition(".")[2])
    return sorted(names[False] - names[True])


@contextmanager
def merged(model: Any) -> Iterator[None]:
    """The model with its LoRA adapter folded in, which samples faster; the weights come back bit for bit.

    Only in float32, and not where weights are sharded: in half precision the folded network is not quite the
    one that is trained.
    """
    layers = [layer.get_base_layer() for layer in model.modules() if isinstance(layer, BaseTunerLayer)]
    if not layers or sharded(model) or any(layer.weight.dtype != torch.float32 for layer in layers):
        yield
        return
    kept = [layer.weight.detach().clone() for layer in layers]
    model.merge_adapter()
    try:
        yield
    finally:
        model.unmerge_adapter()
        for layer, weight in zip(layers, kept, strict=True):
            layer.weight.data.copy_(weight)


def settled(model: Any) -> Any:
    """A trained model to sample from: its adapter folded in, or beside it in half precision or shards."""
    return model.merge_and_unload() if model.dtype == torch.float32 and not sharded(model) else model


def save_adapter(model: Any, tokenizer: Any, out: Path) -> None:
    """Save a LoRA adapter so that a reader sees the old one or the new one, never half of one."""
    with replacing(out) as new:
        write_adapter(model, new)
        tokenizer.save_pretrained(new)


def write_adapter(model: Any, folder: Path) -> None:
    """Write a LoRA adapter; PEFT would ask the hub whether the embeddings have another size there."""
    model.save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)  # PEFT's model card is an empty form


@contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """A folder to fill that then takes the place of ``out``; where that fails, ``out`` stays as it was."""
    new, old = (out.with_name(f".{out.name}.{word}") for word in ("new", "old"))
    for left in (new, old):
        shutil.rmtree(left, ignore_errors=True)
    with writing(out):
        yield new
        if out.exists():
            out.rename(old)
        new.rename(out)
    shutil.rmtree(old, ignore_errors=True)
