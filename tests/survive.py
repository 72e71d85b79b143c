"""Small trainings of a tiny random model, and what of them must not depend on interruptions."""

import json
import os
import signal
import sys
from pathlib import Path

import torch
from labs import lab_with

from agentkit import nano
from agentkit.recipe import Recipe
from agentkit.records import Task
from agentkit.runs import Run, read_jsonl

FILE_EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir")
KINDS = {  # name: changes of recipe or settings
    "plain": {},
    "minibatches=4": {"prompts_per_step": 4, "micro_batch": 4, "minibatches": 4},
}
SMALL = {"steps": 6, "prompts_per_step": 2, "group_size": 4, "micro_batch": 4, "val_every": 2, "val_tasks": 2, "lora_r": 2,
         "lora_alpha": 4, "temperature": 1.0, "learning_rate": 1e-2, "beta": 0.02, "max_turns": 2, "max_turn_tokens": 6,
         "max_tokens": 16, "deterministic": True, "save_every": 2, "seed": 5, "lr_schedule": "linear"}  # fmt: skip


def tiny_agent():
    """A random model of two small layers, with the small agent's tokenizer."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    small |= {"num_key_value_heads": 2, "layer_types": ["full_attention"] * 2}
    config = AutoConfig.from_pretrained(nano.DATA, **small, head_dim=32)  # which vLLM has, on a CPU too
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).float()
    return model, AutoTokenizer.from_pretrained(nano.DATA)


class Silent:
    """An environment with one tool."""

    def reset(self, **unused):
        return None

    def look(self, at: str) -> str:
        """Look at something.

        Args:
            at: What to look at.
        """
        return at


def evenness(task, trajectory):
    """A reward that any model can learn: the share of even token ids."""
    own = [i for i, m in zip(trajectory.completion_ids, trajectory.action_mask, strict=True) if m]
    return sum(i % 2 == 0 for i in own) / len(own)


def tasks(n: int = 5, split: str = "train") -> list[Task]:
    return [Task(f"{split}-{i}", f"Say {i}.", str(i), "exact", family="tiny", split=split) for i in range(n)]


def make_trainer(path, reward=evenness, agent=None, n_tasks=5, on_metrics=lambda row: None, **changes):
    """A trainer on the tiny agent, with changes of the recipe or of the trainer's settings."""
    from agentkit.training.loop import GRPO, Settings

    settings = {name: changes.pop(name) for name in [*changes] if name in Settings.__slots__}
    recipe = Recipe.from_mapping(SMALL | changes)
    lab = lab_with(recipe, Silent, {"evenness": (reward, 1.0)})
    given = *(agent or tiny_agent()), tasks(n_tasks), tasks(2, "validation"), Run.create(path), on_metrics
    return GRPO(lab, *given, **settings)


def attempt(path: Path, kind: str, kill_at: int | None = None) -> None:
    """Train until done, or until file operation number ``kill_at`` in the run's folder kills this process."""
    if kill_at is not None:
        events = iter(range(kill_at))

        def audit(event: str, of: tuple) -> None:
            if event in FILE_EVENTS and str(of[0]).startswith(str(path)) and next(events, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(audit)
    make_trainer(path, **KINDS[kind]).train()


def outcome(path: Path) -> dict[str, object]:
    """What must not depend on interruptions: bit for bit, but for the metrics' last digits (sums by threads)."""
    run = Run(path)
    rows = [
        {k: float(f"{v:.9g}") if isinstance(v, float) else v for k, v in row.items() if "seconds" not in k}
        for row in read_jsonl(run.file("train", "metrics.jsonl"))
    ]
    last = run.file("train", "checkpoints", f"checkpoint-{SMALL['steps']}", "adapter_model.safetensors")
    found = {f"metrics of step {row['step']}": json.dumps(row, sort_keys=True) for row in rows}
    found["steps"] = [row["step"] for row in rows]
    for step in run.steps:
        stored = run.trajectories(step)
        tokens = [(t.task_id, t.completion_ids, t.old_logprobs) for t in stored]
        found[f"trajectories {step}"] = tokens, [(t.reward, t.advantage) for t in stored]
    best = run.file("adapter", "adapter_model.safetensors")
    return found | {"last": last.read_bytes(), "best": best.read_bytes()}


if __name__ == "__main__":  # a process that test_resume.py kills
    torch.set_num_threads(1)
    attempt(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:]))
