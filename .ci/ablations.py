"""The document's five ablations on the small agent, and docs/ablations.md from what they showed.

    make ablations        # or .venv/bin/python .ci/ablations.py, with --slots 4 where there is room

Each sweep is an ordinary `agentkit sweep` into outputs/ablations/. Started again it goes on; with --only the
page still shows the others that are done, and with nothing after it only the page is written. Leaves out
every number: the page shows each sweep's table and answer.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from agentkit.evaluation import html, tables
from agentkit.evaluation.sweeps import HOURS, INTERVALS, Ablation
from agentkit.runs import cost, write_bytes
from agentkit.runs.sweep import Sweep
from agentkit.views import plots

ROOT = Path(__file__).resolve().parents[1]
FIGURES = {  # sweep: what its page shows beside the table
    "reward": (plots.arm_success,),
    "group-size": (plots.success_by_compute, plots.learning_curves),
    "kl": (plots.arm_success, plots.learning_curves),
    "difficulty": (plots.transfer,),
    "sft": (plots.arm_success,),
}
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def section(name: str, file: Path, folder: Path, docs: Path) -> str:
    """A sweep's part of the page, and its figures as pictures beside it."""
    sweep = Sweep(folder)
    ablation, state = Ablation(sweep), sweep.state
    runs = [run for runs in ablation.runs.values() for run in runs.values()]
    executed = {  # by what they ran: what cells have in common counts once
        (stage, entry["fingerprint"]): entry
        for run in runs
        for stage, entry in run.manifest["stages"].items()
    }
    hours = sum(entry["seconds"] for entry in executed.values()) / 3600
    made = max(entry["started"] for entry in executed.values())[:10]
    pictures = [make.__name__.replace("_", "-") for make in FIGURES[name]]
    for make, picture in zip(FIGURES[name], pictures, strict=True):
        draw(make(ablation), docs / "ablations" / f"{name}-{picture}.png")
    missing = [f"Not done, so left out: {', '.join(ablation.missing)}."] * bool(ablation.missing)
    seeds = ", ".join(map(str, ablation.seeds))
    parts = [
        f"## {state['question']}", f"**{ablation.answer()}**", *missing, tables.to_markdown(ablation.table()),
        *(f"![{picture.replace('-', ' ')}](ablations/{name}-{picture}.png)" for picture in pictures),
        f"`agentkit sweep {file} --run {folder}`: seeds {seeds}, {ablation.success.shape[2]} test tasks, "
        f"{cost.hours(hours)} hours of notebooks, {made}.",
    ]  # fmt: skip
    return "\n\n".join(part.strip() for part in parts)


def draw(figure: object, to: Path) -> None:
    """A figure as a picture, drawn by a Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = next(filter(None, map(shutil.which, CHROMIUMS)), playwright.chromium.executable_path)
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 900, "height": 700}, device_scale_factor=2)
        page.set_content(
            html.page("", plots.embedded(figure, with_library=True), look="body{background:#fff}")
        )
        page.wait_for_selector(".main-svg")
        write_bytes(to, page.locator(".plot").screenshot())
        browser.close()


def machine() -> str:
    """The processor, as far as Linux names it."""
    info = Path("/proc/cpuinfo")
    named = re.search(r"model name\s*: (.+)", info.read_text()) if info.exists() else None
    processor = named[1] if named else platform.processor()
    return ", ".join(
        filter(None, (platform.system(), platform.machine(), processor, f"{os.cpu_count()} cores"))
    )


def budget(folders: Sequence[Path]) -> str:
    """What every arm was given, and the versions of this code that its cells ran with."""
    ablations = [Ablation(Sweep(folder)) for folder in folders]
    arms = [arm for ablation in ablations for arm in ablation.sweep.state["arms"].values()]
    cells = [run.manifest for a in ablations for runs in a.runs.values() for run in runs.values()]
    steps, rollouts = (
        "/".join(map(str, sorted({value(arm) for arm in arms})))
        for value in (lambda arm: arm["steps"], lambda arm: arm["prompts_per_step"] * arm["group_size"])
    )
    recipes = ", ".join(dict.fromkeys(f"`params/{Path(a.sweep.state['recipe']).name}`" for a in ablations))
    dates = sorted(cell["created"][:10] for cell in cells)
    when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    code = {(cell["git"].get("commit", "unknown")[:7], bool(cell["git"].get("dirty"))) for cell in cells}
    named = ", ".join(f"`{name}`{' with uncommitted changes' * dirty}" for name, dirty in sorted(code))
    given = f"Every arm that GRPO trained has {steps} optimiser steps of {rollouts} rollouts ({recipes})."
    return f"{given} Cells were begun on {when}, with the code and small agent of commit {named}."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--only", nargs="*", choices=FIGURES, default=list(FIGURES))
    parser.add_argument("--sweeps", type=Path, default=Path("params/sweeps"))
    parser.add_argument("--run", type=Path, default=Path("outputs/ablations"))
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    chosen = parser.parse_args()
    os.chdir(ROOT)
    sections, finished, code = [], [], 0
    for name in FIGURES:
        file, folder = chosen.sweeps / f"{name}.yaml", chosen.run / name
        words = ["sweep", str(file), "--run", str(folder), "--slots", str(chosen.slots)]
        if name in chosen.only:
            code |= subprocess.call([sys.executable, "-m", "agentkit.cli", *words])
        if (folder / "ablations.json").exists():
            finished.append(folder)
            (chosen.docs / "ablations").mkdir(exist_ok=True, parents=True)
            sections.append(section(name, file, folder, chosen.docs))
    if not finished:
        return code
    head = (
        "# Ablations of the small agent\n\nWhat each part of the recipe is for: several arms, each trained "
        "with several seeds, all tested on the same tasks that none was trained on. `make ablations` remakes "
        f"this page; it was written on {machine()}.\n\n"
        f"{budget(finished)}\n\n{INTERVALS} {HOURS}\n\n"
    )
    write_bytes(chosen.docs / "ablations.md", (head + "\n\n".join(sections) + "\n").encode())
    return code


if __name__ == "__main__":
    sys.exit(main())
