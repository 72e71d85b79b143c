"""Rollouts: the same tasks with the same small agent through our rollout loop and through stock TRL's tool loop.

They take turns; reported are trajectories a second. The peer is never changed, only configured.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from agentkit.bench.common import report, spread
from agentkit.records import Task

TURNS, TURN_TOKENS, TEMPERATURE = 6, 72, 0.7


def bench_rollouts(quick: bool = False) -> dict[str, Any]:
    """Trajectories a second, ours and stock TRL's, on tools that answer at once.

    Args:
        quick: fewer tasks and two repeats, to end within 50 seconds.

    Returns:
        The bench JSON: machine, versions, and one case with ours, peer and ratio (ours / peer; above 1 is faster).
    """
    from agentkit.tasks import Suite

    tasks = Suite.build({"n_tasks": 40, "seed": 11}).tasks[: 4 if quick else 8]
    repeats, group_size = (2, 4) if quick else (5, 8)
    ours, peer = _ours(tasks, group_size), _trl_tools(tasks, group_size)
    pairs = []
    ours(-1), peer(-1)  # warm-up, not counted
    for repeat in range(repeats):
        pairs.append((ours(repeat), peer(repeat)))
    rates = [(a["rate"], b["rate"]) for a, b in pairs]
    case = {
        "case": "trl_tools_0ms",
        "unit": "trajectories/s",
        "ours": spread([a for a, _ in rates]),
        "peer": spread([b for _, b in rates]),
        "ratio": spread([a / b for a, b in rates]),
        "trajectories": len(tasks) * group_size,
        "tokens_per_trajectory": {"ours": _mean(pairs, 0), "peer": _mean(pairs, 1)},
    }
    return report("rollouts", [case])


def _ours(tasks: Sequence[Task], group_size: int) -> Callable[[int], dict[str, float]]:
    from agentkit.policies.loading import load_agent
    from agentkit.policies.transformers import TransformersPolicy
    from agentkit.rollouts import Limits, rollout

    policy = TransformersPolicy(*load_agent("nano"))
    limits = Limits(max_turns=TURNS, max_turn_tokens=TURN_TOKENS, max_tokens=TURNS * TURN_TOKENS)

    def run(seed: int) -> dict[str, float]:
        start = time.perf_counter()
        found = rollout(tasks, policy, group_size=group_size, seed=seed + 1, temperature=TEMPERATURE, limits=limits)
        seconds = time.perf_counter() - start
        return {"rate": len(found) / seconds, "tokens": statistics.fmean(sum(t.action_mask) for t in found)}

    return run


def _trl_tools(tasks: Sequence[Task], group_size: int) -> Callable[[int], dict[str, float]]:
    """Stock TRL: GRPOTrainer with ``tools``, its own generation and tool loop."""
    from datasets import Dataset
    from transformers import set_seed
    from trl import GRPOConfig, GRPOTrainer
    from trl.chat_template_utils import qwen3_template

    from agentkit.environment import SYSTEM_PROMPT, CorpusEnvironment
    from agentkit.policies.loading import load_agent

    model, tokenizer = load_agent("nano")
    tokenizer.response_template = qwen3_template
    environment = CorpusEnvironment()
    prompts = [[{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": task.prompt}] for task in tasks]
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        num_generations=group_size,
        per_device_train_batch_size=len(tasks) * group_size,
        max_completion_length=TURNS * TURN_TOKENS,
        max_tool_calling_iterations=TURNS - 1,
        temperature=TEMPERATURE,
        use_cpu=True,
        bf16=False,
        report_to="none",
    )
    trainer = GRPOTrainer(
        model=model,
        args=config,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        train_dataset=Dataset.from_list([{"prompt": p} for p in prompts]),
        processing_class=tokenizer,
        tools=[environment.search, environment.calculator],
    )
    repeated = [p for p in prompts for _ in range(group_size)]

    def run(seed: int) -> dict[str, float]:
        set_seed(seed + 1)
        start = time.perf_counter()
        masks = _generate(trainer, repeated)
        return {"rate": len(repeated) / (time.perf_counter() - start), "tokens": statistics.fmean(sum(m) for m in masks)}

    return run


def _generate(trainer: Any, prompts: list) -> list[list[int]]:
    """TRL's generation and tool loop for prompts, without scoring; its tool masks."""
    trainer._sync_tool_dicts = [{t.__name__: t for t in trainer._standalone_tools} for _ in prompts]
    trainer._async_tool_dicts = [{} for _ in prompts]
    trainer.model.train()
    found = trainer._generate(prompts)
    return found[2]


def _mean(pairs: Sequence[tuple[dict, dict]], side: int) -> float:
    return statistics.fmean(pair[side]["tokens"] for pair in pairs)
