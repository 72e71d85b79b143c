"""Answers that try to be right without being right, or to keep a verifier busy for ever. Each has one right
verdict.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from agentkit.verifiers import check, final_answer
from agentkit.verifiers.symbolic import _worker
from agentkit.verifiers.worker import TIMEOUT_S

CASES = json.loads(Path(__file__).with_name("answers.json").read_text(encoding="utf-8"))
TURNS = json.loads(Path(__file__).with_name("turns.json").read_text(encoding="utf-8"))  # last turns, whole
CHUNK = 200
LIMIT_S = TIMEOUT_S + 8  # the rest is for a machine that does other work too


def settled(kind: str, answer: str, gold: str, **options) -> float | None:
    """The verdict; asked for again where the machine is too busy to give one."""
    for _ in range(10):
        score = check(kind, answer, gold, **options)
        if "too busy" not in score.why:
            return score.value
    pytest.fail(score.why)


def chunks(cases: list[dict]) -> list[list[dict]]:
    """Of one kind each: a test for each of thousands takes longer than its verdict."""
    kinds = [
        [case for case in cases if case["kind"] == kind] for kind in dict.fromkeys(c["kind"] for c in cases)
    ]
    return [own[i : i + CHUNK] for own in kinds for i in range(0, len(own), CHUNK)]


def wrong(cases: list[dict]) -> list[dict]:
    """Those whose verdict is another, with what it was."""
    judged = [(c, settled(c["kind"], c["answer"], c["gold"], **c.get("options", {}))) for c in cases]
    return [case | {"judged": value} for case, value in judged if value != case["value"]]


@pytest.mark.parametrize(
    "cases", chunks(CASES), ids=lambda own: f"{own[0]['kind']} {own[0]['answer'][:30]!a}"
)
def test_hostile_answers_get_their_verdicts(cases):
    assert wrong(cases) == []


@pytest.mark.parametrize("cases", chunks(TURNS), ids=lambda own: f"{own[0]['kind']} {own[0]['turn'][-40:]!a}")
def test_the_answers_of_last_turns_get_their_verdicts(cases):
    assert wrong([case | {"answer": final_answer(case["turn"]) or ""} for case in cases]) == []


def test_no_case_is_left_out():
    for cases in (CASES, TURNS):
        assert sorted(map(str, cases)) == sorted(str(case) for own in chunks(cases) for case in own)


def test_every_verifier_is_attacked():
    assert len(CASES) >= 150 and Counter(case["kind"] for case in CASES).keys() == {
        "exact",
        "numeric",
        "regex",
        "symbolic",
    }


def test_heavy_answers_on_many_threads_all_end():
    check("symbolic", "1+x", "x+1")  # the server is up
    spent = {}

    def attack(number: int) -> None:
        start = time.monotonic()
        check("symbolic", f"9^{{9^{{9}}}}+{number}", "1")
        spent[number] = time.monotonic() - start

    threads = [threading.Thread(target=attack, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10 * LIMIT_S)
    assert len(spent) == 6 and max(spent.values()) < LIMIT_S


def load(process: psutil.Process) -> float:
    """Percent of a processor that a process takes; 0 where it has ended."""
    with contextlib.suppress(psutil.Error):
        return process.cpu_percent(0.1) if process.status() != "zombie" else 0.0
    return 0.0


def lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.status() != "zombie"
    return False


def test_a_child_that_died_while_it_was_idle_costs_no_verdict():
    check("symbolic", "1+x", "x+1")
    idle = [psutil.Process(child.pid) for child in _worker._idle]
    for process in idle:
        process.kill()
    while any(map(lives, idle)):
        time.sleep(0.01)
    assert check("symbolic", "2+x", "x+2").value == 1


def test_killed_checks_leave_no_process_behind():
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    for number in range(3):
        check("symbolic", f"10000000!+{number}", "1")
        check("regex", "a" * 40 + f"!{number}", "x", pattern="(a+)+$")
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        left = [p for p in psutil.Process().children(recursive=True) if p.pid not in before]
        busy = [p for p in left if load(p) > 50]
        left = [p for p in left if lives(p)]
        if not busy and len(left) <= 4:
            break
    assert not busy and len(left) <= 4  # two servers and an idle child each
