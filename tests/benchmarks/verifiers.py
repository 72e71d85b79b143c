"""The verifiers: checks a second of each, beside the usual way where there is one; agreement with labels.

The peers: math-verify called directly for the symbolic verifier, ``re`` in this process for patterns, and the
program followed by its asserts in a plain ``subprocess`` for code. They promise less: no time limit on any
thread, no sandbox. The judge meets a local server that answers at once. The labelled cases are those of
math-verify's own tests (math_verify_cases.jsonl). Leaves out what a verifier ought to accept (tests).
"""

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from agentkit.records import Score
from agentkit.verifiers import check

from .common import case, main, report, spread

LABELLED = Path(__file__).with_name("math_verify_cases.jsonl")
APPLES = r"(\d+) apples"
PROGRAM = "def f(x):\n    return x + 1"
TESTS = [[[n], n + 1] for n in range(8)]
ASSERTS = [f"assert f({n}) == {n + 1}" for n in range(8)]
QUICK, FULL = (0.3, 3), (2.0, 5)  # seconds of each repeat, repeats

# one right check number n; answers differ from check to check, so that no cache replies
OURS: dict[str, Callable[[int], Score]] = {
    "exact": lambda n: check("exact", f"The Answer {n}", f"answer {n}"),
    "exact_squad": lambda n: check("exact", f"The Answer {n}", f"answer {n}", rule="squad", aliases=["b"]),
    "exact_gaia": lambda n: check("exact", f"a, {n}", f"A,{n}", rule="gaia"),
    "numeric": lambda n: check("numeric", f"{n:,}.5", f"{n}.5"),
    "numeric_units": lambda n: check("numeric", f"{n + 1} m", f"{100 * (n + 1)} cm"),
    "regex": lambda n: check("regex", f"I found {n} apples.", str(n), pattern=APPLES, then="numeric"),
    "symbolic": lambda n: check("symbolic", rf"\boxed{{(x+{n + 1})^2}}", f"x^2+{2 * n + 2}x+{(n + 1) ** 2}"),
    "code": lambda n: check("code", f"{PROGRAM}  # {n}", PROGRAM, entry="f", tests=TESTS),
}


def bench_verifiers(quick: bool = False) -> dict[str, Any]:
    """Checks a second per verifier; ratio ours / peer where there is one. ``quick`` checks less."""
    seconds, repeats = QUICK if quick else FULL
    cases = {name: _case(name, ours, seconds, repeats) for name, ours in OURS.items()}
    cases["symbolic"]["agreement"] = agreement(4 if quick else 1)
    with _judge_endpoint() as options:
        cases["judge"] = _case(
            "judge", lambda n: check("judge", f"Paris, {n}", "Paris", **options), seconds, repeats
        )
    return report("verifiers", list(cases.values()))


def agreement(every: int = 1) -> dict[str, Any]:
    """The symbolic verifier on labelled cases: how many verdicts equal the label, and which do not.

    Labels differ on purpose where an answer stands in prose, and for decimals in the place of a fraction,
    decimal commas and other times of day. A gold answer that is no expression is unscored.
    """
    rows = [json.loads(line) for line in LABELLED.read_text(encoding="utf-8").splitlines()][::every]
    outcomes, different = {"agree": 0, "differ": 0, "unscored": 0}, []
    for row in rows:
        score = check("symbolic", row["answer"], row["gold"])
        agrees = score.value is not None and bool(score.value) == row["equal"]
        kind = "agree" if agrees else "differ"
        outcomes["unscored" if score.value is None else kind] += 1
        if not agrees:
            label = {"label": row["equal"], "value": score.value, "why": score.why[:120]}
            different.append({"gold": row["gold"][:120], "answer": row["answer"][-120:]} | label)
    return {"cases": len(rows)} | outcomes | {"different": different}


def _case(name: str, ours: Callable[[int], Score], seconds: float, repeats: int) -> dict[str, Any]:
    peer = PEERS.get(name)
    rates, peer_rates = [], []
    for repeat in range(repeats + 1):
        rates.append(_rate(ours, seconds, repeat))
        if peer:
            peer_rates.append(_rate(peer, seconds, repeat))
    rates, peer_rates = rates[1:], peer_rates[1:]  # the first warms up and is not counted
    if peer:
        return case(name, "checks/s", rates, peer_rates)
    return {"case": name, "unit": "checks/s", "ours": spread(rates), "peer": None, "ratio": None}


def _rate(run: Callable[[int], Score | bool], seconds: float, repeat: int) -> float:
    """Checks a second; unscored ones only cost time. Raises RuntimeError for a right answer called wrong."""
    count, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        verdict = run(1_000_000 * repeat + count)
        value = verdict.value if isinstance(verdict, Score) else float(verdict)
        if value == 0.0:
            raise RuntimeError(f"a right answer did not pass: {verdict}")
        count += value is not None
    return max(count, 1) / spent


# ---- the usual ways
def _math_verify_peer(n: int) -> bool:
    from math_verify import parse, verify

    gold = parse(f"$x^2+{2 * n + 2}x+{(n + 1) ** 2}$", parsing_timeout=None)
    return verify(gold, parse(rf"$\boxed{{(x+{n + 1})^2}}$", parsing_timeout=None), timeout_seconds=None)


def _subprocess_peer(n: int) -> bool:
    command = [sys.executable, "-I", "-S", "-c", "\n".join([f"{PROGRAM}  # {n}", *ASSERTS])]
    return subprocess.run(command, capture_output=True, timeout=30).returncode == 0


PEERS: dict[str, Callable[[int], bool]] = {
    "regex": lambda n: float(re.search(APPLES, f"I found {n} apples.")[1]) == n,
    "symbolic": _math_verify_peer,
    "code": _subprocess_peer,
}


class _Judge(BaseHTTPRequestHandler):
    """Says correct at once beside the true reference, and incorrect beside a decoy."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        reference = json.loads(body["messages"][-1]["content"])["reference"]
        content = json.dumps({"verdict": "correct" if reference == "Paris" else "incorrect"})
        reply = json.dumps({"choices": [{"message": {"content": content}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *_: Any) -> None:
        """Nothing: requests are not logged."""


@contextmanager
def _judge_endpoint() -> Iterator[dict[str, Any]]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Judge) as server, TemporaryDirectory() as folder:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        try:
            yield {"url": url, "model": "local", "cache": Path(folder) / "judge.sqlite"}
        finally:
            server.shutdown()


if __name__ == "__main__":
    main(bench_verifiers)
