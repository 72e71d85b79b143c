import re

import numpy as np
import pandas as pd
import pytest
from widget_cases import trajectory

from agentkit.evaluation import Comparison, compare
from agentkit.records import Task
from agentkit.views import plots


def metrics():
    """Sixty steps, of which every twentieth is validated; what is drawn of each column does not matter."""
    names = "kl entropy grad_norm clip_fraction dead_groups turns tool_failure_rate audit_disagreement mismatch identical no_tool"
    names += " truncated reward reward_std reward/correct reward/format completion_tokens seconds"
    table = pd.DataFrame(
        {"step": np.arange(1, 61), "success": np.linspace(0.4, 0.9, 60)} | dict.fromkeys(names.split(), 0.5)
    )
    table["val_success"] = [0.5 if step % 20 == 0 else np.nan for step in table["step"]]
    table["val_ci_low"], table["val_ci_high"] = table["val_success"] - 0.1, table["val_success"] + 0.05
    return table


def test_validation_is_in_sight_while_no_rollout_of_the_training_is_right():
    table = pd.DataFrame({"step": [1, 2], "success": [0.0, 0.0], "val_success": [0.3, np.nan]})
    table["val_ci_low"], table["val_ci_high"] = table["val_success"] - 0.1, table["val_success"] + 0.1
    axis = plots.training_curves(table).layout.yaxis
    assert axis.range is None or axis.range[1] > 0.3
    nothing = plots.training_curves(table.assign(val_success=0.0))
    assert nothing.layout.yaxis.range == (0, 0.05)


def test_success_bars_of_a_comparison_and_of_its_json():
    tasks = [Task("t0", "?", "1", family="A", difficulty="hard"), Task("t1", "?", "1", family="B")]
    sampled = {"sft": [trajectory("t0", 0.0), trajectory("t1", 1.0)], "<i>": [trajectory("t0", 1.0), trajectory("t1", None)]}  # fmt: skip
    comparison = compare(sampled, tasks)
    figure = plots.success_bars(comparison)
    assert [bar.name for bar in figure.data if bar.type == "bar"] == ["sft", "&lt;i&gt;"]
    sft, labels = figure.data[:2]
    assert list(sft.x[0]) == ["overall", "family", "family", "difficulty", "difficulty"]
    assert list(labels.text) == ["50", "0", "100", "100", "0"]
    assert sft.error_y.array[0] == pytest.approx(comparison.policies["sft"]["ci95"][1] - 0.5)
    assert plots.success_bars(Comparison.from_json(comparison.to_json())).to_json() == figure.to_json()


def test_training_curves_draw_what_exists():
    figure = plots.training_curves(metrics())
    texts = [a.text for a in figure.layout.annotations]
    assert texts[: len(plots.PANELS)] == [title for _, title, _ in plots.PANELS]
    named = [re.findall(r"●</span> ([^<]+)<", text) for text in texts[len(plots.PANELS) :]]
    assert named == [["reward", "correct", "format"], ["success", "validation, 95 % interval"]]
    raw = next(t for t in figure.data if t.name == "success" and t.mode == "markers")
    assert raw.y[0] == pytest.approx(0.4)
    (validation,) = [t for t in figure.data if t.name.startswith("validation")]
    assert list(validation.x) == [20, 40, 60]
    assert list(validation.error_y.arrayminus) == pytest.approx([0.1] * 3)
    fewer = plots.training_curves(metrics()[["step", "kl", "seconds"]])
    assert [a.text for a in fewer.layout.annotations] == ["KL to the reference", "Step time"]
    audited = plots.training_curves(metrics().assign(audit_success=0.5))
    assert "audit success" in audited.layout.annotations[-1].text, "told apart"
