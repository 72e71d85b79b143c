"""Sweeps: what is refused before anything runs, what cells share, how one goes on, and what its statistics show."""

from __future__ import annotations

import html
import json
import os
import pickle
import shutil
import sys
import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import nbformat
import numpy as np
import pytest
import yaml
from nbclient import NotebookClient
from simulated_sweeps import levels, power
from survive_sweeps import executed, survive, tiny, workers
from test_evaluation import trajectory

from agentkit.cli import main
from agentkit.evaluation.summary import summarize
from agentkit.evaluation.sweeps import (
    LEVELS,
    Ablation,
    Spread,
    against_one,
    errors,
    measured_spread,
    smallest,
)
from agentkit.lab import Lab
from agentkit.policies.loading import load_tokenizer
from agentkit.preflight.sweeps import as_text, check, dry_run
from agentkit.recipe import read_recipe
from agentkit.records import RecipeError, RunError, Task, ToolResult, Turn
from agentkit.rollouts import prompt_lengths
from agentkit.runs import Run, stages, write_json, write_jsonl, write_trajectories
from agentkit.runs.stages import STAGES, parameters_of
from agentkit.runs.sweep import (
    LOOK_S,
    Job,
    Sweep,
    _begin_as,
    left_out,
    plan,
    progress,
    read_design,
    reuse,
    run_sweep,
)
from agentkit.runs.sweep_slots import _fitting, _needs, slots_of
from agentkit.runs.trajectory_files import Unread, write_tasks
from agentkit.views import plots
from agentkit.views.sweep_card import cells, write_sweep_report

ROOT = Path(__file__).resolve().parents[1]
SWEEPS = sorted((ROOT / "params" / "sweeps").glob("*.yaml"))
GOOD = {
    "recipe": "params/nano-ablation.yaml",
    "question": "Why?",
    "seeds": [1, 2],
    "arms": {"default": {}, "free": {"beta": 0.0}},
}


def write(folder: Path, **changes) -> Path:
    path = folder / "sweep.yaml"
    path.write_text(
        yaml.safe_dump({key: value for key, value in (GOOD | changes).items() if value is not None})
    )
    return path


# ---- the file
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.slow if path.stem == "tcr" else ()) for path in SWEEPS],
    ids=lambda path: path.stem,
)  # tcr drafts suites
def test_the_shipped_sweeps_can_be_run(path):
    design = read_design(path)
    check(design)
    assert path.stem == "play" or len(design.seeds) >= 3
    assert len(design.arms) >= 2 and design.question.endswith("?")


def test_the_documents_five_ablations_are_there_for_both_models():
    kinds = ("reward", "group-size", "kl", "difficulty", "sft")
    names = {path.stem for path in SWEEPS}
    assert {f"{model}-{kind}" for model in ("nano", "plan-3b") for kind in kinds} <= names


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"arms": {"default": {}, "free": {"betta": 0.0}}}, "unknown recipe key 'betta': did you mean 'beta'"),
        ({"sedes": [1]}, "unknown key 'sedes'"),
        ({"recipe": None}, "lacks 'recipe'"),
        ({"recipe": "params/nowhere.yaml"}, "no file 'params/nowhere.yaml'"),
        ({"grid": {}}, "grid is empty"),
        ({"grid": {"beta": []}}, "no values for 'beta'"),
        ({"arms": {}}, "arms is no mapping, or an empty one"),
        ({"arms": ["default", "free"]}, "arms is no mapping"),
        ({"arms": {"default": {}, "Default": {"beta": 0.1}}}, "one folder on some disks"),
        ({"against": "one", "arms": {"one": {"policy": "sft"}, "b": {"policy": "sft", "beta": 0.5}}}, "'b' and 'one' are equal"),
        ({"stop_hopeless": 1}, "stop_hopeless is 1: write true or false"),
        ({"arms": {"default": 3, "free": {}}}, "holds no recipe keys"),
        ({"arms": {"default": {}, "same": {"beta": 0.02}}}, "'default' and 'same' are equal"),
        ({"arms": {"default": {}, "same": {"families": "A, B,C"}}}, "'default' and 'same' are equal"),
        ({"arms": {"default": {}, "same": {"families": ["A", "B", "C"]}}}, "'default' and 'same' are equal"),
        ({"arms": {"default": {}, "same": {"loss_type": "grpo", "epochs": 0}}}, "'default' and 'same' are equal"),
        ({"arms": {"default": {}, "same": {"clip_epsilon_high": 0.2}}}, "'default' and 'same' are equal"),
        ({"arms": {"default": {"beta": 0}, "same": {"beta": "0.0"}}}, "'default' and 'same' are equal"),
        ({"arms": {"default": {"template_arguments": {"a": 1, "b": "c"}}, "same": {"template_arguments": {"b": "c", "a": 1}}}}, "are equal"),
        ({"arms": {"default": {}, "one": {"lab": "mine.py"}, "two": {"lab": "./out/../mine.py"}}}, "'one' and 'two' are equal"),
        ({"arms": {"default": {}, "one": {"lab": "mine.py"}, "two": {"lab": "copy.py"}}}, "'one' and 'two' are equal"),
        ({"arms": {"default": {}, "free": False}}, "arm 'free' holds no recipe keys"),
        ({"arms": {"default": {}, "free": []}}, "arm 'free' holds no recipe keys"),
        ({"arms": {"default": {}}}, "at least two arms"),
        ({"arms": {"a": {"beta": 0.1}, "b": {"beta": 0.3}}}, "no arm 'default' to compare with; there are a, b"),
        ({"against": "full"}, "no arm 'full'"),
        ({"seeds": [1, 1]}, "list different whole numbers"),
        ({"seeds": 3}, "list different whole numbers"),
        ({"seeds": []}, "list different whole numbers"),
        ({"seeds": [1, -1]}, "seed is -1; it must lie between 0 and"),
        ({"margin": 5}, "between 0 and 1"),
        ({"margin": float("nan")}, "margin is nan: write a share of success between 0 and 1"),
        ({"against": ["default"]}, "against is ['default']: name one arm"),
        ({"arms": {"default": {}, "Stop": {"beta": 0.1}}}, "arm 'Stop': a file of the sweep has this name"),
        ({"arms": {"default": {}, "tables": {"beta": 0.1}}}, "a file of the sweep has this name"),
        ({"arms": {"default": {}, "ablations.json": {"beta": 0.1}}}, "a file of the sweep has this name"),
        ({"arms": {"default": {}, "b": {"seed": 3}}}, "may not set seed"),
        ({"arms": {"default": {}, "../b": {"beta": 0.1}}}, "run name '../b' is refused"),
        ({"arms": {"default": {}, "b": {"policy": "base", "measure_base": True, "sft": False}}}, "no policy 'base'"),
        ({"arms": {"default": {}, "b": {"policy": "sft_more"}}}, "measure no policy 'sft_more', only sft, grpo"),
        ({"arms": {"default": {}, "b": {"group_size": 7}}}, "arm 'b': micro_batch 16 must divide"),
        ({"arms": {"default": {}, "b": {"reward": {"correctness": 0}}}}, "arm 'b': its reward has no component"),
        ({"arms": {"default": {}, "b": {"reward": "none"}}}, "arm 'b': reward none starts from nothing"),
        ({"arms": {"default": {}, "b": {"lab": "typo.py"}}}, "line 2: SyntaxError"),
        ({"arms": {"default": {}, "b": {"lab": "latin.py"}}}, "can't decode byte 0xe9"),
        ({"arms": {"default": {}}, "grid": {"beta": [0.02]}}, "at least two arms"),
        ({"arms": {"default": {}}, "grid": {"clip_epsilon_high": [0, 0.2], "beta": [0.3]}}, "_clip_epsilon_high-0.2' are equal"),
        ({"recipe": "few.yaml", "arms": {"default": {}, "b": {"n_tasks": 24}}}, "arm 'b' is tested on other tasks than 'default'"),
        ({"recipe": "few.yaml", "arms": {"default": {}, "b": {"suite_seed": 9}}}, "arm 'b' is tested on other tasks"),
    ],
)  # fmt: skip
def test_a_worthless_sweep_is_refused_in_a_sentence(tmp_path, capsys, changes, said):
    folder = tmp_path / "out"
    recipe = read_recipe(ROOT / "params" / "nano-ablation.yaml")
    (tmp_path / "few.yaml").write_text(yaml.safe_dump(recipe | {"families": "A", "n_tasks": 20}))
    for name in ("mine.py", "copy.py"):
        (tmp_path / name).write_bytes((ROOT / "params" / "labs" / "shop.py").read_bytes())
    (tmp_path / "typo.py").write_text("x = 1\ny = (\n")
    (tmp_path / "latin.py").write_bytes("# caf\u00e9\n".encode("latin-1"))
    assert main(["sweep", str(write(tmp_path, **changes)), "--run", str(folder)]) == 2
    told = capsys.readouterr().err
    assert said in told and told.count("\n") == 1 and not folder.exists()


@pytest.mark.parametrize("long", ["some", "none"])
def test_arms_that_leave_out_other_long_prompts_of_the_test_are_refused(tmp_path, recwarn, long):
    recipe = read_recipe(ROOT / "params" / "nano-ablation.yaml")
    recipe |= {"families": "A", "n_tasks": 20}
    (tmp_path / "few.yaml").write_text(yaml.safe_dump(recipe))
    lab = Lab.open(recipe)
    lengths = prompt_lengths(lab.suite().split("test"), load_tokenizer("nano"), lab.environments)
    arms = {"default": {}, "b": {"max_prompt_tokens": max(lengths.values()) - (long == "some")}}
    design = read_design(write(tmp_path, recipe="few.yaml", arms=arms))
    if long == "none":
        return check(design)
    with pytest.raises(RecipeError, match="arm 'b' is tested on other tasks .* max_prompt_tokens out or"):
        check(design)


def test_arms_that_differ_are_not_taken_for_equal(tmp_path):
    arms = {
        "default": {},
        "one": {"processes": 1},  # left out, it is one for each GPU
        "two": {"processes": 2},
        "four": {"processes": 4},
        "high": {"clip_epsilon_high": 0.28},
        "thinks": {"template_arguments": {"a": 1}},
        "order": {"families": "B,A,C"},
    }
    assert {arm.name for arm in read_design(write(tmp_path, arms=arms)).arms} == arms.keys()


def test_a_key_given_twice_is_refused(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text(
        "recipe: params/nano.yaml\nseeds: [1]\narms:\n  default: {}\n  free: {beta: 0.0}\n  free: {beta: 0.1}\n"
    )
    with pytest.raises(RecipeError, match="sets 'free' again"):
        read_design(path)


@pytest.mark.parametrize(
    ("one", "other"), [("off", "on"), ("no", "yes"), ("4", "08"), ("1e-3", "2026-11-22")]
)
def test_arms_are_called_by_the_words_that_are_written(tmp_path, one, other):
    path = tmp_path / "sweep.yaml"
    head = f"recipe: params/nano.yaml\nseeds: [1]\nquestion: 2026-11-22\nagainst: {one}\n"
    path.write_text(f"{head}arms:\n  {one}: {{}}\n  {other}: {{beta: 0.3}}\n")
    design = read_design(path)
    assert (design.against, [arm.name for arm in design.arms]) == (one, [one, other])
    sweep = Sweep(tmp_path / "out")
    sweep.held().__enter__()
    sweep.adopt(design, 1)
    assert Sweep(sweep.folder).state["order"] == [one, other]


def test_a_grid_names_its_arms_and_finds_the_unchanged_one(tmp_path):
    design = read_design(write(tmp_path, arms=None, grid={"beta": [0.0, 0.02], "group_size": [8, 16]}))
    assert [arm.name for arm in design.arms] == [
        "beta-0.0_group_size-8", "beta-0.0_group_size-16", "beta-0.02_group_size-8", "beta-0.02_group_size-16",
    ]  # fmt: skip
    assert design.against == "beta-0.02_group_size-8"
    both = read_design(write(tmp_path, arms={"default": {}}, grid={"beta": [0.1]}))
    assert [arm.name for arm in both.arms] == ["default", "beta-0.1"]
    arms = {
        "default": {},
        "no-format": {"reward": {"correctness": 1, "efficiency": 1}},
        "beta-0.1": {"beta": 0.1},
    }
    both = read_design(write(tmp_path, arms=arms, grid={"beta": [0.0, 0.02, 0.1]}))
    assert [arm.name for arm in both.arms] == [*sorted(arms), "beta-0.0"], "what is given is not made again"


# ---- cells
def test_one_seed_of_every_arm_comes_first_and_common_stages_are_made_once(tmp_path):
    arms = {"default": {}, "free": {"beta": 0.0}, "hot": {"temperature": 1.0}, "sft": {"policy": "sft"}}
    jobs = plan(read_design(write(tmp_path, arms=arms)), tmp_path)
    cells = [(job.arm, job.seed) for job in jobs if job.arm]
    assert cells == [(arm, seed) for seed in (1, 2) for arm in arms]
    shared = [
        (STAGES[job.last], job.recipe["seed"], job.recipe["temperature"]) for job in jobs if not job.arm
    ]
    assert shared == [
        ("01_tasks", 1, 0.7), ("02_baseline", 1, 0.7), ("02_baseline", 1, 1.0),
        ("02_baseline", 2, 0.7), ("02_baseline", 2, 1.0),
    ]  # fmt: skip
    made = [job.folder for job in jobs]
    assert all(job.parent is None or made.index(job.parent) < made.index(job.folder) for job in jobs)
    assert {job.last for job in jobs if job.arm == "sft"} == {1}


def test_arms_that_differ_in_the_measured_policy_only_share_their_training(tmp_path):
    arms = {"sft": {"controls": "sft_more", "policy": "sft"}, "default": {"controls": "sft_more"},
            "more": {"controls": "sft_more", "policy": "sft_more"}}  # fmt: skip
    jobs = plan(read_design(write(tmp_path, arms=arms, seeds=[1])), tmp_path)
    whole = [job for job in jobs if not job.arm and job.last == len(STAGES) - 1]
    assert len(whole) == 1 and [job.arm for job in jobs if job.parent == whole[0].folder] == [
        "default",
        "more",
    ]


def made(job: Job) -> None:
    """Leave what says that a job's notebooks are done."""
    run = Run.create(job.folder)
    for stage in STAGES[: job.last + 1]:
        run.begin(stage, parameters_of(stage, job.recipe))
        run.end(stage)


def test_an_arm_that_is_added_later_begins_with_what_a_done_cell_has(tmp_path):
    arms, out = {"default": {}, "free": {"beta": 0.0}}, tmp_path / "out"
    for job in plan(read_design(write(tmp_path, arms=arms, seeds=[1])), out):
        made(job)
    control = {"controls": "sft_more"}
    arms |= {"again": {"policy": "sft"}, "more": control | {"policy": "sft_more"}, "both": control}
    design = read_design(write(tmp_path, arms=arms, seeds=[1]))
    jobs = plan(design, out)
    whole, diagnosed = [job for job in jobs if not job.arm and job.last > 1]
    assert (whole.parent, whole.last) == (out / "default" / "seed-1", 3), "all but the last notebook"
    assert whole.done_in(whole.parent) == 4 and (diagnosed.parent, diagnosed.last) == (whole.folder, 4)
    seconds = {name: s for name, s in dry_run(design, Sweep(out), 1)["seconds"].items() if s}
    assert list(seconds) == [f"shared/{diagnosed.folder.name}"], "nothing is trained again"


def test_a_training_that_has_begun_is_not_made_again_for_an_arm_that_is_added(tmp_path):
    out, arms = tmp_path / "out", {"default": {}, "free": {"beta": 0.0}}
    before = {job.folder: job for job in plan(read_design(write(tmp_path, arms=arms, seeds=[1])), out)}
    for job in before.values():
        made(job if job.arm != "default" else replace(job, last=1))  # interrupted in notebook 03
    arms["rft"] = {"controls": "rft", "policy": "rft"}
    design = read_design(write(tmp_path, arms=arms, seeds=[1]))
    after = {job.folder: job for job in plan(design, out)}
    assert after.keys() - before.keys() == {out / "rft" / "seed-1"}
    cells = [after[out / arm / "seed-1"] for arm in ("default", "rft")]
    assert [job.parent for job in cells] == [None, before[cells[0].folder].parent]
    arms["more"] = {"controls": "sft_more", "policy": "sft_more"}
    design = read_design(write(tmp_path, arms=arms, seeds=[1]))
    (shared,) = [job for job in plan(design, out) if not job.arm and job.last == 3]
    after = {job.folder: job for job in plan(design, out)}
    assert after[cells[0].folder].parent == cells[0].parent, "which waits for none"
    assert {after[out / arm / "seed-1"].parent for arm in ("rft", "more")} == {shared.folder}
    del arms["more"]
    design = read_design(write(tmp_path, arms=arms, seeds=[1]))
    shutil.rmtree(cells[0].folder)  # and had none begun, they would share it
    (shared,) = begun = [job for job in plan(design, out) if not job.arm and job.last == 3]
    made(replace(shared, last=1))
    made(replace(cells[0], last=1))
    again = [job for job in plan(design, out) if not job.arm and job.last == 3]
    assert again == begun, "a shared training that has begun goes on"
    assert [job.parent for job in plan(design, out) if job.arm in ("default", "rft")] == [None, shared.folder]


@pytest.mark.parametrize("change", ["versions", "shared"])
def test_cells_that_have_begun_need_nothing_that_is_shared(tmp_path, monkeypatch, change):
    file, sweep = write(tmp_path), Sweep(tmp_path / "out")
    for job in plan(design := read_design(file), sweep.folder):
        made(replace(job, last=1) if job.arm else job)
    if change == "versions":
        monkeypatch.setattr("agentkit.runs.sweep.versions", lambda: {"torch": "9.9"})
    else:
        shutil.rmtree(sweep.folder / "shared")
    shown = dry_run(design, sweep, 1)
    assert shown["shared"] == {} and len(shown["cells"]) == 4
    started = driven(file, sweep, lambda name, job: made(job) if job.arm else RunError("out of memory"))
    assert sorted(started) == ["default/seed-1", "default/seed-2", "free/seed-1", "free/seed-2"]
    assert {cell["status"] for cell in sweep.state["cells"]} == {"done"}


def test_a_cell_that_has_begun_takes_a_slot_though_its_parent_has_all(tmp_path):
    arms = {"default": {"controls": "sft_more"}, "more": {"controls": "sft_more", "policy": "sft_more"}}
    file, sweep = write(tmp_path, arms=arms, seeds=[1]), Sweep(tmp_path / "out")
    for job in plan(read_design(file), sweep.folder):
        if job.arm != "more":
            made(replace(job, last=1) if job.arm else job)
    started = driven(file, sweep, lambda name, job: made(job))
    assert "default/seed-1" in started and sweep.entry(job)["status"] == "done"


def test_a_folder_begins_with_nothing_of_the_notebooks_that_it_is_not_to_begin_with(tmp_path):
    out, design = tmp_path / "out", read_design(write(tmp_path, seeds=[1]))
    for job in plan(design, out):
        if job.arm == "default":
            made(job)
    run, kept = Run(out / "default" / "seed-1"), ("tasks.jsonl", "sft/log.jsonl", "eval/sft.parquet")
    later = ("train/alarms.jsonl", "adapter/a", "merged/a", "preflight.json", "03_grpo.ipynb", "notes.jsonl")
    last = ("eval/grpo.parquet", "eval/rft.parquet", "rft/a", "tables/a.md", "comparison.json")
    for name in (*kept, *later[:-1], *last, "notes.jsonl"):
        run.file(name).parent.mkdir(parents=True, exist_ok=True)
        run.file(name).write_text("x")
    run.update(hashes=dict.fromkeys(("tasks.jsonl", "comparison.json"), "x"), recipe={"beta": 0.02})
    start = next(job for job in plan(design, out) if job.last == 1 and not job.arm)
    whole = replace(start, folder=out / "shared" / "whole", last=3)
    for job in (start, whole):
        _begin_as(run.path, job)
    names = [
        {str(p.relative_to(f)) for p in f.rglob("*") if p.is_file()} for f in (start.folder, whole.folder)
    ]
    assert names == [{*kept, "run.json"}, {*kept, *later[:-1], "run.json"}]
    manifest = Run(start.folder).manifest
    assert list(manifest["stages"]) == list(STAGES[:2]) and manifest["hashes"] == {"tasks.jsonl": "x"}
    assert "beta" not in manifest["recipe"] and manifest["recipe"]["run"] == str(start.folder)
    assert start.is_done() and manifest["shared"] == {"from": str(run.path)}


def test_what_another_sweep_made_alike_is_copied_and_nothing_else(tmp_path, monkeypatch):
    first, second = tmp_path / "first", tmp_path / "second"
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    one = read_design(write(tmp_path / "a", arms={"default": {}, "free": {"beta": 0.0}}, seeds=[1]))
    Sweep(first).adopt(one, 1)
    sweep = Sweep(first)
    for job in plan(one, first):
        if job.arm != "free":
            made(job)
            sweep.entry(job)["status"] = "done"
    sweep.save()
    arms = {"usual": {}, "free": {"beta": 0.0}, "strong": {"beta": 0.2}}
    two = read_design(write(tmp_path / "b", arms=arms, against="usual", seeds=[1, 2]))
    monkeypatch.chdir(tmp_path)
    copied = reuse(two, second, ["first"])
    assert Run(copied[0]).manifest["shared"]["from"].startswith(str(first))
    jobs = {job.folder: job for job in plan(two, second)}
    assert {folder for folder, job in jobs.items() if job.is_done()} == set(copied)
    assert [str(f.relative_to(second)) for f in copied if jobs[f].arm] == ["usual/seed-1"]
    assert sorted(jobs[f].last for f in copied if not jobs[f].arm) == [0, 1], "the suite, and seed 1's start"
    assert reuse(two, second, [first]) == []
    sweep.state["versions"] = {"torch": "0"}
    sweep.save()
    assert reuse(two, tmp_path / "third", [first]) == []
    with pytest.raises(RunError, match=r"sweep\.json"):
        reuse(two, second, [tmp_path / "nowhere"])


@pytest.mark.parametrize("file", ["stop", "skip"])
def test_cells_are_left_out_of_a_sweep_that_runs(tmp_path, file):
    path, sweep = write(tmp_path), Sweep(tmp_path / "out")

    def work(name, job):
        if name == "default/seed-1":
            sweep.leave_out(**{file: [name, "free"]})
            return RunError("its kernel died")  # as it was ended
        assert job.arm in ("default", ""), f"{name} is left out"

    names = driven(path, sweep, work, slots=1)
    left = {"stop": "stopped", "skip": "skipped"}[file]
    assert f"default/seed-1: {left}" in names and names.count("default/seed-1") == 1
    status = {cell["run"]: cell["status"] for cell in sweep.state["cells"]}
    assert status == dict.fromkeys(status, left) | {"default/seed-2": "done"}
    with pytest.raises(RunError, match="has no cell 'fre'; there are all, default, default/seed-1, free"):
        sweep.leave_out(**{file: ["fre"]})
    again = driven(path, Sweep(sweep.folder), lambda name, job: None)
    assert ("free/seed-1" in again) == (file == "stop"), "a stopped cell goes on at the next call"


def test_what_is_no_longer_skipped_is_made_while_the_sweep_runs(tmp_path):
    path, sweep = write(tmp_path), Sweep(tmp_path / "out")
    sweep.folder.mkdir()
    sweep.file("skip").write_text("free\n")

    def work(name, job):
        if name == "default/seed-2":
            assert {c["status"] for c in sweep.state["cells"] if c["arm"] == "free"} == {"skipped"}
            sweep.file("skip").unlink()

    driven(path, sweep, work, slots=1)
    assert {cell["status"] for cell in sweep.state["cells"]} == {"done"}


def test_what_a_killed_driver_was_at_is_interrupted_and_what_is_no_longer_shared_is_gone(tmp_path):
    path, sweep = write(tmp_path), Sweep(tmp_path / "out")
    with sweep.held():
        sweep.adopt(read_design(path), 1)
        sweep.state["cells"][0]["status"] = "running"
        sweep.state["shared"] = {"0" * 12: {"stages": ["01_tasks"], "status": "running"}}  # of other versions
        sweep.save()
        assert [row["status"] for row in progress(Sweep(sweep.folder))][:2] == ["running"] * 2
    killed = Sweep(sweep.folder)
    assert [row["status"] for row in progress(killed)][:3] == ["interrupted", "interrupted", "waiting"]
    driven(path, killed, lambda name, job: None)
    state = Sweep(sweep.folder).state
    assert "0" * 12 not in state["shared"] and {cell["status"] for cell in state["cells"]} == {"done"}


def test_a_lab_file_with_a_mistake_does_not_end_the_sweep_that_runs(tmp_path):
    path, sweep = write(tmp_path), Sweep(tmp_path / "out")
    (tmp_path / "mine.py").write_text("x = 1\ny = (\n")

    def work(name, job):
        made(job)
        if name == "default/seed-1":
            write(tmp_path, arms=GOOD["arms"] | {"own": {"lab": "mine.py"}})

    *names, told = driven(path, sweep, work, slots=1, check=check)
    assert "the changed sweep file is not taken up: " in told and "mine.py, line 2: SyntaxError" in told
    assert names[-1] == "free/seed-2"


@pytest.mark.parametrize(("word", "left"), [("--stop", "stopped"), ("--skip", "skipped")])
def test_the_command_leaves_cells_out_and_the_others_go_on(tmp_path, capsys, word, left):
    path, sweep = write(tmp_path), Sweep(tmp_path / "out")
    words = ["sweep", str(path), "--run", str(sweep.folder), word, "free"]
    assert main(words) == 2 and "Run the notebook or sweep that writes it first" in capsys.readouterr().err

    def work(name, job):
        if name == "default/seed-1":
            assert main(words) == 0

    driven(path, sweep, work, slots=1)
    status = {cell["run"]: cell["status"] for cell in sweep.state["cells"]}
    assert status == {
        f"{arm}/seed-{n}": s for n in (1, 2) for arm, s in (("default", "done"), ("free", left))
    }
    assert sweep.file(word[2:]).read_text() == "free\n"
    if word == "--skip":
        assert main(words) == 0 and "left out when the sweep goes on" in capsys.readouterr().out
    else:
        assert main(words) == 2 and main([*words, "--json"]) == 2
        assert "no sweep runs in" in capsys.readouterr().err
    before = {path: path.read_bytes() for path in sweep.folder.rglob("*") if path.is_file()}
    assert main([*words, "--skip", "typo"]) == 2
    assert {path: path.read_bytes() for path in sweep.folder.rglob("*") if path.is_file()} == before


def test_cells_that_still_wait_are_exit_status_1(tmp_path, monkeypatch):
    sweep = finished(tmp_path, {"default": outcomes(1, 0.5), "free": outcomes(1, 0.5)}, seeds=[1, 2]).sweep
    monkeypatch.setattr("agentkit.runs.sweep.run_sweep", lambda *_: None)  # as where stop is empty
    monkeypatch.setattr(
        stages, "execute", lambda *_: write_json(sweep.file("ablations.json"), {"answer": ""})
    )
    words = ["sweep", str(tmp_path / "sweep.yaml"), "--run", str(sweep.folder)]
    assert main(words) == 1
    sweep = Sweep(sweep.folder)
    sweep.state["cells"] = [cell for cell in sweep.state["cells"] if cell["status"] == "done"]
    sweep.save()
    assert main(words) == 0


def test_notebook_06_is_made_at_each_call_but_a_dry_one(tmp_path, monkeypatch):
    sweep = finished(tmp_path, {"default": outcomes(1, 0.5), "free": outcomes(1, 0.5)}).sweep
    words, executed = ["sweep", str(tmp_path / "sweep.yaml"), "--run", str(sweep.folder)], []

    def execute(*_):
        executed.append(write_json(sweep.file("ablations.json"), {"answer": ""}))
        sweep.file("report.html").touch()

    monkeypatch.setattr(stages, "execute", execute)
    monkeypatch.setattr(Job, "is_done", lambda job: True)
    for count in (1, 2):
        assert main(words) == 0 and len(executed) == count
    assert main([*words, "--dry-run"]) == 0 and len(executed) == 2


@pytest.mark.slow
def test_a_notebook_shows_the_table_as_it_changes_until_the_sweep_ends(tmp_path):
    sweep = Sweep(tmp_path / "out")
    with sweep.held():
        sweep.adopt(read_design(write(tmp_path)), 1)
        code = f"""import time, threading
from agentkit.runs.sweep import Sweep
from agentkit.views.sweep_card import watch
watch({str(sweep.folder)!r}, 0.1)"""
        later = f"""sweep = Sweep({str(sweep.folder)!r})
assert sweep.is_held and threading.active_count() > 1
sweep.state["cells"][0] |= dict(status="failed", error="<b>no such reward")
sweep.save()
time.sleep(5)"""
        cells = [nbformat.v4.new_code_cell(text) for text in (code, later)]
        notebook = nbformat.v4.new_notebook(cells=cells)
        NotebookClient(notebook, kernel_name="python3").execute()
    (shown,) = notebook.cells[0].outputs
    assert "&lt;b&gt;no such reward" in shown.data["text/html"] and "waiting" in shown.data["text/html"]
    assert not sweep.is_held


def test_minutes_left_are_those_of_the_steps_that_epochs_came_to(tmp_path):
    sweep = Sweep(tmp_path / "out")
    with sweep.held():
        sweep.adopt(read_design(write(tmp_path)), 1)
    run = Run.create(sweep.folder / sweep.state["cells"][0]["run"])
    run.update(recipe={"steps": 200, "epochs": 3})
    rows = [{"step": step, "seconds": 60.0} for step in range(1, 301)]
    write_jsonl(run.file("train", "metrics.jsonl"), [{"planned_steps": 400} | rows[0], *rows[1:]])
    assert progress(sweep)[0]["left"] == "100 min"


def test_a_cell_is_read_again_only_where_its_files_have_changed(tmp_path, monkeypatch):
    file, sweep, read = write(tmp_path), Sweep(tmp_path / "out"), []
    driven(file, sweep, lambda name, job: Run.create(job.folder) and None)
    paths = [Run(sweep.file(cell["run"])).file("train", "metrics.jsonl") for cell in sweep.state["cells"]]
    for path in paths:
        write_jsonl(path, [{"step": 1, "seconds": 2.0}])
    rows_of = Run.metric_rows
    monkeypatch.setattr(Run, "metric_rows", lambda run: read.append(run.path) or rows_of(run))
    first = progress(sweep)
    assert len(read) == len(paths) > 1 and progress(sweep) == first and len(read) == len(paths)
    write_jsonl(paths[0], [{"step": 12, "seconds": 2.0}])
    assert [row["step"] for row in progress(sweep)] == ["12", *["1"] * (len(paths) - 1)]
    assert len(read) == len(paths) + 1


def test_a_changed_arm_is_refused_and_new_ones_are_added(tmp_path):
    sweep = Sweep(tmp_path / "out")
    sweep.adopt(read_design(write(tmp_path)), 1)
    sweep.state["cells"][0]["status"] = "done"
    sweep.save()
    with pytest.raises(
        RecipeError, match="arm 'free' has changed since this sweep began: beta was 0.0 and is 0.1"
    ):
        Sweep(sweep.folder).adopt(
            read_design(write(tmp_path, arms={"default": {}, "free": {"beta": 0.1}})), 1
        )
    with pytest.raises(RecipeError, match="arm 'free' has changed"):
        dry_run(read_design(write(tmp_path, arms={"default": {}, "free": {"beta": 0.1}})), sweep, 1)
    more = GOOD["arms"] | {"strong": {"beta": 0.3}}
    again = Sweep(sweep.folder)
    again.adopt(read_design(write(tmp_path, arms=more, seeds=[1, 2, 3])), 1)
    state = json.loads(sweep.file("sweep.json").read_text())
    assert [(c["arm"], c["seed"], c["status"]) for c in state["cells"]][:2] == [
        ("default", 1, "done"),
        ("free", 1, "waiting"),
    ]
    assert len(state["cells"]) == 9 and state["slots"] == 1 and "agentkit" in state["versions"]


def test_an_arm_whose_model_folder_has_other_weights_is_refused(tmp_path):
    weights = tmp_path / "mine" / "model.safetensors"
    weights.parent.mkdir()
    weights.write_text("a")
    arms = {"default": {}, "own": {"model": "mine"}}
    Sweep(tmp_path / "out").adopt(read_design(write(tmp_path, arms=arms)), 1)
    (sweep := Sweep(tmp_path / "out")).state["arms"]["own"]["files"].clear()  # as an older version wrote it
    sweep.save()
    sweep.adopt(read_design(write(tmp_path, arms=arms)), 1)
    weights.write_text("b")
    with pytest.raises(RecipeError, match="arm 'own' has changed since this sweep began: files was"):
        Sweep(tmp_path / "out").adopt(read_design(write(tmp_path, arms=arms)), 1)


def test_a_dry_run_says_what_it_would_make_and_makes_nothing(tmp_path, capsys):
    folder = tmp_path / "out"
    assert main(["sweep", str(write(tmp_path)), "--run", str(folder), "--dry-run"]) == 0
    told = capsys.readouterr().out
    for part in (
        "?\narm      what it changes\ndefault  what the others are compared with\nfree     beta: 0.0\n",
        "seeds: 1, 2",
        "fewer than 3 seeds give intervals and no verdict",
        "4 cells to run",
        "01_tasks",
        "device-hours",
    ):
        assert part in told
    long = as_text(dry_run(read_design(write(tmp_path, seeds=list(range(1, 9)))), Sweep(folder), 1))
    cells = long[long.index("16 cells") :].split("\nmade once")[0].split("\n")
    assert (
        len(cells) == 3
        and max(map(len, cells)) <= 110
        and cells[1].startswith("  free/seed-3, default/seed-4")
    )
    assert not folder.exists()
    few = dry_run(read_design(write(tmp_path, seeds=[1, 2, 3])), Sweep(folder), 1)
    many = dry_run(read_design(write(tmp_path, seeds=[1, 2, 3, 4, 5, 6, 7])), Sweep(folder), 1)
    assert "80 of 100 cases" in as_text(few)
    assert (
        many["smallest_difference"] < few["smallest_difference"]
        and many["device_hours"] > 2 * few["device_hours"]
    )


def test_several_slots_without_ray_are_one_sentence(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["sweep", str(write(tmp_path)), "--run", str(tmp_path / "out"), "--slots", "2"]) == 2
    assert "several slots need Ray, which is not installed" in capsys.readouterr().err


# ---- the driver, with work that ends when the test says so
def driven(file: Path, sweep: Sweep, work, slots: int = 2, check=lambda design: None) -> list[str]:
    """Drive a sweep to its end: names of the jobs in the order of their start, and what was told."""
    names, told, held = [], [], {}

    def submit(job: Job) -> Future:
        name = f"{job.arm}/{job.folder.name}"
        assert name not in held, f"{name} was started twice at once"
        for other in [other for other, (_, until) in held.items() if until == name]:
            held.pop(other)[0].set_result(None)
        future, outcome = Future(), work(name, job)
        names.append(name)
        if isinstance(outcome, str):  # it ends when the cell of this name is started
            held[name] = future, outcome
        elif isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(None)
        assert len(names) < 60
        return future

    with sweep.held():
        run_sweep(file, sweep, submit, slots, told.append, check)
    return names + told


def test_a_file_changed_while_cells_run_starts_none_of_them_again(tmp_path):
    file, sweep, seen = write(tmp_path), Sweep(tmp_path / "out"), []

    def work(name, job):
        seen.append(name)
        if name == "default/seed-1":
            return "default/seed-2"
        if name == "free/seed-1":
            os.utime(file, ns=(1, 1))
            return RecipeError("it cannot be")
        if name == "default/seed-2" and seen.count(name) == 1:
            os.utime(file, ns=(2, 2))

    def once(name, job):
        held = work(name, job)
        return None if seen.count(name) > 1 else held

    names = driven(file, sweep, once)
    assert names.count("free/seed-1") == 1, "what failed stays so"
    status = {cell["run"]: (cell["status"], cell["error"]) for cell in sweep.state["cells"]}
    assert status["free/seed-1"] == ("failed", "it cannot be") and status["default/seed-1"][0] == "done"


@pytest.mark.parametrize("asked", [True, False])
def test_an_arm_with_a_critical_alarm_is_stopped_where_that_is_asked_for(tmp_path, asked):
    file, sweep = write(tmp_path, stop_hopeless=asked), Sweep(tmp_path / "out")

    def work(name, job):
        if name == "free/seed-1":
            alarm = {"step": 7, "alarm": "zero_variance", "severity": "critical"}
            Run.create(job.folder).file("train").mkdir()
            job.folder.joinpath("train", "alarms.jsonl").write_text(json.dumps(alarm) + "\n")
            return "default/seed-2"

    *names, last = driven(file, sweep, work, slots=2)
    assert ("free/seed-2" in [*names, last]) is not asked
    assert ("stopped until the next call, as seed-1 has the alarm zero_variance at step 7" in last) is asked


def test_a_training_that_arms_share_is_stopped_too(tmp_path):
    arms = {"default": {"controls": "sft_more"}, "more": {"controls": "sft_more", "policy": "sft_more"}}
    file, sweep = write(tmp_path, arms=arms, seeds=[1], stop_hopeless=True), Sweep(tmp_path / "out")
    seen = []

    def submit(job):
        future = Future()
        seen.append(job)
        if not job.arm and job.last > 1:
            job.folder.joinpath("train").mkdir(parents=True)
            alarm = {"step": 7, "alarm": "zero_variance", "severity": "critical"}
            job.folder.joinpath("train", "alarms.jsonl").write_text(json.dumps(alarm) + "\n")
            deadline = time.monotonic() + 60
            while not left_out(job) and time.monotonic() < deadline:
                time.sleep(0.05)
        future.set_exception(RunError("ended")) if left_out(job) else future.set_result(made(job))
        return future

    told = []
    with sweep.held():
        run_sweep(file, sweep, submit, 1, told.append)
    (shared,) = [job for job in seen if not job.arm and job.last > 1]
    assert seen[-1] == shared and left_out(shared) == "stopped"
    assert any("what arms share: stopped until the next call" in line for line in told)


def test_an_edit_is_taken_up_where_the_file_is_the_projects(tmp_path, monkeypatch):
    (tmp_path / "notebooks").mkdir()
    folder = tmp_path / "params" / "sweeps"
    folder.mkdir(parents=True)
    recipe = str(ROOT / "params" / "nano-ablation.yaml")
    file, sweep = write(folder, seeds=[1], recipe=recipe), Sweep(tmp_path / "out")
    monkeypatch.chdir(tmp_path / "notebooks")

    edited = []

    def work(name, job):
        if not edited:  # once: each writing plans anew, as nothing here is ever done
            edited.append(write(folder, seeds=[1, 2], recipe=recipe))

    assert "default/seed-2" in driven(Path("params/sweeps") / file.name, sweep, work)


def test_one_slot_stops_a_cell_in_mid_training_and_the_next_call_goes_on_despite_old_alarms(tmp_path):
    file, sweep, calls = write(tmp_path, stop_hopeless=True, seeds=[1]), Sweep(tmp_path / "out"), []

    def alarm(job, step):
        row = {"step": step, "alarm": "zero_variance", "severity": "critical"}
        job.folder.joinpath("train").mkdir(parents=True, exist_ok=True)
        with job.folder.joinpath("train", "alarms.jsonl").open("a") as rows:
            rows.write(json.dumps(row) + "\n")

    def submit(job):
        future = Future()
        if job.arm == "free":
            calls.append(job.folder.name)
            alarm(job, 7 if len(calls) < 3 else 9)
            deadline = time.monotonic() + (60 if len(calls) != 2 else 3 * LOOK_S)
            while not left_out(job) and time.monotonic() < deadline:
                time.sleep(0.05)
            future.set_exception(RunError("ended")) if left_out(job) else future.set_result(None)
        else:
            future.set_result(None)
        return future

    for status in ("stopped", "done"):
        with sweep.held():
            run_sweep(file, sweep, submit, 1, print)
        (cell,) = [cell for cell in sweep.state["cells"] if cell["arm"] == "free"]
        assert cell["status"] == status
    with sweep.held():
        run_sweep(file, sweep, submit, 1, print)
    assert [c["status"] for c in sweep.state["cells"] if c["arm"] == "free"] == ["stopped"], "a new alarm"


def test_a_cell_whose_training_was_asked_to_stop_is_not_done_and_goes_on_at_the_next_call(tmp_path):
    file, sweep, asked = write(tmp_path, seeds=[1]), Sweep(tmp_path / "out"), []

    def work(name, job):
        made(job)
        if name == "free/seed-1" and not asked:
            asked.append(Run(job.folder).end("03_grpo", ended="asked"))

    for status in ("stopped", "done"):
        names = driven(file, sweep, work, slots=1)
        cells = {cell["arm"]: cell["status"] for cell in sweep.state["cells"]}
        assert cells == {"default": "done", "free": status}
    assert names == ["free/seed-1"]


def test_a_sweep_does_not_write_into_a_run(tmp_path):
    Run.create(tmp_path / "out")
    with (
        pytest.raises(RunError, match="is a run, which a sweep would write into"),
        Sweep(tmp_path / "out").held(),
    ):
        pass


def test_a_running_arm_may_leave_the_file_and_the_file_may_be_away_for_a_moment(tmp_path):
    file, sweep = write(tmp_path), Sweep(tmp_path / "out")
    whole = file.read_text()

    def work(name, job):
        if not file.exists():
            file.write_text(whole)
        elif name == "free/seed-1":
            write(tmp_path, arms={"default": {}, "strong": {"beta": 0.3}})
            return "strong/seed-1"
        elif name == "strong/seed-2":
            file.unlink()

    sweep.folder.mkdir()
    sweep.file("stop").touch()  # of an earlier call
    names = driven(file, sweep, work)
    assert {"free/seed-1", "strong/seed-1", "default/seed-2", "strong/seed-2"} <= set(names)
    assert [cell["status"] for cell in sweep.state["cells"]] == ["done"] * 4


def test_a_failure_that_a_worker_wraps_keeps_its_sentence(tmp_path):
    class Wrapped(RunError):  # as Ray's, whose own text is a traceback
        cause = RunError("03_grpo stopped: cell 7, ValueError: no such reward (see there)")

    sweep = Sweep(tmp_path / "out")
    driven(write(tmp_path), sweep, lambda name, job: Wrapped("Traceback ...") if job.arm == "free" else None)
    assert [c["error"] for c in sweep.state["cells"] if c["arm"] == "free"] == [str(Wrapped.cause)] * 2


def test_several_cells_that_would_train_through_the_same_servers_are_refused(tmp_path, capsys):
    served = {"deterministic": False, "engine": "server", "server_urls": "http://localhost:8000"}
    file = write(tmp_path, arms={"default": {}, "served": served})
    assert main(["sweep", str(file), "--run", str(tmp_path / "out"), "--slots", "2"]) == 2
    assert "would replace each other's weights on the servers that server_urls" in capsys.readouterr().err
    with slots_of(1, None, [served]) as (_, room):
        assert room == 1


def test_more_processes_than_gpus_are_refused_and_not_waited_for():
    with pytest.raises(RecipeError, match="its 4 processes need as many GPUs on one machine, the largest"):
        _needs({"processes": 4}, 2)
    assert _needs({"processes": 2}, 2) == {"num_gpus": 2, "num_cpus": 0}
    assert _needs({"gpus": "4"}, 4)["num_gpus"] == 4
    assert _needs({"processes": 4}, 0) == {"num_cpus": 1}


def test_no_more_cells_run_at_once_than_fit():
    machines = [{"GPU": 4.0, "CPU": 64.0}, {"GPU": 2.0, "CPU": 8.0}]
    assert _fitting(16, [{}, {"processes": 2}], machines) == 6 and _fitting(2, [{}], machines) == 2
    assert _fitting(16, [{"processes": 4}], machines) == 1, "a cell's processes are on one machine"
    assert _fitting(16, [{"processes": 8}], machines) == 16, "none fits, and each is refused"
    assert _fitting(16, [{}], [{"CPU": 8.0}]) == 8


@pytest.mark.parametrize(
    ("name", "value"),
    [("cells", [1]), ("arms", []), ("cells", [{"arm": "free"}]), ("order", [[1]]), ("order", ["gone"]),
     ("shared", {"a": {"status": "done", "stages": []}}), ("against", None), ("margin", "x")],
)  # fmt: skip
def test_a_damaged_state_is_one_sentence(tmp_path, name, value):
    sweep = Sweep(tmp_path / "out")
    with sweep.held():
        sweep.adopt(read_design(write(tmp_path)), 1)
    sound = sweep.file("sweep.json").read_text()
    damaged = json.dumps(json.loads(sound) | {name: value})
    for text in (damaged, sound[: len(sound) // 2]):
        sweep.file("sweep.json").write_text(text)
        with pytest.raises(RunError, match="sweep.json is"):
            Sweep(sweep.folder).adopt(read_design(tmp_path / "sweep.yaml"), 1)


def test_other_versions_than_those_of_finished_cells_are_said(tmp_path):
    sweep, design = Sweep(tmp_path / "out"), read_design(write(tmp_path))
    with sweep.held():
        sweep.adopt(design, 1)
        sweep.state["versions"]["torch"] = "0.1"
        sweep.adopt(design, 1)  # nothing is done, so nothing is mixed
        sweep.state["versions"]["torch"] = "0.1"
        sweep.state["cells"][0]["status"] = "done"
        with pytest.warns(UserWarning, match="made with other versions of Python or libraries"):
            sweep.adopt(design, 1)


# ---- finished cells, with trajectories made up
def finished(folder: Path, success: dict[str, np.ndarray], policy: str = "sft", **changes) -> Ablation:
    """A sweep of the arms default, free, ..., whose cells (S, N) came out like that; NaN is not scored."""
    folder.mkdir(exist_ok=True)
    difficulties = changes.pop("difficulties", ["easy"])
    seeds = changes.pop("seeds", [*range(1, 1 + max(map(len, success.values())))])
    arms = {"default": {"policy": "sft"}, "free": {"sft_epochs": 2, "policy": policy}}
    own = [name for name in success if name not in arms]
    arms |= {name: {"sft_epochs": 3 + i, "policy": policy} for i, name in enumerate(own)}
    sweep = Sweep(folder / "out")
    with sweep.held():
        sweep.adopt(read_design(write(folder, arms=arms, seeds=seeds, **changes)), 1)
    for cell in sweep.state["cells"]:
        own = success[cell["arm"]]
        if cell["seed"] > len(own):
            continue
        row = own[cell["seed"] - 1]
        run, name = Run.create(sweep.folder / cell["run"]), sweep.state["arms"][cell["arm"]]["policy"]
        hard = [difficulties[i % len(difficulties)] for i in range(len(row))]
        tasks = [Task(f"t{i}", "?", "1", "numeric", "A", d, "test") for i, d in enumerate(hard)]
        write_tasks(run.file("tasks.jsonl"), tasks)
        outcomes = [None if np.isnan(value) else float(value) for value in row]
        run.file("eval").mkdir()
        write_trajectories(
            run.file("eval", f"{name}.parquet"),
            [trajectory(f"t{i}", v, policy=name) for i, v in enumerate(outcomes)],
        )
        cell["status"] = "done"
    sweep.save()
    return Ablation(Sweep(sweep.folder))


def outcomes(seeds: int, share: float, tasks: int = 60) -> np.ndarray:
    return (np.random.default_rng(seeds).random((seeds, tasks)) < share).astype(float)


@pytest.mark.parametrize(("seeds", "said"), [(1, "one seed, no verdict"), (2, "2 seeds, no verdict")])
def test_fewer_than_three_seeds_give_intervals_and_no_verdict(tmp_path, seeds, said):
    ablation = finished(tmp_path, {"default": outcomes(seeds, 0.1), "free": outcomes(seeds, 0.95)})
    (test,) = ablation.to_json()["paired"]
    assert test["verdict"] == said and test["p"] is test["p_holm"] is test["could_show"] is None
    assert test["ci95"][0] < test["diff"] < test["ci95"][1] and test["diff"] > 0.5
    answer = ablation.answer()
    assert "no verdict: free (+" in answer and "A verdict needs 3 seeds that every arm has" in answer
    assert "better" not in answer and ablation.table().loc["free", "p, Dunnett"] == "–"


def test_the_conclusion_says_what_easy_tasks_give_on_hard_ones_and_the_sweet_spot(tmp_path):
    own = {"default": np.tile([1.0, 0.0, 0.0, 1.0], (3, 1)), "free": np.ones((3, 4))}
    ablation = finished(tmp_path, own, difficulties=["easy", "hard"])
    assert "hard tasks" not in ablation.answer()
    ablation.sweep.state["arms"]["free"]["train_difficulty"] = "easy"
    solved = "default 50.0 %; free, trained on easy tasks alone, 100.0 %."
    assert ablation.answer().endswith(f" Success on the 2 hard tasks (described, not tested): {solved}")
    own = {"default": own["default"], "free": np.tile([1.0, np.nan, 0.0, np.nan], (3, 1))}
    ablation = finished(tmp_path / "c", own, difficulties=["easy", "hard"])
    ablation.sweep.state["arms"]["free"]["train_difficulty"] = "easy"
    assert ablation.answer().endswith("(described, not tested): default 50.0 %."), (
        "free has no verdict on them"
    )
    ablation = finished(tmp_path / "b", {"default": outcomes(3, 0.9), "free": outcomes(3, 0.9)})
    cost = {name: entry | {"million_tokens": 1.5} for name, entry in ablation.arms.items()}
    ablation.training, ablation.arms = dict.fromkeys(cost), cost
    assert "sweet spot" not in ablation.answer(), "their groups are of one size"
    ablation.sweep.state["arms"]["free"]["group_size"] = 16
    assert (
        " The sweet spot is default, with 1.50 million completion tokens (tool replies included)"
        in ablation.answer()
    )


def test_a_sweep_holds_what_it_counts_and_no_texts(tmp_path):
    ablation = finished(tmp_path, {"default": outcomes(3, 0.5), "free": outcomes(3, 0.5)})
    run = ablation.runs["free"][1]
    lost = ToolResult("search", {"query": "x" * 99}, "Error: there is no tool search." + "y" * 99, False)
    stored = [replace(t, turns=(Turn("z" * 99, (0, 1), (lost,)),)) for t in run.trajectories("sft")]
    write_trajectories(run.file("eval", "sft.parquet"), stored)
    samples = ablation.samples["free"]
    assert summarize(samples[1], ablation.test) == summarize(stored, ablation.test)
    assert summarize(stored)["unknown_tool_rate"] == 1.0
    assert len(pickle.dumps(samples[1][0])) < len(pickle.dumps(stored[0])) - 250
    ids = samples[1][0].completion_ids
    assert isinstance(ids, Unread) and len(ids) == len(stored[0].completion_ids)


def test_an_arm_that_lacks_seeds_takes_no_verdict_from_the_others(tmp_path):
    own = {"default": outcomes(3, 0.1), "free": outcomes(3, 0.95), "torn": outcomes(2, 0.5)}
    ablation = finished(tmp_path, own)
    assert [(test["arm"], test["verdict"]) for test in ablation.paired] == [("free", "better")]
    assert list(ablation.table()["verdict"]) == ["compared with", "better", "lacks seeds"]
    assert "not compared, as they lack seeds: torn" in ablation.answer()


def test_whiskers_off_the_line_are_the_verdicts_better_and_worse(tmp_path):
    base, quarter = outcomes(3, 0.5, 400), np.arange(400) % 4 == 0
    solved, names = np.flatnonzero(base.all(axis=0)), ("default", "free", "same", "same-2", "same-3")
    arms = {name: base.copy() for name in names} | {"torn": base[:2], "weak": base * ~quarter}
    for name, lost in (
        ("free", slice(9)),
        ("same", slice(20, 22)),
        ("same-2", [22, 23]),
        ("same-3", [24, 25]),
    ):
        arms[name][:, solved[lost]] = 0.0
    ablation = finished(tmp_path, arms | {"good": np.maximum(base, quarter)}, margin=0.1)
    figure, drawn = plots.arm_success(ablation), {}
    line = figure.layout.shapes[0].x0
    for trace in figure.data:
        if trace.mode == "markers" and trace.error_x.array is not None:
            low, high = trace.x[0] - trace.error_x.arrayminus[0], trace.x[0] + trace.error_x.array[0]
            drawn[trace.y[0]] = "across" if low <= line <= high else "left" if high < line else "right"
    found = {name: (side, ablation.verdict(name)) for name, side in drawn.items()}
    equal = dict.fromkeys(names[1:], ("across", "equal within the margin"))
    assert found == equal | {"good": ("right", "better"), "weak": ("left", "worse")}
    assert ablation.paired[0]["ci95"][1] < 0, "its own interval, of two one-sided tests, leaves 0 out"
    assert figure.layout.yaxis.ticktext[-1].endswith(">worse</span>")
    few = finished(tmp_path / "few", {"default": base[:2], "free": base[:2]})
    assert "a verdict needs 3 seeds" in plots.arm_success(few).layout.title.subtitle.text


def test_the_sweet_spot_is_never_an_arm_that_is_worse(tmp_path, monkeypatch):
    cost = {"default": 4.0, "free": 3.0, "weak": 1.0}
    arms = {name: {"million_tokens": tokens} for name, tokens in cost.items()}
    monkeypatch.setattr(Ablation, "training", dict.fromkeys(arms))
    monkeypatch.setattr(Ablation, "arms", arms)
    same = outcomes(3, 0.9)
    ablation = finished(
        tmp_path, {"default": same, "free": same[::-1], "weak": outcomes(3, 0.3)}, policy="grpo"
    )
    assert ablation.sweet_spot() == "free"
    ablation.seeds = ablation.seeds[:2]
    assert ablation.sweet_spot() == ""


def test_success_is_that_of_the_sample_that_is_named(tmp_path):
    first = outcomes(5, 0.5)
    first[:3], first[3:] = np.arange(60) < 30, 0.0  # seeds 4 and 5 are not there in the other arm
    second = outcomes(3, 0.5)
    second[1, :20] = np.nan
    ablation = finished(tmp_path, {"default": first, "free": second})
    head = ablation.answer().split(" (3 seeds)")[0]
    assert head.startswith("default solves 25.0 % [") and head.endswith(
        "of the 40 tasks that are scored everywhere, of 60,"
    )


def test_cells_that_share_no_scored_task_are_a_sentence(tmp_path):
    nothing = np.full((3, 6), np.nan)
    nothing[:, 0] = 1.0
    ablation = finished(tmp_path, {"default": outcomes(3, 0.5, 6), "free": nothing})
    with pytest.raises(RunError, match="1 of 6 test tasks are scored in every cell"):
        ablation.to_json()


def test_only_arms_of_grpo_have_its_training(tmp_path):
    recipe = read_recipe(ROOT / "params" / "nano-ablation.yaml") | {"controls": "sft_more"}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    own = {"default": outcomes(3, 0.4), "free": outcomes(3, 0.5)}
    ablation = finished(tmp_path, own, policy="sft_more", recipe="recipe.yaml")
    assert ablation.training == {} and ablation.arms["free"]["rollouts"] == 0
    assert ablation.table().loc["free", "rollouts"] == "–"


def test_the_cards_say_at_which_level_intervals_are_and_miss_nothing_that_was_never_to_be(tmp_path, recwarn):
    ablation = finished(tmp_path, {"default": outcomes(3, 0.5), "free": outcomes(3, 0.5)})
    for runs in ablation.runs.values():
        for run in runs.values():
            run.update(
                shared={"from": "shared/a"}, stages={"02_baseline": {"status": "done", "seconds": 36.0}}
            )
    page = html.unescape(write_sweep_report(ablation).read_text())
    assert (
        LEVELS in page and "Dunnett's" in LEVELS and ablation.table().loc["free", "hours to make"] == "0.01"
    )
    card = ablation.sweep.file("default", "seed-1", "report.html").read_text()
    assert "comparison.json does not exist" not in card and 'id="training"' not in card
    assert not [w for w in recwarn if "comparison.json" in str(w.message)]


def test_a_card_of_a_cell_in_mid_training_is_written_anew_and_a_later_one_kept(tmp_path):
    ablation = finished(tmp_path, {"default": outcomes(2, 0.5), "free": outcomes(2, 0.5)})
    early, late = (ablation.sweep.file("free", f"seed-{n}", "report.html") for n in (1, 2))
    for card in (early, late):
        card.write_text("mine")
    os.utime(early, (0, 0))
    write_sweep_report(ablation)
    assert "Run card" in early.read_text() and late.read_text() == "mine"


def test_a_sweep_is_opened_outside_the_project(tmp_path, monkeypatch):
    ablation = finished(tmp_path, {"default": outcomes(3, 0.5), "free": outcomes(3, 0.5)})
    for runs in ablation.runs.values():
        for run in runs.values():
            run.update(stages={"02_baseline": {"status": "done", "seconds": 36.0}})
    inside = Ablation(ablation.sweep).to_json()
    monkeypatch.chdir(tmp_path)
    assert ablation.to_json() == inside, "agentkit's own prices say what the agent was made on"
    assert "Sweep: out" in write_sweep_report(ablation).read_text()


def test_only_cells_that_are_done_link_to_a_run_card(tmp_path):
    ablation = finished(tmp_path, {"default": outcomes(2, 0.5), "free": outcomes(1, 0.5)})
    page = str(cells(ablation))
    assert page.count("<a ") == 3 and "free/seed-2/report.html" not in page


# ---- statistics
def test_an_interval_and_its_verdict_never_disagree():
    rng, near = np.random.default_rng(1), 0
    for _ in range(60):
        base = rng.random((3, 40))
        cube = np.stack([base, *(base + rng.normal(d, 0.2, (3, 40)) for d in (0.06, 0.07, 0.08, 0.3))])
        tests = against_one(cube, 0.05)
        for test in tests:
            low, high = test["ci_difference"]
            assert (test["verdict"] in ("better", "worse")) == (not low <= 0 <= high)
            low, high = test["ci95"]
            if test["verdict"].startswith("equal"):
                assert -0.05 < low <= high < 0.05
            else:
                assert (test["verdict"] in ("better", "worse")) == (not low <= 0 <= high)
        near += sum(t["p"] < 0.05 <= t["p_dunnett"] for t in tests)
    assert all(t["p"] <= t["p_dunnett"] <= t["p_holm"] for t in tests)
    assert near > 5, "some are only significant where they are not corrected"


def test_differences_and_verdicts_on_literals():
    base = np.tile([0.0, 0.25, 0.5, 0.75, 1.0] * 20, (3, 1))
    success = np.stack([base, np.clip(base + 0.25, 0, 1), base + np.array([[0.01], [-0.01], [0.0]])])
    better, equal = against_one(success, 0.05)
    assert better["diff"] == pytest.approx(0.2) and better["verdict"] == "better" and better["p_holm"] < 1e-6
    assert equal["diff"] == pytest.approx(0, abs=1e-12) and equal["verdict"] == "equal within the margin"
    assert against_one(success[[0, 2]], 0.001)[0]["verdict"] == "no difference shown"
    (difference, error, freedom), _ = errors(success)
    assert (difference, freedom > 2) == (pytest.approx(0.2), True) and error < 0.02


def test_a_large_difference_is_shown_where_seeds_hardly_differ():
    """What is subtracted between the three mean squares once left 0.8 degrees of freedom, or a crash."""
    same = outcomes(3, 0.9)
    tests = against_one(np.stack([same, same[::-1], outcomes(3, 0.3)]), 0.05)
    assert [test["verdict"] for test in tests] == ["equal within the margin", "worse"]
    assert all(test["freedom"] >= 4 for test in tests)


def test_equal_outcomes_of_a_few_tasks_are_no_proof_of_equality():
    few, many = (against_one(np.full((2, 3, n), 0.5), 0.05)[0] for n in (7, 300))
    assert few["verdict"] == "no difference shown" and few["ci95"][1] == pytest.approx(0.41, abs=0.01)
    assert many["verdict"] == "equal within the margin" and many["p"] == pytest.approx(1.0)


def test_planned_power_is_that_of_the_test_and_grows_with_seeds():
    error, freedom = Spread().error(3, 183, 4)
    seen = smallest(error, freedom, 3)
    assert power(seen / error, freedom, 3) == pytest.approx(0.8, abs=1e-3)
    assert power(0.0, freedom, 1) == pytest.approx(0.05, abs=2e-3)
    sizes = [smallest(*Spread().error(seeds, 183, 4), 3) for seeds in (2, 3, 5, 10)]
    assert sizes == sorted(sizes, reverse=True)
    assert smallest(0.0, 4.0, 1) is None
    assert [smallest(*Spread().error(3, tasks, 2), 1) for tasks in (0, 1)] == [None, None]


def test_the_spread_of_finished_cells_is_found_again():
    rng = np.random.default_rng(0)
    cubes = [
        rng.normal(0, s / np.sqrt(2), shape)
        for s, shape in ((0.05, (2, 6, 1)), (0.1, (2, 1, 400)), (0.3, (2, 6, 400)))
    ]
    found = measured_spread([sum(cubes) for cubes in [cubes]] * 1)
    assert (found.tasks, found.rest) == (pytest.approx(0.1, abs=0.03), pytest.approx(0.3, abs=0.02))
    assert 0.01 < found.seeds < 0.12


@pytest.mark.slow
def test_simulated_sweeps_keep_their_level_and_the_planned_power():
    false, planned, shown = levels(500, 4, 3, 183, Spread(0.03, 0.1, 0.0))
    assert 0.03 <= false <= 0.07 and shown == pytest.approx(planned, abs=0.05)


# ---- real cells
ARMS = {"default": {"measure_base": True, "policy": "sft"}, "base": {"measure_base": True, "policy": "base"}}


@pytest.mark.slow
def test_a_sweep_killed_and_started_again_ends_as_an_undisturbed_one(tmp_path):
    file, whole, killed = tiny(tmp_path / "file", arms=ARMS), tmp_path / "whole", tmp_path / "killed"
    said = []
    faults = survive(file, tmp_path, 2, log=said.append)
    assert [fault for fault in faults if "too late" not in fault] == [], said
    assert any(line.startswith("kill 1") for line in said), said
    before = executed(killed)
    assert main(["sweep", str(file), "--run", str(killed)]) == 0
    assert executed(killed) == before, "nothing that is complete is repeated"
    assert len(list(killed.glob("shared/*"))) == 3, "the suite once, the cold start and baseline once a seed"
    result = json.loads((whole / "ablations.json").read_text())
    assert (
        result["against"] == "default"
        and set(result["arms"]) == {"default", "base"}
        and result["question"] == "Why?"
    )
    assert result["paired"][0]["arm"] == "base" and result["answer"].startswith("default solves")
    assert result["arms"]["base"]["seeds"] == [1, 2] and not workers(whole)
    assert (whole / "report.html").exists() and (whole / "default" / "seed-1" / "report.html").exists()
    assert all((whole / "tables" / f"ablations.{kind}").exists() for kind in ("md", "tex", "csv"))
    state = json.loads((whole / "sweep.json").read_text())
    assert [cell["status"] for cell in state["cells"]] == ["done"] * 4


@pytest.mark.slow
def test_a_cell_that_fails_is_tried_once_more_and_the_others_go_on(tmp_path, capsys):
    broken = {"policy": "sft", "transcripts": "nowhere.jsonl", "measure_base": False}
    file = tiny(tmp_path / "file", arms=ARMS | {"broken": broken}, seeds=[1])
    assert main(["sweep", str(file), "--run", str(tmp_path / "out")]) == 1
    told = capsys.readouterr().out
    assert (
        "02_baseline stopped: cell " in told and "it is tried once more" in told and "nowhere.jsonl" in told
    )
    state = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert {c["arm"]: c["status"] for c in state["cells"]} == {
        "default": "done",
        "base": "done",
        "broken": "failed",
    }
    assert json.loads((tmp_path / "out" / "ablations.json").read_text())["missing"] == ["broken/seed-1"]
