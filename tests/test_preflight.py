"""The preflight report: the probe, single checks, and a real policy. The three published faults: labs/test_autopsies."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agentkit.cli import main
from agentkit.lab import Lab
from agentkit.policies.loading import load_agent
from agentkit.policies.scripted import Flaws, ScriptedPolicy
from agentkit.preflight import causes, checks, examine, report
from agentkit.preflight.forecasting import forecast
from agentkit.preflight.reward_checks import gold
from agentkit.recipe import Recipe
from agentkit.records import StopReason, Task, ToolResult, TrainingError, Trajectory, Turn
from agentkit.rewards import correctness, plan, toolrla
from agentkit.rollouts import rollout
from agentkit.runs import Run, cost
from agentkit.training.update_timing import update_seconds
from agentkit.trajectories import groups_by_task

RECIPE = Recipe(group_size=4)
NAMES = ("c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8")
RIGHT = {"correctness": (correctness, 1.0)}


def constraint_task(number: int) -> Task:
    name = NAMES[number % 8]
    meta = {"plan": [{"tool": "drop_constraint", "arguments": {}}], "constraints": NAMES, "iis": (name,)}
    text = f"Problem {number} is infeasible. Repair it."
    return Task(f"lp{number}", text, name, tools=("drop_constraint",), meta=meta)


def repair(task: Task, sample: int, name: str, calls: int = 1, policy: str = "sft") -> Trajectory:
    """One trajectory that drops a constraint, after looking around."""
    look = tuple(ToolResult("get_iis", {}, json.dumps(task.meta["iis"]), True) for _ in range(calls - 1))
    drop = ToolResult("drop_constraint", {"name": name}, "done", True)
    texts = [f"I drop constraint {name}, which is in the conflict.", f"Answer: {name}"]
    turns = (Turn(texts[0], (0, 2), (*look, drop)), Turn(texts[1], (2, 4)))
    tokens = (1, 2), (3, sample, 5, 7), (1, 1, 1, 1), (-0.1,) * 4
    end = StopReason.ANSWER, name, float(name == task.answer)
    return Trajectory(task.id, policy, sample, sample, *tokens, turns, *end)


@pytest.fixture(scope="module")
def rollouts():
    """12 tasks, 4 rollouts each of which one to three are right, and the expert's."""
    tasks = [constraint_task(i) for i in range(12)]
    other = {task.id: next(n for n in NAMES if n != task.answer) for task in tasks}
    drops = [(t, s, t.answer if s <= i % 3 else other[t.id]) for i, t in enumerate(tasks) for s in range(4)]
    sampled = [repair(*drop, calls=1 + drop[1] % 3) for drop in drops]
    golden = [repair(task, 0, task.answer, calls=1 + i % 3, policy="gold") for i, task in enumerate(tasks)]
    return tasks, sampled, golden


def judged(rollouts, reward):
    tasks, sampled, golden = rollouts
    return report(RECIPE, sampled, golden, tasks, reward, n_test=100)


@pytest.mark.parametrize(("component", "light", "reason"), [
    (lambda task, t: 0.5, "amber", "neither a wrong answer"),  # it may depend on what is not varied
    (lambda task, t: task.meta["reference"] == t.answer, "red", "It fails: KeyError"),
    (lambda task, t: None, "red", "scored on none"),
])  # fmt: skip
def test_a_dead_component_is_told_with_its_reason(rollouts, component, light, reason):
    item = judged(rollouts, plan() | {"mine": (component, 1.0)})["Component mine"]
    assert item.light == light and reason in item.finding + item.advice


def test_toolrla_is_not_refused_for_tools_that_no_task_forbids(suite, tokenizer):
    tasks = [task for task in suite.split("train") if task.family == "A"][:12]
    careless = ScriptedPolicy(tokenizer, Flaws(in_head=0.5, wrong_operation=0.3), name="sft")
    sampled = rollout(tasks, careless, group_size=4, seed=1)
    golden = rollout(tasks, ScriptedPolicy(tokenizer, name="gold"), seed=1)
    preflight = report(RECIPE, sampled, golden, tasks, toolrla(), n_test=100)
    item = preflight["Component compliance"]
    assert item.light == "green" and "none has task.meta['forbidden_tools']" in item.advice
    preflight.require()
    strict = [replace(t, meta=t.meta | {"forbidden_tools": ["python"]}) for t in tasks]
    obeyed = report(RECIPE, sampled, golden, strict, toolrla(), n_test=100)["Component compliance"]
    assert obeyed.light == "green" and "more calls" in obeyed.advice


def test_a_component_of_one_family_is_probed_on_that_family(rollouts):
    """Though its tasks come last; and a key that a task in ten holds is written."""
    tasks, sampled, golden = rollouts
    shop = [replace(t, id=f"s{t.id}", family="shop", meta={"budget": 2}) for t in tasks]
    rare = [replace(shop[-1], meta={"budget": 2, "rare": 1}), *shop[:-1]]

    def own(many):
        return [replace(t, task_id=f"s{t.task_id}") for t in many]

    def within(task, t):
        task.meta.get("rare")
        return None if task.family != "shop" else float(len(t.turns) <= task.meta["budget"])

    both = [*tasks, *rare], [*sampled, *own(sampled)], [*golden, *own(golden)]
    assert judged(both, plan() | {"budget": (within, 0.1)})["Component budget"].light != "red"


def test_a_broken_mask_is_refused(rollouts):
    tasks, sampled, golden = rollouts
    short = [replace(sampled[0], old_logprobs=(0.0,)), *sampled[1:]]
    item = report(RECIPE, short, golden, tasks, plan())["Masks"]
    assert item.light == "red" and "4 completion tokens" in item.finding


@pytest.mark.parametrize(("refused", "light"), [(0, "green"), (1, "green"), (2, "red")])
def test_a_share_of_the_gold_refuses_a_run_and_one_case_does_not(rollouts, refused, light):
    """Three of the 32 met a limit: that is for the item on limits, not for the reward's."""
    _, sampled, golden = rollouts
    golden = [replace(golden[i % len(golden)], reward=1.0) for i in range(32)]
    failed = replace(golden[0], success=0.0, why="other")
    limited = replace(failed, stop_reason=StopReason.TOKEN_LIMIT)
    given = [*[failed] * refused, *[limited] * 3, *golden[refused + 3 :]]
    item = gold(given, groups_by_task(sampled), {}, {})
    assert item.light == light and ("refuses" in item.finding) == (light == "red")
    assert gold([], groups_by_task(sampled), {}, {}).light == "amber"


def test_why_groups_have_no_advantage(rollouts):
    tasks, sampled, golden = rollouts

    def groups(success, reward=RIGHT):
        own = [replace(t, success=success(t)) for t in sampled]
        found = report(RECIPE, own, golden, tasks, reward, n_test=100)
        return found["Success now"].light, found["Groups without advantage"]

    never, item = groups(lambda t: 0.0)
    assert never == "red" and item.light == "red" and item.advice.startswith("No trajectory is right")
    unscored, item = groups(lambda t: None)
    assert unscored == "red" and "mend the verifier" in item.advice
    partly, item = groups(lambda t: 9 / 16)  # a share of a program's tests is something to learn
    assert partly == "amber" and item.advice.startswith("No trajectory is right")
    _, item = groups(lambda t: float(t.task_id < tasks[6].id))
    assert item.light == "red" and item.advice.startswith("Each task is solved always or never")
    _, item = groups(lambda t: t.success, {"one": (lambda task, t: 1.0, 1.0)})
    assert "rewarded alike" in item.advice
    assert judged(rollouts, RIGHT)["Groups without advantage"].light == "green"


def test_silence_that_is_paid_is_told(rollouts):
    """In each group the first trajectory gives no answer; what the others earn decides."""

    def paid(silent, spoken):
        mute = [replace(t, answer=None, reward=silent) if t.sample == 0 else replace(t, reward=spoken + t.sample)
                for t in rollouts[1]]  # fmt: skip
        return checks.silence(groups_by_task(mute))

    assert paid(0.0, 0.0).light == "green" and paid(0.0, 0.0).values["gap"] == 2.0
    assert paid(5.0, 0.0).light == "red" and "falls silent" in paid(5.0, 0.0).advice
    assert checks.silence(groups_by_task([replace(t, reward=1.0) for t in rollouts[1]])).light == "green"


@pytest.mark.parametrize(("changes", "light", "says"), [
    ({"learning_rate": 1.5e-3, "steps": 54}, "green", "up to 0.081"),
    ({"learning_rate": 1e-5, "steps": 150, "lr_schedule": "linear"}, "amber", "try 1e-04"),
    ({"learning_rate": 0.15}, "amber", "0.15 is large for an adapter"),
    ({"learning_rate": 1e-3, "warmup_steps": 500}, "amber", "longer than the 200 steps"),
])  # fmt: skip
def test_settings_that_train_nothing_are_told(changes, light, says):
    item = checks.settings(Recipe.from_mapping(changes))
    assert item.light == light and says in item.finding


def test_what_does_not_fit_is_refused_before_anything_is_sampled(tokenizer, suite, monkeypatch):
    model, _ = load_agent("nano")
    policy = ScriptedPolicy(tokenizer, name="sft")
    lab = Lab.open(Recipe.from_mapping({"model": "nano", "max_tokens": 100_000, "max_turn_tokens": 30_000}))
    monkeypatch.setattr("agentkit.policies.slot_cache.memory_of", lambda device: 20 * 10**9)
    found, rollouts = examine(lab, policy, suite.split("train"), model=model)
    assert rollouts == [] and [item.name for item in found.items] == ["Memory"] and found.rollouts == 0
    with pytest.raises(TrainingError, match="Memory: .* GB of the machine's 20 GB .*micro_batch: [1-7]"):
        found.require()


def test_the_same_question_in_another_world_is_another_task():
    text = "Find the exit of the maze you are in."
    rooms = [Task(str(i), text, "done", meta={"seed": i}) for i in range(20)]
    assert causes.held_out(rooms[:10], rooms[10:]).light == "green"
    again = [replace(task, id=f"again {task.id}") for task in rooms[:10]]
    assert causes.held_out(rooms[:10], again).light == "red"
    sifted = [replace(task, meta=task.meta | {"pass_rate": 0.5}) for task in rooms[:10]]
    assert causes.held_out(sifted, again).light == "red"


def test_the_forecast_is_of_the_whole_run_and_of_what_is_done_already(tmp_path):
    recipe = Recipe(model="nano", sft=True, sft_transcripts=1)
    plain, phases = forecast(recipe, 0.05, 0.01), cost.PHASES
    run = Run.create(tmp_path / "a")
    baseline = {"seconds": 70.0, "status": "done"}
    run.update(recipe={"model": "nano", "sft": True, "sft_transcripts": 1})
    run.update(stages={"02_baseline": baseline})
    known = forecast(Recipe(), 0.05, 0.01, n_test=18, run=run)  # notebook 03's recipe holds a part of it
    assert known.values["phases"][phases[0]] == 70.0
    assert known.values["phases"][phases[1]] == plain.values["phases"][phases[1]]
    low, high = known.values["interval"]
    assert low < known.values["total_seconds"] < high and "[" in known.finding


@pytest.mark.parametrize("changes", [{}, {"precision": "bfloat16"}])
def test_the_timed_update_leaves_the_model_as_it_was(suite, tokenizer, changes, monkeypatch):
    recipe = Recipe.from_mapping({"max_tokens": 1024, **changes})
    model, _ = load_agent("nano", precision=recipe.precision)
    sampled = rollout(suite.split("train")[:2], ScriptedPolicy(tokenizer), group_size=2)
    before, seen = [p.clone() for p in model.parameters()], []
    layer = type(model.model.layers[0])
    call = layer.__call__

    def note(self, *args, **kwargs):
        seen.append(self.gradient_checkpointing)
        return call(self, *args, **kwargs)

    monkeypatch.setattr(layer, "__call__", note)
    assert update_seconds(model, sampled, recipe) > 0
    assert any(seen) is (recipe.precision == "bfloat16") and not model.is_gradient_checkpointing
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
    assert not any("lora" in name for name, _ in model.named_parameters())


def test_the_report_as_text_html_and_json(rollouts, tmp_path):
    tasks, sampled, golden = rollouts
    hostile = [replace(t, success=0.0, why="<script>alert(1)</script>") for t in golden]
    preflight = report(RECIPE, sampled, hostile, tasks, plan(), n_test=100)
    page = preflight._repr_html_()
    assert "<script>" not in page and "&lt;script&gt;" in page
    assert preflight.light == "red" and "[   stop] Gold trajectories" in preflight.text()
    bad, good, settings = map(page.index, ("Gold trajectories", "checks are good", "Settings"))
    assert bad < good < settings
    path = preflight.save(tmp_path / "preflight.json")
    assert json.loads(path.read_text())["light"] == "red"
    assert type(preflight).load(path).text() == preflight.text()


@pytest.mark.slow
def test_the_command_reports_on_the_small_agent(capsys):
    recipe = str(Path(__file__).resolve().parents[1] / "params" / "nano.yaml")
    small = ("n_tasks=60", "families=A", "group_size=2", "micro_batch=8")
    status = main(["preflight", recipe, *(word for change in small for word in ("-p", change))])
    printed = capsys.readouterr().out
    assert status in (0, 1) and "Groups without advantage" in printed
    assert "trajectories of the starting policy" in printed
