"""Work that is not ours passes through every notebook: a lab file of one's own."""

import json
from pathlib import Path

import nbformat
import pytest
import yaml
from test_lab import MINE

from agentkit import Lab
from agentkit.cli import main
from agentkit.runs import load_run
from agentkit.runs.stages import STAGES

SMALL = {"model": "nano", "temperature": 1.0, "max_turns": 4, "max_turn_tokens": 48, "max_tokens": 512,
         "test_samples": 1, "steps": 2, "prompts_per_step": 2, "group_size": 4, "micro_batch": 4, "val_every": 2,
         "val_tasks": 2, "lora_r": 4, "preflight": "warn"}  # fmt: skip


def run_all(folder: Path, recipe: dict) -> Path:
    """All five notebooks with a recipe of its own; the run folder."""
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(SMALL | recipe))
    assert main(["run", str(path), "--run", str(folder / "run")]) == 0
    return folder / "run"


def outputs(run: Path, stage: str) -> str:
    return json.dumps(nbformat.read(run / f"{stage}.ipynb", as_version=4))


@pytest.mark.slow
def test_a_stateful_environment_a_verifier_of_calls_and_a_reward_reach_every_notebook(tmp_path):
    """In two processes, which open the lab themselves; base, SFT and GRPO stand side by side."""
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "beside.py").write_text("WEIGHT = 0.5\n")
    changes = {"lab": "mine.py", "families": "boxes", "n_tasks": 40, "sft": True, "sft_batch": 8,
               "sft_learning_rate": 2e-3, "processes": 2, "micro_batch": 2, "measure_base": True}  # fmt: skip
    folder = run_all(tmp_path, changes)
    run = load_run(folder)
    assert {s: run.manifest["stages"][s]["status"] for s in STAGES} == dict.fromkeys(STAGES, "done")
    lab = Lab.of(run)
    assert {run.manifest["stages"][s]["lab"] for s in STAGES} == {lab.digest} != {""}
    assert set(run.comparison["policies"]) == {"base", "sft", "grpo"}
    components = {"correctness", "format", "efficiency", "brevity", "Box"}
    for name in ("base", "sft", "grpo"):
        assert all(set(t.components) == components for t in run.trajectories(name))
    for t in run.trajectories("sft"):
        puts = [r.name for turn in t.turns for r in turn.results if r.name == "put"]
        assert t.success == 0.0 or len(puts) >= 2, "its verifier looks at the calls"
        worked = sum(r.ok for turn in t.turns for r in turn.results)
        assert t.components["Box"] == pytest.approx(-0.1 * worked)
    assert {"reward/brevity", "reward/Box"} <= set(run.metrics.columns) and len(run.metrics) == 3
    results = [r for t in run.trajectories("grpo") for turn in t.turns for r in turn.results]
    assert results and all(r.name == "put" or not r.ok for r in results), "its own tool, and no other"
    assert any("there are put" in r.observation or r.ok for r in results)
    for stage in ("01_tasks", "02_baseline", "03_grpo", "05_compare"):
        assert "boxes" in outputs(folder, stage) and "mine.py" in outputs(folder, stage)
    before = run.file("baseline.json").stat().st_mtime_ns
    assert main(["audit", str(run.file("tasks.jsonl"))]) == 0, "by the verifier of the lab beside it"
    again = ["run", str(tmp_path / "mine.yaml"), "--run", str(folder)]
    assert main([*again, "-p", "reward={correctness: 1, format: 0.2}", "--to", "02"]) == 0
    assert run.file("baseline.json").stat().st_mtime_ns == before, "another reward repeats no cold start"
    (tmp_path / "mine.py").write_text(MINE.replace("float(answer", "float(True or answer"))
    assert main([*again, "--from", "05"]) == 0
    says = "01_tasks was made with something else than 05_compare has here (lab"
    assert says in outputs(folder, "05_compare")


@pytest.mark.slow
def test_a_stand_in_rehearses_every_notebook_and_trains_nothing(tmp_path, capsys):
    keys = {"lab": str(Path(__file__).parent / "labs" / "booking.py"), "families": "booking", "n_tasks": 30,
            "model": "scripted", "skill": 0.5, "flaws": {"malformed": 0.2}, "max_turns": 9, "max_tokens": 1024,
            "max_turn_tokens": 96, "reward": {"plan": 1, "looked_first": 0.5}, "test_samples": 8}  # fmt: skip
    folder = run_all(tmp_path, keys)
    run, printed = load_run(folder), capsys.readouterr().out
    assert {s: run.manifest["stages"][s]["status"] for s in STAGES} == dict.fromkeys(STAGES, "done")
    assert "sft" in printed and "grpo" not in printed.split("05_compare: done")[1] and "run card" in printed
    assert run.measured == ["sft"] and run.trained_step is None and run.steps == [1]
    for name in ("adapter", "sft", "train/checkpoints"):
        assert not run.file(name).exists(), name
    comparison, sampled = run.comparison, run.trajectories(1)
    assert list(comparison["policies"]) == ["sft"] and comparison["paired"] == []
    assert comparison["headline"] is None
    assert comparison["policies"]["sft"]["success"] == pytest.approx(0.5, abs=0.3)
    assert len(sampled) == 8 and all(None not in (t.reward, t.advantage) for t in sampled)
    assert all(len(t.completion_ids) == len(t.action_mask) and any(t.action_mask) for t in sampled)
    assert "A stand-in cannot be trained" in outputs(folder, "03_grpo")
    assert "One policy was measured" in outputs(folder, "05_compare")
    assert "A scripted stand-in was measured" in run.file("report.html").read_text()
