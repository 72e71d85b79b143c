from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from agentkit.evaluation import Comparison, compare
from agentkit.evaluation.behaviour import behaviour
from agentkit.evaluation.failures import failures
from agentkit.records import StopReason, Task, Trajectory, Turn
from agentkit.views import plots


def trajectory(task_id, success, sample=0, policy="sft", reward=None):
    ids = (1, 2)
    turn = Turn("done", (0, 2))
    return Trajectory(
        task_id,
        policy,
        sample,
        0,
        ids,
        ids,
        (1, 1),
        (0.0, 0.0),
        (turn,),
        StopReason.ANSWER,
        "x",
        success,
        reward=reward,
    )


def metrics(n=60):
    rng = np.random.default_rng(0)
    steps = np.arange(1, n + 1)
    table = pd.DataFrame({"step": steps, "success": np.linspace(0.4, 0.9, n), "seconds": rng.random(n) + 2})
    for column in (
        "reward",
        "kl",
        "entropy",
        "grad_norm",
        "clip_fraction",
        "dead_groups",
        "turns",
        "tool_failure_rate",
    ):
        table[column] = rng.random(n)
    table["reward_std"], table["completion_tokens"] = rng.random(n), rng.integers(80, 120, n)
    table["reward/correct"], table["reward/format"] = rng.random(n), rng.random(n)
    table["val_success"] = [0.5 if s % 20 == 0 else np.nan for s in steps]
    table["val_ci_low"], table["val_ci_high"] = (table["val_success"] - 0.1, table["val_success"] + 0.05)
    return table


def contrast(a, b):
    def luminance(colour):
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_every_colour_reads_on_light_and_dark():
    for page in ("#ffffff", "#111111"):
        assert contrast(plots.INK, page) >= 4
        assert all(contrast(colour, page) >= 3 for colour in (*plots.COLOURS, plots.SAME))
    assert len(set(plots.COLOURS)) == len(plots.COLOURS)


def test_training_curves_draw_what_exists():
    figure = plots.training_curves(metrics())
    titles = [a.text for a in figure.layout.annotations]
    assert titles == [title for _, title, _ in plots.PANELS]
    assert {t.name for t in figure.data if t.showlegend} == {
        "reward", "correct", "format", "validation (95 % interval)"
    }  # fmt: skip
    raw = next(t for t in figure.data if t.name == "success" and t.mode == "markers")
    assert raw.y[0] == pytest.approx(0.4)
    (validation,) = [t for t in figure.data if t.name.startswith("validation")]
    assert list(validation.x) == [20, 40, 60]
    assert list(validation.error_y.array) == pytest.approx([0.05] * 3)
    assert list(validation.error_y.arrayminus) == pytest.approx([0.1] * 3)
    fewer = plots.training_curves(metrics()[["step", "kl", "seconds"]])
    assert [a.text for a in fewer.layout.annotations] == ["KL to the reference", "Step time"]


def test_training_curves_of_little():
    assert "No optimiser step" in plots.training_curves(pd.DataFrame()).layout.annotations[0].text
    one = metrics()[:1].drop(columns=["val_success"])
    assert len(plots.training_curves(one).data[0].x) == 1
    resumed = pd.concat([metrics(3), metrics(3).assign(success=1.0)])
    figure = plots.curve(resumed, "success", "?", "share of trajectories")
    assert list(figure.data[0].x) == [1, 2, 3] and list(figure.data[0].y) == [1.0] * 3  # the later rows win
    with pytest.raises(ValueError, match="no column 'step'"):
        plots.training_curves(pd.DataFrame({"kl": [1.0]}))
    with pytest.raises(ValueError, match="no column to draw"):
        plots.training_curves(pd.DataFrame({"step": [1], "novel": [1.0]}))


def test_long_runs_are_thinned_and_keep_their_ends_and_validations():
    table = pd.DataFrame({"step": range(1, 10_001), "success": np.linspace(0, 1, 10_000)})
    table["val_success"] = table["success"].where(table["step"] % 10 == 0)
    figure = plots.training_curves(table)
    raw = next(t for t in figure.data if t.name == "success" and t.mode == "markers")
    (validation,) = [t for t in figure.data if t.name.startswith("validation")]
    assert len(raw.x) <= 800 and raw.x[-1] == 10_000 and raw.y[-1] == 1.0
    assert 400 <= len(validation.x) <= 800 and validation.x[-1] == 10_000
    assert "at most one in 25 steps" in figure.layout.title.subtitle.text


def test_what_only_every_other_step_measures_is_drawn_in_a_long_run():
    """With two minibatches the odd steps alone have rollouts, and thinning keeps even ones."""
    table = metrics(1000)
    table.loc[table["step"] % 2 == 0, ["reward", "success", "turns", "reward/correct"]] = np.nan
    figure = plots.training_curves(table)
    assert [a.text for a in figure.layout.annotations] == [title for _, title, _ in plots.PANELS]
    drawn = {t.name: list(t.x) for t in figure.data if t.mode == "markers"}
    assert len(drawn["kl"]) == 334 and len(drawn["reward"]) == 333 and drawn["reward"][-1] == 999
    (validation,) = [t for t in figure.data if t.name.startswith("validation")]
    assert list(validation.x) == list(range(20, 1001, 20)), "each validation"
    assert "lines: mean of about 67 steps; dots: at most one in 3 steps" in figure.layout.title.subtitle.text


def test_a_seed_that_has_ended_stays_in_the_mean_as_it_was_last():
    long = pd.DataFrame(
        {"step": [0, 5, 10, 15], "val_success": [0.2, 0.4, 0.6, 0.8], "million_tokens": range(4)}
    )
    short = pd.DataFrame({"step": [0, 5, 7], "val_success": [0.0, 0.0, 0.0], "million_tokens": range(3)})
    arm = {"million_tokens": 2.5, "success": 0.4, "ci95": [0.3, 0.5]}
    sweep = SimpleNamespace(training={"a": {1: long, 2: short}}, arms={"a": arm}, sweet_spot=lambda: "")
    mean = next(t for t in plots.learning_curves(sweep).data if t.mode == "lines+markers")
    assert list(mean.x) == [0, 5, 7, 10, 15] and list(mean.y) == pytest.approx([0.1, 0.2, 0.2, 0.3, 0.4])
    dotted = plots.success_by_compute(sweep).data[0]
    assert list(dotted.x) == [0, 1, 1.5, 2, 2.5] and dotted.y[-1] == pytest.approx(0.4)


def sweep_of(count, cost=2.0):
    """A sweep whose arms cost the same and are the better the later they come; one is worse."""
    names = [f"beta-{i}-group_size-8" for i in range(count)]
    rows = pd.DataFrame({"step": [0, 5], "val_success": [0.2, 0.4], "million_tokens": [0.0, cost]})
    arms = {
        name: {"million_tokens": cost, "success": 0.3 + 0.6 * i / count, "ci95": [0.2, 0.95]}
        for i, name in enumerate(names)
    }
    paired = [
        {"arm": n, "verdict": "worse" if n.startswith("beta-9-") else "no difference", "diff": -0.2}
        for n in names
    ]
    training = {name: {1: rows, 2: rows} for name in names}
    return SimpleNamespace(
        training=training,
        arms=arms,
        sweet_spot=lambda: names[6 % count],
        against=names[5 % count],
        paired=paired,
    )


@pytest.mark.parametrize("count", [2, 12, 60])
def test_points_of_arms_that_cost_the_same_stay_near_their_cost(count):
    points = [t for t in plots.success_by_compute(sweep_of(count)).data if t.mode == "markers"]
    assert len(points) == count and all(abs(t.x[0] - 2.0) <= 0.03 * 2.0 + 1e-9 for t in points)
    moved = sorted(t.x[0] for t in points if t.showlegend)
    assert len(set(moved)) == len(moved), "side by side"


def test_of_very_many_arms_those_that_matter_are_named_and_there_is_room_for_the_names():
    sweep = sweep_of(60)
    named = {f"beta-{i}-group_size-8" for i in (0, 1, 2, 5, 6, 9, 57, 58, 59)}
    for figure in (plots.learning_curves(sweep), plots.success_by_compute(sweep)):
        assert {t.name for t in figure.data if t.showlegend is not False} == named
        assert {t.name for t in figure.data if t.name} == set(sweep.training), (
            "the others on pointing at them"
        )
        assert figure.layout.height - figure.layout.margin.b - figure.layout.margin.t >= 250
        assert figure.layout.title.subtitle.text.endswith("grey: 51 others")
    few = plots.learning_curves(sweep_of(12))
    assert (
        sum(t.showlegend is not False for t in few.data) == 12
        and "grey" not in few.layout.title.subtitle.text
    )


def test_validation_is_in_sight_while_no_rollout_of_the_training_is_right():
    table = pd.DataFrame({"step": [1, 2], "success": [0.0, 0.0], "val_success": [0.3, np.nan]})
    axis = plots.training_curves(table).layout.yaxis
    assert axis.range is None or axis.range[1] > 0.3
    nothing = plots.training_curves(table.assign(val_success=0.0))
    assert nothing.layout.yaxis.range == (0, 0.05)


def test_moving_average():
    figure = plots.curve(
        pd.DataFrame({"step": range(45), "kl": [0.0] * 22 + [3.0] + [0.0] * 22}), "kl", "Drift?", "nats"
    )
    line = next(t for t in figure.data if t.mode == "lines")
    assert list(line.y[20:25]) == [0.0, 1.0, 1.0, 1.0, 0.0]  # a window of three


def test_curve_names_what_is_missing():
    with pytest.raises(ValueError, match=r"hold no \['novel'\]"):
        plots.curve(metrics(), ["kl", "novel"], "?", "nats")
    figure = plots.curve(metrics(), ["success", "val_success"], "Does it <b>hold</b>?", "share of tasks")
    assert figure.layout.yaxis.tickformat == ".0%" and "<b>" not in figure.layout.title.text
    assert "No optimiser step" in plots.curve(pd.DataFrame(), "kl", "?", "nats").layout.annotations[0].text
    unmeasured = metrics().assign(entropy=None)  # as where no micro-batch had an advantage
    assert "No step measured it" in plots.curve(unmeasured, "entropy", "?", "nats").layout.annotations[0].text
    assert len(plots.curve(unmeasured, ["kl", "entropy"], "?", "nats").data) == len(
        plots.curve(unmeasured, ["kl"], "?", "nats").data
    )


def test_success_bars_of_a_comparison_and_of_its_json():
    tasks = [Task("t0", "?", "1", family="A", difficulty="hard"), Task("t1", "?", "1", family="B")]
    sampled = {
        "sft": [trajectory("t0", 0.0), trajectory("t1", 1.0)],
        "<i>": [trajectory("t0", 1.0), trajectory("t1", None)],
    }
    comparison = compare(sampled, tasks)
    figure = plots.success_bars(comparison)
    assert [bar.name for bar in figure.data if bar.type == "bar"] == ["sft", "&lt;i&gt;"]
    sft, labels = figure.data[:2]
    assert list(sft.x[0]) == ["overall", "family", "family", "difficulty", "difficulty"]
    assert list(labels.text) == ["50", "0", "100", "100", "0"]
    assert sft.error_y.array[0] == pytest.approx(comparison.policies["sft"]["ci95"][1] - 0.5)
    assert plots.success_bars(Comparison.from_json(comparison.to_json())).to_json() == figure.to_json()


def test_paired_scatter_counts_moves():
    before = [trajectory(f"t{i}", s) for i, s in enumerate([0.0, 0.0, 1.0, 1.0, 0.0, None])]
    after = [trajectory(f"t{i}", s, policy="grpo") for i, s in enumerate([1.0, 1.0, 0.0, 1.0, 0.0, 1.0])]
    figure = plots.paired_scatter(before, after)
    assert [t.name for t in figure.data] == [
        "wrong → right: 2 tasks",
        "right → wrong: 1 task",
        "same side: 2 tasks",
    ]
    assert figure.data[0].customdata[0] == "t0<br>t1"
    assert figure.layout.xaxis.title.text.startswith("sft")
    partly = [trajectory("t0", 9 / 16, policy="grpo")]  # of a program's tests
    assert plots.paired_scatter(before[:1], partly).data[2].name == "same side: 1 task", "none is right"


def test_difficulty_counts():
    tasks = [
        Task("1", "?", "1", family="A"),
        Task("2", "?", "1", family="A", split="test", difficulty="hard"),
    ]
    tasks += [Task("3", "?", "1", family="B"), Task("4", "?", "1", family="A")]
    figure = plots.difficulty_counts(tasks)
    assert [a.text for a in figure.layout.annotations] == ["train (3 tasks)", "test (1 task)"]
    assert [(t.name, list(t.y)) for t in figure.data] == [
        ("family A", [2, 0]), ("family A", [0, 1]), ("family B", [1, 0]), ("family B", [0, 0])
    ]  # fmt: skip
    assert "no task" in plots.difficulty_counts([]).layout.annotations[0].text


# ---- notebook 05
def test_draws_failures_and_behaviour_are_drawn_with_every_number():
    tasks = [Task(f"t{i}", "?", "x") for i in range(6)]
    before = [trajectory(f"t{i}", float(k < i % 3), k) for i in range(6) for k in range(4)]
    after = [trajectory(f"t{i}", float(k < i % 4), k, "grpo") for i in range(6) for k in range(4)]
    policies = {"s<b>ft": before, "grpo": after}
    draws = plots.draw_curves(compare(policies))
    assert [list(t.x) for t in draws.data] == [["1", "2", "4"]] * 4 and "&lt;b&gt;" in draws.data[0].name
    found = failures(policies, tasks)
    bars = plots.failure_bars(found)
    assert sum(map(int, bars.data[0].text)) == sum(t.success <= 0.5 for t in before) and len(bars.data) == 2
    dots = plots.behaviour_dots(behaviour(policies, tasks))
    assert len(dots.data) == 2 and all(len(t.x) == len(dots.layout.yaxis.ticktext) for t in dots.data)


@pytest.mark.parametrize("count", [2, 6])
def test_dots_of_many_policies_stay_in_their_row_and_in_sight(count):
    tasks = [Task(f"t{i}", "?", "x") for i in range(6)]
    own = [trajectory(task.id, 1.0, k) for task in tasks for k in range(2)]
    figure = plots.behaviour_dots(behaviour({f"p{i}": own for i in range(count)}, tasks))
    rows = np.array([trace.y for trace in figure.data])
    low, high = figure.layout.yaxis.range
    assert rows.min() > low and rows.max() < high and rows.shape == (count, rows.shape[1])
    assert rows.shape[1] > 1 and (rows.max(axis=0)[:-1] < rows.min(axis=0)[1:]).all()
    pixels = (figure.layout.height - 150) / rows.shape[1] * (rows[0, 0] - rows[1, 0])
    assert pixels > 10, "a dot is 9 high"


def test_empty_figures_say_why():
    right = {"a": [trajectory("t0", 1.0)]}
    assert "nothing to draw from" in plots.draw_curves(compare(right)).layout.annotations[0].text
    assert (
        "No trajectory failed"
        in plots.failure_bars(failures(right, [Task("t0", "?", "x")])).layout.annotations[0].text
    )
