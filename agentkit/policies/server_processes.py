"""vLLM servers that a notebook starts for a training: one a card, waited for, started again when they die.

Each is an ``agentkit serve`` on a free port. Leaves out sampling from them (server.py), and servers
elsewhere, which a recipe names in server_urls.
"""

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import torch

from agentkit.policies.loading import PROMPT_ROOM
from agentkit.policies.precision import precision_of
from agentkit.rollouts.policy import EngineError
from agentkit.runs import Recipe, Run, append_to, project_root
from agentkit.runs.children import PARENT, TOKEN, end_all, repeated
from agentkit.runs.topology import CARDS

START_S = 900.0  # until a server answers: it loads a model and compiles kernels
LOOK_S = 1.0
SERVED = "AGENTKIT_SERVED"  # what a server calls its model, in its environment
SOCKETS = "VLLM_RPC_BASE_PATH"  # where vLLM makes them, in a server's environment; killed, it leaves them
RESTARTS = 5  # of one server, before it is given up
END_S = 5.0  # to end by itself
ENDED_S = 30.0  # until a server ends whose engine has
PORTS = range(20_000, 32_768)  # below those that Linux gives to connections, where its default is kept
_given: set[int] = set()  # by this process, to servers that may not listen yet


def free_port() -> int:
    """A port for a server to come, of those that no connection is given: another could be taken while it, or
    its successor, loads a model.
    """
    for port in secrets.SystemRandom().sample(sorted({*PORTS} - _given), len(PORTS) - len(_given)):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            _given.add(port)
            return port
    raise OSError(f"no port from {PORTS[0]} to {PORTS[-1]} is free on this machine")


def served(port: int) -> Path:
    """Where the server on a port keeps the model that it has merged."""
    return project_root() / "outputs" / ".served" / str(port)


class _Server:
    """One server and its successors on the same port and card."""

    def __init__(self, command: Sequence[str], card: str, token: str, log: Path):
        port = free_port()
        self.url, self.folder = f"http://127.0.0.1:{port}", served(port)
        self.sockets = tempfile.mkdtemp(prefix="vllm-", dir=os.environ.get(SOCKETS))
        self.log, self.starts = log, 0
        self._command = [*command, f"--port={port}"]
        self._token = token
        own = {TOKEN: token, PARENT: str(os.getpid()), SOCKETS: self.sockets}
        self._environ = os.environ | own | ({CARDS: card} if card else {})
        self.start()

    def start(self) -> None:
        """Another name each time: what was sampled by one before it must not be asked of its successor, which
        has not been given the weights. What the one before left, such as vLLM's engine, goes first: it holds
        the card.
        """
        end_all(TOKEN, self._token.__eq__)
        with os.fdopen(append_to(self.log), "ab") as log:
            environ = self._environ | {SERVED: f"agentkit#{self.starts + 1}"}
            self.child = subprocess.Popen(
                self._command,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.starts += 1

    def has_died(self) -> bool:
        """And may be started again; its weights come with the next sync."""
        return self.child.poll() is not None and self.starts <= RESTARTS

    def is_given_up(self) -> bool:
        return self.starts > RESTARTS and self.child.poll() is not None

    def answers(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/health", timeout=5.0, trust_env=False).status_code == 200
        return False


class Replicas:
    """Servers of one model, at ``urls``; EngineError with what one wrote last, where it does not come up."""

    def __init__(self, servers: Sequence[_Server]):
        self._servers = servers
        self.urls = [server.url for server in servers]
        for server in servers:
            _wait(server)
        self._starts = [server.starts for server in servers]

    def come_back(self) -> bool:
        """Wait for those that died since they were last waited for; False where there are none.

        An engine's end may take its server a while. Raises EngineError where one does not come up again.
        """
        until = time.monotonic() + ENDED_S
        while not any(s.has_died() or s.starts > n for s, n in zip(self._servers, self._starts, strict=True)):
            if time.monotonic() > until:
                return False
            time.sleep(LOOK_S)
        for server in self._servers:
            if not server.is_given_up():
                _wait(server, again=True)
        self._starts = [server.starts for server in self._servers]
        return True


@contextlib.contextmanager
def replicas(recipe: Recipe, run: Run, cards: Sequence[str]) -> Iterator[Replicas]:
    """A server on each card or cards ("" on a CPU), all of which answer; none without cards.

    They serve the policy that GRPO starts from, and are started again when they die. Raises EngineError with
    what a server wrote last, where one does not come up.
    """
    token, made = uuid.uuid4().hex, []
    try:
        for number, card in enumerate(cards):
            log = run.file(f"server-{number}.log")
            log.write_bytes(b"")
            made.append(_Server(_command(recipe, run, bool(card)), card, f"{token}-{number}", log))
        up = Replicas(made)
        with repeated(lambda: [server.start() for server in made if server.has_died()], LOOK_S):
            yield up
    finally:
        for server in made:
            server.child.terminate()
        deadline = time.monotonic() + END_S
        while time.monotonic() < deadline and any(server.child.poll() is None for server in made):
            time.sleep(0.1)
        end_all(TOKEN, lambda value: value.startswith(token))
        for server in made:
            for folder in (server.folder, server.sockets):
                shutil.rmtree(folder, ignore_errors=True)


def _command(recipe: Recipe, run: Run, gpu: bool) -> list[str]:
    values = {"max-length": recipe.max_tokens + PROMPT_ROOM, "precision": recipe.precision}
    if recipe.tensor_parallel > 1:
        values["tensor-parallel"] = recipe.tensor_parallel
    elif gpu:
        values["gpu"] = 0  # of those it is shown, which is one
    if recipe.shard or recipe.weight_sync == "lora" or precision_of(recipe.precision) != torch.float32:
        values["lora-rank"] = Recipe.of(run).lora_r  # which notebook 05 is not handed
    if recipe.sft and run.file("sft").exists():  # else it is to be measured what comes before
        values["merge"] = str(run.file("sft").resolve())
    options = [f"--{name}={value}" for name, value in values.items()]
    return [sys.executable, "-m", "agentkit.cli", "serve", recipe.model, *options]


def _wait(server: _Server, again: bool = False) -> None:
    """Until it answers, or one of its successors, where it is started ``again`` when it ends."""
    deadline = time.monotonic() + START_S
    while not server.answers():
        ended = server.is_given_up() if again else server.child.poll() is not None
        if ended or time.monotonic() > deadline:
            lines = [line for line in server.log.read_text(errors="replace").splitlines() if line.strip()]
            why = (
                f"ended with status {server.child.returncode}" if ended else f"was silent for {START_S:.0f} s"
            )
            said = " | ".join(lines[-2:])[-300:]
            raise EngineError(f"the server that was to roll out {why} (see {server.log}): {said}")
        time.sleep(LOOK_S)
    shutil.rmtree(server.folder, ignore_errors=True)  # it has read its model
