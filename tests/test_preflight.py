"""The preflight report: the arithmetic of groups, the probe, three autopsies, and a real policy."""

from __future__ import annotations

import dataclasses
import json
import pickle
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from agentkit.cli import main
from agentkit.lab import Lab
from agentkit.policies.loading import load_agent
from agentkit.policies.scripted import Flaws, ScriptedPolicy
from agentkit.preflight import causes, checks, examine, report, task_checks
from agentkit.preflight.checks import dead_share, fit_beta, repeatable, smallest_useful
from agentkit.preflight.forecasting import forecast
from agentkit.preflight.probe import probe, saying
from agentkit.preflight.reward_checks import gold
from agentkit.recipe import Recipe
from agentkit.records import StopReason, Task, ToolResult, TrainingError, Trajectory, Turn
from agentkit.rewards import correctness, plan, toolrla
from agentkit.rollouts import rollout
from agentkit.runs import Run, cost
from agentkit.tools.outages import PROBLEMS
from agentkit.training.memory import MemoryPlan
from agentkit.training.update_timing import update_seconds
from agentkit.trajectories import groups_by_task

RECIPE = Recipe(group_size=4)
NAMES = ("c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8")


# ---- arithmetic
def test_dead_groups_of_one_chance_and_of_a_spread():
    assert dead_share(500.0, 500.0, 4) == pytest.approx(2 * 0.5**4, abs=2e-3)  # nearly p = 1/2
    assert dead_share(1.0, 1.0, 4) == pytest.approx(2 / 5)  # uniform: the integral of p^4 + (1-p)^4
    assert smallest_useful(1.0, 1.0) == 3 and smallest_useful(0.02, 2.0) is None


def test_the_fit_finds_the_spread_that_plug_in_shares_overstate():
    rng = np.random.default_rng(0)
    chance = rng.beta(4, 4, 400)
    right = rng.binomial(4, chance)
    a, b = fit_beta(right.tolist(), [4] * 400)
    assert a / (a + b) == pytest.approx(0.5, abs=0.04) and dead_share(a, b, 4) == pytest.approx(
        dead_share(4, 4, 4), abs=0.06
    )
    shares = right / 4
    assert np.mean(shares**4 + (1 - shares) ** 4) > dead_share(4, 4, 4) + 0.05
    assert dead_share(*fit_beta([0] * 12, [8] * 12), 8) > 0.9


def test_what_a_repeat_scoring_explains():
    rng = np.random.default_rng(1)
    signal = rng.integers(0, 2, (40, 8)).astype(float)
    assert repeatable(np.stack([signal] * 3)) == pytest.approx(1.0)
    assert repeatable(rng.normal(size=(4, 40, 8))) < 0.15
    assert 0.5 < repeatable(signal + rng.normal(0, 0.3, (4, 40, 8))) < 0.9
    assert repeatable(np.zeros((3, 5, 4))) is None
    still = signal * (np.arange(40) < 10)[:, None] + rng.normal(0, 0.05, (4, 40, 8))  # three in four are dead
    assert repeatable(still) < 0.5 < 0.9 < repeatable(still, divided=False)


# ---- autopsies: three published runs
def constraint_task(number: int) -> Task:
    meta = {
        "plan": [{"tool": "drop_constraint", "arguments": {}}],
        "constraints": NAMES,
        "iis": (NAMES[number % 8],),
    }
    return Task(
        f"lp{number}",
        f"Problem {number} is infeasible. Repair it.",
        NAMES[number % 8],
        tools=("drop_constraint",),
        meta=meta,
    )


def repair(task: Task, sample: int, name: str, calls: int = 1, policy: str = "sft") -> Trajectory:
    """One trajectory that drops a constraint, after looking around."""
    look = tuple(ToolResult("get_iis", {}, json.dumps(task.meta["iis"]), True) for _ in range(calls - 1))
    drop = ToolResult("drop_constraint", {"name": name}, "done", True)
    texts = [f"I drop constraint {name}, which is in the conflict.", f"Answer: {name}"]
    turns = (Turn(texts[0], (0, 2), (*look, drop)), Turn(texts[1], (2, 4)))
    ids, right = (3, sample, 5, 7), float(name == task.answer)
    return Trajectory(
        task.id,
        policy,
        sample,
        sample,
        (1, 2),
        ids,
        (1, 1, 1, 1),
        (-0.1,) * 4,
        turns,
        StopReason.ANSWER,
        name,
        right,
    )


@pytest.fixture(scope="module")
def rollouts():
    """12 tasks, 4 rollouts each of which one to three are right, and the expert's."""
    tasks = [constraint_task(i) for i in range(12)]
    other = {task.id: next(n for n in NAMES if n != task.answer) for task in tasks}
    sampled = [
        repair(task, s, task.answer if s <= i % 3 else other[task.id], calls=1 + s % 3)
        for i, task in enumerate(tasks)
        for s in range(4)
    ]
    golden = [repair(task, 0, task.answer, calls=1 + i % 3, policy="gold") for i, task in enumerate(tasks)]
    return tasks, sampled, golden


def judged(rollouts, reward):
    tasks, sampled, golden = rollouts
    return report(RECIPE, sampled, golden, tasks, reward, n_test=100)


WIDE, ANCHORED = re.compile(r"\w*(constraint)?\s*\w+"), re.compile(r"^I drop constraint (z\d+),")


def or_debug(pattern: re.Pattern) -> dict:
    """The reward of seed 003: +20 for a targeted repair, -1 a step, +10 in the conflict, -20 for a constraint
    that is made up.
    """

    def faithful(task, trajectory):
        return -20.0 if any(pattern.search(turn.text) for turn in trajectory.turns) else 0.0

    def repairs(task, trajectory):
        return (
            20.0
            if any(r.name == "drop_constraint" for turn in trajectory.turns for r in turn.results)
            else 0.0
        )

    def in_conflict(task, trajectory):
        return 10.0 if trajectory.success == 1.0 else 0.0

    def step(task, trajectory):
        return -1.0

    return {
        "repair": (repairs, 1.0),
        "step": (step, 0.0),
        "conflict": (in_conflict, 1.0),
        "faithfulness": (faithful, 1.0),
    }


def test_autopsy_003_an_unanchored_pattern_strikes_everything(rollouts):
    tasks, sampled, golden = rollouts
    always = [
        dataclasses.replace(t, success=1.0) for t in sampled
    ]  # every rollout earned 20 - 20 + 10, as published
    preflight = report(RECIPE, always, golden, tasks, or_debug(WIDE), n_test=100)
    with pytest.raises(TrainingError) as refusal:
        preflight.require()
    message = str(refusal.value)
    assert "faithfulness takes 20 from gold trajectories" in message and "unanchored" in message
    assert preflight["Groups without advantage"].light == "red"
    mended = judged(rollouts, or_debug(ANCHORED))
    assert mended["Gold trajectories"].light == "green" and mended["Groups without advantage"].light != "red"


def test_autopsy_003_mended_passes(rollouts):
    reward = {k: v for k, v in or_debug(ANCHORED).items() if k != "step"}
    reward["faithfulness"] = (
        lambda task, t: -20.0 if (t.answer or "") not in task.meta["constraints"] else 0.0,
        1.0,
    )
    judged(rollouts, reward).require()


def with_noise(std):
    rng = np.random.default_rng(0)
    return {"correctness": (correctness, 1.0), "noise": (lambda task, t: float(rng.normal(0, std)), 1.0)}


def test_autopsy_000_noise_is_no_cure_for_zero_variance(rollouts):
    tasks, _, golden = rollouts
    same = [
        repair(task, s, task.answer if i % 2 else "c9") for i, task in enumerate(tasks) for s in range(4)
    ]  # binary, and dead
    noisy = with_noise(0.05)
    preflight = report(RECIPE, same, golden, tasks, noisy, n_test=100)
    item = preflight["Signal or noise"]
    assert (
        item.light == "red"
        and item.values["repeatable"] < 0.3
        and item.values["noisy_components"] == ["noise"]
    )
    with pytest.raises(TrainingError, match="noise gives the same trajectory another value each time"):
        preflight.require()
    judged(rollouts, {"correctness": (correctness, 1.0)}).require()


@pytest.mark.parametrize(
    ("std", "light", "said"), [(5.0, "red", "Nothing in the reward depends"), (0.05, "green", "")]
)
def test_what_being_right_earns_is_told_from_what_scoring_again_changes(rollouts, std, light, said):
    item = judged(rollouts, with_noise(std))["What being right earns"]
    assert item.light == light and said in item.advice and "flipped" not in item.advice


def test_autopsy_001_a_tool_reward_whose_input_is_never_written(rollouts):
    def tool_call(task, trajectory):
        score = 1.0 if trajectory.success == 1.0 else -1.0
        return score if score > 0 else min(-0.6, score + 0.1 * min(task.meta.get("num_turns", 0), 4))

    def counted(task, trajectory):
        score = 1.0 if trajectory.success == 1.0 else -1.0
        return (
            score
            if score > 0
            else min(-0.6, score + 0.1 * min(len(trajectory.turns[0].results) if trajectory.turns else 0, 4))
        )

    preflight = judged(rollouts, {"tool_call": (tool_call, 1.0)})
    with pytest.raises(TrainingError, match=r"reads task\.meta\['num_turns'\], which no record holds"):
        preflight.require()
    judged(rollouts, {"tool_call": (counted, 1.0)}).require()


@pytest.mark.parametrize(("estimator", "light"), [("group", "red"), ("dr_grpo", "green")])
def test_noise_is_judged_by_what_the_estimator_makes_of_it(estimator, light):
    """One task in four is solved at times; a reward of 0 or 1 and noise of 0.05."""
    rng = np.random.default_rng(0)
    drawn = [[repair(constraint_task(i), s, "c1") for s in range(4)] for i in range(40)]
    once = [(t, float(i < 10 and t.sample < 2)) for i, group in enumerate(drawn) for t in group]
    scorings = [[dataclasses.replace(t, reward=r + rng.normal(0, 0.05)) for t, r in once] for _ in range(4)]
    item = checks.scoring_noise(scorings, estimator)
    assert item.light == light


# ---- the probe and single checks
@pytest.mark.parametrize(
    ("component", "light", "reason"),
    [
        (lambda task, t: getattr(t, "num_turns", 0) * 0.1, "red", "reads trajectory.num_turns"),
        (lambda task, t: 0.5, "amber", "neither a wrong answer"),  # it may depend on what is not varied
        (lambda task, t: task.meta["reference"] == t.answer, "red", "It fails: KeyError"),
        (lambda task, t: None, "red", "scored on none"),
    ],
)
def test_a_dead_component_is_told_with_its_reason(rollouts, component, light, reason):
    preflight = judged(rollouts, plan() | {"mine": (component, 1.0)})
    assert preflight["Component mine"].light == light
    assert reason in preflight["Component mine"].finding + preflight["Component mine"].advice


def in_text(task, t):
    """As a reward of TRL reads the answer."""
    return float(re.findall(r"Answer: (\S+)", t.turns[-1].text) == [task.answer])


def in_a_pool(task, t):
    task, t = pickle.loads(pickle.dumps((task, t)))
    return t.success


def test_a_reward_that_reads_the_text_or_pickles_what_it_gets_is_not_refused(rollouts):
    for component in (in_text, in_a_pool):
        preflight = judged(rollouts, {"mine": (component, 1.0)})
        assert preflight["What being right earns"].values["earns"] == 1.0
        preflight.require()
    form = judged(rollouts, plan() | {"form": (lambda task, t: "Answer:" in t.turns[-1].text, 0.2)})
    assert form["Component form"].light == "green" and "saturated" in form["Component form"].advice
    unsaid = replace(rollouts[2][0], answer="c9")
    assert [saying(unsaid, said).turns[-1].text for said in ("c3", None)] == ["c3", ""]


def test_a_key_that_some_verifiers_hold_is_written(rollouts):
    tasks, _, golden = rollouts
    some = [*tasks, replace(tasks[0], id="other", verifier={"kind": "numeric", "abs_tol": 1.0})]
    component = lambda task, t: task.verifier.get("abs_tol", 0.0)  # noqa: E731
    pairs = list(zip(tasks, golden, strict=True))[:3]
    assert probe(component, pairs, tasks).missing == ("task.verifier['abs_tol']",)
    assert not probe(component, pairs, some).missing


def test_toolrla_is_not_refused_for_tools_that_no_task_forbids(suite, tokenizer):
    tasks = [task for task in suite.split("train") if task.family == "A"][:12]
    careless = ScriptedPolicy(tokenizer, Flaws(in_head=0.5, wrong_operation=0.3), name="sft")
    sampled = rollout(tasks, careless, group_size=4, seed=1)
    golden = rollout(tasks, ScriptedPolicy(tokenizer, name="gold"), seed=1)
    preflight = report(RECIPE, sampled, golden, tasks, toolrla(), n_test=100)
    item = preflight["Component compliance"]
    assert item.light == "green" and "none has task.meta['forbidden_tools']" in item.advice
    preflight.require()
    strict = [dataclasses.replace(t, meta=t.meta | {"forbidden_tools": ["python"]}) for t in tasks]
    obeyed = report(RECIPE, sampled, golden, strict, toolrla(), n_test=100)["Component compliance"]
    assert obeyed.light == "green" and "forbidden tools" in obeyed.advice


def test_a_component_of_one_family_is_probed_on_that_family(rollouts):
    """Though its tasks come last; and a key that a task in ten holds is written."""
    tasks, sampled, golden = rollouts
    shop = [dataclasses.replace(t, id=f"s{t.id}", family="shop", meta={"budget": 2}) for t in tasks]
    rare = [dataclasses.replace(shop[-1], meta={"budget": 2, "rare": 1}), *shop[:-1]]

    def own(many):
        return [dataclasses.replace(t, task_id=f"s{t.task_id}") for t in many]

    def within(task, t):
        task.meta.get("rare")
        return None if task.family != "shop" else float(len(t.turns) <= task.meta["budget"])

    both = [*tasks, *rare], [*sampled, *own(sampled)], [*golden, *own(golden)]
    item = judged(both, plan() | {"budget": (within, 0.1)})["Component budget"]
    assert item.light != "red", item


def test_the_probe_tells_what_moves_a_component(rollouts):
    tasks, _, golden = rollouts
    probed = probe(plan()["efficiency"][0], list(zip(tasks, golden, strict=True))[:2])
    assert (
        {"a wrong answer", "no answer", "many more tokens"} <= set(probed.moved_by)
        and not probed.missing
        and not probed.failures
    )


def test_a_broken_mask_is_refused(rollouts):
    tasks, sampled, golden = rollouts
    bad = [
        dataclasses.replace(sampled[0], turns=(dataclasses.replace(sampled[0].turns[0], span=(0, 1)),)),
        *sampled[1:],
    ]
    assert report(RECIPE, bad, golden, tasks, plan())["Masks"].light == "red"
    short = [dataclasses.replace(sampled[0], old_logprobs=(0.0,)), *sampled[1:]]
    assert "4 completion tokens" in report(RECIPE, short, golden, tasks, plan())["Masks"].finding


def test_gold_answers_that_fail_and_tasks_without_a_plan(rollouts):
    tasks, sampled, golden = rollouts
    wrong = [dataclasses.replace(t, success=0.0, why="other") for t in golden]
    assert "refuses 12 of 12" in report(RECIPE, sampled, wrong, tasks, plan())["Gold trajectories"].finding
    assert report(RECIPE, sampled, [], tasks, plan())["Gold trajectories"].light == "amber"


def test_what_pays_wrong_rollouts_more_than_gold_is_named(rollouts):
    tasks, sampled, golden = rollouts
    wrong = [dataclasses.replace(t, success=0.0, why="other") for t in sampled]
    reward = {"correctness": (correctness, 1.0), "luck": (lambda task, t: 5.0 * (t.success == 0.0), 1.0)}
    item = report(RECIPE, wrong, golden, tasks, reward)["Gold trajectories"]
    assert item.light == "red" and "48 wrong trajectories earn more" in item.advice


def test_nothing_right_and_nothing_scored(rollouts):
    tasks, sampled, golden = rollouts
    wrong = [dataclasses.replace(t, success=0.0, answer=None) for t in sampled]
    item = report(RECIPE, wrong, golden, tasks, {"correctness": (correctness, 1.0)})[
        "Groups without advantage"
    ]
    assert item.light == "red" and "All trajectories are wrong: take easier tasks" in item.advice
    unscored = [dataclasses.replace(t, success=None) for t in sampled]
    items = report(RECIPE, unscored, golden, tasks, plan(), n_test=100)
    assert items["Success now"].light == "red" and items["Groups without advantage"].light == "red"
    assert items["Groups without advantage"].advice == "No trajectory was scored: mend the verifier."
    assert items["What the test can show"].finding.startswith("No trajectory was scored")


def test_without_a_plan_and_anything_right_the_gold_answer_tells_what_is_alive(rollouts):
    tasks, sampled, _ = rollouts
    wrong = [saying(t, "none of them") for t in sampled]
    found = report(RECIPE, wrong, [], tasks, plan())
    for name in ("correctness", "efficiency"):
        item = found[f"Component {name}"]
        assert item.light == "amber" and f"No trajectory moves {name} yet. It does change with" in item.advice
    looks = [replace(task, verifier={"kind": "regex", "pattern": "never"}) for task in tasks]
    advice = report(RECIPE, wrong, [], looks, plan())["Component correctness"].advice
    assert advice.startswith("Nothing right was sampled, and no gold trajectory could be tried")


def test_tasks_solved_always_or_never_are_no_fault_of_the_reward(rollouts):
    tasks, sampled, golden = rollouts
    sorted_out = [dataclasses.replace(t, success=float(t.task_id < tasks[6].id)) for t in sampled]
    items = report(RECIPE, sorted_out, golden, tasks, {"correctness": (correctness, 1.0)})
    assert items["Groups without advantage"].light == "red"
    assert items["Groups without advantage"].advice.startswith("Each task is solved always or never")
    paid = report(RECIPE, sorted_out, golden, tasks, {"one": (lambda task, t: 1.0, 1.0)})
    assert "rewarded alike" in paid["Groups without advantage"].advice


def test_programs_that_pass_a_share_of_their_tests_are_not_right(rollouts):
    tasks, sampled, golden = rollouts
    partial = [dataclasses.replace(t, success=9 / 16) for t in sampled]
    items = report(RECIPE, partial, golden, tasks, {"correctness": (correctness, 1.0)})
    assert items["Success now"].values["success"] == 0.0 and items["Success now"].light == "amber"
    never = report(RECIPE, [dataclasses.replace(t, success=0.0) for t in sampled], golden, tasks, plan())
    assert never["Success now"].light == "red", "with shares there may be something to learn"
    assert "All trajectories are wrong: take easier tasks" in items["Groups without advantage"].advice


def test_the_report_as_text_html_and_json(rollouts, tmp_path):
    tasks, sampled, golden = rollouts
    hostile = [dataclasses.replace(t, task_id=t.task_id) for t in golden]
    hostile = [dataclasses.replace(t, success=0.0, why="<script>alert(1)</script>") for t in hostile]
    preflight = report(RECIPE, sampled, hostile, tasks, plan(), n_test=100)
    assert "<script>" not in preflight._repr_html_() and "&lt;script&gt;" in preflight._repr_html_()
    assert preflight.light == "red" and "[stop] Gold trajectories" in preflight.text()
    kept = json.loads(preflight.save(tmp_path / "preflight.json").read_text())
    assert kept["light"] == "red" and {i["name"] for i in kept["items"]} == {i.name for i in preflight.items}


def test_the_forecast_scales_with_the_measured_rollout():
    slow, fast = forecast(Recipe(model="nano"), 0.2), forecast(Recipe(model="nano"), 0.05)
    assert slow.values["training_seconds"] == pytest.approx(4 * fast.values["training_seconds"])
    assert "measured" in forecast(Recipe(model="nano"), 0.05, 0.1).finding


@pytest.mark.parametrize(
    ("model", "device", "rented"),
    [("nano", "", False), ("some-3b", "", True), ("nano", "GPU", True), ("some-3b", "CPU", False)],
)
def test_the_forecast_of_a_cpu_names_no_gpu_hours(model, device, rented):
    finding = forecast(Recipe(model=model), 0.05, 0.01, device=device).finding
    assert ("GPU-hours, $" in finding) is rented is ("$" in finding) and "memory so far." in finding


def test_a_real_suite_and_policy_end_to_end(suite, tokenizer):
    lab = Lab.open(Recipe(group_size=4, model="nano"))
    careless = ScriptedPolicy(tokenizer, Flaws(wrong_operation=0.4, skip_lookup=0.3), name="sft")
    preflight, rollouts = examine(lab, careless, suite.split("train"), test=suite.split("test"))
    preflight.require()
    assert (
        preflight["Gold trajectories"].light == "green"
        and preflight["Masks"].light == "green"
        and len(rollouts) == 64  # 16 tasks: two steps of 8
    )
    assert (
        preflight["Signal or noise"].values["repeatable"] == pytest.approx(1.0)
        and preflight["Forecast"].values["rollout"] > 0
    )


@pytest.mark.slow
def test_the_command_reports_on_the_small_agent(capsys):
    recipe = str(Path(__file__).resolve().parents[1] / "params" / "nano.yaml")
    status = main(
        [
            "preflight",
            recipe,
            "-p",
            "n_tasks=60",
            "-p",
            "families=A",
            "-p",
            "group_size=2",
            "-p",
            "micro_batch=8",
        ]
    )
    printed = capsys.readouterr().out
    assert (
        status in (0, 1)
        and "Groups without advantage" in printed
        and "trajectories of the starting policy" in printed
    )


@pytest.mark.parametrize(
    ("changes", "light", "says"),
    [
        ({"learning_rate": 1.5e-3, "steps": 54}, "green", "up to 0.081"),
        ({"learning_rate": 0.0}, "red", "nothing is trained"),
        ({"learning_rate": 1e-6, "steps": 200}, "amber", "no entry of the adapter by more than 0.0002"),
        ({"learning_rate": 1e-5, "steps": 150, "lr_schedule": "linear"}, "amber", "try 1e-04"),
        ({"learning_rate": 0.15}, "amber", "0.15 is large for an adapter"),
        ({"learning_rate": 1e-3, "warmup_steps": 500}, "amber", "longer than the 200 steps"),
        ({"learning_rate": 1e-3, "beta": 2}, "amber", "holds the policy where it is"),
        ({"learning_rate": 1e-3}, "green", ""),
    ],
)
def test_settings_that_train_nothing_are_told(changes, light, says):
    item = checks.settings(Recipe.from_mapping(changes))
    assert item.light == light and says in item.finding


def test_gold_that_met_outages_only_refuses_no_run(suite, tokenizer):
    """Nine calls in ten fail for the moment, for some experts as often as they try."""
    lab = Lab.open(Recipe(group_size=2, model="nano", tool_failures=0.9, max_turns=90))
    found, _ = examine(lab, ScriptedPolicy(tokenizer, name="sft"), suite.split("train"))
    assert found["Gold trajectories"].light != "red", found["Gold trajectories"].finding


@pytest.mark.parametrize(("refused", "light"), [(1, "green"), (2, "red")])
def test_a_share_of_the_gold_refuses_a_run_and_one_case_does_not(rollouts, refused, light):
    """Three of the 32 met a limit: that is for the item on limits, not for the reward's."""
    tasks, sampled, golden = rollouts
    golden = [replace(golden[i % len(golden)], reward=1.0) for i in range(32)]
    failed = replace(golden[0], success=0.0, why="other")
    limited = replace(failed, stop_reason=StopReason.TOKEN_LIMIT)
    given = [*[failed] * refused, *[limited] * 3, *golden[refused + 3 :]]
    item = gold(given, groups_by_task(sampled), {}, {})
    assert item.light == light, item.finding


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
    fewer = forecast(Recipe(steps=50, val_every=10**5), 0.05, 0.01, n_test=18, run=run)  # not in the manifest
    assert fewer.values["phases"][phases[1]] == pytest.approx(plain.values["phases"][phases[1]] / 4)
    assert fewer.values["phases"][phases[3]] < known.values["phases"][phases[3]]
    rates = cost.read_prices().measured["nano"]
    assert plain.values["phases"][phases[5]] == pytest.approx(recipe.n_tasks * rates.task + rates.other)
    low, high = known.values["interval"]
    assert low < known.values["total_seconds"] < high and "[" in known.finding


# ---- memory, and turns that are cut
def tiny_plan(**changes):
    values = {"weights": 8e9, "update_fixed": 9e9, "update_row": 3e9, "rollouts": 9e9, "engine_share": 0.3,
              "micro_batch": 8} | changes  # fmt: skip
    return MemoryPlan(**values)


def test_memory_that_does_not_suffice_is_red_with_numbers_and_the_key_to_change():
    item = checks.memory(tiny_plan(), 24.0, "GPU")
    assert item.light == "red" and "36.3 GB of the GPU's 24 GB" in item.finding
    assert item.advice == "It would run out of memory: micro_batch: 4."
    assert checks.memory(tiny_plan(), 48.0, "GPU").light == "green"


def test_what_does_not_fit_is_refused_before_anything_is_sampled(tokenizer, suite, monkeypatch):
    model, _ = load_agent("nano")
    policy = ScriptedPolicy(tokenizer, name="sft")
    lab = Lab.open(Recipe.from_mapping({"model": "nano", "max_tokens": 100_000, "max_turn_tokens": 30_000}))
    monkeypatch.setattr("agentkit.policies.slot_cache.memory_of", lambda device: 20 * 10**9)
    found, rollouts = examine(lab, policy, suite.split("train"), model=model)
    assert rollouts == [] and [item.name for item in found.items] == ["Memory"] and found.rollouts == 0
    with pytest.raises(TrainingError, match="Memory: .* GB of the machine's 20 GB .*micro_batch: [1-7]"):
        found.require()


def test_silence_that_is_paid_is_told(rollouts):
    """In each group the first trajectory gives no answer; what the others earn decides."""

    def paid(silent, spoken):
        mute = [replace(t, answer=None, reward=silent) if t.sample == 0 else replace(t, reward=spoken + t.sample)
                for t in rollouts[1]]  # fmt: skip
        return checks.silence(groups_by_task(mute))

    assert paid(0.0, 0.0).light == "green" and paid(0.0, 0.0).values["gap"] == 2.0
    assert paid(5.0, 0.0).light == "red" and "falls silent" in paid(5.0, 0.0).advice
    assert checks.silence(groups_by_task([replace(t, reward=1.0) for t in rollouts[1]])).light == "green"


def test_turns_that_their_budget_cuts_are_told(rollouts):
    tasks, sampled, _ = rollouts
    cut = [
        dataclasses.replace(t, stop_reason=StopReason.TRUNCATED_TURN) if i % 8 == 0 else t
        for i, t in enumerate(sampled)
    ]
    item = checks.tools(groups_by_task(cut))
    assert item.light == "amber" and "6% of the turns are cut short" in item.advice
    assert "max_turn_tokens" in item.advice and item.values["cut_turns"] == pytest.approx(6 / 96)
    assert checks.tools(groups_by_task(sampled)).values["cut_turns"] == 0
    late = [dataclasses.replace(t, stop_reason=StopReason.TIME_LIMIT) for t in sampled]
    assert "(trajectory_timeout_s)" in checks.tools(groups_by_task(late)).advice


def test_failures_of_the_moment_are_told_beside_those_that_last(rollouts):
    tasks, sampled, _ = rollouts
    down = (ToolResult("get_iis", {}, f"Error: {PROBLEMS[0]}.", False),)
    met = [dataclasses.replace(t, turns=(dataclasses.replace(t.turns[0], results=down),)) for t in sampled]
    assert "0.0% of them fail for good (100.0% with those of the moment)" in (
        checks.tools(groups_by_task(met)).finding
    )


@pytest.mark.parametrize(("cut", "few"), [(12, "most"), (2, "some")])
def test_the_limit_that_gold_meets_is_named_as_the_recipe_names_it(rollouts, cut, few):
    _, _, golden = rollouts
    late = [dataclasses.replace(t, stop_reason=StopReason.TIME_LIMIT) for t in golden[:cut]]
    item = causes.limits([*late, *golden[cut:]], RECIPE)
    assert item.advice == f"Raise trajectory_timeout_s 600: {few} right policies could not finish."


@pytest.mark.parametrize("changes", [{}, {"precision": "bfloat16"}, {"beta": 0.0}])
def test_the_timed_update_is_the_trainings_and_leaves_the_model_as_it_was(
    suite, tokenizer, changes, monkeypatch
):
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


# ---- what a task check must not call a fault
def test_the_same_question_in_another_world_is_another_task():
    rooms = [
        Task(str(i), "Find the exit of the maze you are in.", "done", meta={"seed": i}) for i in range(20)
    ]
    assert task_checks.held_out(rooms[:10], rooms[10:]).light == "green"
    again = [dataclasses.replace(task, id=f"again {task.id}") for task in rooms[:10]]
    assert task_checks.held_out(rooms[:10], again).light == "red"


def test_what_a_filter_notes_hides_no_test_question_that_was_trained_on():
    asked = [Task(str(i), f"How many days has month {i} of the year?", str(i)) for i in range(12)]
    noted = [dataclasses.replace(task, id=f"t{task.id}", meta={"pass_rate": 0.5}) for task in asked]
    assert task_checks.held_out(noted, asked).light == "red"
