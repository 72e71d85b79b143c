"""Rollouts: the same tasks and agent through our loop and stock TRL's tool loop.

They take turns, at tools that take 0, 50 and 500 ms: trajectories a second. The peer is TRL's GRPOTrainer, never
changed, only configured. No tool cache is used. Leaves out scoring on TRL's side, which ours includes.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial, wraps
from statistics import fmean
from typing import Any

from datasets import Dataset
from transformers import set_seed
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

from agentkit import Suite, Task
from agentkit.policies.loading import load_agent
from agentkit.policies.transformers import TransformersPolicy
from agentkit.rollouts import Limits, rollout
from agentkit.tools.corpus import Corpus
from agentkit.tools.environments import CorpusEnvironment

from .common import case, main, messages, report

TURNS, TURN_TOKENS, TEMPERATURE = 6, 72, 0.7
GROUP = 8
# case: tool latency in seconds, repeats of 8 tasks, and how many tasks are quick: TRL waits for each call in turn
CASES = {"trl_tools_0ms": (0.0, 5, 2), "trl_tools_50ms": (0.05, 3, 1), "trl_tools_500ms": (0.5, 3, 1)}
Run = Callable[[int], float]  # seed -> sampled tokens of a trajectory, on average
Factory = Callable[[], CorpusEnvironment]


def _slow(latency_s: float, corpus: Corpus) -> Factory:
    """Makes environments whose search and calculator take ``latency_s`` longer."""

    def slow(method: Callable[..., str]) -> Callable[..., str]:
        @wraps(method, updated=())  # without what is declared of the method, such as that it may be cached
        def call(*arguments: Any, **named: Any) -> str:
            time.sleep(latency_s)
            return method(*arguments, **named)

        return call

    methods = {"search": slow(CorpusEnvironment.search), "calculator": slow(CorpusEnvironment.calculator)}
    return partial(type("Environment", (CorpusEnvironment,), methods), corpus)


def bench_rollouts(quick: bool = False) -> dict[str, Any]:
    """Our rollouts against stock TRL's; ratio ours / peer, above 1 is faster."""
    corpus = Corpus()
    suite = Suite.build({"families": ["A", "B"], "n_tasks": 40, "seed": 11}, corpus=corpus).tasks
    cases = []
    for name, (latency, repeats, few) in CASES.items():
        environment, tasks = _slow(latency, corpus), suite[: few if quick else 8]
        ours, peer = _ours(tasks, environment), _trl(tasks, environment)
        if name == "trl_tools_0ms":  # warm-up of model and tools, not counted
            ours(-1)
            peer(-1)
        cases.append(_case(name, ours, peer, 1 if quick else repeats, len(tasks) * GROUP))
    return report("rollouts", cases)


def _case(name: str, ours: Run, peer: Run, repeats: int, trajectories: int) -> dict[str, Any]:
    rates, tokens = ([], []), ([], [])
    for seed in range(repeats):
        for side, run in enumerate((ours, peer)):
            set_seed(seed + 1)  # which TRL draws from
            start = time.perf_counter()
            tokens[side].append(run(seed))
            rates[side].append(trajectories / (time.perf_counter() - start))
    means = dict(zip(("ours", "peer"), map(fmean, tokens), strict=True))
    return case(name, "trajectories/s", *rates, trajectories=trajectories, tokens_per_trajectory=means)


def _ours(tasks: Sequence[Task], environment: Factory) -> Run:
    policy = TransformersPolicy(*load_agent("nano"))

    limits = Limits(max_turns=TURNS, max_turn_tokens=TURN_TOKENS, max_tokens=TURNS * TURN_TOKENS)
    options = {"environment": environment, "group_size": GROUP, "temperature": TEMPERATURE, "limits": limits}

    def run(seed: int) -> float:
        return fmean(sum(t.action_mask) for t in rollout(tasks, policy, seed=seed + 1, **options))

    return run


# ---- stock TRL
def _trainer(tasks: Sequence[Task], environment: CorpusEnvironment) -> Any:
    model, tokenizer = load_agent("nano")
    tokenizer.response_template = qwen3_template
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(), num_generations=GROUP,
        per_device_train_batch_size=len(tasks) * GROUP, max_completion_length=TURNS * TURN_TOKENS,
        max_tool_calling_iterations=TURNS - 1, temperature=TEMPERATURE, use_cpu=True, bf16=False,
        report_to="none",
    )  # fmt: skip
    rows = Dataset.from_list([{"prompt": messages(task)} for task in tasks])
    nothing = lambda completions, **_: [0.0] * len(completions)  # noqa: E731
    tools = [environment.search, environment.calculator]
    return GRPOTrainer(model, nothing, config, rows, processing_class=tokenizer, tools=tools)


def _trl(tasks: Sequence[Task], environment: Factory) -> Run:
    """TRL's own generation and tool loop for the tasks' prompts, without scoring."""
    trainer = _trainer(tasks, environment())

    def run(seed: int) -> float:
        prompts = [messages(task) for task in tasks for _ in range(GROUP)]  # TRL appends to them
        trainer._sync_tool_dicts = [{t.__name__: t for t in trainer._standalone_tools} for _ in prompts]
        trainer._async_tool_dicts = [{} for _ in prompts]
        trainer.model.train()
        return fmean(sum(mask) for mask in trainer._generate(prompts)[2])

    return run


if __name__ == "__main__":
    main(bench_rollouts)
