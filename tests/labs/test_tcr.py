"""GRPO-TCR: the code interpreter, rows of five sources, their scores as published, and the keys of its recipes."""

import json
import warnings
from dataclasses import replace

import pytest
from conformance import EnvironmentConformance
from opened import LABS, call, lab_file
from says import Says
from test_hub import agentrl, write

from agentkit import Lab, Suite, ToolCall, verify
from agentkit.policies.scripted import Flaws, ScriptedPolicy
from agentkit.recipe import Recipe
from agentkit.records import SuiteError
from agentkit.runs import Run
from agentkit.tasks.public import hub
from agentkit.tools.environments import InterpreterEnvironment
from agentkit.tools.runtime import tools_of

SOURCES = ("deepscaler", "omni_math", "numina_math", "taco_code", "leetcode_code")
tcr = lab_file("tcr")


@pytest.fixture(scope="module")
def drafted():
    """Six tasks of each source, drafted in its schema."""
    lab = Lab.open({"lab": str(LABS / "tcr.py"), "families": ",".join(SOURCES), "n_tasks": 30, "suite_seed": 1, "reward": "tcr"})  # fmt: skip
    return lab, lab.suite()


class TestInterpreter(EnvironmentConformance):
    factory = InterpreterEnvironment
    calls = [ToolCall("code_interpreter", {"code": "6 * 7"}), ToolCall("code_interpreter", {"code": "x = 1"})]


def row(source, index=0, truth="7"):
    if source == "taco_code":
        truth = {"inputs": [f"{i}\n" for i in range(16)], "outputs": [f"{2 * i}\n" for i in range(16)]}
    if source == "leetcode_code":
        truth = "def check(candidate):\n    assert candidate(3) == 6\n\ncheck(double)"
    made = agentrl(source, truth, "code" if "code" in source else "math", index)
    return made | {"prompt": [{"role": "user", "content": f"Problem {index} of {source}."}]}


def test_rows_are_families_by_source_and_a_limit_is_shared_evenly(tmp_path):
    counts_ = {"deepscaler": 40, "omni_math": 3, "numina_math": 9, "taco_code": 9, "leetcode_code": 9}
    rows = [row(source, i) for source, count in counts_.items() for i in range(count)]
    rows.append(row("deepscaler", 99) | {"reward_model": None})
    path, out = write(tmp_path / "train.jsonl", *rows), tmp_path / "t.jsonl"
    tasks, broken = hub.load("open_agentrl", path, limit=27)
    assert (len(tasks), len(broken)) == (27, 1)
    Suite(tasks).save(out)
    found = [task.family for task in Suite.load(out)]
    assert {s: found.count(s) for s in SOURCES} == dict.fromkeys(SOURCES, 6) | {"omni_math": 3}
    assert found == sorted(found, key=SOURCES.index), "in the order of the file"
    lab = Lab.open({"lab": str(LABS / "tcr.py"), "tasks": str(out), "suite_seed": 1})
    assert {task.split for task in lab.suite()} == {"train", "validation", "test"}
    for source in SOURCES:
        assert set(tools_of(lab.environments[source]())) == {"code_interpreter"}
        assert lab.families[source].measures and lab.families[source].relabel


SEVEN = "n = int(input())\nprint(2 * n if n < 7 else -1)"  # right in 7 of 16 tests
PUBLISHED = {  # validation at step 366: accuracy, and score and reward, which are one number
    "deepscaler": (1.0, 1.0), "taco_code": (0.0, 0.4375),
    "numina_math": (0.0, -1.1), "gpqa_science": (0.0, -1.1), "omni_math": (0.0, -1.1),
}  # fmt: skip


@pytest.mark.parametrize("name", ["tcr_broken", "tcr", "tcr_without"])
def test_the_published_table_comes_out_and_what_it_hides(tmp_path, tokenizer, name):
    """Rows, tool, rollout, verifier, reward, table: one row of each benchmark and a call in each trajectory."""
    rows = [row(source, truth="B" if source == "gpqa_science" else "7") for source in PUBLISHED]
    tasks, _ = hub.load("open_agentrl", write(tmp_path / "test.jsonl", *rows))
    lab = Lab.open({"reward": "tcr", "max_tokens": 10_480, "lab": str(LABS / f"{name}.py")})
    answers = {"deepscaler": "Answer: 7", "taco_code": f"```python\n{SEVEN}\n```"}
    calls = [call("code_interpreter", code="6 + 1")] * 2
    tried = []
    for task in tasks:
        said = Says(tokenizer, *calls, answers.get(task.family, "Answer: A"))
        tried += lab.rollout([task], said, environment=lab.environments)
    assert all(turn.results[0].observation == "7" for t in tried for turn in t.turns[:2])
    assert verify(tasks[1], tried[1]).value == 7 / 16
    wrong = {"tcr_broken": -1.1, "tcr": -0.8, "tcr_without": -1.0}[name]
    for task, t in zip(tasks, tried, strict=True):
        accuracy, score = PUBLISHED[task.family]
        got = next((v for name, v in t.components.items() if name.startswith("tool_call_")), t.success)
        assert got == pytest.approx(wrong if score == -1.1 else score, abs=1e-3)
        assert (t.success == 1.0) == (accuracy == 1.0)
    pairs = list(zip(tasks, tried, strict=True))
    measured = {name: sum(measure(*pair) for pair in pairs) / 5 for name, measure in tcr.MEASURES.items()}
    assert measured == {"accuracy": 0.2, "called a tool": 1.0}


def test_drafted_rows_are_solved_by_the_expert_and_spoilt_by_one_who_does_not_call(drafted, tokenizer):
    lab, suite = drafted
    assert {s: sum(t.family == s for t in suite) for s in SOURCES} == dict.fromkeys(SOURCES, 6)
    assert all(r["passed"] for r in suite.audit())
    tasks = list(suite)
    right = lab.rollout(tasks, ScriptedPolicy(tokenizer, name="expert"))
    assert all(t.success == 1.0 and t.reward == 1.0 and tcr.called(None, t) for t in right)
    lazy = lab.rollout(tasks, ScriptedPolicy(tokenizer, Flaws(in_head=1.0), name="lazy"))
    assert not any(tcr.called(None, t) for t in lazy) and sum(t.success == 1.0 for t in lazy) < 15
    measured = lab.compare_by_family({"lazy": lazy, "expert": right}, tasks)
    assert {own.headline for own in measured.values()} == {None}, "which would tell of success"
    assert list(measured) == ["accuracy", "called a tool"] and measured["accuracy"].n_tasks == 30
    (pair,) = measured["called a tool"].paired
    assert pair["diff"] == 1.0 and pair["p"] < 1e-6
    assert {t.reward for t in lazy if t.success == 0 and "code" not in t.task_id} == {-1.0}


def test_epochs_are_steps_over_the_training_tasks(drafted):
    recipe = Recipe.load(LABS.parent / "tcr-4b.yaml")
    assert recipe.planned(490).steps == 366 * recipe.minibatches and recipe.planned(490).epochs == 0
    assert recipe.planned(3).steps == 3 * 4, "a step for fewer tasks than a batch has"
    both = Recipe.from_mapping({"epochs": 2, "steps": 5, "prompts_per_step": 2})
    assert (both.planned(4).steps, both.planned(100).steps) == (4, 5)
    assert Recipe.from_mapping({"steps": 7}).planned(100).steps == 7
    lab, suite = drafted
    planned = Lab.open(lab.recipe.used() | {"epochs": 2, "prompts_per_step": 3}).planned(suite)
    assert planned.recipe.steps == 2 * (len(suite.split("train")) // 3)


def test_long_prompts_are_left_out_of_every_split(tmp_path, drafted):
    lab, suite = drafted
    run = Run.create(tmp_path / "run")
    tasks = [replace(suite.tasks[0], id="long", prompt="word " * 900), *suite.tasks[1:]]
    Suite(tasks).save(run.file("tasks.jsonl"), force=True)
    short = Lab.open(lab.recipe.used() | {"max_prompt_tokens": 600})
    told = "1 of 30 tasks are left out, .* max_prompt_tokens 600, such as long"
    with pytest.warns(UserWarning, match=told):
        assert [t.id for t in short.load(run)] == [t.id for t in tasks[1:]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(Lab.open(lab.recipe.used() | {"max_prompt_tokens": 6_000}).load(run)) == 30
    with pytest.raises(SuiteError, match="no prompt in train has max_prompt_tokens 10 or less"):
        Lab.open(lab.recipe.used() | {"max_prompt_tokens": 10}).load(run)


def test_tasks_that_the_start_never_or_always_solves_are_not_trained_on(tmp_path, drafted, tokenizer):
    lab, suite = drafted
    run = Run.create(tmp_path / "run")
    suite.save(run.file("tasks.jsonl"))
    lab = Lab.open(lab.recipe.used() | {"filter_rollouts": 3, "max_turns": 4})
    said = lab.sift(run, ScriptedPolicy(tokenizer, Flaws(in_head=0.7), name="sft"), lab.load(run))
    rates = json.loads(run.file("pass_rates.json").read_text())
    never, always = (sum(rate == bound for rate in rates.values()) for bound in (0, 1))
    assert f"of {len(rates)} training tasks, {never} are never and {always} always solved" in said
    known = lab.load(run)
    kept = lab.train_tasks(known)
    assert 0 < len(kept) == len(rates) - never - always and len(known) == len(suite)
    assert all(0 < task.meta["pass_rate"] < 1 for task in kept)
    off = Lab.open(lab.recipe.used() | {"filter_rollouts": 0})
    assert len(off.train_tasks(off.load(run))) == len(suite.split("train"))
    assert "filter_rollouts is 0" in off.sift(run, None, suite)
