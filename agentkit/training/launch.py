"""What a notebook has done with its recipe's agent: here, or by processes of their own, one a GPU, started as
children, watched and stopped cleanly.

``python -m torch.distributed.run ... -m agentkit.training.worker RUN JOB`` is one of the processes; each
opens the recipe's lab itself, so that nothing has to be pickled, and sees its own card only. This process
then holds no memory of a GPU. Leaves out what is done (jobs), and which card does what (runs.topology).
"""

import gc
import json
import sys
import threading
import time
import traceback
import uuid
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from agentkit.lab import Lab
from agentkit.policies.precision import precision_of
from agentkit.policies.server import NONE_LEFT
from agentkit.policies.server_processes import Replicas, replicas
from agentkit.records import Trajectory
from agentkit.runs import Recipe, Run, RunError, read_json, write_json, write_trajectories
from agentkit.runs.children import TOKEN, end_all, signals
from agentkit.runs.topology import patience, settled
from agentkit.training import checkpoint_folders, torchrun
from agentkit.training.processes import TrainingStopped
from agentkit.training.topology_by_memory import placed
from agentkit.training.worker import MARK, function_of

JOBS = "agentkit.training.jobs"
DEMONSTRATIONS = ".demonstrations.parquet"  # in the run's folder, for as long as they are imitated
OnMetrics = Callable[[dict[str, Any]], None]


def _ignore(row: dict[str, Any]) -> None:
    pass


class Work:
    """Jobs of one recipe in one run; ``topology`` says who does them, and why.

    Raises RecipeError where the recipe asks for GPUs that are not there.
    """

    def __init__(self, lab: Lab, run: Run):
        self.lab, self.run = lab, run
        self.topology = placed(lab.recipe, torch.cuda.device_count(), _smallest_gb)
        # seconds by policy; each process' card and what it sampled by job; and what each control took
        self._done: dict[str, dict[str, Any]] = {"measured": {}, "ranks": {}}

    def __str__(self) -> str:
        return str(self.topology)

    @property
    def devices(self) -> int:
        """GPUs, or processes on a CPU, whose time is spent."""
        serving = self.topology.replicas * self.topology.tensor_parallel
        return max(self.topology.workers, self.topology.processes + serving)

    def discard(self, name: str) -> None:
        """Remove a policy's measurement, which was made with another recipe."""
        self.run.remove(f"eval/{name}.parquet")

    @property
    def record(self) -> dict[str, Any]:
        """What the manifest keeps of who did what, and of what measuring and each control took."""
        return {
            "topology": str(self.topology),
            "devices": self.devices,
            "precision": str(precision_of(self.lab.recipe.precision)).removeprefix("torch."),
        } | self._done

    @property
    def recipe(self) -> Recipe:
        """As the processes that train have it."""
        return Recipe.from_mapping(settled(self.lab.recipe, self.topology))

    def cold_start(self, demonstrations: Sequence[Trajectory]) -> list[dict[str, Any]]:
        """Fine-tune the agent on demonstrations: the run's sft/ holds the adapter; the log, a row a step."""
        file = self.run.file(DEMONSTRATIONS)
        write_trajectories(file, demonstrations)
        try:
            return self.do(f"{JOBS}:cold_start", processes=self._imitating)["log"]
        finally:
            file.unlink()

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
        sifted = self.sample(f"{JOBS}:measure", name=name, **arguments)["sifted"]
        self._done["measured"][name] = round(time.monotonic() - start, 1)
        return self.run.trajectories(name, tokens=False), sifted

    def control(self, name: str) -> dict[str, float]:
        """Train one of the recipe's controls and measure it; what it learnt from."""
        number, start = self._imitating, time.monotonic()
        if self.topology.tensor_parallel > 1:  # the other cards are the servers'
            number = min(number, self.topology.processes)
        figures = self.sample(f"{JOBS}:control", name=name, processes=number)["figures"]
        took = figures | {"seconds": round(time.monotonic() - start, 1)}
        self._done.setdefault("controls", {})[name] = took
        return figures

    def train(self, on_metrics: OnMetrics = _ignore) -> dict[str, Any]:
        """GRPO, with servers that roll out where the topology is split; what ``grpo.train`` returns.

        Interrupting it stops after the step, with a checkpoint; so does the end of this process.
        """
        return self.do(f"{JOBS}:train", on_metrics, served=True)

    def sample(self, job: str, **arguments: Any) -> dict[str, Any]:
        """A job that samples (``do``): by servers where an engine needs several cards, else in the job."""
        return self.do(job, served=self.topology.tensor_parallel > 1, **arguments)

    def do(
        self,
        job: str,
        tell: OnMetrics = _ignore,
        *,
        served: bool = False,
        processes: int | None = None,
        **arguments: Any,
    ) -> dict[str, Any]:
        """Call a job, "module:function", with the lab and the run, here or in ``processes``.

        ``served`` leaves cards to the topology's servers, where it has any, which then roll out.
        """
        topology, name = self.topology, job.partition(":")[2]
        if topology.kind == "here":
            _collect()  # a trained model is a cycle, and would stay beside the one that is loaded now
            try:
                return function_of(job)(self.lab, self.run, tell, **arguments)
            except BaseException as error:
                _empty(error)
                raise
        self.lab.check_for_children()
        number, cards, serving = topology.workers, topology.cards, ()
        if served:
            number, cards, serving = topology.processes, topology.training, topology.serving
        number = processes or number
        with replicas(self.lab.recipe, self.run, serving) as servers:
            recipe = settled(self.lab.recipe, topology, servers.urls)
            written = {"recipe": recipe, "job": job, "arguments": arguments}
            given = self.run, name, number, cards, patience(self.recipe), written
            while True:
                _let_go()
                try:
                    result = _Children(*given).result(tell)
                    break
                except RunError:
                    if not self._servers_came_back(servers, name):
                        raise
        self._done["ranks"][f"{name} {arguments.get('name', '')}".strip()] = result.pop("ranks")
        return result

    def _servers_came_back(self, servers: Replicas, name: str) -> bool:
        """Whether a job failed for want of servers that have died, and answer again now."""
        if not servers.urls or self.lab.recipe.resume == "never":
            return False
        if NONE_LEFT not in self.run.file(torchrun.LOG).read_text(encoding="utf-8", errors="replace"):
            return False
        kept = checkpoint_folders.steps(self.run.file("train", "checkpoints")) if name == "train" else []
        then = f"goes on from {kept[0].name}" if kept else "begins anew"
        print(f"{NONE_LEFT}: {name} waits until they are up again, and {then}", file=sys.stderr)
        return servers.come_back()


def _smallest_gb() -> float:
    """GB of the smallest GPU in sight."""
    count = torch.cuda.device_count()
    return min(torch.cuda.get_device_properties(card).total_memory for card in range(count)) / 1e9


def _empty(error: BaseException | None) -> None:
    """Let go of what an error's frames hold where there is a GPU: IPython keeps the last error."""
    seen = set()  # a chain may be a ring
    while error is not None and id(error) not in seen and torch.cuda.is_initialized():
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _collect() -> None:
    """Give the memory of GPUs back that nothing holds."""
    if torch.cuda.is_initialized():
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()  # which the allocator counts, some 32 MB a card
        torch.cuda.empty_cache()


def _let_go() -> None:
    """``_collect``, for children that need the memory; warns of what a cell still holds."""
    if not torch.cuda.is_initialized():
        return
    _collect()
    if held := sum(torch.cuda.memory_allocated(i) for i in range(torch.cuda.device_count())):
        warnings.warn(
            f"this notebook holds {held / 1e9:.1f} GB of GPU memory, which the training processes lack: "
            "delete what a cell has loaded, or restart the kernel",
            stacklevel=3,
        )


class _Children:
    """torchrun and its processes, from their start to the last of them gone, however they end."""

    def __init__(
        self, run: Run, name: str, number: int, cards: Sequence[str], wait_s: float, job: dict[str, Any]
    ):
        self._run, self._name, self._wait_s = run, name, wait_s
        self._token, self._number, self._cards = uuid.uuid4().hex, number, cards[:number]
        self._job = run.file(f".job-{self._token}.json")  # of this launch: the result comes back in it
        write_json(self._job, job)
        self._here = f"{name} in {number} process{'es' * (number != 1)}"

    def _end_all(self) -> None:
        end_all(TOKEN, self._token.__eq__)

    def _end_with_it(self) -> None:
        """End what torchrun leaves: a helper of a lab file may hold the output that is read to its end."""
        self._child.wait()
        self._end_all()

    def result(self, tell: OnMetrics) -> dict[str, Any]:
        """What the job returned. Raises RunError with its last error, TrainingStopped when interrupted."""
        try:
            return self._result(tell)
        except KeyboardInterrupt:
            why = f"{self._here} was stopped; run this again to go on"
            raise TrainingStopped(why) from None
        finally:
            self._end_all()
            self._job.unlink(missing_ok=True)

    def _result(self, tell: OnMetrics) -> dict[str, Any]:
        self._child = torchrun.start(self._run, self._job, self._token, self._number, self._cards)
        self._end = threading.Thread(target=self._end_with_it, daemon=True)
        self._end.start()
        try:
            self._follow(tell)
        except BaseException:
            self._stop()
            raise
        answer = read_json(self._job)
        if "result" not in answer:
            raise RunError(self._failure())
        return answer["result"]

    def _follow(self, tell: OnMetrics) -> None:
        for line in self._child.stdout:
            if line.startswith(MARK):
                row = json.loads(line.removeprefix(MARK))
                if "notice" in row:
                    print(row["notice"], file=sys.stderr)
                else:
                    tell(row)
        self._end.join()

    def _stop(self) -> None:
        """Ask the processes to stop by ending their input, and wait for a step and its checkpoint.

        Not by a signal to torchrun, which would give them 30 seconds. A second interrupt does not wait,
        SIGTERM does.
        """
        self._child.stdin.close()
        timer = threading.Timer(self._wait_s, self._end_all)
        timer.start()
        try:
            with signals(lambda name: None, "SIGTERM"):
                self._follow(_ignore)
        finally:
            timer.cancel()

    def _failure(self) -> str:
        log = self._run.file(torchrun.LOG).read_text(encoding="utf-8", errors="replace")
        why = torchrun.death(self._child.returncode, log) or torchrun.last_error(log)
        kept = checkpoint_folders.steps(self._run.file("train", "checkpoints"))
        after = f"{kept[0].name} is kept, run this again to go on" if kept else "there is no checkpoint yet"
        after = f". {after}" if self._name == "train" else ""
        file = self._run.file(torchrun.LOG)
        return f"{self._here} failed (see {file}): {why}{after}"
