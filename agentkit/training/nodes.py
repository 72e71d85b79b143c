"""A job on several machines that see the run's folder: the first asks for it in a file there, and each other
one, where ``agentkit join`` runs, starts torchrun's part of it and tells of that in a file of its own.

Ranks are those of torchrun's static rendezvous: machine 0, which asks, has rank 0 and with it what is told to
the notebook; nothing is restarted. torchrun does not notice that a machine has gone, so both sides write
their files again every few seconds: one that stays as it was is that of a machine, or a launch, that was
lost, and no clocks are compared. Leaves out starting processes (torchrun) and the first machine's own part
(launch).
"""

import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from agentkit.policies.server_processes import free_port
from agentkit.records import DiskError
from agentkit.runs import Run, RunError, read_json, write_json
from agentkit.runs.children import TOKEN, die_with_parent, end_all, repeated
from agentkit.runs.topology import first_host, visible
from agentkit.training import torchrun

ASKED = ".nodes.json"  # in the run's folder: what the first machine wants done
BEAT_S = 2.0  # between two writes of a file
LOST_S = 120.0  # without a beat; a network's disk may show a file a minute late
JOIN_S = 1800.0  # for the other machines to be there
LATE_S = 60.0  # for this machine's part to end by itself once another's has


def over(run: Run) -> None:
    """Tell the machines that wait for this run's jobs that there will be no more."""
    write_json(run.file(ASKED), {"token": uuid.uuid4().hex, "over": True})


def _peek(path: Path) -> dict[str, Any]:
    with contextlib.suppress(RunError):
        return found if isinstance(found := read_json(path), dict) else {}
    return {}


class _Pulse:
    """For how many seconds what is looked at again and again has stayed the same."""

    def __init__(self) -> None:
        self._last, self._since = None, time.monotonic()

    def still_s(self, value: Any) -> float:
        if value != self._last:
            self._last, self._since = value, time.monotonic()
        return time.monotonic() - self._since


# ---- the first machine
class Others:
    """The other machines of a job: ``fault`` says which of them failed, was lost or never came, and then
    ``end`` is called, at once where nothing else would end this machine's part.
    """

    def __init__(self, run: Run, token: str, part: dict[str, Any], end: Callable[[], None]):
        nodes, port = part["nodes"], os.environ.get("MASTER_PORT") or free_port()
        self.rendezvous = f"--nnodes={nodes} --master-addr={first_host()} --master-port={port} "
        self.rendezvous += f"--rdzv-id={token} --rdzv-conf=timeout={JOIN_S:.0f}"
        self._asked = part | {"token": token, "rendezvous": self.rendezvous, "beat": 0, "begun": False}
        self._run, self._end, self.fault = run, end, ""
        self._pulses = {node: _Pulse() for node in range(1, nodes)}
        self._told: dict[int, dict[str, Any]] = {}
        self._failed, self.ended = _Pulse(), False  # this machine's part, by ``end``

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Ask them, and begin once all have begun. Raises RunError with the ``fault`` where they do not, and
        where they are at work for another launch.
        """
        if (before := _peek(self._run.file(ASKED))).get("token"):
            time.sleep(3 * BEAT_S)  # one that was killed has left its file: it beats no more
            if _peek(self._run.file(ASKED)) not in (before, {}):
                why = "another job uses the machines of"
                raise RunError(f"{why} {self._run.path}: wait for it, stop it, or choose another run folder.")
        self._beat()
        try:
            with repeated(self._beat, BEAT_S):
                while len(self._told) < len(self._pulses) and not self.fault:
                    time.sleep(BEAT_S / 4)
                if self.fault:
                    raise RunError(self.fault)
                self._asked["begun"] = True
                yield
        finally:  # not by removing the file: one that cannot be read for a moment means nothing
            write_json(self._run.file(ASKED), {"token": ""})

    def verdict(self) -> str:
        """``fault``, once each of the others has come to its end or was lost, or had the time to."""
        until = time.monotonic() + LATE_S
        while not self.fault and not all("code" in self._told.get(node, {}) for node in self._pulses):
            if time.monotonic() > until:
                break
            time.sleep(BEAT_S / 4)
        return self.fault

    def _beat(self) -> None:
        self._asked["beat"] += 1
        write_json(self._run.file(ASKED), self._asked)
        for node, pulse in self._pulses.items():
            told = _peek(self._run.file(f".node-{node}.json"))
            if told.get("token") == self._asked["token"]:
                self._told[node] = told
            if not self.fault:
                self.fault = self._fault(node, pulse.still_s(self._told.get(node)))
        if self.fault and not self.ended and self._failed.still_s(self.fault) >= self._grace_s():
            self.ended = True
            self._end()

    def _grace_s(self) -> float:
        """Where a machine tells of its end, connections to it have ended; to a silent one they may last."""
        return LATE_S if any(told.get("why") for told in self._told.values()) else 0.0

    def _fault(self, node: int, still_s: float) -> str:
        told = self._told.get(node)
        again = f"start there: agentkit join {self._run.path} --node {node}"
        if told is None:
            if self._asked["beat"] == 5:
                print(f"waiting for machine {node}, {again}", file=sys.stderr)
            return f"machine {node} has not come for {JOIN_S:.0f} s, {again}" if still_s > JOIN_S else ""
        name = f"machine {node} ({told['host']})"
        if told.get("why"):
            return f"{name} failed: {told['why']}"
        if "code" not in told and still_s > LOST_S:
            return f"{name} was lost, nothing is heard of it for {LOST_S:.0f} s; {again}"
        return ""


# ---- each other machine
def join(run: Run, node: int) -> None:
    """Do this machine's part of the run's jobs, one after the other, until the run is over.

    Raises RunError where the recipe has no machine of this number, or another process serves as it.
    """
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as by nohup
        die_with_parent(signal.SIGTERM)
    print(f"machine {node} waits for jobs in {run.path}", flush=True)
    while not run.path.is_dir():
        time.sleep(BEAT_S)
    member = _Member(run, node)
    member.alone()
    member.serve()


class _Member:
    """One of the other machines, and what it tells in its file."""

    def __init__(self, run: Run, node: int):
        self._run, self._node, self._file = run, node, run.file(f".node-{node}.json")
        self._about = {"id": uuid.uuid4().hex, "host": socket.gethostname()}
        self._told: dict[str, Any] = {"beat": 0}

    def alone(self) -> None:
        """Raise RunError where another process serves as this machine."""
        if before := _peek(self._file):
            time.sleep(3 * BEAT_S)
            if _peek(self._file) not in (before, {}):
                raise RunError(self._twice())

    def _twice(self) -> str:
        return f"another agentkit join is machine {self._node} of {self._run.path} now: keep one"

    def serve(self) -> None:
        before = asked = _peek(self._run.file(ASKED))
        seen = asked.get("token") if asked.get("over") else None  # of a run that was over before
        while True:
            self._tell()
            token = asked.get("token")
            if token != seen and asked.get("over"):
                return self._file.unlink(missing_ok=True)
            # a launch that was killed has left its file: it beats no more
            is_alive = token == before.get("token") and asked.get("beat") != before.get("beat")
            if is_alive and token != seen and not asked.get("begun"):
                seen = token
                self._do(asked)
            before = asked
            time.sleep(BEAT_S)
            asked = _peek(self._run.file(ASKED))

    def _tell(self, **news: Any) -> None:
        other = _peek(self._file).get("id", self._about["id"])
        if self._told["beat"] and other != self._about["id"]:
            raise RunError(self._twice())
        self._told |= news | {"beat": self._told["beat"] + 1}
        with contextlib.suppress(DiskError):  # it may take the next one
            write_json(self._file, self._about | self._told)

    def _do(self, asked: dict[str, Any]) -> None:
        """This machine's part of a job, ended where the launch ends or is lost."""
        self._told = {"beat": self._told["beat"], "token": asked["token"]}
        cards = visible(torch.cuda.device_count())[: asked["number"]] if asked["gpus"] else ()
        if refusal := self._refusal(asked, len(cards)):
            self._tell(code=2, why=refusal)
            raise RunError(refusal)
        token, log = f"{asked['token']}.{self._node}", f"launch-{self._node}.log"
        child = torchrun.start(
            self._run,
            self._run.file(asked["job"]),
            token,
            asked["number"],
            cards,
            rendezvous=f"{asked['rendezvous']} --node-rank={self._node}",
            log=log,
            told=False,
        )
        try:
            self._watch(child, asked)
        finally:
            end_all(TOKEN, token.__eq__)
        self._tell(code=child.wait(), why=self._why(child.returncode, log))

    def _refusal(self, asked: dict[str, Any], cards: int) -> str:
        if not 0 < self._node < asked["nodes"]:
            return f"the recipe says nodes: {asked['nodes']}, so that --node is 1 to {asked['nodes'] - 1}"
        if asked["gpus"] and cards < asked["number"]:
            return (
                f"{cards} GPUs are seen here, and {asked['number']} are used on the first machine: set gpus"
            )
        return ""

    def _watch(self, child: subprocess.Popen, asked: dict[str, Any]) -> None:
        """Until its processes have ended, or had the time to since the launch ended, was lost or stopped."""
        pulse, until, stop = _Pulse(), math.inf, None
        while child.poll() is None and time.monotonic() < until:
            try:
                now = _peek(self._run.file(ASKED))
                is_other = now.get("token", asked["token"]) != asked["token"]
                if until == math.inf and (is_other or pulse.still_s(now.get("beat")) > LOST_S):
                    is_over = is_other and not now["token"]
                    until = time.monotonic() + (LATE_S if is_over else asked["wait_s"])
                    if not is_over:  # the first machine's processes end their step, and so do these
                        child.stdin.close()
                self._tell()
                time.sleep(BEAT_S)
            except KeyboardInterrupt as interrupt:  # as where the first machine is stopped
                if stop:
                    raise
                child.stdin.close()
                stop, until = interrupt, min(until, time.monotonic() + asked["wait_s"])
        if stop:
            self._tell(code=0, why="it was told to stop")
            raise stop

    def _why(self, code: int, log: str) -> str:
        text = self._run.file(log).read_text(encoding="utf-8", errors="replace")
        return f"{torchrun.death(code, text) or torchrun.last_error(text)} (see {log})" if code else ""
