"""Kill sweeps at random moments, start them again, and compare with one that was never disturbed.

    python tests/survive_sweeps.py --kills 10

Real cells with little of everything, two at once by Ray (``--slots 1``: one, by the driver itself): a driver, a
worker or a notebook's kernel gets SIGKILL, in turn. In the end ablations.json must be the same byte for byte, no notebook that was complete may
have run again, what is shared must have been made once, and no process may be left.
"""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
from itertools import cycle
from pathlib import Path

import psutil
import yaml
from options import options

from agentkit.runs.run import MANIFEST
from agentkit.runs.sweep import CELL_VARIABLE

ROOT = Path(__file__).resolve().parents[1]
TINY = {"n_tasks": 60, "sft_transcripts": 1, "test_samples": 1, "steps": 1, "prompts_per_step": 2, "group_size": 4,
        "micro_batch": 8, "val_every": 2, "val_tasks": 4, "preflight": "off", "max_turns": 4}  # fmt: skip
VICTIMS = {1: ("driver", "kernel"), 2: ("driver", "worker", "kernel")}  # by slots


def tiny(folder: Path, **changes) -> Path:
    """A sweep file of the smallest real cells."""
    recipe = yaml.safe_load((ROOT / "params" / "nano.yaml").read_text()) | TINY
    recipe |= {"families": "A", "n_tasks": 20, "max_turns": 2, "max_turn_tokens": 48}
    folder.mkdir(exist_ok=True)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    sweep = {"recipe": "recipe.yaml", "question": "Why?", "seeds": [1, 2], "arms": {"default": {}}} | changes
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep, sort_keys=False))
    return folder / "sweep.yaml"


def started(file: Path, folder: Path, *words: str) -> subprocess.Popen:
    """A driver, whose words go to a file beside the folder."""
    command = [sys.executable, "-m", "agentkit.cli", "sweep", str(file), "--run", str(folder), *words]
    with open(folder.with_name(f"{folder.name}.log"), "a") as log:
        return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)


def workers(folder: Path) -> list[psutil.Process]:
    """Processes that work on a cell of this sweep."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(folder) in process.environ().get(CELL_VARIABLE, ""):
                found.append(process)
        except psutil.Error:
            continue
    return found


def until(condition, seconds: float = 400):
    """What the condition gives, once it gives anything."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "it did not come to that in time"
        time.sleep(0.05)
    return value


def executed(folder: Path) -> dict[str, str]:
    """When each notebook that is complete was begun, by folder and stage; what is shared is named .new till it is whole."""
    name = lambda path: str(path.parent.relative_to(folder)).removesuffix(".new")  # noqa: E731
    manifests = {name(path): json.loads(path.read_text()) for path in folder.rglob(MANIFEST)}
    stages = ((name, *item) for name, whole in manifests.items() for item in whole["stages"].items())
    return {f"{name} {stage}": e["started"] for name, stage, e in stages if e["status"] == "done"}


def left(children: list[psutil.Process]) -> list[str]:
    """Command lines of those that have not ended; Ray's own agents do by themselves, later."""
    lines = []
    for child in children:
        with contextlib.suppress(psutil.Error):
            if child.status() != psutil.STATUS_ZOMBIE:
                lines.append(" ".join(child.cmdline()))
    return [line for line in lines if line and not line.startswith("ray::")]


def strike(driver: subprocess.Popen, folder: Path, victim: str) -> bool:
    """Kill one process; whether there was one. With its driver all others must end."""
    children = psutil.Process(driver.pid).children(recursive=True)
    own = {
        "driver": [driver] * bool(workers(folder)),
        "worker": [c for c in children if c.is_running() and "ray::_make" in "".join(c.cmdline())],
        "kernel": [w for w in workers(folder) if "ipykernel" in " ".join(w.cmdline())],
    }[victim]
    if not own:
        return False
    own[0].kill()
    if victim == "driver":
        driver.wait()
        try:
            until(lambda: not left(children), 60)
        except AssertionError:
            raise AssertionError(f"they outlive the driver: {left(children)}") from None
        until(lambda: not workers(folder), 60)
    return True


def disturbed(
    file: Path, folder: Path, kills: int, slots: int, seconds: float, notebooks: int, seed: int, log
) -> list[str]:
    """A sweep with so many kills, spread over its ``notebooks``, each at a random moment of one; the faults seen."""
    faults, done, ends, rng, victims = [], 0, [], random.Random(seed), cycle(VICTIMS[min(slots, 2)])
    victim, at = next(victims), None
    complete: dict[str, str] = {}
    while len(ends) < 2 * kills + 3:
        driver = started(file, folder, "--slots", str(slots))
        while driver.poll() is None:
            time.sleep(0.2)
            if at is None and len(complete) >= done * notebooks // max(kills, 1):
                at = time.monotonic() + rng.uniform(0, seconds)
            try:
                if done < kills and at and time.monotonic() > at and strike(driver, folder, victim):
                    at, done = None, done + 1
                    log(f"kill {done}, a {victim}: {len(complete)} of {notebooks} notebooks complete")
                    victim = next(victims)
                now = executed(folder)
            except (psutil.NoSuchProcess, FileNotFoundError, json.JSONDecodeError):
                continue  # it ended meanwhile
            again = [name for name, begun in now.items() if complete.setdefault(name, begun) != begun]
            faults += [f"{name} was complete and ran again" for name in again]
        ends.append(driver.returncode)
        if driver.returncode == 0:
            break
    log(f"{done} kills, exit codes {ends}")
    faults += [f"{name} is no longer complete" for name in complete.keys() - executed(folder).keys()]
    return (
        faults
        + [f"{kills - done} kills came too late"] * (done < kills)
        + ["it did not end"] * bool(ends[-1])
    )


def survive(file: Path, folder: Path, kills: int, slots: int = 2, seed: int = 1, log=print) -> list[str]:
    """An undisturbed sweep, whole, and one with kills, killed; the differences found."""
    whole, killed = folder / "whole", folder / "killed"
    begun = time.monotonic()
    code, said = started(file, whole, "--slots", str(slots)).wait(), whole.with_name("whole.log")
    assert code == 0, said.read_text()[-3000:]
    seconds, notebooks = time.monotonic() - begun, len(executed(whole))
    log(f"undisturbed: {seconds:.0f} s, {notebooks} notebooks")
    faults = disturbed(file, killed, kills, slots, seconds / notebooks, notebooks, seed, log)
    if (killed / "ablations.json").read_bytes() != (whole / "ablations.json").read_bytes():
        faults.append("ablations.json is another")
    for stage in ("01_tasks", "02_baseline"):
        ended = [
            sum(cell.read_text().count(f"{stage}: done in") for cell in one.glob("**/cell.log"))
            for one in (whole, killed)
        ]
        log(f"{stage}: came to its end {ended[1]} times, undisturbed {ended[0]} times")
        if ended[1] > ended[0]:
            faults.append(f"{stage} was made {ended[1]} times, and {ended[0]} undisturbed")
    return faults + [f"process {left.pid} is left" for left in workers(killed)]


def main() -> int:
    chosen = options(__doc__, kills=10, slots=2, seed=1)
    with tempfile.TemporaryDirectory() as folder:
        file = tiny(Path(folder) / "file", arms={"default": {}, "free": {"beta": 0.0}}, seeds=[1])
        say = lambda text: print(text, flush=True)  # noqa: E731
        faults = survive(file, Path(folder), chosen.kills, chosen.slots, chosen.seed, say)
    print("\n".join(faults) or f"{chosen.kills} kills, and the same as undisturbed")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
