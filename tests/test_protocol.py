"""Environments made elsewhere run here unchanged, ours run in stock TRL, and both keep to the protocol."""

import asyncio
import random
from functools import wraps

import pytest
from conformance import ROW, EnvironmentConformance
from says import Says

from agentkit import StopReason, Task, ToolCall, rollout
from agentkit.records import DataError
from agentkit.rollouts import Limits
from agentkit.rollouts.call_formats import format_call
from agentkit.tools.corpus import Corpus
from agentkit.tools.environments import (
    CalculatorEnvironment,
    CorpusEnvironment,
    PassagesEnvironment,
    WorkbenchEnvironment,
)
from agentkit.tools.runtime import run_call
from agentkit.tools.search import MAX_PASSAGES


class CounterEnvironment:
    """As somebody writes one for TRL: state, a greeting, sync and async tools, a reward of its own."""

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
WRITE = ToolCall("write_file", {"path": "a.txt", "content": "x"})
READ = ToolCall("read_file", {"path": "a.txt"})
COUNT = [("increment", {"step": 2}), ("peek", {}), ("increment", {"step": 1})]


class TestCorpusEnvironment(EnvironmentConformance):
    factory, calls = CorpusEnvironment, [SEARCH, SUM, SEARCH]


class TestWorkbenchEnvironment(EnvironmentConformance):
    factory = WorkbenchEnvironment
    calls = [WRITE, READ, ToolCall("list_files", {}), PROGRAM, SUM]


class TestCalculatorEnvironment(EnvironmentConformance):
    factory, calls = CalculatorEnvironment, [SUM]


class TestForeignEnvironment(EnvironmentConformance):
    factory, calls = CounterEnvironment, [ToolCall(*call) for call in COUNT]


# ---- an environment from elsewhere, in our rollouts
TASK = Task("t", "Count to 3.", "3", "numeric", meta={"level": 7})


def test_an_environment_from_elsewhere_runs_unchanged(tokenizer):
    made: list[CounterEnvironment] = []

    def factory():
        made.append(CounterEnvironment())
        return made[-1]

    policy = Says(tokenizer, *(format_call(*call) for call in COUNT), "Answer: 3")
    limits = Limits(max_tokens=4_000, max_turn_tokens=500)
    for t in rollout([TASK], policy, environment=factory, group_size=2, limits=limits):
        assert [r.observation for turn in t.turns for r in turn.results] == ["2", "It stands at 2.", "3"]
        assert (t.stop_reason, t.answer, t.success) == (StopReason.ANSWER, "3", 1.0)
        assert t.components == {"CounterEnvironment": 1.0}
    assert "Count to 3. The counter stands at 0." in policy.asked[0] and '"increment"' in policy.asked[0]
    row = made[-1].row
    assert row["prompt"] == [{"role": "user", "content": "Count to 3."}]
    assert (row["level"], row["answer"]) == (7, "3")


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

    corpus, made = Corpus(), []

    class Counting(CorpusEnvironment):
        ran, resets = 0, 0

        def reset(self, **row):
            self.resets += 1
            return super().reset(**row)

        @wraps(CorpusEnvironment.search)
        def search(self, query: str) -> str:
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
    lengths = lambda completions, **_: [float(len(c)) for c in completions]  # noqa: E731
    own = {"processing_class": tokenizer, "environment_factory": factory}
    trainer = GRPOTrainer(model, lengths, config, Dataset.from_list(rows), **own)
    trainer.model.train()
    output = trainer._generate_and_score_completions([row for row in rows for _ in range(4)])
    assert output["completion_ids"].shape[0] == 8 and output["advantages"].shape == (8,)
    assert [one.resets for one in made[:8]] == [1] * 8
    assert sum(one.ran for one in made[:8]) > 0 and output["tool_mask"].min() == 0, "no tool's reply"


# ---- the environments of public data sets: search over what a task brings, and a calculator alone
PASSAGES = [
    {"title": "Lake Vättern", "text": "Vättern is the second largest lake\nof Sweden."},
    "Jönköping: a city at the southern end of Vättern.",
    {"title": "", "text": "Its mayor is Ann <b>Berg</b> & Co."},
    {"title": None, "text": "Malmö lies far away."},
]


class TestPassagesEnvironment(EnvironmentConformance):
    factory, row = PassagesEnvironment, ROW | {"passages": PASSAGES}
    calls = [ToolCall("search", {"query": "city at Vättern"}), ToolCall("search", {"query": "mayor"})]


def search(environment, query):
    return asyncio.run(run_call(ToolCall("search", {"query": query}), environment))


def test_the_best_passages_are_found_with_their_titles():
    environment = PassagesEnvironment(top_k=2)
    environment.reset(passages=PASSAGES, question="ignored")
    lake = "[1] Lake Vättern: Vättern is the second largest lake of Sweden."
    assert search(environment, "second largest lake").observation == lake
    assert search(environment, "VATTERN").observation.count("\n") == 1  # two of the two, accents aside
    assert search(environment, "mayor").observation == "[1] Its mayor is Ann <b>Berg</b> & Co."
    assert search(environment, "xyzzy").observation == "No passage matches. Try other words."
    refused = search(environment, " ")
    assert (refused.ok, refused.observation) == (False, "Error: the query is empty; say what to look for.")


def test_a_row_without_usable_passages_is_a_sentence():
    for passages, says in (
        ({"title": ["a"], "text": ["b"]}, r"\(here dict\) must be a list of at most 1000 texts"),
        (["fine", 5], "passage 2 is '5'"),
        ([{"title": "only"}], "passage 1 is"),
        ([{"title": 5, "text": "t"}], "passage 1 is"),
        (["x"] * (MAX_PASSAGES + 1), "at most 1000"),
    ):
        with pytest.raises(ValueError, match=says):
            PassagesEnvironment().reset(passages=passages)


def test_hostile_passages_are_text():
    for text in ("a\ud800b fish", "a\0fish fish", "fish " * 50_000, '"fish" NEAR(', "\u202efish"):
        environment = PassagesEnvironment()
        environment.reset(passages=[text, {"title": text, "text": text}, "", " \n"])
        found = search(environment, "fish")
        assert found.ok and found.observation.startswith("[1] ")
        found.observation.encode()
