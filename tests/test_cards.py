"""Several GPUs: who takes which, and notebooks that start with four in sight. No GPU is needed here."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest
from labs import lab_with

from agentkit.policies import server_processes
from agentkit.records import EngineError, RecipeError
from agentkit.runs import Recipe, Run, load_run
from agentkit.runs.topology import choose, settled, visible
from agentkit.training import worker
from agentkit.training.launch import Work
from agentkit.training.torchrun import death, last_error

ROOT = Path(__file__).resolve().parents[1]


def chosen(count, *args, **keys):
    return choose(Recipe.from_mapping(keys), count, *args)


def test_a_process_for_each_card_that_whole_groups_can_be_dealt_to():
    four = chosen(4)
    assert (four.kind, four.processes, four.training, four.workers) == (
        "colocate",
        4,
        ("0", "1", "2", "3"),
        4,
    )
    three = chosen(3)  # of eight groups
    assert (three.processes, three.training, three.workers) == (2, ("0", "1"), 3), "all three measure"
    assert chosen(4, processes=2).training == ("0", "1") and chosen(4, gpus=2).workers == 2
    assert chosen(1).kind == chosen(0).kind == "here" and chosen(0, processes=2).kind == "colocate"
    one = chosen(4, processes=1)
    assert (one.kind, one.training) == ("colocate", ("0",)), "a process of its own, for this one sees four"


def test_cards_keep_the_names_that_cuda_was_given(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7,GPU-3f")
    split = chosen(3, topology="split", replicas=1, engine="vllm")
    assert visible(3) == ("5", "7", "GPU-3f") and (split.training, split.serving) == (("5", "7"), ("GPU-3f",))
    assert settled(Recipe(engine="vllm"), split, ["http://a:1"])["engine"] == "server"


def test_a_split_is_chosen_where_one_card_does_not_hold_both_and_says_so():
    split = chosen(4, "micro_batch: 2", engine="vllm")
    assert split.kind == "split" and (split.processes, split.serving) == (2, ("2", "3"))
    assert "do not fit on one card together (micro_batch: 2)" in str(split)
    recipe = Recipe(engine="vllm")
    assert settled(recipe, split)["topology"] == "split", "its memory is planned as such"
    assert settled(recipe, chosen(4, engine="vllm"))["topology"] == recipe.topology
    assert "2 servers roll out on GPUs 2, 3, and 2 processes train on GPUs 0, 1: " in str(split)
    alone = chosen(2, topology="split", engine="vllm", processes=1)
    assert str(alone).startswith("split: 1 server rolls out on GPU 1, and 1 process trains on GPU 0: ")
    assert "1 process trains on GPU 0: " in str(chosen(2, processes=1))
    for keys in ({}, {"deterministic": True}, {"engine": "vllm", "processes": 4}):
        assert chosen(4, "micro_batch: 2", **keys).kind == "colocate", keys
    assert "in a split some wait for the others" in str(chosen(4))
    rehearsed = chosen(0, topology="split", replicas=2, processes=2, engine="vllm")
    assert (rehearsed.kind, rehearsed.training, rehearsed.serving) == ("split", (), ("", ""))


@pytest.mark.parametrize(
    ("count", "keys", "why"),
    [
        (2, {"gpus": 4}, "gpus is 4, and 2 can be seen"),
        (2, {"processes": 4}, "processes: 4 need a GPU each, and 2"),
        (1, {"topology": "split"}, "needs two GPUs"),
        (4, {"topology": "split", "replicas": 4}, "leave none of 4 GPUs to train: set 3"),
        (4, {"topology": "split", "replicas": 3, "processes": 2}, "need a GPU each of 4"),
        (
            4,
            {"topology": "split", "engine": "server", "server_urls": "http://a:1"},
            "starts servers of its own",
        ),
        (4, {"engine": "unsloth", "processes": 4}, "engine 'unsloth', which trains in one process"),
        (4, {"gpus": "many"}, "gpus is 'many'; use auto"),
    ],
)
def test_what_cannot_be_is_refused_with_the_way_out(count, keys, why):
    with pytest.raises(RecipeError, match=why):
        chosen(count, **keys)


def test_unsloth_takes_one_card_and_says_why():
    assert (alone := chosen(4, engine="unsloth")).training == ("0",) and "Unsloth trains in one" in str(alone)


LOG = """
E1122 api.py:986] failed (exitcode: -15) local_rank: 0 (pid: 7) of binary: python
E1122 api.py:986] failed (exitcode: -9) local_rank: 1 (pid: 8) of binary: python
"""


def test_the_process_that_was_killed_is_told_from_those_that_torchrun_ended():
    assert death(1, LOG).startswith("process 1 was ended by SIGKILL") and death(1, LOG[:80]) == ""
    assert "torchrun, which watches the processes, was ended by SIGKILL" in death(-9, "")


@pytest.mark.parametrize(
    "error",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "torch.distributed.DistBackendError: NCCL error in: x.cpp",
        "agentkit.records.RunError: a fifth of the rewards failed",
    ],
)
def test_what_ended_a_process_is_told_and_not_what_the_others_say_of_it(error):
    log = [
        "[rank1]: Traceback (most recent call last):",
        f"[rank1]: {error}",
        "[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:3021",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "  error_file: <N/A>",
    ]
    assert last_error("\n".join(log)) == f"[rank1]: {error}"
    assert last_error("\n".join(log[3:])).endswith("error_file: <N/A>"), "nothing better"


def test_a_notebook_that_has_gone_does_not_stop_the_step(capfd):
    reading, writing = os.pipe()
    notebook = os.fdopen(writing, "w")
    worker._tell(notebook, {"step": 1})
    assert os.read(reading, 99) == b'agentkit-metrics {"step": 1}\n'
    os.close(reading)
    worker._tell(notebook, {"step": 2})
    with contextlib.suppress(OSError):
        notebook.close()


ORPHAN = """
import ctypes, os, signal, sys, time
from agentkit.runs.children import PARENT, die_with_parent

ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: orphans come here, and not to process 1
if not os.fork():
    parent = os.environ[PARENT] = str(os.getpid())
    if os.fork():
        time.sleep(float(sys.argv[1]))
        os._exit(0)
    while sys.argv[1] == "0" and os.getppid() == int(parent):
        time.sleep(0.01)
    die_with_parent(signal.SIGTERM)
    os._exit(7)
os.wait()
with __import__("contextlib").suppress(ChildProcessError):
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells a process that its parent is gone")
def test_an_orphan_ends_although_a_foster_parent_took_it():
    for seconds, code in (("0", "-15"), ("2", "7")):
        found = subprocess.run([sys.executable, "-c", ORPHAN, seconds], capture_output=True, text=True)
        assert found.stdout.strip() == code, found.stderr


SEEN = "import torch; torch.cuda.device_count = lambda: {}"  # run by every kernel before its first cell
TINY = {"n_tasks": 60, "sft_transcripts": 1, "sft_tasks": 8, "test_samples": 1, "measure_base": False, "steps": 1,
        "prompts_per_step": 4, "group_size": 2, "micro_batch": 2, "val_every": 2, "val_tasks": 4,
        "preflight": "warn", "max_turns": 4, "max_turn_tokens": 48, "max_tokens": 256}  # fmt: skip


def headless(tmp_path, cards):
    """The command that runs notebooks 01 to 03 with these cards in sight, and its environment."""
    startup = tmp_path / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "seen.py").write_text(SEEN.format(len(cards)))
    words = [word for key, value in TINY.items() for word in ("-p", f"{key}={value}")]
    command = [
        sys.executable,
        "-m",
        "agentkit.cli",
        "run",
        "params/nano.yaml",
        "--run",
        str(tmp_path / "run"),
    ]
    environ = {"IPYTHONDIR": str(tmp_path / "ipython"), "CUDA_VISIBLE_DEVICES": ",".join(cards)}
    return [*command, "--to", "03", *words], os.environ | environ


@pytest.mark.slow
def test_a_cold_start_and_grpo_run_headless_with_several_gpus_in_sight(tmp_path):
    command, environ = headless(tmp_path, "4567")
    made = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    run = load_run(tmp_path / "run")
    ranks = {s: run.manifest["stages"][s]["ranks"] for s in ("02_baseline", "03_grpo")}
    jobs = {job: own for stage in ranks.values() for job, own in stage.items()}
    assert all([rank["card"] for rank in own] == ["4", "5", "6", "7"] for own in jobs.values()), jobs
    assert list(jobs) == ["cold_start", "measure sft", "look", "train"]
    assert [rank["sampled"]["validation"] for rank in jobs["train"]] == [2, 2, 2, 2], "two validations"
    assert min(rank["sampled"]["sft"] for rank in jobs["measure sft"]) > 0
    assert [rank["sampled"]["preflight"] for rank in jobs["look"]] == [6, 6, 6, 6], "12 tasks in pairs"
    assert len(run.trajectories("sft")) == sum(task.split == "test" for task in run.tasks)
    text = json.dumps(json.loads(run.file("02_baseline.ipynb").read_text()))
    assert "4 processes train on GPUs 4, 5, 6, 7" in text and run.file("preflight.json").exists()


@pytest.mark.slow
def test_a_rank_killed_in_any_job_is_named_in_its_cell_and_the_run_goes_on(tmp_path):
    """In the cold start, the baseline and the preflight; test_launch kills one that trains."""
    (command, environ), run = headless(tmp_path, "45"), tmp_path / "run"
    for number, job in enumerate(("cold_start", "measure", "look")):
        pipe = subprocess.PIPE
        made = subprocess.Popen(
            command, cwd=ROOT, env=environ, stdout=pipe, stderr=subprocess.STDOUT, text=True
        )
        while len(found := _ranks(run, job)) < 2 and made.poll() is None:
            time.sleep(0.1)
        time.sleep(2 * number)  # while it loads, and later
        found[-1].kill()
        said = made.communicate()[0]
        assert made.returncode and re.search(r"was ended by SIGKILL", said), (job, said)
        assert not _ranks(run, job) and not list(run.glob(".job*"))
    made = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    stages = load_run(run).manifest["stages"]
    assert [stages[s]["status"] for s in ("01_tasks", "02_baseline", "03_grpo")] == ["done"] * 3


def _ranks(run, job):
    """The processes that do a job in a run."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError, ValueError):
            words = process.cmdline()
            own = "agentkit.training.worker" in words and "torch.distributed.run" not in words
            if (
                own
                and str(run) in words
                and json.loads(Path(words[-1]).read_text())["job"].endswith(f":{job}")
            ):
                found.append(process)
    return found


ANSWERS = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(os.environ["AGENTKIT_SERVED"].encode())
    def log_message(self, *unused): pass
port = int(sys.argv[1].partition("=")[2])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def test_a_server_that_dies_is_started_again_under_another_name_and_none_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(server_processes, "_command", lambda *unused: [sys.executable, "-c", ANSWERS])
    monkeypatch.setattr(server_processes, "LOOK_S", 0.1)

    def serving():
        found = []
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.Error):  # one that has just ended
                if child.status() != "zombie" and child.environ().get("AGENTKIT_SERVED"):
                    found.append(child)
        return found

    with server_processes.replicas(Recipe(), Run.create(tmp_path / "run"), ("3",)) as made:
        (url,) = made.urls
        assert httpx.get(url, trust_env=False).text == "agentkit#1"
        (server,) = serving()
        assert server.environ()["CUDA_VISIBLE_DEVICES"] == "3"
        sockets = Path(server.environ()["VLLM_RPC_BASE_PATH"])
        assert sockets.is_dir()
        server.kill()
        assert made.come_back() and httpx.get(url, trust_env=False).text == "agentkit#2"
    assert not serving() and not sockets.exists()


STUMBLES = 'import os, sys\nif os.environ["AGENTKIT_SERVED"][-1] in "23": sys.exit("its card is full")\n'


def test_training_waits_for_servers_that_died_and_not_for_others_nor_for_ever(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        server_processes, "_command", lambda *unused: [sys.executable, "-c", STUMBLES + ANSWERS]
    )
    for name, value in {"LOOK_S": 0.1, "ENDED_S": 1.0, "RESTARTS": 3}.items():
        monkeypatch.setattr(server_processes, name, value)
    work, run = Work(lab_with({}), Run.create(tmp_path / "run")), Run.create(tmp_path / "run")
    with server_processes.replicas(Recipe(), run, ("3", "4")) as made:
        run.file("launch.log").write_text("EngineError: no server is left to sample from (..)")
        assert not work._servers_came_back(made, "train"), "none has died"
        made._servers[1].child.kill()
        assert work._servers_came_back(made, "train"), "although the next two do not come up"
        assert [server.starts for server in made._servers] == [1, 4]
        assert "sample from: train waits until they are up again, and begins anew" in capsys.readouterr().err
        made._servers[1].child.kill()
        assert not work._servers_came_back(made, "train"), "nobody starts it again"
        made._servers[0].child.kill()
        assert work._servers_came_back(made, "train"), "one is enough"
        made._servers[0].child.kill()
        run.file("launch.log").write_text("TrainingError: entropy is 0")
        assert not work._servers_came_back(made, "train"), "another reason"
    assert not work._servers_came_back(server_processes.Replicas([]), "train")


def test_a_server_that_does_not_come_up_again_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(
        server_processes, "_command", lambda *unused: [sys.executable, "-c", STUMBLES + ANSWERS]
    )
    for name, value in {"LOOK_S": 0.1, "RESTARTS": 2}.items():
        monkeypatch.setattr(server_processes, name, value)
    with server_processes.replicas(Recipe(), Run.create(tmp_path / "run"), ("3",)) as made:
        made._servers[0].child.kill()
        with pytest.raises(EngineError, match="ended with status 1 .*its card is full"):
            made.come_back()


def test_what_a_server_has_merged_goes_with_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(server_processes, "_command", lambda *unused: [sys.executable, "-c", ANSWERS])
    with server_processes.replicas(Recipe(), Run.create(tmp_path / "run"), ("3",)) as made:
        (url,) = made.urls
        folder = server_processes.served(int(url.rpartition(":")[2]))
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"weights")
    assert folder.is_relative_to(tmp_path) and not folder.exists()


def test_a_server_that_does_not_come_up_is_told_with_its_last_words(tmp_path, monkeypatch):
    monkeypatch.setattr(
        server_processes, "_command", lambda *unused: [sys.executable, "-c", "raise OSError('no room')"]
    )
    with (
        pytest.raises(EngineError, match="ended with status 1 .*server-0.log.*OSError: no room"),
        server_processes.replicas(Recipe(), Run.create(tmp_path / "run"), ("",)),
    ):
        pass
