"""Every hostile program: its stated outcome, in time, and nothing left behind."""

import os
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from hostile.programs import HOSTILE, ORDINARY, Program

from agentkit.sandbox import run as sandbox
from agentkit.tools.corpus import SHIPPED

OVERSHOOT_S = 0.25  # S4, on an idle machine
BUSY = 15.0  # what a loaded machine may add, in seconds


if sandbox.missing():
    pytest.skip("no sandbox on this machine", allow_module_level=True)


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
        _, port = server.getsockname()
        yield SimpleNamespace(home=home, port=port, unix=home / "socket", touched=touched, local=local)
        server.shutdown(socket.SHUT_RDWR)
    del os.environ["AGENTKIT_TEST_SECRET_KEY"]
    sandbox.close()


def filled(code: str, outside: SimpleNamespace) -> str:
    places = {"HOME": outside.home, "SECRET": outside.home / "secret", "CORPUS": SHIPPED}
    places |= {"PARENT": os.getpid(), "PORT": outside.port, "UNIX": outside.unix, "LITTER": "agentkit-litter"}
    for name, value in places.items():
        code = code.replace(f"'{name}'", f"'{value}'").replace(f"b'{name}'", f"b'{value}'")
        code = code.replace(name, str(value)) if name in ("PARENT", "PORT", "LITTER", "HOME") else code
    return code


def leftovers(outside: SimpleNamespace) -> list[str]:
    """Every trace of a program on this machine."""
    folders = outside.home, Path("/tmp"), Path("/var/tmp"), Path("/dev/shm")
    litter = [str(path) for folder in folders for path in folder.glob("agentkit-litter*")]
    bases = [Path(z.base) for z in sandbox._zygotes.values()]
    return [*litter, *(str(path) for base in bases for path in base.iterdir()), *outside.touched]


def got_out(program: Program, outside: SimpleNamespace) -> str:
    """What is wrong with how a hostile program ended; "" where it was contained."""
    code, before = filled(program.code, outside), (outside.home / "secret").stat()
    start = time.monotonic()
    result = sandbox.run_python(code, timeout_s=program.timeout_s, memory_mb=program.memory_mb)
    wall, written = time.monotonic() - start, result.stdout + result.stderr
    try:
        assert result.status in program.status and program.says in written
        assert "agentkit-planted" not in written and "\x1b" not in written and "\0" not in written
        assert max(len(result.stdout), len(result.stderr)) <= 4 * sandbox.zygote.MAX_OUTPUT + 200
        assert wall < sandbox.zygote.WALL * program.timeout_s + OVERSHOOT_S + BUSY
        assert (outside.home / "secret").stat() == before
        assert leftovers(outside) == []
        with pytest.raises(BlockingIOError):
            outside.local.recv(9)  # nothing came through the Unix socket
        fine = sandbox.run_python("print('fine')")
        assert (fine.status, fine.stdout) == ("ok", "fine\n"), "the next call suffered"
    except AssertionError as error:
        return f"{program.name}: {error} {str(result)[:600]}"
    return ""


def test_hostile_programs_are_contained(outside):
    assert [fault for program in HOSTILE if (fault := got_out(program, outside))] == []


def test_ordinary_programs_run():
    results = [(*row, sandbox.run_python(row[1], stdin="41\n", timeout_s=60)) for row in ORDINARY]
    assert [(name, r) for name, _, shows, r in results if (r.status, r.stdout.strip()) != ("ok", shows)] == []


def test_nothing_runs_on(outside):
    """After the kills above: the zygotes have no children."""
    deadline = time.monotonic() + 1 + BUSY
    while time.monotonic() < deadline:
        left = [c for z in sandbox._zygotes.values() for c in psutil.Process(z.process.pid).children()]
        if not left:
            return
        time.sleep(0.05)
    assert left == []


def test_the_kill_comes_in_time():
    """S4: the best of ten, so that a busy machine is not blamed on the sandbox."""
    code, most_s = "import time\ntime.sleep(60)", 0.1 * sandbox.zygote.WALL
    assert min(sandbox.run_python(code, timeout_s=0.1).seconds for _ in range(10)) - most_s <= OVERSHOOT_S
