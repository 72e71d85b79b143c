"""The README's picture: a task that SFT fails and GRPO solves because it makes a failed call again.

    .venv/bin/python .ci/picture.py [outputs/demo]

Needs the Chromium of `make setup-test`. Leaves out every choice of a reader: of the tasks that show it, the
shortest is drawn.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

from agentkit import Trajectory, load_run
from agentkit.runs import write_bytes
from agentkit.trajectories import by_task, results_of
from agentkit.views.widgets import compare_trajectories

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "viewer.png"
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def calls_again(trajectory: Trajectory) -> bool:
    """Whether a call that failed is followed by the same call, which worked."""
    return any(
        (a.name, a.arguments, a.ok, b.ok) == (b.name, b.arguments, False, True)
        for a, b in pairwise(results_of(trajectory))
    )


def main() -> None:
    run = load_run(sys.argv[1] if len(sys.argv) > 1 else ROOT / "outputs" / "demo")
    tasks = [task for task in run.tasks if task.split == "test"]
    agents = {name: run.trajectories(name) for name in ("sft", "grpo")}
    sft, grpo = (by_task(trajectories) for trajectories in agents.values())
    shows = [
        task
        for task in tasks
        if all(
            t.success == 0 and not calls_again(t) and not all(r.ok for r in results_of(t))
            for t in sft[task.id]
        )
        and all(t.success == 1 and calls_again(t) for t in grpo[task.id])
    ]
    if not shows:
        sys.exit(f"{run.path} has no task that SFT always fails and GRPO always solves by a second call")
    task = min(
        shows, key=lambda task: sum(len(t.completion_ids) for t in (sft[task.id][0], grpo[task.id][0]))
    )
    with tempfile.TemporaryDirectory() as folder:
        page = compare_trajectories(tasks, agents).save(Path(folder) / "viewer.html")
        draw(f"{page.as_uri()}#task={task.id}")


def draw(address: str) -> None:
    """The view at an address, as high as what it shows."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = next(filter(None, map(shutil.which, CHROMIUMS)), playwright.chromium.executable_path)
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        size = {"width": 960, "height": 2000}
        page = browser.new_page(viewport=size, device_scale_factor=1.25, color_scheme="light")
        page.goto(address)
        page.wait_for_selector(".first")
        write_bytes(PICTURE, page.locator(".ak").first.screenshot())
        browser.close()


if __name__ == "__main__":
    main()
