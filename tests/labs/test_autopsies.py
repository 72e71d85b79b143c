"""The notebook of the three autopsies, executed headless on a small budget."""

from pathlib import Path

import nbformat
import papermill
import pytest
from opened import lab_file

from agentkit.policies.scripted import Flaws, ScriptedPolicy
from agentkit.preflight import report
from agentkit.recipe import Recipe
from agentkit.records import TrainingError
from agentkit.rollouts import rollout

ROOT = Path(__file__).resolve().parents[2]
AUTOPSIES = lab_file("autopsies").AUTOPSIES
SMALL = {"n_tasks": 80, "sft_transcripts": 1, "steps": 1, "prompts_per_step": 2, "micro_batch": 8, "val_every": 1, "val_tasks": 2}  # fmt: skip


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
    notebook, out = ROOT / "notebooks" / "autopsies.ipynb", tmp_path / "autopsies.ipynb"
    given = {"run": str(tmp_path)} | SMALL
    papermill.execute_notebook(notebook, out, given, cwd=ROOT, progress_bar=False)
    outputs = " ".join(str(cell.get("outputs", "")) for cell in nbformat.read(out, as_version=4).cells)
    for phrase in ("unanchored", "another value each time", "num_turns", "which no record holds"):
        assert phrase in outputs
    for name in ("003-mended", "000-mended", "001-mended"):
        assert (tmp_path / "autopsies" / name / "adapter" / "adapter_model.safetensors").exists()
