"""agentkit doctor: findings that match this machine, gaps that say what they cost, and what it makes of other
machines.
"""

from __future__ import annotations

import json
import os
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
    assert found["versions"]["python"] == sys.version.split()[0]


def test_a_recipe_is_told_who_would_use_its_gpus_and_why(monkeypatch):
    monkeypatch.setattr(doctor, "gpu_count", lambda seen: 4)
    cards = [{"name": "NVIDIA H100", "memory_gb": 80.0}] * 4
    assert "4 processes train on GPUs 0, 1, 2, 3" in doctor.topology(Recipe(), cards)["says"]
    assert doctor.topology(Recipe(gpus=9), cards)["why"].startswith("gpus is 9, and 4 can be seen")


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
    monkeypatch.setattr(launch.torch.cuda, "device_count", lambda: 2)
    assert str(launch.Work(Lab.open(recipe), Run.create(tmp_path / "run"))) == told["says"]


def test_json_is_the_findings(capsys):
    assert cli.main(["doctor", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {"sandbox", "engines", "gpus", "versions", "memory_gb", "disk_gb", "gaps"} <= set(shown)
    assert all(engine["ok"] or (engine["why"] and engine["fix"]) for engine in shown["engines"].values())


def test_the_text_names_every_gap(found, capsys):
    assert cli.main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert ("sandbox   works" in shown) == found["sandbox"]["ok"]
    assert all(
        gap["what"] in shown and gap["costs"] in shown and gap["fix"] in shown for gap in found["gaps"]
    )


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"sandbox": {"ok": False, "why": "no Landlock"}}, "no sandbox: no Landlock"),
        ({"gpus": []}, "no NVIDIA GPU"),
        (
            {"engines": {"vllm": {"ok": False, "why": "vllm is not installed", "fix": "pip"}}},
            "engine vllm: vllm is not installed",
        ),
        ({"disk_gb": {"total": 9.0, "free": 1.0}}, "1.0 GB of free disk"),
        ({"memory_gb": {"total": 9.0, "free": 1.0}}, "1.0 GB of free memory"),
        ({"disk_gb": {"total": 99.0, "free": 30.0}}, "30.0 GB of free disk beside a GPU"),
        (
            {"cuda": {"driver": "12.8", "torch": "13.0", "complaint": ""}},
            "the driver serves CUDA up to 12.8, and torch was built for 13.0",
        ),
        ({"gpus": [{}, {}], "shared_memory_gb": 0.1}, "0.1 GB of shared memory in /dev/shm"),
    ],
)
def test_a_gap_is_named(change, what):
    good = {"sandbox": {"ok": True, "why": ""}, "gpus": [{}], "engines": {"scripted": {"ok": True}}}
    good |= {"disk_gb": {"total": 99.0, "free": 99.0}, "memory_gb": {"total": 99.0, "free": 99.0}}
    assert doctor.gaps(good) == []
    assert [gap["what"] for gap in doctor.gaps(good | change)] == [what]


@pytest.mark.parametrize(
    ("says", "gpus"),
    [
        ("NVIDIA H200, 143771, 580.1\n", [{"name": "NVIDIA H200", "memory_gb": 140.4, "driver": "580.1"}]),
        ("garbage\nX, [Unknown Error], 1\n", []),
        ("GB10, [N/A], 1\n", [{"name": "GB10", "memory_gb": 64.0, "driver": "1"}]),  # it has the machine's
    ],
)
def test_gpus_are_read_as_the_driver_lists_them(says, gpus, monkeypatch, tmp_path):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!{sys.executable}\nprint({says!r}, end='')\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(doctor, "machine_memory", lambda: 64 * 2**30)
    assert doctor.find_gpus() == gpus
    tool.write_text(f"#!{sys.executable}\nimport sys\nprint('NVIDIA-SMI has failed')\nsys.exit(9)\n")
    assert doctor.find_gpus() == []
