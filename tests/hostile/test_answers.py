"""Answers that try to be right, or to keep a verifier busy for ever. Each has one right verdict."""

import contextlib
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import psutil
from hostile.measure import rows_of, verdict

from agentkit.verifiers import check
from agentkit.verifiers.mathematics import _pool
from agentkit.verifiers.pool import CHILDREN

ROWS = rows_of()
KINDS = ("exact", "numeric", "regex", "symbolic")
LIMIT_S = 28  # of a heavy answer, on a machine that does other work too
EXPECTED = {"unscored": None, "refused by rule": 0, "accepted, though wrong": 1, "wrong": 0}


def test_labelled_answers_get_their_verdicts():
    expected = [EXPECTED[row["is"]] if "is" in row else row["value"] for row in ROWS]
    judged = [verdict(row) for row in ROWS]
    pairs = zip(ROWS, expected, judged, strict=True)
    assert [(row, given) for row, value, given in pairs if given[0] != value] == []


def test_what_is_accepted_though_it_is_wrong_is_rare_and_no_answer_line():
    """Of 8,168 wrong answers that were labelled before these rows were drawn from them, 17 were accepted."""
    known = [row for row in ROWS if row.get("is") == "accepted, though wrong"]
    texts = [row.get("turn", row.get("answer")) for row in known]
    assert len(known) <= 17 and not [text for text in texts if "Answer:" in text or r"\boxed" in text]
    assert Counter(row["kind"] for row in ROWS).keys() == set(KINDS) and len(ROWS) > 600


def test_heavy_answers_on_many_threads_all_end():
    check("symbolic", "1+x", "x+1")  # a child is up

    def attack(number: int) -> float:
        start = time.monotonic()
        check("symbolic", f"9^{{9^{{9}}}}+{number}", "1")
        return time.monotonic() - start

    with ThreadPoolExecutor(6) as pool:
        assert max(pool.map(attack, range(6), timeout=10 * LIMIT_S)) < 6 * LIMIT_S / CHILDREN


def lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.status() != "zombie"
    return False


def test_a_child_that_died_while_it_was_idle_costs_no_verdict():
    check("symbolic", "1+x", "x+1")
    for child in filter(None, list(_pool._places.queue)):
        child.kill()
        child.wait()
    assert check("symbolic", "2+x", "x+2").value == 1


def test_killed_checks_leave_no_process_behind():
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    for number in range(3):
        check("symbolic", f"10000000!+{number}", "1")
        check("regex", "a" * 40 + f"!{number}", "x", pattern="(a+)+$")
    left = [p for p in psutil.Process().children(recursive=True) if p.pid not in before and lives(p)]
    assert len(left) <= CHILDREN


def test_a_script_without_a_guard_is_not_run_again(tmp_path):
    script = tmp_path / "mine.py"
    use = "from agentkit.verifiers import check\nprint(check('symbolic', 'x+1', '1+x').value)\n"
    script.write_text(f"print('ran')\n{use}")
    child = subprocess.run([sys.executable, script], timeout=120, capture_output=True, text=True)
    assert child.stdout.split() == ["ran", "1.0"], child.stderr
