"""The benchmarks of sandbox and verifiers: their JSON, and figures that are what they say."""

from __future__ import annotations

import json

import pytest
from benchmarks import common
from benchmarks import sandbox as bench
from benchmarks import verifiers as bench_verifiers

from agentkit import sandbox

pytestmark = pytest.mark.skipif(bool(sandbox.missing()), reason="no sandbox on this machine")


def test_the_report_has_every_case(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench, "QUICK", (2, 1, 4))
    monkeypatch.setattr(bench, "SYMPY", "import fractions\nprint(fractions.Fraction(1, 2))")
    common.main(bench.bench_sandbox, ["--quick", "--json", str(tmp_path / "b.json")])
    report = json.loads((tmp_path / "b.json").read_text())
    assert report == json.loads(capsys.readouterr().out)
    assert report["bench"] == "sandbox" and report["machine"]["cores"] and report["versions"]["python"]
    cases = {case["case"]: case for case in report["cases"]}
    assert set(cases) == {"warm", "warm_sympy", "cold", "throughput"}
    for case in cases.values():
        for side in ("ours", "peer", "ratio"):
            assert 0 < case[side]["min"] <= case[side]["median"] <= case[side]["max"]
    assert (
        cases["cold"]["ours"]["min"] > cases["warm"]["ours"]["min"]
    )  # canaries and a start cost more than one call


def test_runners_print_what_the_program_prints():
    for name, run in bench._runners().items():
        assert run("print(6 * 7)") == "42\n", name


def test_every_verifier_is_measured_the_judge_too(monkeypatch, tmp_path):
    monkeypatch.setattr(bench_verifiers, "QUICK", (0.01, 1))
    common.main(bench_verifiers.bench_verifiers, ["--quick", "--json", str(tmp_path / "b.json")])
    cases = {case["case"]: case for case in json.loads((tmp_path / "b.json").read_text())["cases"]}
    assert set(cases) == {*bench_verifiers.OURS, "judge"}
    assert all(case["ours"]["min"] > 0 for case in cases.values())
    assert cases["symbolic"]["agreement"]["agree"] > 30  # half of them are prose
