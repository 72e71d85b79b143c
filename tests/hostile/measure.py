"""How often the verifiers accept a wrong answer or refuse a right one, by the form of what was written.

Run ``python -m tests.hostile.measure [FILE ...]``: JSON lists of labelled rows, by default those of this
folder. A row holds kind, answer (or turn, a whole last turn), gold, options and value: 1 right, 0 wrong, None
where nobody can tell. ``is`` says where the verdict is another: "refused by rule" for a right answer that does
not stand where the protocol looks, "accepted, though wrong" for a known fault, "unscored" or "wrong" where the
gold answer cannot be read.
"""

import json
import re
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

from agentkit import Task
from agentkit.verifiers import answer_of, check

ROWS = Path(__file__).with_name("answers.json")


def rows_of(*files: str | Path) -> list[dict]:
    return [row for file in files or (ROWS,) for row in json.loads(Path(file).read_text(encoding="utf-8"))]


def verdict(row: dict) -> tuple[float | None, str]:
    """What a rollout would be given: a turn is read first; asked again where the machine is too busy."""
    options = row.get("options", {})
    answer = row.get("answer")
    if "turn" in row:
        answer, why = answer_of(Task("t", "?", row["gold"], {"kind": row["kind"], **options}), row["turn"])
        if answer is None:
            return 0.0, f"no answer: {why}"
    for _ in range(10):
        score = check(row["kind"], answer, row["gold"], **options)
        if "too busy" not in score.why:
            break
    return score.value, score.why


def form(text: str) -> str:
    """How an answer is given."""
    if re.search(r"^[ \t>*_#]*(final )?answer[ *_]*[:：]|^####", text, re.I | re.M):
        return "answer line"
    if r"\boxed" in text:
        last = text.strip().split("\n")[-1].strip()
        bare = re.sub(r"\\[()\[\]]|\$", " ", last).strip(" .*")
        is_lone = re.match(r"\\boxed\s*\{", bare) and re.search(
            r"\}[^{}A-Za-z]*(\\?[A-Za-z%]+\.?|\\text\{[^}]*\})?$", bare
        )
        return "lone box" if is_lone or last in (r"\]", "$$") else "box in a sentence"
    if re.search(r"answer is", text, re.I):
        return "'answer is'"
    if "\n" in text.strip():
        return "several lines"
    return "bare, up to four words" if len(text.split()) <= 4 else "sentence"


def main(*files: str) -> None:
    start, counts, accepted = time.monotonic(), defaultdict(Counter), []
    rows = rows_of(*files)
    for row in rows:
        value, why = verdict(row)
        given, text = ("turn", row["turn"]) if "turn" in row else ("answer", row["answer"])
        is_right, is_accepted = row["value"] == 1, value == 1.0
        for name in ("all", given, f"{given}, {form(text or '')}", f"{given}, {row['kind']}"):
            counts[name]["right" if is_right else "wrong"] += 1
            counts[name]["refused"] += is_right and not is_accepted
            counts[name]["accepted"] += is_accepted and not is_right
        if is_accepted and not is_right:
            accepted.append(f"{row['kind']} {text[-160:]!r} for {row['gold']!r}: {why}")
    print(f"{len(rows)} rows in {time.monotonic() - start:.0f} s")
    print(f"{'form':40} {'wrong accepted':>18} {'right refused':>18}")
    for name, n in sorted(counts.items()):
        wrong, right = f"{n['accepted']} of {n['wrong']}", f"{n['refused']} of {n['right']}"
        print(f"{name:40} {wrong:>18} {right:>18}")
    print(*accepted, sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
