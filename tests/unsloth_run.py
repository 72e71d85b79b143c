"""Run by test_unsloth.py in a process of its own, because Unsloth must be imported first: two steps with
either engine.

    python tests/unsloth_run.py FOLDER

Prints one line of JSON about what the engine loaded, how its loss and gradient compare, and what it saved.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

from agentkit.policies.unsloth import import_first

import_first("unsloth")

import torch  # noqa: E402
from benchmarks.peer import as_batch, update  # noqa: E402
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from agentkit import Run, Suite, nano  # noqa: E402
from agentkit.lab import Lab  # noqa: E402
from agentkit.policies.loading import load_agent  # noqa: E402
from agentkit.policies.vllm import VllmPolicy  # noqa: E402
from agentkit.recipe import Recipe  # noqa: E402
from agentkit.training.loop import GRPO  # noqa: E402
from agentkit.training.sft import cold_start, demonstrations  # noqa: E402


def make(folder: Path, engine: str, suite: Suite) -> GRPO:
    """A trainer from the SFT agent in the folder."""
    recipe = Recipe(
        engine=engine, seed=4, temperature=0.7, steps=2, prompts_per_step=2, group_size=4, micro_batch=4, learning_rate=1e-3,
        beta=0.02, lora_r=4, lora_alpha=8, max_tokens=256, val_every=2, val_tasks=1,
    )  # fmt: skip
    agent, tokenizer = load_agent("nano", merge=[folder / "sft"])
    run = Run.create(folder / engine)
    return GRPO(Lab.open(recipe), agent, tokenizer, suite.split("train"), suite.split("validation"), run)


def batch(trainer: GRPO) -> dict[str, torch.Tensor]:
    """One group on real text, with tool tokens."""
    text = "The population of Norway is 5,391,369 and its capital is Oslo. " * 12
    ids = trainer.tokenizer(text)["input_ids"]
    completions = [ids[i : i + 40 + 5 * i] for i in range(4)]
    masks = [[int(t % 3 > 0) for t in range(len(row))] for row in completions]
    made = as_batch([ids[:30]] * 4, completions, masks, [1.0, -0.4, 0.3, -0.9])
    return {name: x.to(trainer.model.device) for name, x in made.items()}


def main(folder: Path) -> None:
    recipe = Recipe(sft_transcripts=1, sft_batch=8, sft_learning_rate=1e-3, lora_r=4)
    suite = Suite.build({"families": ["A"], "n_tasks": 40, "seed": 11})
    agent, tokenizer = load_agent("nano")
    shown = demonstrations(Lab.open(recipe), suite.split("train"), tokenizer)
    cold_start(agent, tokenizer, shown, recipe, folder / "sft")

    ours, plain = make(folder, "unsloth", suite), make(folder, "transformers", suite)
    own, theirs = (get_peft_model_state_dict(trainer.model) for trainer in (ours, plain))
    if torch.cuda.is_available():
        loaded = isinstance(ours.policy, VllmPolicy)
    else:
        loaded = hasattr(ours.model, "_unsloth_cpu_gradient_checkpointing")
    found = {"loaded": loaded, "adapters": list(ours.model.peft_config)}
    layers = [[(name, x.shape) for name, x in sorted(given.items())] for given in (own, theirs)]
    found["same_layers"] = layers[0] == layers[1]
    generator = torch.Generator().manual_seed(0)
    noise = {name: (0.1 * torch.randn(x.shape, generator=generator)).to(x) for name, x in own.items()}
    results = []
    for trainer in (ours, plain):
        before = get_peft_model_state_dict(trainer.model)
        before = {name: x.clone() for name, x in before.items()}
        set_peft_model_state_dict(trainer.model, noise)
        trained = trainer.recipe
        trainer.recipe, trainer.loss = trained.but(beta=0.0), replace(trainer.loss, beta=0.0)
        results.append(update(trainer, batch(trainer))[1:])
        trainer.recipe, trainer.loss = trained, replace(trainer.loss, beta=trained.beta)
        trainer.model.zero_grad(set_to_none=True)
        set_peft_model_state_dict(trainer.model, before)
    (loss, gradient), (expected, reference) = results
    found |= {"loss_diff": abs(loss - expected), "grad_norm": float(reference.norm())}
    found |= {"grad_diff": float((gradient - reference).norm() / reference.norm()), "unshared": ours.unshared}

    result = ours.train()
    saved = AutoModelForCausalLM.from_pretrained(nano.DATA, dtype=ours.model.dtype).to(ours.model.device)
    merged = PeftModel.from_pretrained(saved, str(folder / "sft")).merge_and_unload()
    saved = PeftModel.from_pretrained(merged, str(ours.run.file("adapter")))
    moved = sum(float(x.abs().sum()) for n, x in get_peft_model_state_dict(saved).items() if "lora_B" in n)
    found |= {"steps": result["steps"], "best_step": result["best_step"], "moved": moved}
    base = ours.model.peft_config["default"].base_model_name_or_path
    found["base"] = "nano" if Path(base) == Path(nano.DATA) else base
    found["losses"] = ours.run.metrics["loss"].dropna().tolist()
    ids = torch.tensor([ours.step.trajectories[0].prompt_ids], device=saved.device)
    with torch.no_grad():
        gap = (saved.eval()(ids).logits - ours.model.eval()(ids).logits).abs().max()
    found["adapter_gap"] = float(gap)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
