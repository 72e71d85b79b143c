"""The notebook of the three autopsies, executed headless on a small budget."""

from pathlib import Path

import nbformat
import papermill
import pytest
from opened import lab_file

from agentkit.policies.scripted import Flaws, ScriptedPolicy
from agentkit.preflight import report
from agentkit.recipe import Recipe
from agentkit.records import StopReason, Task, ToolResult, TrainingError, Trajectory, Turn
from agentkit.rewards import score
from agentkit.rollouts import rollout

ROOT = Path(__file__).resolve().parents[2]
AUTOPSIES = lab_file("autopsies").AUTOPSIES
SMALL = {
    "n_tasks": 80, "sft_transcripts": 1, "steps": 1, "prompts_per_step": 2, "micro_batch": 8,
    "val_every": 1, "val_tasks": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "success", "published"), [("symbolic", 1.0, 1.0), ("code", 0.4375, 0.4375), ("exact", 0.0, -1.1)]
)
@pytest.mark.parametrize("rounds", [0, 6])
def test_autopsy_001_scores_what_was_published(kind, success, published, rounds):
    """Whatever was called: that is its fault. The mended reward pays a wrong answer for each round."""
    task = Task("t", "?", "7", {"kind": kind})
    called = Turn("", (0, 1), (ToolResult("code_interpreter", {"code": "1"}, "1", True),))
    tried = Trajectory(
        "t", "p", 0, 0, (1,), (2,), (1,), (0.0,), (*[called] * rounds, Turn("", (0, 1))), StopReason.ANSWER, "5", success
    )  # fmt: skip
    broken, mended = AUTOPSIES["001"].broken(), AUTOPSIES["001"].mended()
    assert score(task, tried, broken).reward == published
    paid = {0: -1.0, 1: -0.9, 6: -0.6}[rounds]
    assert score(task, tried, mended).reward == (success or paid)


@pytest.mark.parametrize("name", AUTOPSIES)
def test_the_replicas_on_the_small_agents_tasks_are_refused_and_mended_they_pass(name, suite, tokenizer):
    tasks = [task for task in suite.split("train") if task.family == "A"][:12]
    careless = ScriptedPolicy(tokenizer, Flaws(in_head=0.5, wrong_operation=0.3), name="sft")
    sampled = rollout(tasks, careless, group_size=4, seed=1)
    golden = rollout(tasks, ScriptedPolicy(tokenizer, name="gold"), seed=1)
    broken, mended = (report(Recipe(), sampled, golden, tasks, reward(), n_test=100) for reward in
                      (AUTOPSIES[name].broken, AUTOPSIES[name].mended))  # fmt: skip
    cause = {"003": "unanchored", "000": "another value each time", "001": "num_turns"}[name]
    with pytest.raises(TrainingError, match=cause):
        broken.require()
    mended.require()


@pytest.mark.slow
def test_the_notebook_names_each_cause_and_trains_on_what_was_mended(tmp_path):
    out = tmp_path / "autopsies.ipynb"
    papermill.execute_notebook(
        ROOT / "notebooks" / "autopsies.ipynb",
        out,
        {"run": str(tmp_path)} | SMALL,
        cwd=ROOT,
        progress_bar=False,
    )
    outputs = " ".join(
        str(cell.outputs) for cell in nbformat.read(out, as_version=4).cells if cell.cell_type == "code"
    )
    for phrase in ("unanchored", "another value each time", "num_turns", "which no record holds"):
        assert phrase in outputs
    for name in ("003-mended", "000-mended", "001-mended"):
        assert (tmp_path / "autopsies" / name / "adapter" / "adapter_model.safetensors").exists()
