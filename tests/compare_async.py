"""Ours trained one batch ahead (``max_staleness: 1``) against TRL's AsyncGRPOTrainer, from one cold start: steps
an hour, and success on the validation tasks.

    python tests/compare_async.py --seeds 3 --steps 24

Both have the same tasks, slow tools, reward, LoRA, optimiser, batch and clip range, no KL, the loss as a mean over a
micro-batch's tokens, and a vLLM server of their own: on the last card, or on the one there is. It takes adapters
(``--enable-lora``), which TRL hands over as a folder; without that TRL merges the adapter and sends all weights by
NCCL, which vLLM's CPU build cannot receive. Never run on a GPU; ``--rehearse 1`` runs it without one.

What is not the same: TRL drops groups that are older than ``max_staleness`` (``dropped``), takes the server's
log-probabilities for its ratio's centre, divides by the spread of a group's n (not n - 1), limits a turn and not a
trajectory (a prompt beyond the model's context ends its training), and may change the adapter between two turns.
Leaves out several training processes, and TRL's resuming, which begins the interrupted groups anew.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

import httpx
import torch
from benchmarks.common import messages
from benchmarks.end_to_end import _plan_reward
from compare_staleness import cold_started, one
from datasets import Dataset
from options import options
from transformers import PrinterCallback
from trl.chat_template_utils import qwen3_template
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_grpo_trainer
from trl.trainer import utils
from trl.trainer.utils import entropy_from_logits, selective_log_softmax

from agentkit.lab import Lab
from agentkit.policies.loading import load_agent
from agentkit.policies.precision import precision_of
from agentkit.policies.serve import serve_command
from agentkit.policies.server_processes import START_S, free_port
from agentkit.policies.transformers import TransformersPolicy
from agentkit.records import Task
from agentkit.rollouts import rollout
from agentkit.runs import Recipe, Run
from agentkit.runs.children import die_with_parent
from agentkit.runs.sweep_slots import gpu_count
from agentkit.runs.topology import CARDS, visible
from agentkit.training.adapters import lora, merged
from agentkit.training.trainers import on_one_card, quiet_trainer
from agentkit.training.validation import spread_over

AHEAD = 1  # max_staleness of both
ALIKE = {  # what TRL's trainer has no choice of, and one process that trains beside a server
    "beta": 0.0, "loss_type": "bnpo", "processes": 1, "engine": "server", "weight_sync": "lora", "sft_tasks": 64,
}  # fmt: skip


# ---- the server
@contextmanager
def serving(agent: Path, recipe: Recipe, card: str) -> Iterator[str]:
    """The address of a server of the agent, for as many adapters at a time as TRL asks for."""
    port, log = free_port(), agent.parent / "server.log"
    command, environment = serve_command(
        str(agent), agent.parent, port=port, max_lora_rank=recipe.lora_r, memory_share=recipe.engine_memory,
        precision=recipe.precision,
    )  # fmt: skip
    with log.open("w") as out:
        child = subprocess.Popen(
            [*command, f"--max-loras={AHEAD + 2}"], env=environment | ({CARDS: card} if card else {}),
            stdout=out, stderr=out, start_new_session=True, preexec_fn=partial(die_with_parent, signal.SIGTERM),
        )  # fmt: skip
    try:
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + START_S
        while not _answers(url):
            if child.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the server did not come up: {log.read_text()[-500:]}")
            time.sleep(1)
        yield url
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5.0, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


# ---- TRL's trainer
@cache
def _lab(text: str) -> Lab:
    return Lab.open(Recipe.from_mapping(json.loads(text)))


def environment(text: str, family: str) -> Any:
    """An environment of the lab that a recipe's JSON opens: TRL makes them in a process of its own."""
    return _lab(text).environments[family]()


def reward(
    tasks: dict[str, Task],
    recipe: Recipe,
    completions: Sequence[list[dict]],
    task_id: Sequence[str],
    **unused: Any,
) -> list[float]:
    """The plan's reward of each completion."""
    return [_plan_reward(tasks[i], c, recipe) for i, c in zip(task_id, completions, strict=True)]


def make_peer(
    agent: Path, values: dict[str, Any], tasks: Sequence[Task], url: str, out: Path
) -> AsyncGRPOTrainer:
    """TRL's trainer with the recipe's batch, optimiser, tools and reward; it asks the server for its options."""
    recipe, text = Recipe.from_mapping(values), json.dumps(values)
    model, tokenizer = load_agent(str(agent))
    tokenizer.response_template = qwen3_template
    rows = [{"prompt": messages(t), "task_id": t.id, "environment": t.family} for t in tasks]
    return AsyncGRPOTrainer(
        str(agent),
        partial(reward, {task.id: task for task in tasks}, recipe),
        _arguments(recipe, url, out),
        Dataset.from_list(rows).shuffle(recipe.seed),  # TRL takes them in order
        tokenizer,
        peft_config=lora(recipe, model),
        environment_factory={f: partial(environment, text, f) for f in sorted({t.family for t in tasks})},
    )


def _arguments(recipe: Recipe, url: str, out: Path) -> AsyncGRPOConfig:
    return on_one_card(
        AsyncGRPOConfig(
            output_dir=str(out),
            max_steps=recipe.steps,
            per_device_train_batch_size=recipe.micro_batch,
            gradient_accumulation_steps=recipe.prompts_per_step * recipe.group_size // recipe.micro_batch,
            token_budget=0,  # so many trajectories, not so many tokens
            num_generations=recipe.group_size,
            learning_rate=recipe.learning_rate,
            lr_scheduler_type=recipe.lr_schedule,
            warmup_steps=recipe.warmup_steps,
            optim="adamw_torch",
            weight_decay=0.0,
            max_grad_norm=recipe.max_grad_norm,
            temperature=recipe.temperature,
            epsilon=recipe.clip_epsilon,
            epsilon_high=recipe.clip_epsilon_high or recipe.clip_epsilon,
            max_completion_length=recipe.max_turn_tokens,  # of a turn
            max_tool_calling_iterations=recipe.max_turns - 1,
            max_staleness=AHEAD,
            vllm_server_base_url=url,
            dtype=str(precision_of(recipe.precision)).removeprefix("torch."),
            **quiet_trainer(recipe),
        )
    )


class _PlainHead:
    """What TRL's Triton kernel computes, in plain torch."""

    @staticmethod
    def apply(states: Any, weight: Any, bias: Any, labels: Any, temperature: float, *unused: Any) -> tuple:
        logits = torch.nn.functional.linear(states, weight, bias) / temperature
        return selective_log_softmax(logits, labels), entropy_from_logits(logits).detach(), None, None, None


@contextmanager
def stand_ins() -> Iterator[None]:
    """SDPA where the package kernels, which loads Flash Attention 3, is missing; without a GPU also a head in plain
    torch, and no peak FLOPs.
    """
    load, gpu = async_grpo_trainer.create_model_from_path, torch.cuda.is_available()
    with ExitStack() as stack:
        if not (gpu and find_spec("kernels")):
            plain = lambda *given, **named: load(*given, **named | {"attn_implementation": "sdpa"})  # noqa: E731
            stack.enter_context(patch.object(async_grpo_trainer, "create_model_from_path", plain))
        if not gpu:
            stack.enter_context(
                patch.object(async_grpo_trainer, "get_peak_flops_per_device", lambda *_: None)
            )
            stack.enter_context(patch.object(utils, "_ChunkedLogProbFunction", _PlainHead))
        yield


def theirs(folder: Path, values: dict[str, Any], url: str) -> dict[str, Any]:
    """Train with TRL's trainer; what ``compare_staleness.one`` says of ours, and what it drops."""
    lab, suite = _lab(json.dumps(values)), Run(folder / "start").tasks
    train, validation = ([t for t in suite if t.split == name] for name in ("train", "validation"))
    with stand_ins():
        trainer = make_peer(folder / "agent", values, train, url, folder / f"trl-{lab.recipe.seed}")
        trainer.remove_callback(PrinterCallback)  # its rows are no JSON
        trainer.train()
    model = trainer.accelerator.unwrap_model(trainer.model).eval()
    attention = model.config._attn_implementation  # the policy changes it
    policy = TransformersPolicy(model, trainer.processing_class, max_batch=lab.recipe.max_batch)
    with merged(model):
        chosen = spread_over(validation, lab.recipe.val_tasks)
        sampled = rollout(
            chosen, policy, **lab.options(seed=lab.recipe.seed, group_size=lab.recipe.val_samples)
        )
    rows = [row for row in trainer.state.log_history if "reward" in row]
    later = [row for row in rows if "perf/step_s" in row]
    return {
        "steps_an_hour": 3600 / fmean(row["perf/step_s"] for row in later),
        "rollout_seconds": fmean(row["perf/rollout_wait_s"] for row in later),
        "update_seconds": fmean(row["perf/fwd_bwd_s"] for row in later),
        "success": fmean(t.success or 0.0 for t in sampled),
        "trajectories": {row["batch/samples_per_step"] for row in rows}.pop(),  # of every step
        "dropped": sum(row.get("sample/dropped_stale_total", 0.0) for row in rows),
        "staleness": max(row["sample/staleness_max"] for row in rows),
        "kl": rows[0]["kl"],  # of the server to the trainer, nats a token, before the first update
        "reward": fmean(row["reward"] for row in rows),
        "calls": sum(n for row in rows for name, n in row.items() if name.endswith("_call_total")),
        "attention": attention,
        "load": os.getloadavg()[0],
    }


def main() -> int:
    chosen = options(__doc__, seeds=3, steps=24, latency_ms=50, prompts=8, tasks=400, rehearse=0)
    cards, found = visible(gpu_count()), []
    if not (cards or chosen.rehearse):
        print(
            "TRL's AsyncGRPOTrainer needs a GPU (Flash Attention 3 and Triton): run this where there is one, or "
            "add --rehearse 1, which puts plain torch in their place",
            file=sys.stderr,
        )
        return 1
    if cards:
        os.environ[CARDS] = cards[0]  # which trains
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        values = cold_started(folder, chosen, n_tasks=chosen.tasks, **ALIKE | {"server_urls": "http://none"})
        agent, tokenizer = load_agent(
            "nano", [folder / "start" / "sft"], precision=Recipe.from_mapping(values).precision
        )
        agent.save_pretrained(folder / "agent")
        tokenizer.save_pretrained(folder / "agent")
        for seed in range(1, chosen.seeds + 1):
            for side in ("ours", "TRL"):
                found.append(
                    {"trainer": side, "seed": seed} | _side(side, folder, values | {"seed": seed}, cards)
                )
                print(json.dumps(found[-1]), flush=True)
    return 0


def _side(side: str, folder: Path, values: dict[str, Any], cards: Sequence[str]) -> dict[str, Any]:
    with serving(folder / "agent", Recipe.from_mapping(values), cards[-1] if cards else "") as url:
        given = values | {"server_urls": url}
        return one(folder, given, values["seed"], AHEAD) if side == "ours" else theirs(folder, given, url)


if __name__ == "__main__":
    sys.exit(main())
