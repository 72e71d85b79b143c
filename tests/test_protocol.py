"""Environments made elsewhere run here unchanged, ours run in stock TRL, and both keep to the protocol."""

from __future__ import annotations

import asyncio
import random

import pytest
from conformance import EnvironmentConformance
from says import Says

from agentkit import StopReason, Task, ToolCall, rollout
from agentkit.records import DataError
from agentkit.rollouts import Limits
from agentkit.rollouts.call_formats import format_call
from agentkit.tools.corpus import Corpus
from agentkit.tools.environments import CorpusEnvironment, WorkbenchEnvironment


class CounterEnvironment:
    """As somebody writes one for TRL's environment_factory: state, a greeting, sync and async tools, a reward
    of its own.
    """

    def __init__(self):
        self.count = 0

    def reset(self, **kwargs) -> str | None:
        self.count, self.row = 0, kwargs
        return " The counter stands at 0."

    def increment(self, step: int) -> int:
        """
        Increment the internal counter.

        Args:
            step: Value to add to the counter.

        Returns:
            The updated counter value.
        """
        if step < 0:
            raise ValueError("step must be positive")
        self.count += step
        return self.count

    async def peek(self) -> str:
        """Look at the counter."""
        await asyncio.sleep(0.01)
        return f"It stands at {self.count}."

    def get_reward(self) -> float:
        return float(self.count == 3)


SEARCH = ToolCall("search", {"query": "capital of France"})
SUM = ToolCall("calculator", {"expression": "6 * 7"})
PROGRAM = ToolCall("python", {"code": "print(6 * 7)"})
WRITE, READ = (
    ToolCall("write_file", {"path": "a.txt", "content": "x"}),
    ToolCall("read_file", {"path": "a.txt"}),
)


class TestCorpusEnvironment(EnvironmentConformance):
    factory, calls = CorpusEnvironment, [SEARCH, SUM, SEARCH]


class TestWorkbenchEnvironment(EnvironmentConformance):
    factory = WorkbenchEnvironment
    calls = [WRITE, READ, ToolCall("list_files", {}), PROGRAM, SUM]


class TestForeignEnvironment(EnvironmentConformance):
    factory, calls = (
        CounterEnvironment,
        [ToolCall("increment", {"step": 2}), ToolCall("peek", {}), ToolCall("increment", {"step": 1})],
    )


# ---- an environment from elsewhere, in our rollouts
TASK = Task("t", "Count to 3.", "3", "numeric", meta={"level": 7})


def test_an_environment_from_elsewhere_runs_unchanged(tokenizer):
    made: list[CounterEnvironment] = []

    def factory():
        made.append(CounterEnvironment())
        return made[-1]

    calls = [("increment", {"step": 2}), ("peek", {}), ("increment", {"step": 1})]
    policy = Says(tokenizer, *(format_call(*call) for call in calls), "Answer: 3")
    found = rollout(
        [TASK],
        policy,
        environment=factory,
        group_size=2,
        limits=Limits(max_tokens=4_000, max_turn_tokens=500),
    )
    for t in found:
        assert [r.observation for turn in t.turns for r in turn.results] == ["2", "It stands at 2.", "3"]
        assert (t.stop_reason, t.answer, t.success) == (StopReason.ANSWER, "3", 1.0)
        assert t.components == {"CounterEnvironment": 1.0}
    assert "Count to 3. The counter stands at 0." in policy.asked[0] and '"increment"' in policy.asked[0]
    row = made[-1].row
    assert (
        row["prompt"] == [{"role": "user", "content": "Count to 3."}]
        and row["level"] == 7
        and row["answer"] == "3"
    )


def test_a_reward_that_fails_is_not_scored_and_none_does_not_apply_as_in_trl(tokenizer):
    for reward, components in (
        (lambda self: float("nan"), {"Own": None}),
        (lambda self: 1 / 0, {"Own": None}),
        (lambda self: "high", {"Own": None}),
        (lambda self: None, {}),
    ):
        own = type("Own", (CounterEnvironment,), {"get_reward": reward})
        (t,) = rollout([TASK], Says(tokenizer, "Answer: 3"), environment=own)
        assert t.components == components and t.success == 1.0


def test_a_reset_takes_named_columns_and_one_that_fails_stops_with_one_sentence(tokenizer):
    class Named(CounterEnvironment):
        def reset(self, level, answer="") -> None:
            assert (level, answer) == (7, "3")

    (t,) = rollout([TASK], Says(tokenizer, "Answer: 3"), environment=Named)
    assert t.success == 1.0
    for reset, says in (
        (lambda self, **row: ["image"], "Broken.reset, task t: it returned list"),
        (lambda self, **row: 1 / 0, "task t: test_protocol.py, line .*: ZeroDivisionError: division"),
        (lambda self, **row: row["shelf"], "task t: test_protocol.py, line .*: KeyError: 'shelf'"),
    ):
        broken = type("Broken", (CounterEnvironment,), {"reset": reset})
        with pytest.raises(DataError, match=says):
            rollout([TASK], Says(tokenizer, "Answer: 3"), environment=broken)


# ---- ours, in stock TRL
def test_an_environment_runs_in_stock_trl(suite, tmp_path):
    """TRL's own trainer makes the environments, resets them, runs their tools for a real model, and scores."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer
    from trl.chat_template_utils import qwen3_template

    from agentkit.policies.loading import load_agent

    corpus, made = Corpus.open(), []

    class Counting(CorpusEnvironment):
        ran, resets = 0, 0

        def reset(self, **row):
            self.resets += 1
            return super().reset(**row)

        def search(self, query: str) -> str:
            """Search facts.

            Args:
                query: What to look up.
            """
            self.ran += 1
            return CorpusEnvironment.search(self, query)

    def factory():
        made.append(Counting(corpus))
        return made[-1]

    model, tokenizer = load_agent("nano")
    tokenizer.response_template = qwen3_template
    config = GRPOConfig(
        output_dir=str(tmp_path), num_generations=4, per_device_train_batch_size=8, max_completion_length=160,
        max_tool_calling_iterations=2, use_cpu=True, bf16=False, report_to="none", beta=0.0, disable_tqdm=True, seed=3,
    )  # fmt: skip
    tasks = random.Random(1).sample(list(suite), 2)
    rows = [{"prompt": [{"role": "user", "content": task.prompt}], "answer": task.answer} for task in tasks]
    trainer = GRPOTrainer(
        model=model,
        args=config,
        reward_funcs=lambda completions, **_: [float(len(c)) for c in completions],
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        environment_factory=factory,
    )
    trainer.model.train()
    output = trainer._generate_and_score_completions([row for row in rows for _ in range(4)])
    assert output["completion_ids"].shape[0] == 8 and output["advantages"].shape == (8,)
    assert [one.resets for one in made[:8]] == [1] * 8
    assert sum(one.ran for one in made[:8]) > 0 and output["tool_mask"].min() == 0, "no tool's reply"
