"""Run the figures of figures.py that this machine can show: a line of JSON for each case, docs/gpus.md's
rows at the end.

    tests/gpu/run.sh base|vllm [--quick] [--rehearse] [--only NAME ...] [--out DIR]

What a figure lacks here (CUDA, vLLM, Unsloth, a second GPU) is named and the figure skipped. On a GPU each runs
in a process of its own, so that none finds another's memory; a process that dies costs the figure it was at.
``--rehearse`` runs what needs CUDA on a tiny model on any device: it proves the script and measures nothing.
Leaves out the figures themselves, and installing (run.sh).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
KINDS = ("base", "vllm")
FIGURES = {  # name: for which kinds, what it needs, what it measures; in gpus.md's order
    "environment": ("base vllm", "", "device and versions"),
    "exactness": ("base", "", "shared prefixes, plain and TRL's own update give the same numbers"),
    "survival": ("base vllm", "", "share of a small adapter that reaches rollouts, notebook 05 and a merged model"),
    "guard": ("base vllm", "", "planted faults that stop a run, healthy runs that do not"),
    "decode": ("base vllm", "cuda", "tokens a second at 4B, by rows"),
    "step": ("base vllm", "cuda", "whole steps of GRPO at 4B"),
    "recipes": ("base vllm", "cuda", "the recipes smoke and qwen3-4b, three steps each, with real weights"),
    "sft": ("base", "cuda", "SFT and preflight's timed update at 4B"),
    "update": ("base", "cuda", "seconds and memory of an update at 4B, by length"),
}  # fmt: skip
LIMIT_S = 1200.0  # of a figure


def lacking(needs: str, kind: str, rehearse: bool) -> str:
    """Why a figure cannot run here; empty where it can."""
    if kind == "vllm" and find_spec("vllm") is None:
        return "vllm is not installed"
    if needs == "cuda" and not rehearse and not has_cuda():
        return "no CUDA GPU here"
    return ""


def has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def children(names: list[str], chosen: argparse.Namespace, log: Path) -> Iterator[dict]:
    """The lines of figures run in child processes; a child that dies is followed by one for the rest."""
    alone = has_cuda()
    while names:
        batch, names = (names[:1], names[1:]) if alone else (names, [])
        at, ended, late = batch[0], False, 0.0
        for line in _lines(batch, chosen, log):
            if "begins" in line:
                at, ended = line["begins"], False
            elif "ended" in line:
                ended = True
            elif "late" in line:
                late = line["late"]
            else:
                yield line
        if not ended or at != batch[-1]:
            killed = f"killed at the limit of {late:.0f} s for {len(batch)} figures"
            why = killed if late else _last_words(log)
            yield {"figure": at, "case": "failed", "error": why, "ok": False}
            names = batch[batch.index(at) + 1 :] + names


def _lines(names: list[str], chosen: argparse.Namespace, log: Path) -> Iterator[dict]:
    words = [f"--{word}" for word in ("quick", "rehearse") if getattr(chosen, word)]
    command = [sys.executable, str(Path(__file__)), chosen.kind, "--child", *names, *words]
    limit = LIMIT_S * len(names)
    with log.open("a") as errors:
        options = {"stderr": errors, "text": True, "start_new_session": True}
        child = subprocess.Popen(command, stdout=subprocess.PIPE, **options)
        timer = threading.Timer(limit, os.killpg, (child.pid, signal.SIGKILL))
        timer.start()
        try:
            for text in child.stdout:
                if text.startswith('{"'):
                    yield json.loads(text)
            if timer.finished.is_set():
                yield {"late": limit}
        finally:
            timer.cancel()
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _last_words(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][-300:] if lines else "the process ended without a word"


def child(chosen: argparse.Namespace) -> None:
    """Run figures in this process."""
    import figures

    budget = figures.Budget(chosen.kind, chosen.quick, chosen.rehearse)
    for name in chosen.child:
        print(json.dumps({"begins": name}), flush=True)
        for line in getattr(figures, name)(budget):
            print(json.dumps({"figure": name} | line), flush=True)
        figures.tidy()
    print(json.dumps({"ended": chosen.child[-1]}), flush=True)


def table(lines: list[dict]) -> str:
    """docs/gpus.md's rows, in Markdown: what was measured on this device, did not hold, or was skipped and why."""
    device = next((line["value"] for line in lines if line.get("case") == "device"), "this machine")
    rows = [("figure", "case", f"on {device}"), ("---",) * 3]
    rows += [(line["figure"], line.get("case", ""), _said(line)) for line in lines if "own" not in line]
    updates: dict[tuple, dict] = {}
    for line in (line for line in lines if "own" in line):
        size = f"{line['own']:,} x {line['rows']}", f"{line['planned_gb']} GB"
        updates.setdefault(size, {})[line["kind"]] = _said(line)
    if updates:
        kinds = list(next(iter(updates.values())))
        rows += [(), ("tokens of its own x trajectories", *kinds, "planned"), ("---",) * (len(kinds) + 2)]
        rows += [(size, *cells.values(), planned) for (size, planned), cells in updates.items()]
    return "\n".join(f"| {' | '.join(map(str, row))} |" if row else "" for row in rows)


def _said(line: dict) -> str:
    value = line.get("error") or line.get("value", "")
    said = f"{value:.4g}" if isinstance(value, float) else str(value).replace("|", "/").replace("\n", " ")
    said += f" {line['unit']}" if line.get("unit") else ""
    said += f", {line['allocated_gb']} GB" if "allocated_gb" in line else ""
    said = f"skipped: {line['skipped']}" if "skipped" in line else said
    return f"FAILED: {said}" if line.get("ok") is False else said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--quick", action="store_true", help="the smallest sizes")
    parser.add_argument("--rehearse", action="store_true", help="a tiny model in place of 4B, on any device")
    parser.add_argument("--only", nargs="+", choices=FIGURES, default=[], help="these figures")
    parser.add_argument("--out", type=Path, help="folder for lines.jsonl, table.md and log.txt")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        child(chosen)
        return 0
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # figures end with this
    out = chosen.out or Path(tempfile.mkdtemp(prefix="agentkit-gpu-"))
    out.mkdir(parents=True, exist_ok=True)
    lines, wanted, started = [], [], time.monotonic()
    for name, (kinds, needs, what) in FIGURES.items():
        if chosen.kind in kinds.split() and (name in chosen.only or not chosen.only):
            why = lacking(needs, chosen.kind, chosen.rehearse)
            lines += [{"figure": name, "case": what, "skipped": why}] if why else []
            wanted += [] if why else [name]
    with (out / "lines.jsonl").open("w") as kept:
        for line in chain(list(lines), children(wanted, chosen, out / "log.txt")):
            text = json.dumps(line)
            print(text, flush=True)
            print(text, file=kept, flush=True)
            lines += [] if "skipped" in line and line in lines else [line]
    (out / "table.md").write_text(table(lines) + "\n")
    failed = sum(line.get("ok") is False for line in lines)
    print(f"\n{table(lines)}\n\n{failed} failed, {time.monotonic() - started:.0f} s; all of it is in {out}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
