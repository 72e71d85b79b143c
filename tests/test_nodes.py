"""Training over several machines: here two process trees on one, which share a run's folder and no more."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import yaml
from test_cards import TINY
from test_launch import LAB, _untimed, _workers, folder, interruptible, prepared  # noqa: F401

from agentkit import doctor
from agentkit.cli import main
from agentkit.lab import Lab
from agentkit.records import RecipeError
from agentkit.runs import Recipe, Run, RunError, load_run, read_json, read_jsonl, read_recipe, write_json
from agentkit.runs.children import TOKEN, repeated
from agentkit.runs.sweep_slots import slots_of
from agentkit.runs.topology import choose, settled
from agentkit.tools.cache import own_file
from agentkit.training import nodes
from agentkit.training.launch import Work
from agentkit.training.processes import TrainingStopped

ROOT = Path(__file__).resolve().parents[1]
JOIN = "import sys; from agentkit import cli; from agentkit.training import nodes; nodes.LOST_S, nodes.BEAT_S = 12, 0.5; "
PATHS = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@pytest.fixture(autouse=True)
def reachable(monkeypatch):
    """Both machines are this one, whose name nobody may know."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setattr(nodes, "BEAT_S", 0.5)


@contextlib.contextmanager
def joined(run: Run, node: int = 1):
    """``agentkit join`` in a process of its own; what it printed lies in the run's join.log."""
    command = [sys.executable, "-c", f"{JOIN} sys.exit(cli.main())", "join", str(run.path), f"--node={node}"]
    with run.file("join.log").open("ab") as log:
        environ = os.environ | PATHS
        child = subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True)
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def of_machine(run: Run, node: int, module: str) -> list[psutil.Process]:
    """torchrun, or the processes that it started, of one machine's part of a job."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, IndexError, ValueError):
            words, token = process.cmdline(), process.environ().get(TOKEN, "")
            is_of = str(run.path.resolve()) in words and words[words.index("-m") + 1] == module
            if is_of and token.endswith(f".{node}") == bool(node):
                found.append(process)
    return found


def kill(run: Run, step: int, *modules: str, others: tuple = ()):
    """What a training tells its metrics to, which at a step kills machine 1's processes of these modules."""

    def at_step(row):
        if row["step"] == step:
            for process in [*others, *(p for m in modules for p in of_machine(run, 1, m))]:
                process.kill()

    return at_step


WORKER, TORCHRUN = "agentkit.training.worker", "torch.distributed.run"


@pytest.mark.slow
def test_two_machines_train_the_adapter_of_two_processes_on_one(folder):  # noqa: F811
    run, lab = prepared(folder, "machines", nodes=2)
    work = Work(lab, run)
    with joined(run) as member:
        assert work.train()["steps"] == 3
        ranks = work.record["ranks"]["train"]
        assert [rank["sampled"]["validation"] for rank in ranks] == [3, 3], "both have sampled"
        assert "2 machines of 1 process train on the CPU" in str(work) and member.poll() is None
        assert read_json(run.file(nodes.ASKED)) == {"token": ""} and not _workers(run)
        nodes.over(run)
        assert member.wait(60) == 0 and not run.file(".node-1.json").exists()
    whole, same = prepared(folder, "one-machine")
    Work(same, whole).train()
    assert _untimed(run) == _untimed(whole)
    adapters = [made.file("adapter", "adapter_model.safetensors").read_bytes() for made in (run, whole)]
    assert adapters[0] == adapters[1]


@pytest.mark.slow
def test_what_is_killed_on_another_machine_is_named_nobody_is_left_and_the_run_goes_on(folder, monkeypatch):  # noqa: F811
    """A rank, then a machine with its torchrun, then its join alone, whose processes end with a checkpoint."""
    monkeypatch.setattr(nodes, "LOST_S", 12)
    run, lab = prepared(folder, "lost", nodes=2, steps=9, save_every=1, val_every=9)
    named = r"machine 1 \(.+\) failed: process 0 was ended by SIGKILL.*launch-1.log.*checkpoint-\d is kept, run this"
    lost = r"machine 1 \(.+\) was lost, .* agentkit join .*lost --node 1.*checkpoint-\d is kept, run this"
    with joined(run) as member:
        with pytest.raises(RunError, match=named):
            Work(lab, run).train(kill(run, 2, WORKER))
        assert not _workers(run) and member.poll() is None, "it waits for the next job"
        with pytest.raises(RunError, match=lost):
            Work(lab, run).train(kill(run, 4, TORCHRUN, others=(member,)))
        assert not _workers(run)
    with joined(run) as member, pytest.raises(RunError, match=lost):
        Work(lab, run).train(kill(run, 6, others=(member,)))
    assert not _workers(run) and not list(run.path.glob(".job*"))
    with joined(run):
        assert Work(lab, run).train()["steps"] == 9
    assert [row["step"] for row in read_jsonl(run.file("train", "metrics.jsonl"))] == list(range(10))


@pytest.mark.slow
def test_a_stop_on_either_machine_keeps_a_checkpoint_and_ends_both(folder):  # noqa: F811
    run, lab = prepared(folder, "stopped-there", nodes=2, steps=60, save_every=0, val_every=60)

    def interrupt(row):
        if row["step"] == 2:
            raise KeyboardInterrupt

    with joined(run) as member:
        with pytest.raises(TrainingStopped, match="train in 2 processes was stopped"):
            Work(lab, run).train(interrupt)
        first = [path.name for path in run.file("train", "checkpoints").glob("checkpoint-*")]
        assert len(first) == 1 and not _workers(run) and member.poll() is None
        told = r"machine 1 \(.+\) failed: it was told to stop\. checkpoint-\d+ is kept, run this again"
        after = int(first[0][11:]) + 2
        with pytest.raises(RunError, match=told):
            Work(lab, run).train(lambda row: row["step"] == after and member.terminate())
        assert member.wait(60) == 128 + signal.SIGTERM and not _workers(run)
    kept = {int(path.name[11:]) for path in run.file("train", "checkpoints").glob("checkpoint-*")}
    assert max(kept) >= after


HEAD = "import sys; from agentkit.lab import Lab; from agentkit.runs import Run; from agentkit.training.launch import Work; "
HEAD += "Work(Lab.open(sys.argv[2]), Run(sys.argv[1])).train()"


@pytest.mark.slow
def test_a_launch_that_is_killed_leaves_a_machine_that_does_the_next_one(folder):  # noqa: F811
    """The launch and its torchrun at once, as where the first machine goes; its files stay and mean nothing."""
    run, lab = prepared(folder, "headless", nodes=2, steps=60, save_every=1, val_every=60)
    write_json(folder / "headless.yaml", {key: lab.recipe.everything()[key] for key in lab.recipe.given})
    with joined(run) as member:
        command = [sys.executable, "-c", HEAD, str(run.path), str(folder / "headless.yaml")]
        head = subprocess.Popen(command, env=os.environ | PATHS, start_new_session=True)
        while not list(run.file("train", "checkpoints").glob("checkpoint-[2-9]")):
            assert head.poll() is None
            time.sleep(0.1)
        for process in [*of_machine(run, 0, TORCHRUN), head]:
            process.kill()
        head.wait()
        while _workers(run):
            time.sleep(0.2)
        assert read_json(run.file(nodes.ASKED))["token"] and list(run.path.glob(".job-*"))
        assert member.poll() is None
        rows: list[dict] = []

        def stop(row):
            rows.append(row)
            raise KeyboardInterrupt

        with pytest.raises(TrainingStopped):
            Work(lab, run).train(stop)
        assert rows[0]["step"] >= 3 and member.poll() is None


def test_a_machine_that_never_comes_is_named(folder, monkeypatch, capsys):  # noqa: F811
    monkeypatch.setattr(nodes, "JOIN_S", 4)
    monkeypatch.setattr(nodes, "BEAT_S", 0.4)
    run, lab = prepared(folder, "alone", nodes=2)
    with pytest.raises(RunError, match=r"machine 1 has not come for 4 s, start there: agentkit join .*alone"):
        Work(lab, run).train()
    assert "waiting for machine 1, start there: agentkit join" in capsys.readouterr().err
    assert not _workers(run) and not list(run.path.glob(".job*"))


def test_a_stop_while_other_machines_are_waited_for_does_not_wait(folder, interruptible):  # noqa: F811
    run, lab = prepared(folder, "given-up", nodes=2)

    def interrupt():
        while not run.file(nodes.ASKED).exists():
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(TrainingStopped):
        Work(lab, run).train()
    assert read_json(run.file(nodes.ASKED)) == {"token": ""} and not list(run.path.glob(".job*"))


def test_machines_serve_one_launch_and_one_join_at_a_time(folder, monkeypatch):  # noqa: F811
    """A second launch would end the first one's part on the others; a second join would be two of a machine."""
    monkeypatch.setattr(nodes, "BEAT_S", 0.2)
    run, lab = prepared(folder, "twice", nodes=2)
    write_json(run.file(nodes.ASKED), {"token": "of a launch that was killed", "beat": 3})
    first = nodes.Others(run, "first", {"nodes": 2}, lambda: None)
    member = nodes._Member(run, 1)
    member._told = {"token": "first", "beat": 1}
    with repeated(member._tell, 0.1), first.at_work():
        while not read_json(run.file(nodes.ASKED))["begun"]:  # so that a join that starts now stays out of it
            time.sleep(0.1)
        with pytest.raises(RunError, match="another job uses the machines of .*twice: wait for it"):
            Work(lab, run).train()
        with pytest.raises(RunError, match="another agentkit join is machine 1 of .*twice now: keep one"):
            nodes.join(run, 1)
    nodes._Member(run, 1).alone()


@pytest.mark.parametrize(
    ("news", "ends"),
    [({"token": ""}, "late"), ({"token": "another"}, "step"), ({"token": "t", "beat": 1}, "step")],
    ids=["the launch has ended", "it was killed and begun again", "it is silent"],
)
def test_a_part_whose_launch_is_gone_may_end_its_step_with_a_checkpoint(tmp_path, monkeypatch, news, ends):
    """Told by the end of its input, as where a kernel dies; killed where it does not end in time."""
    for name, value in {"BEAT_S": 0.1, "LOST_S": 1.0, "LATE_S": 2.0}.items():
        monkeypatch.setattr(nodes, name, value)
    run = Run.create(tmp_path / "run")
    write_json(run.file(nodes.ASKED), news)
    reads = "import sys, time; sys.stdin.read(); time.sleep(0.5)"
    with subprocess.Popen([sys.executable, "-c", reads], stdin=subprocess.PIPE) as child:
        nodes._Member(run, 1)._watch(child, {"token": "t", "wait_s": 60.0})
        assert (child.poll() is None) == (ends == "late"), "which leaves it to be killed"
        child.kill()


SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
SLURM_NODEID=1 "$@" & SLURM_NODEID=0 "$@"
status=$?
wait
exit $status
"""


@pytest.mark.slow
def test_the_slurm_example_makes_a_whole_run_on_two_machines(tmp_path):
    """With a stand-in for srun that starts the two tasks here; cold start to comparison."""
    for name in ("notebooks", "params"):
        (tmp_path / name).symlink_to(ROOT / name)
    for file, text in (
        (".venv/bin/agentkit", f'#!/bin/bash\nexec {sys.executable} -m agentkit.cli "$@"\n'),
        ("bin/srun", SRUN),
    ):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(text)
        (tmp_path / file).chmod(0o700)
    values = read_recipe(ROOT / "params" / "nano.yaml") | TINY | {"nodes": 2}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(values))
    environ = os.environ | PATHS | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    script = ["bash", str(ROOT / "docs" / "cluster" / "two-nodes.sbatch"), "tiny.yaml", "run"]
    made = subprocess.run(script, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=1800)
    assert made.returncode == 0, made.stdout + made.stderr
    assert (
        "2 machines of 1 process train on the CPU" in made.stdout
        and "machine 1 waits for jobs" in made.stdout
    )
    run = load_run(tmp_path / "run")
    assert [stage["status"] for stage in run.manifest["stages"].values()] == ["done"] * 5
    stages = [run.manifest["stages"][s] for s in ("02_baseline", "03_grpo", "05_compare")]
    jobs = {job: own for stage in stages for job, own in stage["ranks"].items()}
    assert list(jobs) == ["cold_start", "measure sft", "look", "train", "measure grpo"]
    assert all(len(own) == 2 for own in jobs.values()) and stages[0]["devices"] == 2
    sampled = [job for job in jobs if job != "cold_start"]
    assert all(min(sum(rank["sampled"].values()) for rank in jobs[job]) > 0 for job in sampled), jobs


def several(count=0, /, **keys):
    return choose(Recipe.from_mapping({"nodes": 2} | keys), count)


def test_processes_are_dealt_evenly_to_machines():
    made = several(4)
    assert (made.processes, made.training, made.workers) == (8, ("0", "1", "2", "3"), 8)
    assert "2 machines of 4 processes train on GPUs 0, 1, 2, 3: " in str(made)
    assert several(4, processes=4).training == ("0", "1") and several(4, gpus=1).processes == 2
    assert (three := several(3)).processes == 4 and three.training == ("0", "1") and three.workers == 6
    assert "split: " in str(choose(Recipe(engine="vllm"), 4, "tight")), "what a card cannot hold at once"
    assert choose(Recipe(engine="vllm", nodes=2), 4, "tight").kind == "colocate", "a split is on one machine"
    assert (several().processes, several(1).kind, several(nodes=1).kind) == (2, "colocate", "here")
    measures = Recipe.from_mapping({"nodes": 3})  # of notebook 02, which does not know the batch
    assert settled(measures, choose(measures, 0))["processes"] == 1 and choose(measures, 0).workers == 3


@pytest.mark.parametrize(
    ("count", "keys", "why"),
    [
        (0, {"topology": "split", "engine": "vllm"}, "nodes: 2 goes with topology: colocate"),
        (1, {"engine": "unsloth"}, "nodes: 2 is not for engine 'unsloth'"),
        (0, {"processes": 3}, "processes: 3 cannot be dealt evenly to nodes: 2"),
        (2, {"processes": 8}, "processes: 8 need a GPU each, and 2 can be used on each of 2 machines"),
        (0, {"nodes": 3, "prompts_per_step": 8}, "processes 3 must divide prompts_per_step 8"),
        (0, {"engine": "server", "server_urls": "http://a:1,http://127.0.0.1:2"}, "names localhost"),
    ],
)
def test_what_machines_cannot_do_together_is_refused_with_the_way_out(count, keys, why):
    with pytest.raises(RecipeError, match=why):
        several(count, **keys)


def test_a_sweeps_cells_stay_on_one_machine():
    with pytest.raises(RecipeError, match="nobody would start agentkit join"):
        slots_of(1, None, [{}, {"nodes": 2}])


def test_a_cold_start_that_machines_cannot_share_is_made_by_one(tmp_path):
    lab = Lab.open({"nodes": 2, "sft": True, "sft_batch": 3, "processes": 8})
    work = Work(lab, Run.create(tmp_path / "run"))
    assert work._imitating == 3, "of the four processes of the first machine"
    assert Work(Lab.open({"nodes": 2, "sft_batch": 12, "processes": 8}), work.run)._imitating == 6


def test_join_needs_the_number_of_a_machine(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SLURM_NODEID", "0")
    assert main(["join", str(tmp_path)]) == 2 and "say --node 1" in capsys.readouterr().err
    run = Run.create(tmp_path / "run")
    member = nodes._Member(run, 2)
    assert "nodes: 2, so that --node is 1 to 1" in member._refusal({"nodes": 2, "gpus": False}, 0)
    short = member._refusal({"nodes": 3, "gpus": True, "number": 4}, 2)
    assert short == "2 GPUs are seen here, and 4 are used on the first machine: set gpus"
    member._tell()
    nodes._Member(run, 2)._tell()
    with pytest.raises(RunError, match="another agentkit join is machine 2"):
        member._tell()
    assert json.loads(run.file(".node-2.json").read_text())["beat"] == 1


def test_machines_do_not_share_a_cache_of_tools(monkeypatch):
    cache = Path("cache") / "tools.sqlite"
    assert own_file(cache) == cache
    monkeypatch.setenv("GROUP_RANK", "1")
    assert own_file(cache) == Path("cache") / "tools-1.sqlite"


def test_doctor_says_how_other_machines_reach_this_one(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert (
        "reach this one as 127.0.0.1, an address of its own" in doctor.topology(Recipe(nodes=2), [])["says"]
    )
    assert "reach" not in doctor.topology(Recipe(), [])["says"]
