"""Sweeps: what is refused before anything runs, what cells share, and how a sweep goes on after any end."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml
from real_jupyterlab import wait_until

from agentkit.cli import main
from agentkit.preflight.sweeps import as_text, check, dry_run
from agentkit.recipe import Recipe, read_recipe
from agentkit.records import RecipeError, RunError
from agentkit.runs import Run, read_json
from agentkit.runs.children import CELL
from agentkit.runs.files import alone
from agentkit.runs.fingerprints import STAGES
from agentkit.runs.slots import dealt, gpus_of
from agentkit.runs.sweep import Cell, Driver, Sweep, plan, read_design

ROOT = Path(__file__).resolve().parents[1]
SWEEPS = sorted((ROOT / "params" / "sweeps").glob("*.yaml"))
ARMS = {"default": {}, "free": {"beta": 0.0}}


def write(folder: Path, **changes) -> Path:
    """A sweep file of the small agent; what is None is left out."""
    file = {"recipe": "params/nano-ablation.yaml", "question": "Why?", "seeds": [1, 2], "arms": ARMS}
    path = folder / "sweep.yaml"
    kept = {key: value for key, value in (file | changes).items() if value is not None}
    path.write_text(yaml.safe_dump(kept, sort_keys=False))
    return path


# ---- the file
def test_the_shipped_sweeps_can_be_run():
    for path in SWEEPS:
        if path.stem != "tcr":  # which drafts suites: below
            check(read_design(path))


@pytest.mark.slow
def test_the_sweep_that_drafts_suites_can_be_run():
    check(read_design(ROOT / "params" / "sweeps" / "tcr.yaml"))


@pytest.mark.parametrize(("changes", "said"), [
    ({"arms": {"default": {}, "free": {"betta": 0.0}}}, "arm 'free': unknown recipe key 'betta': did you mean"),
    ({"recipe": "params/nowhere.yaml"}, "no file 'params/nowhere.yaml'"),
    ({"arms": {"default": {}, "same": {"beta": 0.02}}}, "'default' and 'same' are equal"),
    ({"arms": {"default": {}, "one": {"lab": "mine.py"}, "two": {"lab": "copy.py"}}}, "'one' and 'two' are equal"),
    ({"arms": {"default": {}}}, "at least two arms"),
    ({"against": "full"}, "no arm 'full' to compare with; there are default, free"),
    ({"seeds": [1, 1]}, "list different whole numbers"),
    ({"arms": {"default": {}, "tables": {"beta": 0.1}}}, "a folder of the sweep has this name"),
    ({"arms": {"default": {}, "b": {"seed": 3}}}, "may not set seed"),
    ({"arms": {"default": {}, "../b": {"beta": 0.1}}}, "arm name '../b' is refused"),
    ({"arms": {"default": {}, "b": {"policy": "rft"}}}, "measure no policy 'rft', only sft, grpo"),
    ({"arms": {"default": {}, "b": {"reward": "none"}}}, "arm 'b': reward none starts from nothing"),
    ({"arms": {"default": {}, "b": {"lab": "typo.py"}}}, "line 2: SyntaxError"),
    ({"recipe": "few.yaml", "arms": {"default": {}, "b": {"n_tasks": 24}}}, "'b' is tested on other tasks than 'default'"),
])  # fmt: skip
def test_a_worthless_sweep_is_refused_in_a_sentence_and_nothing_runs(tmp_path, capsys, changes, said):
    recipe = read_recipe(ROOT / "params" / "nano-ablation.yaml")
    (tmp_path / "few.yaml").write_text(yaml.safe_dump(recipe | {"families": "A", "n_tasks": 20}))
    for name in ("mine.py", "copy.py"):
        (tmp_path / name).write_text("rewards = {'long': (lambda trajectory: 1.0, 0.1)}\n")
    (tmp_path / "typo.py").write_text("x = 1\ny = (\n")
    assert main(["sweep", str(write(tmp_path, **changes)), "--run", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert said in told and told.count("\n") == 1 and not (tmp_path / "out").exists()


def test_a_grid_names_its_arms_and_finds_the_unchanged_one(tmp_path):
    design = read_design(write(tmp_path, arms=None, grid={"beta": [0.0, 0.02], "group_size": [8, 16]}))
    assert list(design.arms) == [f"beta-{b}_group_size-{size}" for b in (0.0, 0.02) for size in (8, 16)]
    assert design.against == "beta-0.02_group_size-8"


# ---- cells and what they have in common
def test_one_seed_of_every_arm_comes_first_and_common_stages_are_made_once(tmp_path):
    arms = ARMS | {"hot": {"temperature": 1.0}, "sft": {"policy": "sft"}, "paid": {"reward": "toolrl"}}
    cells = plan(read_design(write(tmp_path, arms=arms)), tmp_path)
    assert [name for name in cells if "shared" not in name] == [f"{a}/seed-{s}" for s in (1, 2) for a in arms]
    shared = [len(cell.keys) for name, cell in cells.items() if "shared" in name]
    assert sorted(shared) == [1, 2, 2, 2, 2], "one suite; a baseline for each seed and temperature"
    names = list(cells)
    assert all(names.index(c.parent.name) < names.index(c.name) for c in cells.values() if c.parent)
    assert all(cell.recipe.measure_last and cell.changes["measure_last"] for cell in cells.values())
    assert len(cells["sft/seed-1"].keys) == 2 and len(cells["free/seed-1"].keys) == len(STAGES)


class Notebooks:
    """Deals cells to nothing: their stages are written down as done, but for those named as broken."""

    def __init__(self, *broken: str):
        self.broken, self.made = broken, []

    def __call__(self, cells, start):
        for cell in cells:
            _, log = start(cell)
            self.made.append(cell.name)
            if fails := any(name in f"{cell.name} {cell.changes}" for name in self.broken):
                log.write_text("03_grpo: running\nagentkit: 03_grpo stopped: no such reward\n")
            else:
                execute(cell)
            yield cell, 2 if fails else 0


def execute(cell: Cell) -> None:
    run = Run.create(cell.folder)
    recipe = cell.recipe.but(seed=cell.changes["seed"]).everything()
    for stage in STAGES[: len(cell.keys)]:
        run.begin(stage, recipe)
        run.end(stage)


def drive(folder: Path, deal, **changes) -> tuple[bool, Sweep, list[str]]:
    told, sweep = [], Sweep(folder / "out")
    whole = Driver(read_design(write(folder, **changes)), sweep, deal, told.append).run()
    return whole, Sweep(sweep.folder), told


def test_what_is_done_is_not_made_again_and_new_arms_and_seeds_are(tmp_path):
    arms, deal = ARMS | {"sft": {"policy": "sft"}}, Notebooks()
    whole, sweep, _ = drive(tmp_path, deal, arms=arms)
    assert whole and len(deal.made) == 3 + 4, "one suite, two baselines; sft's cells are copies of these"
    assert [cell["status"] for cell in sweep.state["cells"]] == ["done"] * 6
    assert set(sweep.state["cells"][0]) == {"arm", "seed", "run", "status", "seconds", "error"}
    assert {seed: run.path.name for seed, run in sweep.runs("free").items()} == {1: "seed-1", 2: "seed-2"}
    deal.made.clear()
    assert drive(tmp_path, deal, arms=arms)[0] and deal.made == []
    drive(tmp_path, deal, arms=arms | {"strong": {"beta": 0.3}}, seeds=[1, 2, 3])
    new = [name for name in deal.made if not name.startswith("shared")]
    assert new == ["strong/seed-1", "strong/seed-2", "default/seed-3", "free/seed-3", "strong/seed-3"]
    assert len(deal.made) == len(new) + 1, "the third seed's baseline"


def test_a_cell_that_fails_is_tried_once_more_and_the_others_go_on(tmp_path):
    deal = Notebooks("free/seed-1")
    whole, sweep, told = drive(tmp_path, deal)
    assert not whole and deal.made.count("free/seed-1") == 2
    status = {cell["run"]: (cell["status"], cell["error"]) for cell in sweep.state["cells"]}
    assert status.pop("free/seed-1") == ("failed", "03_grpo stopped: no such reward")
    assert set(status.values()) == {("done", "")} and "free/seed-1: 03_grpo stopped: no such reward" in told
    assert drive(tmp_path, Notebooks())[0], "the next call makes it"


def test_cells_do_not_begin_where_what_they_have_in_common_fails(tmp_path):
    deal = Notebooks("'seed': 2")
    whole, sweep, _ = drive(tmp_path, deal)
    assert not whole and not any("seed-2" in name for name in deal.made)
    status = {(c["seed"], c["status"], c["error"]) for c in sweep.state["cells"]}
    assert status == {(1, "done", ""), (2, "failed", "03_grpo stopped: no such reward")}


def test_a_changed_arm_is_refused(tmp_path):
    weights = tmp_path / "mine" / "model.safetensors"
    weights.parent.mkdir()
    weights.write_text("a")
    arms = ARMS | {"own": {"model": "mine"}}
    drive(tmp_path, Notebooks(), arms=arms)
    with pytest.raises(RecipeError, match="arm 'free', or a file that it names, has changed since"):
        drive(tmp_path, Notebooks(), arms=arms | {"free": {"beta": 0.01}})
    weights.write_text("bc")
    with pytest.raises(RecipeError, match="arm 'own', or a file that it names, has changed since"):
        drive(tmp_path, Notebooks(), arms=arms)


def test_a_folder_that_is_a_run_or_worked_on_is_refused(tmp_path):
    Run.create(tmp_path / "out")
    with pytest.raises(RunError, match="is a run, which a sweep would write into"):
        drive(tmp_path, Notebooks())
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "out").mkdir()
    says = f"process {os.getpid()} is running the sweep in "
    with alone(tmp_path / "out" / ".lock", "running the sweep"), pytest.raises(RunError, match=says):
        drive(tmp_path, Notebooks())


def test_a_dry_run_says_what_it_would_make_and_makes_nothing(tmp_path, capsys):
    folder = tmp_path / "out"
    assert main(["sweep", str(write(tmp_path)), "--run", str(folder), "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert "free: policy grpo, beta 0.0" in told and "4 cells to run" in told and "device-hours" in told
    assert not folder.exists()
    design = read_design(write(tmp_path))
    before = dry_run(design, Sweep(folder))
    drive(tmp_path, Notebooks("free"))
    left = dry_run(design, Sweep(folder))
    assert list(left["make"]) == ["free/seed-1", "free/seed-2"]
    assert left["device_hours"] < before["device_hours"]
    assert "made once: nothing" in as_text(left)


def test_cells_that_would_train_through_the_same_servers_are_refused():
    served = Recipe(engine="server", server_urls="http://localhost:8000")
    with dealt(1, None, [served]) as deal:
        assert callable(deal)
    with pytest.raises(RecipeError, match="would replace each other's weights"), dealt(2, None, [served]):
        pass
    assert gpus_of(Recipe(processes=2)) == 2 and gpus_of(Recipe(gpus=4)) == 4


# ---- real cells
TINY = {"families": "A", "n_tasks": 20, "max_turns": 2, "max_turn_tokens": 48, "sft_transcripts": 1,
        "test_samples": 1, "steps": 1, "prompts_per_step": 2, "group_size": 4, "micro_batch": 8, "val_every": 2,
        "val_tasks": 4, "preflight": "off", "new_templates": "", "controls": ""}  # fmt: skip


def tiny(folder: Path, **changes) -> Path:
    """A sweep file of the smallest real cells."""
    recipe = read_recipe(ROOT / "params" / "nano.yaml") | TINY
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return write(folder, recipe="recipe.yaml", **changes)


def started(file: Path, folder: Path, *words: str, **environment: str) -> subprocess.Popen:
    """A driver, whose words go to a file beside the folder."""
    command = [sys.executable, "-m", "agentkit.cli", "sweep", str(file), "--run", str(folder), *words]
    with open(folder.with_name(f"{folder.name}.log"), "a") as log:
        return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env=os.environ | environment)


def workers(folder: Path) -> list[psutil.Process]:
    """Processes that work on a cell of this sweep."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(CELL, "").startswith(f"{folder}/"):
                found.append(process)
        except psutil.Error:
            continue
    return found


def done(folder: Path) -> dict[str, str]:
    """When each notebook that is complete was begun, by folder and stage."""
    found = {}
    for path in folder.rglob("run.json"):
        stages = {stage: e for stage, e in read_json(path)["stages"].items() if e["status"] == "done"}
        found |= {f"{path.parent.relative_to(folder)} {s}": e["started"] for s, e in stages.items()}
    return found


def timeless(value):
    """The same JSON without how long things took."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if not k.endswith("hours")}
    return [timeless(v) for v in value] if isinstance(value, list) else value


@pytest.mark.slow
def test_a_sweep_that_is_killed_and_called_again_ends_as_an_undisturbed_one(tmp_path):
    base = {"measure_base": True}
    arms = {"default": base | {"policy": "sft"}, "base": base | {"policy": "base"}}
    file, whole, killed = tiny(tmp_path, arms=arms), tmp_path / "whole", tmp_path / "killed"
    assert started(file, whole).wait() == 0, (tmp_path / "whole.log").read_text()
    driver = started(file, killed)
    wait_until(lambda: len(done(killed)) >= 2 and workers(killed), 400)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    wait_until(lambda: not workers(killed), 60)  # they end with their driver
    before = done(killed)
    assert started(file, killed).wait() == 0, (tmp_path / "killed.log").read_text()
    assert before.items() <= done(killed).items(), "nothing that was done is repeated"
    assert timeless(read_json(killed / "ablations.json")) == timeless(read_json(whole / "ablations.json"))
    suites = [log for log in killed.rglob("cell.log") if "01_tasks: done in" in log.read_text()]
    assert len(suites) == 1 and len(list(killed.glob("shared/*"))) == 3, "the suite once, two baselines"
    assert [cell["status"] for cell in read_json(killed / "sweep.json")["cells"]] == ["done"] * 4


@pytest.mark.slow
def test_two_cells_at_once_have_a_gpu_each_and_end_with_their_driver(tmp_path):
    folder = tmp_path / "out"
    arms = {"default": {"policy": "sft"}, "hot": {"policy": "sft", "temperature": 1.0}}
    file = tiny(tmp_path, arms=arms, seeds=[1])
    words = ["--slots", "2"]
    driver = started(file, folder, *words, CUDA_VISIBLE_DEVICES="0,1")  # there is none
    try:
        wait_until(lambda: len({worker.environ()[CELL] for worker in workers(folder)}) == 2, 400)
        cards = {worker.environ()["CUDA_VISIBLE_DEVICES"] for worker in workers(folder)}
        assert cards == {"0", "1"}
    finally:
        driver.send_signal(signal.SIGINT)
    assert driver.wait() == 130 and not workers(folder)
    again = started(file, folder, *words, CUDA_VISIBLE_DEVICES="")
    assert again.wait() == 0, (tmp_path / "out.log").read_text()
