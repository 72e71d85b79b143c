"""agentkit doctor: findings that match this machine, gaps that say what they cost, and what it makes of other machines."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import psutil
import pytest

from agentkit import cli, doctor, sandbox
from agentkit.lab import Lab
from agentkit.runs import Recipe, Run, project_root
from agentkit.training import launch


@pytest.fixture(scope="module")
def found():
    return doctor.examine()


def test_the_findings_are_this_machines(found):
    assert found["sandbox"] == {"ok": not sandbox.missing(), "why": sandbox.missing()}
    assert found["memory_gb"]["total"] == round(psutil.virtual_memory().total / 1e9, 1)
    assert found["disk_gb"]["free"] <= found["disk_gb"]["total"] and found["cores"] >= 1
    assert found["engines"]["transformers"]["ok"] and found["engines"]["scripted"]["ok"]
    assert all(engine["ok"] or (engine["why"] and engine["fix"]) for engine in found["engines"].values())
    assert found["versions"]["python"] == sys.version.split()[0]


DRIVER = """#!{python}
import sys
for card in range(2):
    line = "NVIDIA X, {mib}, 580.1" if sys.argv[1:2] == ["--query-gpu=name,memory.total,driver_version"] else (
        f"GPU {{card}}: NVIDIA X (UUID: GPU-{{card}})")
    print(line)
"""


def test_doctor_says_of_two_cards_what_a_notebook_does_with_them(monkeypatch, tmp_path, capsys):
    tool, recipe = tmp_path / "nvidia-smi", project_root() / "params" / "plan-3b.yaml"
    tool.write_text(DRIVER.format(python=sys.executable, mib=49_140))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert cli.main(["doctor", "--recipe", str(recipe), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["topology"]
    assert told["kind"] == "colocate" and "all cards roll out and then all train" in told["why"]
    assert doctor.topology(Recipe(gpus=9), doctor.find_gpus())["why"].startswith(
        "gpus is 9, and 2 can be seen"
    )
    monkeypatch.setattr(launch.torch.cuda, "device_count", lambda: 2)
    assert str(launch.Work(Lab.open(recipe), Run.create(tmp_path / "run"))) == told["says"]


def test_what_a_machine_or_run_lacks_ends_no_report(tmp_path, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    assert "No such file" in doctor.hub()
    assert doctor.of_run(Run.create(tmp_path / "a"))["steps"] == [], "it failed before its first step"


def test_the_text_names_every_gap(found, capsys):
    assert cli.main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert ("sandbox   works" in shown) == found["sandbox"]["ok"]
    assert all(part in shown for gap in found["gaps"] for part in (gap["what"], gap["costs"], gap["fix"]))


@pytest.mark.parametrize(("change", "what"), [
    ({"sandbox": {"ok": False, "why": "no Landlock"}}, "no sandbox: no Landlock"),
    ({"gpus": []}, "no NVIDIA GPU"),
    ({"engines": {"vllm": {"ok": False, "why": "vllm is not installed", "fix": "pip"}}}, "engine vllm: vllm is not installed"),
    ({"disk_gb": {"total": 9.0, "free": 1.0}}, "1.0 GB of free disk"),
    ({"memory_gb": {"total": 9.0, "free": 1.0}}, "1.0 GB of free memory"),
    ({"disk_gb": {"total": 99.0, "free": 30.0}}, "30.0 GB of free disk beside a GPU"),
    ({"cuda": {"driver": "12.8", "torch": "13.0", "complaint": ""}}, "the driver serves CUDA up to 12.8, and torch was built for 13.0"),
    ({"gpus": [{}, {}], "shared_memory_gb": 0.1}, "0.1 GB of shared memory in /dev/shm"),
    ({"models": {"path": "/m/models", "free_gb": 7.0}}, "7.0 GB free for models in /m/models"),
    ({"port_taken": True}, "port 8000 is in use"),
])  # fmt: skip
def test_a_gap_is_named(change, what):
    room = {"total": 99.0, "free": 99.0}
    good = {
        "sandbox": {"ok": True, "why": ""}, "gpus": [{}], "engines": {"scripted": {"ok": True}}, "disk_gb": room, "memory_gb": room,
        "builds": {"compiler": "/bin/gcc", "headers": True, "linear": "0.6.0"}, "hub": "", "port_taken": False,
        "models": {"path": "/m", "free_gb": 99.0},
    }  # fmt: skip
    assert doctor.gaps(good) == []
    assert [gap["what"] for gap in doctor.gaps(good | change)] == [what]


@pytest.mark.parametrize(("says", "gpus"), [
    ("NVIDIA H200, 143771, 580.1\n", [{"name": "NVIDIA H200", "memory_gb": 140.4, "driver": "580.1"}]),
    ("garbage\nX, [Unknown Error], 1\n", []),
    ("GB10, [N/A], 1\n", [{"name": "GB10", "memory_gb": 64.0, "driver": "1"}]),  # it has the machine's
])  # fmt: skip
def test_gpus_are_read_as_the_driver_lists_them(says, gpus, monkeypatch, tmp_path):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!{sys.executable}\nprint({says!r}, end='')\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(doctor, "machine_memory", lambda: 64 * 2**30)
    assert doctor.find_gpus() == gpus
    tool.write_text(f"#!{sys.executable}\nimport sys\nprint('NVIDIA-SMI has failed')\nsys.exit(9)\n")
    assert doctor.find_gpus() == []


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine with a card, without a compiler, Python's headers, a network and room for models."""
    for name in ("make", "git", "sh", "env"):
        (tmp_path / name).symlink_to(shutil.which(name))
    (tmp_path / "python3").symlink_to(sys.executable)
    tool = tmp_path / "nvidia-smi"
    tool.write_text(DRIVER.format(python=sys.executable, mib=24_000))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


def test_a_bare_machine_hears_what_it_lacks_each_with_a_command(bare, monkeypatch, capsys):
    monkeypatch.setattr(doctor.sysconfig, "get_path", lambda name: "/no/headers")
    monkeypatch.setattr(doctor, "CACHE_GB", 10**6)
    assert cli.main(["doctor", "--json"]) == 0
    told = {gap["what"]: gap["fix"] for gap in json.loads(capsys.readouterr().out)["gaps"]}
    fixes = {
        "no C compiler": "apt-get install -y gcc", "no Python.h in /no/headers": "apt-get install -y python3",
        "the Hugging Face hub is not reached": "hf download NAME", "flash-linear-attention": "make setup-gpu",
        "GB free for models": "export HF_HOME=",
    }  # fmt: skip
    for what, fix in fixes.items():
        assert [told[said].startswith(fix) for said in told if what in said] == [True], (what, told)


def test_a_recipe_is_planned_for_cards_that_are_not_here(capsys):
    words = "doctor --gpus 4 --memory 80 --recipe params/nano.yaml -p deterministic=false"
    assert cli.main(words.split()) == 0
    topology, memory, time = capsys.readouterr().out.splitlines()
    assert "4 processes train on GPUs 0, 1, 2, 3" in topology and re.search(r"of 80 GB a card: fits$", memory)
    assert re.match(r"time      [\d.]+ hours \[", time)
    assert cli.main("doctor --gpus 2 --recipe params/qwen3-4b.yaml -p model=no/such".split()) == 0
    assert "hf download no/such config.json" in capsys.readouterr().out
    assert cli.main(["doctor", "--gpus", "2"]) == 2
    for gpus, gb in ((-1, 80), (0, 80), (2, "nan"), (2, 0), (2, "inf")):
        asked = f"doctor --gpus={gpus} --memory={gb} --recipe params/nano.yaml"
        assert cli.main(asked.split()) == 2
        assert f"--gpus {gpus} --memory {gb}: a plan needs 1 to 1024 GPUs" in capsys.readouterr().err


# ---- the six lines of docs/gpus.md
GUIDE = (project_root() / "docs" / "gpus.md").read_text()
LINES = re.search(r"## Six lines.*?```\n(.*?)```", GUIDE, re.DOTALL)[1]
PACKAGES, CLONE, SETUP, DOCTOR, MODEL, RUN = LINES.strip().splitlines()


def test_the_six_lines_name_what_is_asked_for():
    """doctor and run are followed by other tests: above, and of the recipe smoke up to the first call of CUDA."""
    assert {"git", "make", "gcc", "python3-dev", "python3-venv"} <= set(PACKAGES.split())
    assert DOCTOR.split()[:2] == [".venv/bin/agentkit", "doctor"]
    header = (project_root() / "params" / "smoke.yaml").read_text()
    for line in (MODEL, RUN):
        assert f"#   {line.removeprefix('.venv/bin/')}\n" in header
    if shutil.which("apt-cache") and subprocess.run(["apt-cache", "show", "gcc"], capture_output=True).stdout:
        asked = ["apt-get", "install", "--simulate", "-y", *PACKAGES.partition("-y ")[2].split()]
        assert subprocess.run(asked, capture_output=True).returncode == 0


def test_the_set_up_installs_nothing_where_a_compiler_or_room_is_missing(bare, tmp_path):
    """The clone, and `make setup-gpu` in it."""
    kit = tmp_path / "agentkit"
    words = shlex.split(CLONE.replace("<this repository>", str(project_root())).partition(" &&")[0])
    subprocess.run([*words[:-1], kit], check=True, capture_output=True)
    for name in ("Makefile", ".ci/setup.py", "pyproject.toml", "requirements-gpu.lock"):  # as they are now
        shutil.copyfile(project_root() / name, kit / name)
    setup = SETUP.partition("#")[0].split()
    done = subprocess.run(setup, cwd=kit, capture_output=True, text=True, timeout=120)
    assert done.returncode and "no C compiler: apt-get install -y gcc" in done.stderr
    assert "nothing was installed" in done.stderr and not (kit / ".venv").exists()


@pytest.mark.slow
def test_the_set_up_comes_to_the_download(bare, tmp_path, monkeypatch):
    """With a compiler; pip is told that there is no index, and the model that there is no network."""
    (tmp_path / "gcc").symlink_to(sys.executable)
    (tmp_path / "kit" / ".ci").mkdir(parents=True)
    for name in ("Makefile", ".ci/setup.py", "pyproject.toml", "requirements-gpu.lock", "requirements.lock"):
        shutil.copyfile(project_root() / name, tmp_path / "kit" / name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    how = {"cwd": tmp_path / "kit", "capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run(["make", "setup-gpu"], **how)
    if "GB are free in" not in done.stderr:
        assert "installing torch 2.13.0 (cuda build)" in done.stdout
        assert "No matching distribution" in done.stderr
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    words = [str(project_root() / word) if word.startswith(".venv") else word for word in MODEL.split()]
    asked = subprocess.run(words, capture_output=True, text=True, timeout=120)
    said = asked.stdout + asked.stderr
    assert asked.returncode and re.search("offline|cannot find|LocalEntryNotFound", said, re.I)
