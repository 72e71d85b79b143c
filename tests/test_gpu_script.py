"""tests/gpu/run.sh on this machine: what it can show is measured, the rest is skipped by name or rehearsed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

GPU = Path(__file__).parent / "gpu"
sys.path.insert(0, str(GPU))

import measure  # noqa: E402


def run(*arguments):
    """The lines of JSON, the table, and the status."""
    command = [str(GPU / "run.sh"), *map(str, arguments)]
    environment = os.environ | {"PYTHON": sys.executable}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=540)
    print(done.stdout, done.stderr[-2000:])
    lines = [json.loads(text) for text in done.stdout.splitlines() if text.startswith("{")]
    return lines, done.stdout.rpartition("}\n")[2], done


@pytest.mark.slow
@pytest.mark.skipif(measure.has_cuda(), reason="nothing is skipped for want of a GPU here")
def test_what_needs_a_gpu_is_skipped_by_name(tmp_path):
    only = "--only", "environment", "exactness", "update"
    lines, table, done = run("base", "--quick", *only, "--out", tmp_path / "out")
    assert done.returncode == 0, (tmp_path / "out" / "log.txt").read_text()[-2000:]
    assert [line["skipped"] for line in lines if line["figure"] == "update"] == ["no CUDA GPU here"]
    found = {line["case"]: line for line in lines if line["figure"] == "exactness"}
    assert found["shared float32 against plain float32"]["value"] < 1e-5
    assert found["greedy tokens are generate's, float32"]["value"] is True
    assert all(line["ok"] for line in found.values()) and len(found) == 5
    assert "update" in table and "no CUDA GPU here" in table and "0 failed" in table
    kept = (tmp_path / "out" / "lines.jsonl").read_text().splitlines()
    assert [json.loads(text) for text in kept] == lines


@pytest.mark.slow
def test_what_needs_a_gpu_is_rehearsed_on_a_tiny_model():
    lines, table, done = run("base", "--rehearse", "--only", "update", "decode", "sft")
    assert done.returncode == 0 and {line["figure"] for line in lines} == {"update", "decode", "sft"}
    assert all(line["value"] > 0 and line["case"].startswith("tiny") for line in lines)
    assert re.search(r"\n\| tokens .* \| shared \| plain \| planned \|\n.*\n\| 48 x 8 \| [\d.]+ s \|", table)
    (decode,) = (line for line in lines if line["figure"] == "decode")
    assert 1 <= decode["cache_over_formula"] < 2


@pytest.mark.slow
def test_the_recipes_to_begin_with_are_rehearsed_and_sent_back():
    lines, _, done = run("base", "--rehearse", "--only", "recipes")
    assert done.returncode == 0 and [line["run"]["steps"][-1]["step"] for line in lines] == [3, 3]
    assert all({"gpus", "versions", "stages", "engine"} <= set(line["run"]) for line in lines)


def test_a_process_that_dies_costs_the_figure_it_was_at(monkeypatch, tmp_path):
    """The rest goes on in another process, and the table says what failed."""
    says = {
        ("a", "b", "c"): [{"begins": "a"}, {"figure": "a", "value": 1.0}, {"begins": "b"}],
        ("c",): [{"begins": "c"}, {"figure": "c", "value": 2.0}, {"ended": "c"}],
    }
    log = tmp_path / "log.txt"
    log.write_text("much\nRuntimeError: out of luck\n")
    monkeypatch.setattr(measure, "has_cuda", lambda: False)
    monkeypatch.setattr(measure, "_lines", lambda names, chosen, log: says[tuple(names)])
    lines = list(measure.children(["a", "b", "c"], None, log))
    assert [line["figure"] for line in lines] == ["a", "b", "c"]
    assert lines[1] == {"figure": "b", "case": "failed", "error": "RuntimeError: out of luck", "ok": False}
    text = measure.table(lines)
    assert text.splitlines()[3:] == ["| b | failed | FAILED: RuntimeError: out of luck |", "| c |  | 2 |"]
