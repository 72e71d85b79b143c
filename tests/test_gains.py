"""Skill or format: the parts of a gain add up to it, and the right one is named."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_statistics import BASE, gain_study

from agentkit import compare, verify
from agentkit.evaluation.gains import PARTS, Gains, _linear, _parts, gain_of_counts, gains
from agentkit.evaluation.substance import gave_up_on, right_in_substance, states, unparsed
from agentkit.records import DataError, StopReason, Task, ToolResult, Trajectory, Turn
from agentkit.views import plots

WHERE = Task("w", "Where was she born?", "Paris", "exact", "B")
HOW_MANY = Task("n", "What is 85 divided by 2?", "42.5", "numeric", "A")
DOUBLE = Task("c", "Write double(n).", "def double(n):\n    return 2 * n", {"kind": "code", "entry": "double", "tests": [[[2], 4]]}, "C", tools=("python",))  # noqa: E501  # fmt: skip
OFFICIAL = Task("g", "Which two?", "red, blue", {"kind": "exact", "rule": "gaia"}, "GAIA")
SYMBOLIC = Task("s", "How many?", "72", "symbolic")
EXPRESSION = Task("e", "What is it?", "x + 1", "symbolic")
CLIPS = Task("k", "How many?", "72", "numeric", "gsm8k", meta={"required_tools": ["calculator"]})


def said(
    task: Task, answer: str | None, *results: ToolResult, text: str = "", stop=StopReason.ANSWER
) -> Trajectory:
    turns = tuple(Turn("", (0, 0), (result,)) for result in results) + (Turn(text or answer or "", (0, 0)),)
    t = Trajectory(task.id, "p", 0, 0, (1,), (1,), (1,), (0.0,), turns, stop, answer)
    return Trajectory(**{f: getattr(t, f) for f in t.__slots__} | {"success": verify(task, t).value})


@pytest.mark.parametrize(
    ("task", "answer", "right"),
    [
        (WHERE, "I looked it up and found Paris", 1), (WHERE, "Paris (France)", 1), (WHERE, "found: Paris", 1),
        (WHERE, "Paris or London", 0), (WHERE, "Paris, London", 0), (WHERE, "London and Paris", 0), (WHERE, "not Paris", 0),
        (WHERE, "London", 0), (WHERE, "It isn't Paris.", 0), (WHERE, "Paris? Rome.", 0), (WHERE, "Rome", 0),
        (HOW_MANY, "about 42.5", 1), (HOW_MANY, "42.5 km", 1), (HOW_MANY, "I computed 85 / 2, giving 42.5", 1),
        (HOW_MANY, "42.5 or 43", 0), (HOW_MANY, "40, 42.5", 0), (HOW_MANY, "43", 0), (HOW_MANY, "42.5, rounded up: 43", 0),
        (HOW_MANY, "425", 0), (HOW_MANY, "0", 0),
        (DOUBLE, "Here it is: ```python\ndef twice(n):\n    return 2 * n\n```", 1), (DOUBLE, "def double(n):\n    return 3 * n", 0),
        (DOUBLE, "```python\ndef twice(n):\n    return n\n```", 0),
        (OFFICIAL, "red and blue", 1), (OFFICIAL, "blue, red", 0), (CLIPS, "72", 1), (CLIPS, "73", 0),
        (SYMBOLIC, "So in the end she sold 72 clips", 1), (SYMBOLIC, "So in the end she sold 73 clips", 0),
        (EXPRESSION, "My sister and I tried it out and arrived at x + 1", 0),
    ],
)  # fmt: skip
def test_what_is_right_in_substance(task, answer, right):
    t = said(task, answer)
    assert t.success == 0 and right_in_substance(t, task) == right


@pytest.mark.parametrize(
    ("gold", "text", "right"),
    [
        ("72", "72.4", 0), ("250", "249.6", 0), ("8", "The result is 50 - 8", 0), ("8", "5 * 8", 0), ("8", "5*8", 0), ("8", "2**8", 0),
        ("3", "He has 12 apples left after day 3", 0), ("72", "5 out of 72", 0), ("72", "72 million", 0), ("72", "72k", 0),
        ("72", "72 %", 0), ("3", "2021-05-03", 0), ("30", "10:30", 0), ("1945", "before 1945", 0), ("-8", "50 -8", 0),
        ("3", "He came 3rd", 0), ("72", "\\frac{1}{72}", 0), ("72", "from 5 to 72", 0), ("3.5", "x/3.5", 0),
        ("72", "She sold a total of 72 clips.", 1), ("72", "The answer is **72**.", 1), ("72", "Answer: 72", 1), ("72", "72.0", 1),
        ("3.14159", "it is 3.14", 1), ("1/3", "about 0.333", 1), ("72", "After 5 days she has 72", 1), ("-8", "It is -8.", 1),
        ("72", "85 - 13 = 72", 1), ("72", "\\boxed{72}", 1), ("72", "72 km", 1), ("1945", "In 1945.", 1),
        ("France", "The capital of France is Paris.", 0), ("Marie Curie", "Pierre Curie, husband of Marie Curie", 0),
        ("Paris", "Paris was his hometown while she was born in London.", 0), ("Guinea", "Equatorial Guinea", 0),
        ("Guinea", "Guinea-Bissau", 0), ("Einstein", "Einstein’s wife", 0), ("Einstein", "It was Einstein’s", 0),
        ("Paris", "She was born in London while he was born in Paris", 0), ("Guinea", "It is Papua-Guinea", 0),
        ("Paris", "In Paris.", 1), ("Beatles", "The Beatles", 1), ("Paris", "She was born in Paris (France).", 1),
    ],
)  # fmt: skip
def test_what_is_doubtful_is_not_right_in_substance(gold, text, right):
    assert states(text, gold) == bool(right)


def test_a_right_answer_that_was_cut_off_is_right_in_substance():
    cut = said(WHERE, None, text="I found it.\nAnswer: Paris<|im_end|>", stop=StopReason.TRUNCATED_TURN)
    assert right_in_substance(cut, WHERE) == 1 and not gave_up_on(cut, WHERE)
    hostile = said(WHERE, "Paris " * 300)
    assert right_in_substance(hostile, WHERE) in (0, 1)


@given(
    st.text(max_size=60),
    st.sampled_from(["42.5", "Paris", "1" + "0" * 400, "no", "a, b", "½", "", "\\(", "é"]),
)
def test_any_text_has_a_verdict(text, gold):
    for answer in (text, f"{text} {gold}", f"{gold}{text}"):
        assert states(answer, gold) in (True, False)


BAD, GOOD = ToolResult("", {}, "Error: no JSON", ok=False), ToolResult("search", {}, "x", ok=True)


def test_calls_that_never_parsed_and_giving_up():
    assert unparsed(said(WHERE, "Rome", BAD)) and unparsed(said(WHERE, "Rome", GOOD, BAD))
    assert not unparsed(said(WHERE, "Rome", BAD, GOOD)) and not unparsed(said(WHERE, "Rome", GOOD))
    assert unparsed(said(WHERE, '{"name": "search", "arguments": {"query": "Paris"}}'))
    assert unparsed(said(WHERE, 'I look. {"name": "search", "parameters": {"query": "Paris"}}')), "Llama's"
    assert gave_up_on(said(WHERE, "I could not find it."), WHERE) and gave_up_on(said(WHERE, None), WHERE)
    assert gave_up_on(said(WHERE, None, stop=StopReason.TURN_LIMIT), WHERE)
    assert gave_up_on(said(WHERE, None, text="So I will", stop=StopReason.TRUNCATED_TURN), WHERE)
    assert not gave_up_on(said(WHERE, None, stop=StopReason.ERROR), WHERE)


def test_parts_on_paper():
    """Two rates of one change each: half of it in the order skill, form and half in form, skill."""
    before, after = np.array([0.25, 0.25, 0, 0, 0.5]), np.array([0.8, 0, 0, 0, 0.2])  # .5 x .5 and .8 x 1
    assert _parts(before, after) == pytest.approx([0, 0, 0.3 * 0.75, 0.5 * 0.65])
    assert _parts(before, before).tolist() == [0, 0, 0, 0]
    nothing = np.array([0, 0, 0, 1.0, 0])
    assert _parts(nothing, after) == pytest.approx([0.8, 0, 0, 0]), "rates without an occasion did not change"


@pytest.mark.parametrize("planted", ["form", "skill", "form and skill", "nothing"])
def test_parts_add_up_and_cover(planted):
    """The published simulation in small (python tests/simulated_statistics.py, gain parts)."""
    rng, studies = np.random.default_rng(3), 10
    covered, named = Counter(), 0
    for _ in range(studies):
        pair, truth = gain_study(rng, planted, 180, 4)
        assert sum(part["diff"] for part in pair["parts"].values()) == pytest.approx(pair["diff"], abs=1e-12)
        for name, part in pair["parts"].items():
            covered[name] += part["ci95"][0] <= truth[name] <= part["ci95"][1]
        wanted = set() if planted == "nothing" else set(planted.split(" and "))
        named += (
            set(pair["named"]) <= wanted
            if planted in ("calls", "giving up")
            else set(pair["named"]) == wanted
        )
    assert min(covered.values()) >= 0.8 * studies and named >= 0.9 * studies and covered.keys() == BASE.keys()


def test_one_occasion_of_a_rate_does_not_turn_the_parts():
    """Before, one of 20 parses, and is right: without it form, skill and not giving up have no occasion."""
    before, after = np.eye(5)[[0] + [3] * 19], np.eye(5)[[0] * 10 + [1] * 10]
    whole = _parts(before.mean(axis=0), after.mean(axis=0))
    values = _linear(before, after)
    assert values.mean(axis=0) == pytest.approx(whole)
    assert values.sum() == pytest.approx(after[:, 0].sum() - before[:, 0].sum())


def test_different_tasks_are_a_sentence():
    tasks = [Task(f"t{i}", "Where?", f"Ford{i}") for i in range(4)]
    own = [said(task, task.answer) for task in tasks]
    with pytest.raises(DataError, match="tasks of a missing in b \\(1\\): t0"):
        gains({"a": own, "b": own[1:]}, tasks)
    with pytest.raises(DataError, match="missing in the given tasks"):
        gains({"a": own, "b": own}, tasks[1:])


def test_families_that_differ_are_no_change():
    """Form is worse in one family; more skill in that one alone is skill, and not worse form."""
    tasks = [Task(f"t{i}", "Where?", f"Ford{i}", family="AB"[i % 2]) for i in range(80)]
    policies = {"a": [], "b": []}
    for name, own in policies.items():
        for i, task in enumerate(tasks):
            knows = i % 4 < 2 or (name == "b" and i % 2 == 0)
            in_form = i % 2 == 1 or i % 8 == 0 or i % 8 == 2
            answer = task.answer if knows and in_form else f"I found {task.answer}" if knows else "Rome"
            own.append(said(task, answer))
    (pair,) = gains(policies, tasks).pairs
    assert pair["named"] == ["skill"] and abs(pair["parts"]["form"]["diff"]) < 1e-9


def test_several_pairs_are_corrected_as_their_comparison_is():
    tasks = [Task(f"t{i}", "Where?", f"Ford{i}") for i in range(30)]
    few, more = (
        [said(task, task.answer if i < n else "Rome") for i, task in enumerate(tasks)] for n in (10, 15)
    )
    alone, three = gains({"a": few, "c": more}, tasks), gains({"a": few, "b": few, "c": more}, tasks)
    assert alone.pairs[0]["p_holm"] == alone.pairs[0]["p"] < 0.05
    assert "is not shown" not in alone.sentences()[0]
    compared = compare({"a": few, "b": few, "c": more}).paired
    assert [pair["p_holm"] for pair in three.pairs] == [pair["p_holm"] for pair in compared]
    assert compared[1]["verdict"] == "no difference shown" and "is not shown" in three.sentences()[1]


def test_seeds_and_unscored_and_one_task():
    tasks = [Task(f"t{i}", "Where?", f"Ford{i}") for i in range(30)]
    knows = [said(task, task.answer) for task in tasks]
    off = [said(task, f"I found {task.answer}") for task in tasks]
    three = gains({"a": {s: off for s in (1, 2, 3)}, "b": {s: knows for s in (1, 2, 3)}}, tasks)
    assert three.pairs[0]["named"] == ["form"] and three.pairs[0]["parts"]["form"]["diff"] == 1
    two = gains({"a": {1: off, 2: off}, "b": {1: knows, 2: knows}}, tasks)
    assert two.pairs[0]["named"] == [] and "Two training seeds" in two.sentences()[0]
    one = gains({"a": off[:1], "b": knows[:1]}, tasks)
    assert one.pairs[0]["parts"]["form"]["diff"] == 1 and one.pairs[0]["named"] == []


def test_the_published_seeds_differ_by_form_alone():
    """marin issue 8955: 42.57 and 51.18 % under the contract, 10,944 and 10,948 right in what they say."""
    counts = {
        "17": {"n": 16072, "right": 6842, "form": 4102},
        "29": {"n": 16072, "right": 8225, "form": 2723},
    }
    found = gain_of_counts(counts)
    (pair,) = found.pairs
    assert 100 * pair["diff"] == pytest.approx(8.61, abs=0.005) and pair["named"] == ["form"]
    assert 100 * pair["parts"]["form"]["diff"] == pytest.approx(8.59, abs=0.02)
    low, high = pair["parts"]["skill"]["ci95"]
    assert low < 0 < high and "points came from the asked form (+8.6" in found.sentences()[0]


def test_it_is_shown_and_read_back():
    counts = {
        "<b>17": {"n": 90, "right": 40, "form": 20, "calls": 5},
        "29": {"n": 80, "right": 60, "giving up": 1},
    }
    found = Gains(**json.loads(json.dumps(asdict(gain_of_counts(counts)))))
    assert len(found.table()) == len(PARTS) + 1 and "<b>17" not in found._repr_html_()
    bars = [trace for trace in plots.gain_parts(found).data if trace.type == "bar"]
    ends = [trace.base[0] + trace.x[0] for trace in bars]
    assert ends[-1] == pytest.approx(ends[0]), "the parts end where all of it ends"
