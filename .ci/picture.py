"""The README's two pictures: a test task that SFT fails and GRPO solves, because it makes a failed call
again, and the dashboard that the run's training left.

    .venv/bin/python .ci/picture.py [outputs/demo]

Needs a Chromium (`make setup-test`). Of the tasks that show it in every sample, the shortest is drawn.
"""

import shutil
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from agentkit import Trajectory, load_run
from agentkit.runs import write_bytes
from agentkit.trajectories import by_task, results_of
from agentkit.views.widgets import compare_trajectories

ROOT, WIDTH = Path(__file__).resolve().parents[1], 960  # CSS pixels: letters as large as the README's
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def gave_up(trajectory: Trajectory) -> bool:
    """Whether it answered, and wrongly, after a call that failed."""
    calls = results_of(trajectory)
    return trajectory.success == 0 and trajectory.answer is not None and bool(calls) and not calls[-1].ok


def called_again(trajectory: Trajectory) -> bool:
    """Whether it is right, after a call that failed was made once more and worked."""
    pairs = pairwise(results_of(trajectory))
    again = (not a.ok and b.ok and (a.name, a.arguments) == (b.name, b.arguments) for a, b in pairs)
    return trajectory.success == 1 and any(again)


def main() -> None:
    run = load_run(sys.argv[1] if len(sys.argv) > 1 else ROOT / "outputs" / "demo")
    agents = {"SFT": run.trajectories("sft"), "GRPO": run.trajectories("grpo")}
    old, new = map(by_task, agents.values())
    fitting = [task for task in old if all(map(gave_up, old[task])) and all(map(called_again, new[task]))]
    if not fitting:
        sys.exit(f"{run.path} has no task that SFT always gives up and GRPO always solves by calling again")
    task = min(fitting, key=lambda task: max(len(t.turns) for t in (*old[task], *new[task])))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        view = compare_trajectories(run.tasks, agents).save(Path(folder) / "viewer.html")
        path = next(filter(None, map(shutil.which, CHROMIUMS)), playwright.chromium.executable_path)
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        size = {"width": WIDTH, "height": 3000}
        page = browser.new_page(viewport=size, device_scale_factor=1.25, color_scheme="light")
        page.goto(f"{view.as_uri()}#task={task}")
        page.locator(".same > summary").click()
        draw(page, ".columns", "viewer.png")
        page.goto(run.file("train", "dashboard.html").resolve().as_uri())
        page.wait_for_selector(".plot .xtick")
        draw(page, ".plot", "dashboard.png", 535)  # two rows of panels


def draw(page: Page, last: str, name: str, height: float | None = None) -> None:
    """The page down to the last element that is shown, of which so many pixels, or all."""
    box = page.locator(last).bounding_box()
    whole = {"x": 0, "y": 0, "width": WIDTH, "height": box["y"] + (height or box["height"])}
    write_bytes(ROOT / "docs" / "images" / name, page.screenshot(clip=whole))


if __name__ == "__main__":
    main()
