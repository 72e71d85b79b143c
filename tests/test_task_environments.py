"""The environments of public data sets: search over what a task brings with it, and a calculator alone."""

import asyncio
import json

import pytest
from conformance import ROW, EnvironmentConformance
from says import Says

from agentkit import Task, ToolCall, rollout
from agentkit.rollouts import Limits
from agentkit.rollouts.call_formats import format_call
from agentkit.tools.environments import CalculatorEnvironment, PassagesEnvironment
from agentkit.tools.runtime import run_call, tools_of
from agentkit.tools.search import MAX_PASSAGES

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
    assert search(environment, "second largest lake").observation == (
        "[1] Lake Vättern: Vättern is the second largest lake of Sweden."
    )
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


def test_a_policy_meets_them_in_a_rollout(tokenizer):
    limits = Limits(max_tokens=4_000, max_turn_tokens=500)
    task = Task("t", "Who is the mayor?", "Ann Berg", meta={"passages": PASSAGES})
    policy = Says(tokenizer, format_call("search", {"query": "mayor"}), "Answer: Ann Berg")
    (found,) = rollout([task], policy, environment=PassagesEnvironment, limits=limits)
    assert found.turns[0].results[0].observation.startswith("[1] Its mayor is") and found.success == 1.0
    assert "Look up every fact with search" in policy.asked[0] and "calculator" not in policy.asked[0]
    sums = Says(tokenizer, format_call("calculator", {"expression": "48 + 24"}), "Answer: 72")
    (found,) = rollout(
        [Task("t", "48 + 24?", "72", "numeric")], sums, environment=CalculatorEnvironment, limits=limits
    )
    assert found.turns[0].results[0].observation == "72" and found.success == 1.0
    assert list(tools_of(CalculatorEnvironment())) == ["calculator"] and '"search"' not in json.dumps(
        sums.asked
    )
