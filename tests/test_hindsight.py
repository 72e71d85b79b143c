"""Hindsight replay: what a program did achieve becomes a task; lessons; and the loop, trained for real."""

import dataclasses
import json

import pytest
import torch
from labs import lab_with
from survive import make_trainer

from agentkit import Family, verify
from agentkit.policies.loading import load_agent
from agentkit.records import Step, StopReason, Task, Trajectory
from agentkit.runs import Run, read_jsonl
from agentkit.tasks import relabel as module
from agentkit.tasks.relabel import relabel_code
from agentkit.training import loop
from agentkit.training.hindsight import demonstrate, hindsight, lessons
from agentkit.training.sft import right_ones

DOUBLE = "def f(x): return x * 2"
TESTS = [[[n], n * 2] for n in (3, 5, 8)]
TASK = Task("c", "Write f(x): double x.", DOUBLE, {"kind": "code", "entry": "f", "tests": TESTS, "timeout_s": 20}, "C",
            tools=("python",))  # fmt: skip
FAMILIES = {"C": Family(relabel=relabel_code), "custom": Family(relabel=relabel_code)}
SMALL = {"lora_r": 2, "sft_batch": 4, "max_turns": 4, "max_turn_tokens": 48, "max_tokens": 400, "temperature": 1.0}  # fmt: skip


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """The machine may be busy."""
    monkeypatch.setattr(module, "TIMEOUT_S", 20.0)


def answered(answer, task="c", sample=0, success=0.0) -> Trajectory:
    tokens = (1,), (sample, 2), (1, 1), (0.0, 0.0)
    return Trajectory(task, "p", sample, 0, *tokens, (), StopReason.ANSWER, answer, success)


# ---- relabelling code
def test_a_wrong_program_is_the_right_answer_to_the_task_that_asks_for_what_it_gives():
    new = relabel_code(TASK, answered("def f(x): x = x + 1; y = 7; return x * 2"))
    assert new.verifier["tests"] == [[[3], 8], [[5], 12], [[8], 18]]
    assert new.answer == "def f(x): x = x + 1; y = 7; return x * 2"
    assert new.prompt == "Write f. Example: f(3) is 8. Example: f(5) is 12."
    assert new.meta["closeness"] == 0.0 and json.loads(new.meta["outcome"]) == [8, 12, 18]
    assert verify(new, new.answer).value == 1.0 and verify(new, DOUBLE).value == 0.0
    assert new.id != TASK.id and new.meta["answer_if"] == {"8": new.answer}


def test_what_achieved_nothing_is_not_relabelled():
    for answer in (None, "I do not know.", "def f(x): return 1 / 0", "def f(x): return 4", "def g(x): return x", "x = " + "(" * 300,
                   "def f(x): return x + 1" + " " * 2_000, "def f(x): return 10**5000 + x"):  # fmt: skip
        assert relabel_code(TASK, answered(answer)) is None, answer


# ---- lessons
def test_lessons_are_the_shortest_of_each_outcome_from_worst_to_best():
    answers = ["def f(x): return x * 2", "def f(x): return x + x + 0", "def f(x): return x + 1",
               "def f(x): return x * 2 if x < 6 else 0", "def f(x): return 1 + x + 0", "nonsense", None]  # fmt: skip
    found = lessons([TASK], [answered(a, sample=i) for i, a in enumerate(answers)], FAMILIES)
    assert [t.answer for t in found] == [answers[2], answers[3], answers[0]]
    assert [round(t.meta["closeness"], 2) for t in found] == [0.0, 0.67, 1.0]
    nearest = [answered(a, sample=i) for i, a in enumerate(answers)]
    for keep, count in ((0.01, 1), (0.34, 2), (0.67, 3), (1, 3)):
        assert lessons([TASK], nearest, FAMILIES, keep) == found[-count:]
    assert lessons([TASK], [], FAMILIES) == []
    assert lessons([TASK], [answered(answers[0])], {}) == []


def test_a_relabel_of_ones_own_may_fail_and_give_outcomes_of_any_kind():
    def relabel(task, trajectory):
        return dataclasses.replace(task, answer=str(int(trajectory.answer)), meta={"outcome": [[1, 2]]})

    odd, short, long = (answered(a, sample=i) for i, a in enumerate(("x", "7", "12")))
    with pytest.warns(UserWarning, match="trajectory of c was not relabelled .*line .* ValueError: invalid"):
        found = lessons([TASK], [odd, short, long], {"C": Family(relabel=relabel)})
    assert [t.answer for t in found] == ["7"]


def test_lessons_are_shown_by_the_expert_token_for_token(tokenizer):
    (new,) = lessons([TASK], [answered("def f(x): return x + 1")], FAMILIES)
    (shown,) = demonstrate(lab_with({"max_turns": 4, "max_turn_tokens": 200}), [new], tokenizer)
    assert shown.success == 1.0 and shown.answer == "def f(x): return x + 1"
    assert len(shown.turns) == 2 and shown.turns[0].results[0].observation.strip() == "4"
    assert demonstrate(lab_with({}), [], tokenizer) == []


def lessons_in(made, answers):
    """What a trainer imitates of rollouts with these answers, and the metrics of that."""
    own = tuple(answered(a, sample=i) for i, a in enumerate(answers))
    return made._lessons(Step(1, (TASK,), own), own)


@pytest.fixture
def teaching(tmp_path):
    made = make_trainer(tmp_path / "run", hindsight_weight=0.5)
    made.lab = lab_with({"max_turn_tokens": 200})
    return made


ANSWERS = ["def f(x): return x + 1", "nonsense", "def f(x): return x * 3", None]


def test_lessons_of_a_batch_are_imitated_beside_grpos_loss(tokenizer, teaching):
    """The loss is the mean negative log-likelihood of what the expert wrote, whole or in micro-batches."""
    batch, told = lessons_in(teaching, ANSWERS)
    assert told == {"lessons": 2} and len(batch.ids) == 2
    own = batch.ids[0, 1:][batch.mask[0]]
    assert "return x + 1" in tokenizer.decode(own) and (batch.mask <= batch.real[:, 1:].bool()).all()
    with torch.no_grad():
        logits = teaching.model(input_ids=batch.ids, attention_mask=batch.real).logits
        labels = batch.ids[:, 1:].where(batch.mask, -100)
        expected = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels.flatten())
    assert teaching._imitate(batch) == pytest.approx(0.5 * float(expected), rel=1e-5)
    assert any(p.grad is not None and p.grad.any() for p in teaching.trained)
    teaching.recipe = teaching.recipe.but(micro_batch=1, prompts_per_step=1, group_size=4)
    assert teaching._imitate(batch) == pytest.approx(0.5 * float(expected), rel=1e-5)
    none, told = lessons_in(teaching, [None])
    assert none is None and told == {"lessons": 0} and teaching._imitate(none) == 0.0


def test_processes_weigh_every_lesson_token_alike(teaching, monkeypatch):
    """Gradients are summed: each process' part is over the tokens of all."""
    whole, _ = lessons_in(teaching, ANSWERS)
    expected = teaching._imitate(whole)
    halves = [lessons_in(teaching, half)[0] for half in (ANSWERS[:2], ANSWERS[2:])]
    tokens = [float(sum(half.mask.sum() for half in halves))]
    monkeypatch.setattr(loop, "summed", lambda counts: tokens)
    assert sum(map(teaching._imitate, halves)) == pytest.approx(expected, rel=1e-5)


def test_right_ones_keep_each_different_right_completion_once():
    found = right_ones([answered("1", success=1.0), answered("1", success=1.0), answered("2", sample=1, success=1.0),
                        answered("3", sample=2), answered("4", sample=3, success=None)])  # fmt: skip
    assert [t.answer for t in found] == ["1", "2"]


# ---- the loop
def counted(task: Task, trajectory: Trajectory) -> Task:
    """Another family's relabelling: whatever the agent wrote, it wrote so many tokens."""
    n = str(len(trajectory.completion_ids))
    plan = [{"tool": "calculator", "arguments": {"expression": f"{n} + 0"}, "expect": n}]
    meta = {"plan": plan, "outcome": n, "closeness": min(1.0, int(n) / 1_000)}
    asks = f"How much is {n} and nothing?"
    return dataclasses.replace(task, id=f"{task.id}-{n}", prompt=asks, answer=n, meta=meta)


def test_two_rounds_train_and_leave_their_adapters(tmp_path):
    model, tokenizer = load_agent("nano")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    run = Run.create(tmp_path / "run")
    tasks = [Task(name, f"Say nothing about {name}.", "never said", family="A") for name in ("a", "b")]
    lab = lab_with(SMALL).extended(families={"A": Family(relabel=counted)})
    trained, log = hindsight(lab, model, tokenizer, tasks, run, 2, samples=3, learning_rate=1e-3)
    assert [row["step"] for row in log] == [1, 2] and read_jsonl(run.file("train", "metrics.jsonl")) == log
    assert [len(sampled) for _, sampled in run.rollouts()] == [6, 6]
    assert all(row["lessons"] > 0 and row["tokens"] > 0 and row["solved"] == 0.0 for row in log)
    after = trained.state_dict()
    assert before.keys() == after.keys(), "merged, no adapter is left in it"
    merged, _ = load_agent("nano", merge=[run.file("hindsight", f"round-{n}") for n in (1, 2)])
    for name, value in merged.state_dict().items():
        assert value.allclose(after[name].to(value.device), atol=1e-5), name
    assert any(not before[name].equal(after[name].cpu()) for name in before)
