"""Several cells of a sweep at once: real Ray and real papermill, with notebooks that do next to nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import nbformat
import psutil
import pytest
import yaml
from survive_sweeps import until

from agentkit.runs.run import MANIFEST
from agentkit.runs.sweep import Sweep
from agentkit.runs.sweep_slots import _SETTINGS, slots_of

HEAD = """
import os, time
from pathlib import Path
from agentkit.runs import Run, write_json
from agentkit.recipe import Recipe
recipe = Recipe.from_notebook(globals())
run, notes = Run(recipe.run), Path("notes")
notes.mkdir(exist_ok=True)
"""
STAGE = """
run = Run.create(run.path)
run.begin(stage, recipe.used())
note, begun = notes / f"{stage}-{recipe.temperature}-{os.getpid()}", time.time()
note.write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "none"))
WORK
note.write_text(f"{note.read_text()} {begun} {time.time()}")
run.end(stage)
"""
MEET = """
if recipe.temperature == 0.9:
    raise ValueError("no such reward")
while len([n for n in notes.glob("02*") if "-0.9-" not in n.name]) < 4 and time.time() < begun + 300:
    time.sleep(0.05)
"""
WAIT = """
while not (notes / "go").exists():
    time.sleep(0.05)
"""


SAVE = """
try:
    while not (notes / "go").exists():
        time.sleep(0.05)
except KeyboardInterrupt:
    time.sleep(3)
    (notes / f"saved-{os.getpid()}").touch()
    raise
"""
STOPPED = "agentkit: stopped; what was finished is kept, run the same command to go on\n"


def project(folder: Path, temperatures: list[float], work: str) -> Path:
    """A project whose notebooks only write down when and where they ran; its sweep file."""
    parts = {
        "01_tasks": 'stage = "01_tasks"' + STAGE.replace("WORK", ""),
        "02_baseline": 'stage = "02_baseline"' + STAGE.replace("WORK", work),
        "03_grpo": 'stage = "03_grpo"' + STAGE.replace("WORK", work),
        "06_ablations": 'write_json(run.file("ablations.json"), {"answer": "They ran."})',
    }
    (folder / "notebooks").mkdir(parents=True)
    (folder / "params").mkdir()
    for name, code in parts.items():
        parameters = nbformat.v4.new_code_cell('run = ""', metadata={"tags": ["parameters"]})
        cells = [parameters, nbformat.v4.new_code_cell(HEAD), nbformat.v4.new_code_cell(code)]
        kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        nbformat.write(
            nbformat.v4.new_notebook(cells=cells, metadata=kernel), folder / "notebooks" / f"{name}.ipynb"
        )
    (folder / "params" / "recipe.yaml").write_text(yaml.safe_dump({"model": "nano", "n_tasks": 20}))
    arms = {f"t-{t}": {"temperature": t, "policy": "sft"} for t in temperatures}
    sweep = {"recipe": "recipe.yaml", "seeds": [1], "against": f"t-{temperatures[0]}", "arms": arms}
    (folder / "params" / "sweep.yaml").write_text(yaml.safe_dump(sweep, sort_keys=False))
    return folder / "params" / "sweep.yaml"


AGENTS = (
    "ray::DashboardAgent",
    "ray::RuntimeEnvAgent",
)  # of Ray, which end by themselves a minute or two later


def words(process: psutil.Process) -> str:
    """Its command line; "" where it has ended, reaped or not, and of Ray's agents."""
    try:
        line = "" if process.status() == psutil.STATUS_ZOMBIE else " ".join(process.cmdline())
    except psutil.Error:
        return ""
    return "" if line.startswith(AGENTS) else line


def started(folder: Path, slots: int, gpus: str) -> subprocess.Popen:
    words = ["sweep", "params/sweep.yaml", "--run", "outputs/out", "--slots", str(slots)]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": gpus}
    with open(folder / "log", "a") as log:
        command = [sys.executable, "-m", "agentkit.cli", *words]
        return subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=environment)


@pytest.mark.slow
def test_each_slot_sees_its_own_gpu_and_a_crash_is_tried_once_more(tmp_path):
    project(tmp_path, [0.1, 0.9, 0.2, 0.3, 0.4, 0.5], MEET)
    assert started(tmp_path, 4, "0,1,2,3").wait(600) == 1, (tmp_path / "log").read_text()  # none is there
    notes = {path.name.split("-")[1] for path in (tmp_path / "notes").glob("02*")}
    ran = [path.read_text().split() for path in (tmp_path / "notes").glob("02*") if "-0.9-" not in path.name]
    assert len(notes) == 6 and len(ran) == 5 and {gpu for gpu, *_ in ran} == {"0", "1", "2", "3"}
    spans = [(gpu, float(begun), float(ended)) for gpu, begun, ended in ran]
    together = [[gpu for gpu, begun, ended in spans if begun <= at <= ended] for _, at, _ in spans]
    assert max(map(len, together)) == 4 and all(len(set(gpus)) == len(gpus) for gpus in together)
    assert len(list((tmp_path / "notes").glob("02*-0.9-*"))) == 2, "the crashed one was tried once more"
    told = (tmp_path / "log").read_text()
    assert "02_baseline stopped: cell 4, ValueError: no such reward" in told and "tried once more" in told
    cells = json.loads((tmp_path / "outputs" / "out" / "sweep.json").read_text())["cells"]
    assert {c["arm"]: c["status"] for c in cells}.pop("t-0.9") == "failed"
    assert sum(cell["status"] == "done" for cell in cells) == 5
    assert "ValueError: no such reward" in next(cell["error"] for cell in cells if cell["arm"] == "t-0.9")
    gpus = [json.loads(p.read_text())["stages"]["02_baseline"]["gpus"] for p in tmp_path.glob(f"outputs/out/t-*/*/{MANIFEST}") if "t-0.9" not in str(p)]  # noqa: E501 # fmt: skip
    assert set(gpus) == {"0", "1", "2", "3"}, "and each run says which it had"


@pytest.mark.slow
def test_no_child_outlives_the_driver_and_the_sweep_goes_on(tmp_path):
    project(tmp_path, [0.1, 0.2], WAIT)
    for number, how in enumerate((signal.SIGKILL, signal.SIGINT, signal.SIGTERM), 1):
        driver = started(tmp_path, 2, "")
        try:
            until(lambda expected=2 * number: len(list(tmp_path.glob("notes/02*"))) == expected, 300)
            children = psutil.Process(driver.pid).children(recursive=True)
            assert sum("ipykernel" in words(child) for child in children) == 2
        finally:
            driver.send_signal(how)
        assert driver.wait(300) == (-how if how == signal.SIGKILL else 128 + how)
        until(lambda children=children: not any(map(words, children)), 60)
    assert (tmp_path / "log").read_text().count(STOPPED) == 2
    (tmp_path / "notes" / "go").touch()
    assert started(tmp_path, 2, "").wait(300) == 0, (tmp_path / "log").read_text()
    assert len(list(tmp_path.glob("notes/01*"))) == 1, "the suite is made once"


@pytest.mark.slow
def test_a_stop_leaves_a_step_the_time_to_end_in_one_slot_and_in_several(tmp_path):
    project(tmp_path, [0.1, 0.2], SAVE)
    sweep, driver = lambda: Sweep(tmp_path / "outputs" / "out"), started(tmp_path, 2, "")
    saved = lambda: len(list(tmp_path.glob("notes/saved*")))  # noqa: E731
    status = lambda: [entry["status"] for entry in sweep().state["shared"].values()]  # noqa: E731
    try:
        until(lambda: len(list(tmp_path.glob("notes/02*"))) == 2, 300)
        sweep().leave_out(stop=[f"shared/{list(sweep().state['shared'])[1]}"])
        until(lambda: status()[1] == "stopped", 60)
        assert saved() == 1 and status()[2] == "running"
    finally:
        driver.send_signal(signal.SIGTERM)
    assert driver.wait(300) == 128 + signal.SIGTERM, (tmp_path / "log").read_text()
    assert saved() == 2 and status() == ["done", "stopped", "interrupted"]
    driver = started(tmp_path, 1, "")
    try:
        until(lambda: len(list(tmp_path.glob("notes/02*"))) == 3, 300)
        sweep().leave_out(stop=["all"])
        driver.wait(300)
    finally:
        driver.kill()
    assert saved() == 3 and status() == ["done", "stopped", "stopped"], (tmp_path / "log").read_text()


@pytest.mark.slow
def test_machines_that_join_late_are_waited_for_and_fewer_are_said(monkeypatch):
    from ray.cluster_utils import Cluster

    for name in (*_SETTINGS, "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, _SETTINGS.get(name, "1"))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})

    def sleep(seconds):
        if seconds and len(cluster.list_all_nodes()) == 1:
            cluster.add_node(num_cpus=1)

    monkeypatch.setattr(
        "agentkit.runs.sweep_slots.time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic)
    )
    try:
        with slots_of(2, cluster.address, [{}]) as (_, room):
            assert room == 2
        monkeypatch.setattr("agentkit.runs.sweep_slots.JOIN_S", 0.0)
        with (
            pytest.warns(UserWarning, match="2 of 3 slots are used"),
            slots_of(3, cluster.address, [{}]) as (_, room),
        ):
            assert room == 2
    finally:
        cluster.shutdown()
