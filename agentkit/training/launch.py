"""A notebook's jobs for its recipe's agent: in this process, or in one process a GPU, started by torchrun.

``python -m torch.distributed.run .. -m agentkit.training.worker RUN JOB`` is one of the processes. Each opens
the recipe's lab itself, so that nothing has to be pickled, and sees its own card only; this process then
holds no memory of a GPU. It reads the metrics from the run's files, asks for a stop by the word stop in
train/.control, and takes all of them along when it ends. Leaves out what is done (jobs), which card does
what (runs.topology), and several machines: there the user starts torchrun (docs/cluster).
"""

import gc
import json
import os
import re
import signal
import subprocess
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import psutil
import torch

from agentkit.lab import Lab
from agentkit.machine import cores
from agentkit.policies.precision import precision_of
from agentkit.records import Trajectory
from agentkit.runs import Recipe, Run, RunError, read_json, write_bytes, write_json, write_trajectories
from agentkit.runs.children import PARENT, TOKEN, end_all, signals
from agentkit.runs.run import CONTROL
from agentkit.runs.topology import CARDS, choose, patience, settled
from agentkit.training import checkpoint_folders
from agentkit.training.processes import TrainingStopped
from agentkit.training.worker import function_of

JOBS = "agentkit.training.jobs"
DEMONSTRATIONS = ".demonstrations.parquet"  # in the run's folder, for as long as they are imitated
LOG = "launch.log"  # in the run's folder: what the processes print
LOOK_S = 0.5  # between two looks at the metrics
TORCHRUN = """
import signal
from agentkit.runs.children import die_with_parent
die_with_parent(signal.SIGKILL)
from torch.distributed.run import main
main()
"""
OnMetrics = Callable[[dict[str, Any]], None]


class Work:
    """Jobs of one recipe in one run; ``topology`` says who does them, and why.

    Raises RecipeError where the recipe asks for GPUs that are not there.
    """

    def __init__(self, lab: Lab, run: Run):
        self.lab, self.run = lab, run
        self.topology = choose(lab.recipe, torch.cuda.device_count(), bool(lab.added))
        self._done: dict[str, dict[str, Any]] = {"measured": {}}  # seconds by policy, and by control

    def __str__(self) -> str:
        return str(self.topology)

    @property
    def record(self) -> dict[str, Any]:
        """What the manifest keeps of who did what, and of what measuring and each control took."""
        return {
            "topology": str(self.topology),
            "devices": self.topology.workers,  # whose time is spent
            "precision": str(precision_of(self.lab.recipe.precision)).removeprefix("torch."),
        } | self._done

    @property
    def recipe(self) -> Recipe:
        """As the processes that train have it."""
        return Recipe.from_mapping(settled(self.lab.recipe, self.topology))

    def cold_start(self, demonstrations: Sequence[Trajectory]) -> list[dict[str, Any]]:
        """Fine-tune the agent on demonstrations: the run's sft/ holds the adapter; the log, a row a step."""
        write_trajectories(self.run.file(DEMONSTRATIONS), demonstrations)
        log = self.do(f"{JOBS}:cold_start", processes=self._imitating)["log"]
        self.run.remove(DEMONSTRATIONS)
        return log

    @property
    def _imitating(self) -> int:
        """The most processes that share SFT's batch evenly, so that it is the recipe's with any cards."""
        return max(n for n in range(1, self.topology.workers + 1) if self.lab.recipe.sft_batch % n == 0)

    def measure(self, name: str) -> list[Trajectory]:
        """Measure a policy on the test (``Lab.measure``), spread over all cards; no tokens are read back."""
        return self._measure(name)[0]

    def baseline(self) -> tuple[list[Trajectory], str]:
        """Measure the policy that GRPO starts from, and what ``Lab.sift`` says of the training tasks."""
        return self._measure("sft", sift=True)

    def _measure(self, name: str, **arguments: Any) -> tuple[list[Trajectory], str]:
        start = time.monotonic()
        sifted = self.do(f"{JOBS}:measure", name=name, **arguments)["sifted"]
        self._done["measured"][name] = round(time.monotonic() - start, 1)
        return self.run.trajectories(name), sifted

    def control(self, name: str) -> dict[str, float]:
        """Train one of the recipe's controls and measure it; what it learnt from."""
        start = time.monotonic()
        figures = self.do(f"{JOBS}:control", name=name, processes=self._imitating)["figures"]
        took = figures | {"seconds": round(time.monotonic() - start, 1)}
        self._done.setdefault("controls", {})[name] = took
        return figures

    def train(self, on_metrics: OnMetrics = lambda row: None) -> dict[str, Any]:
        """GRPO; what the trainer returns. Interrupting it stops after the step, with a checkpoint."""
        return self.do(f"{JOBS}:train", on_metrics, processes=self.topology.processes)

    def do(
        self, job: str, tell: OnMetrics = lambda row: None, *, processes: int | None = None, **arguments: Any
    ) -> dict[str, Any]:
        """Call a job, "module:function", with the lab and the run, here or in ``processes``."""
        _collect()  # a trained model is a cycle, and would stay beside the one that is loaded now
        if self.topology.kind == "here":
            try:
                return function_of(job)(self.lab, self.run, tell, **arguments)
            except BaseException as error:
                _empty(error)
                raise
        self.lab.check_for_children()
        recipe, number = settled(self.lab.recipe, self.topology), processes or self.topology.workers
        children = _Children(self.run, {"recipe": recipe, "job": job, "arguments": arguments})
        return children.result(number, self.topology.cards[:number], tell)


def _empty(error: BaseException | None) -> None:
    """Let go of what an error's frames hold where there is a GPU: IPython keeps the last error."""
    seen = []  # "raise error from error" makes a ring
    while error is not None and error not in seen and torch.cuda.is_initialized():
        traceback.clear_frames(error.__traceback__)
        seen.append(error)
        error = error.__cause__ or error.__context__


def _collect() -> None:
    """Give the memory of GPUs back that nothing holds, also to child processes."""
    if torch.cuda.is_initialized():
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()  # which the allocator counts, some 32 MB a card
        torch.cuda.empty_cache()


class _Children:
    """torchrun and its processes, from their start to the last of them gone, however they end."""

    def __init__(self, run: Run, job: dict[str, Any]):
        self._run, self._token, self._stopping = run, uuid.uuid4().hex, False
        self._wait_s, self._name = patience(Recipe.from_mapping(job["recipe"])), job["job"].partition(":")[2]
        self._job = run.file(f".job-{self._token}.json")  # of this launch: the result comes back in it
        for left in run.path.glob(".job-*.json"):  # by a kernel or command that was killed
            if not psutil.pid_exists(read_json(left).get("pid", 0)):
                left.unlink(missing_ok=True)
        write_json(self._job, job | {"pid": os.getpid()})

    def result(self, number: int, cards: Sequence[str], tell: OnMetrics) -> dict[str, Any]:
        """What the job returned. Raises RunError with its last error, TrainingStopped when interrupted."""
        here = f"{self._name} in {number} process{'es' * (number != 1)}"
        try:
            with signals(self._terminated, "SIGTERM"):
                child = self._start(number, cards)
                try:
                    self._follow(child, tell)
                except BaseException:
                    self._stop(child)
                    raise
            answer = read_json(self._job)
            if "result" not in answer:
                raise RunError(f"{here} failed (see {self._run.file(LOG)}): {self._failure(child)}")
            return answer["result"]
        except KeyboardInterrupt:
            raise TrainingStopped(f"{here} was stopped; run this again to go on") from None
        finally:
            end_all(TOKEN, self._token.__eq__)
            self._job.unlink(missing_ok=True)

    def _start(self, number: int, cards: Sequence[str]) -> subprocess.Popen:
        own = {
            TOKEN: self._token,
            PARENT: str(os.getpid()),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        environ = {"OMP_NUM_THREADS": str(max(cores() // number, 1))} | os.environ | own
        words = ["--standalone", "--local-addr=localhost", f"--nproc_per_node={number}"]
        if cards:
            words.append("--virtual-local-rank")
            environ[CARDS] = ",".join(cards)
        words += ["-m", "agentkit.training.worker", str(self._run.path.resolve()), str(self._job)]
        with write_bytes(self._run.file(LOG), b"").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-c", TORCHRUN, *words],
                env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def _follow(self, child: subprocess.Popen, tell: OnMetrics) -> None:
        """Tell the newest row of metrics, each time that there is one, until the processes have ended."""
        file, told = self._run.file("train", "metrics.jsonl"), ""
        while child.poll() is None:
            time.sleep(LOOK_S)
            if self._name == "train" and file.exists():
                rows = file.read_text(encoding="utf-8").split("\n")[:-1]  # the last is half written
                if rows and rows[-1] != told:
                    told = rows[-1]
                    tell(json.loads(told))

    def _terminated(self, name: str) -> None:
        """SIGTERM interrupts, once: jupyter_client sends it to a kernel at half of its time to end."""
        if not self._stopping:
            raise KeyboardInterrupt

    def _stop(self, child: subprocess.Popen) -> None:
        """Wait for a training's step and its checkpoint, and for nothing else; a second Ctrl-C waits for
        neither.
        """
        self._stopping = True
        file, until = self._run.file(*CONTROL), time.monotonic() + self._wait_s
        while self._name == "train" and child.poll() is None and time.monotonic() < until:
            file.parent.mkdir(exist_ok=True)
            write_bytes(file, b"stop\n")  # again: one that is just starting clears what it finds
            time.sleep(LOOK_S)
        file.unlink(missing_ok=True)

    def _failure(self, child: subprocess.Popen) -> str:
        why = reason(child.returncode, self._run.file(LOG).read_text(encoding="utf-8", errors="replace"))
        if self._name != "train":
            return why
        kept = checkpoint_folders.steps(self._run.file("train", "checkpoints"))
        after = f"{kept[0].name} is kept, run this again to go on" if kept else "there is no checkpoint yet"
        return f"{why}. {after}"


def reason(code: int, log: str) -> str:
    """Why processes ended, from torchrun's exit status and what was written: which one was ended by which
    signal, or the last error, or the end of what was written.
    """
    if code < 0:
        return f"torchrun, which watches the processes, was ended by {signal.Signals(-code).name}"
    # by SIGTERM torchrun ends the others
    for number, rank in re.findall(r"failed \(exitcode: -(?!15\))(\d+)\) local_rank: (\d+)", log):
        name = signal.Signals(int(number)).name
        return f"process {rank} was ended by {name}, by hand or because memory ran out"
    lines = log.splitlines()
    errors = [s.strip() for s in lines if re.match(r"(\[rank\d+\]: *)?[\w.]*(Error|Stopped): \S", s)]
    first = [error for error in errors if "closed by peer" not in error]  # as the others then say
    return " | ".join((first or errors)[-1:] or lines[-3:])[:600]
