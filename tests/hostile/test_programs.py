"""Every hostile program on every tier that exists here: its stated outcome, in time, and nothing left behind."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from hostile.programs import HOSTILE, ORDINARY
from sandbox_tiers import expected_tiers

from agentkit.sandbox import run as sandbox
from agentkit.tools.corpus import SHIPPED

OVERSHOOT_S = 0.25  # S4, on an idle machine
BUSY = 15.0  # what a loaded machine may add, in seconds


TIERS = expected_tiers()


@pytest.fixture(
    scope="module",
    params=[pytest.param(tier, marks=pytest.mark.slow if tier in TIERS[1:] else ()) for tier in "AB"],
)
def tier(request):
    """What is not slow attacks the strongest tier only."""
    if request.param not in TIERS:
        pytest.skip(f"this machine's kernel does not allow tier {request.param}")
    return request.param


@pytest.fixture(scope="module")
def outside(tmp_path_factory):
    """What programs must not reach: a secret file, a secret in the environment, a port and a Unix socket."""
    home = tmp_path_factory.mktemp("home")
    (home / "secret").write_text("agentkit-planted")
    os.environ["AGENTKIT_TEST_SECRET_KEY"] = "agentkit-planted"
    sandbox.close()  # so that the zygotes start with the secret in the trainer's environment
    touched = []
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as local,
    ):
        local.bind(str(home / "socket"))
        local.setblocking(False)

        def serve():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                touched.append("port")
                connection.close()

        threading.Thread(target=serve, daemon=True).start()
        yield SimpleNamespace(
            home=home, port=server.getsockname()[1], unix=home / "socket", touched=touched, local=local
        )
        server.shutdown(socket.SHUT_RDWR)
    del os.environ["AGENTKIT_TEST_SECRET_KEY"]
    sandbox.close()


def filled(code: str, outside: SimpleNamespace) -> str:
    places = {
        "HOME": outside.home,
        "SECRET": outside.home / "secret",
        "PARENT": os.getpid(),
        "PORT": outside.port,
    }
    places |= {"UNIX": outside.unix, "LITTER": "agentkit-litter", "CORPUS": SHIPPED}
    for name, value in places.items():
        code = code.replace(f"'{name}'", f"'{value}'").replace(f"b'{name}'", f"b'{value}'")
        code = code.replace(name, str(value)) if name in ("PARENT", "PORT", "LITTER", "HOME") else code
    return code


def leftovers(outside: SimpleNamespace) -> list[str]:
    """Every trace of a program on this machine."""
    litter = [
        p
        for f in (outside.home, Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))
        for p in f.glob("agentkit-litter*")
    ]
    bases = [Path(z.base) for z in sandbox._zygotes.values() if z.tier == "B"]
    return [*map(str, litter), *(str(p) for base in bases for p in base.iterdir()), *outside.touched]


@pytest.mark.parametrize("program", HOSTILE, ids=lambda program: program.name)
def test_hostile_programs_are_contained(tier, outside, program):
    before = (outside.home / "secret").stat()
    start = time.monotonic()
    result = sandbox.run_python(
        filled(program.code, outside), tier=tier, timeout_s=program.timeout_s, memory_mb=program.memory_mb
    )
    wall = time.monotonic() - start
    assert result.status in program.status, result
    assert program.says in result.stdout + result.stderr, result
    assert "agentkit-planted" not in result.stdout + result.stderr
    assert "\x1b" not in result.stdout and "\0" not in result.stdout
    assert max(len(result.stdout), len(result.stderr)) <= 4 * sandbox.zygote.MAX_OUTPUT + 200
    assert result.tier == tier and wall < program.timeout_s + OVERSHOOT_S + BUSY
    assert (outside.home / "secret").stat() == before
    assert leftovers(outside) == []
    with pytest.raises(BlockingIOError):
        outside.local.recv(9)  # nothing came through the Unix socket
    fine = sandbox.run_python("print('fine')", tier=tier)
    assert (fine.status, fine.stdout) == ("ok", "fine\n"), f"the next call suffered: {fine}"


@pytest.mark.parametrize(("name", "code", "shows"), ORDINARY, ids=[name for name, *_ in ORDINARY])
def test_ordinary_programs_run(tier, name, code, shows):
    result = sandbox.run_python(code, tier=tier, stdin="41\n", timeout_s=60)
    assert result.status == "ok" and result.stdout.strip() == shows, result


def test_nothing_runs_on(tier, outside):
    """After the kills above: the zygotes have no children."""
    deadline = time.monotonic() + 1 + BUSY
    while time.monotonic() < deadline:
        left = [c for z in sandbox._zygotes.values() for c in programs(z)]
        if not left:
            return
        time.sleep(0.05)
    assert left == []


def programs(zygote) -> list[psutil.Process]:
    """What runs under a zygote; in tier A, the zygote is the only child of the process that the trainer
    started.
    """
    (parent,) = (
        psutil.Process(zygote.process.pid).children()
        if zygote.tier == "A"
        else [psutil.Process(zygote.process.pid)]
    )
    return parent.children(recursive=True)


def test_the_kill_comes_in_time(tier):
    """S4: the best of ten, so that a busy machine is not blamed on the sandbox."""
    overshoot = [
        sandbox.run_python("while True: pass", tier=tier, timeout_s=0.3).seconds - 0.3 for _ in range(10)
    ]
    assert min(overshoot) <= OVERSHOOT_S
