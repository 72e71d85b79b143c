"""The zygote: a clean process that forks one confined process per call. Run as a script; see agentkit.sandbox.

    trainer --control socket--> zygote --fork--> warden (one a call) --fork--> program (confined)

The zygote holds no data: a call's code arrives on a socket of its own, which only its warden reads. The warden watches
the clock, the output, threads and files, kills, cleans up and replies. When the trainer ends, the control socket closes
and the zygote ends; wardens die with the zygote and programs with their warden.
Standard library only, and nothing of agentkit: whatever is imported here is what untrusted code finds in its memory.
"""

from __future__ import annotations

import atexit
import base64
import gc
import importlib.machinery
import io
import json
import linecache
import os
import select
import signal
import socket
import stat
import struct
import sys
import threading
import time
import traceback
import types
from contextlib import suppress

if __name__ == "__main__":  # run as a script, without the package around it
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import confine

    sys.path.pop(0)
else:
    from agentkit.sandbox import confine

MAX_OUTPUT = 256 * 1024  # bytes of stdout and of stderr that are kept; more ends the program
MAX_THREADS = 128
MAX_FILES, MAX_FILE_BYTES, MAX_DISK = 1_000, 32 * 2**20, 64 * 2**20  # in the scratch folder
OPEN_FILES = 128
SPARE = 16 * 2**20  # bytes of address space for reporting a MemoryError
MEMORY_EXIT = 86  # exit status of a program that ended with a MemoryError
WATCH_S = 0.02  # how often threads and files are counted
MAX_LINE = 500  # characters of a line of code in a traceback
NAME = "main.py"  # what tracebacks call the program


# ---- messages: a length, then that many bytes ------------------------------------------------------------------------
def receive(connection: socket.socket) -> bytes:
    """One message. Raises EOFError when the other side is gone."""
    (size,) = struct.unpack(">I", _exactly(connection, 4))
    return _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        piece = connection.recv(min(size - len(found), 1 << 20))
        if not piece:
            raise EOFError
        found += piece
    return bytes(found)


def send(connection: socket.socket, *parts: bytes) -> None:
    """One message."""
    body = b"".join(parts)
    connection.sendall(struct.pack(">I", len(body)) + body)


class Installed:
    """Finds the installed packages that programs may import; every other one is as if it were not installed."""

    def __init__(self, names: list[str], folders: list[str]):
        self.names, self.folders = names, folders

    def find_spec(self, name: str, path: list[str] | None = None, target: object = None) -> object:
        """A top-level package's spec, or None."""
        if path is None and name in self.names:
            return importlib.machinery.PathFinder.find_spec(name, self.folders)
        return None


# ---- the zygote ------------------------------------------------------------------------------------------------------
def serve(control: socket.socket, settings: dict) -> None:
    """Set up the tier, say so, then fork a warden for every socket that arrives, until the trainer is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # wardens need no waiting for
    threading.stack_size(1 << 20)
    sys.path[:] = settings["path"]
    sys.meta_path.append(Installed(settings["names"], settings["sites"]))
    for name in settings["preload"]:
        importlib.import_module(name)
        with suppress(Exception):  # another version's; it then costs the programs time, nothing more
            exec(_FIRST_USE.get(name, ""), {})
    _open_streams()
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # where memory runs out, these processes go first, not the trainer
    with open("/proc/self/statm") as file:
        settings["mapped"] = int(file.read().split()[0]) * os.sysconf("SC_PAGESIZE")
    if settings["tier"] == "A":
        confine.enter_namespaces()
        confine.change_root(*(settings[name] for name in ("base", "scratch", "shown", "hidden", "packages")))
        rules = [("/", confine.READ), ("/dev/null", confine.READ_WRITE)]
    else:
        rules = [*map(tuple, settings["rules"]), ("/dev/null", confine.READ_WRITE)]
    opened, program_filter = confine.open_rules(rules), confine.Filter()
    gc.collect()
    gc.freeze()  # keeps the collector from touching, and so copying, every page in every fork
    control.sendall(b"ready")
    while True:
        try:
            message, handles, _, _ = socket.recv_fds(control, 1, 1)
        except InterruptedError:
            continue
        if not message:
            break
        if os.fork() == 0:
            try:
                control.close()
                Warden(socket.socket(fileno=handles[0]), settings, opened, program_filter, proc).work()
            finally:
                os._exit(1)
        for handle in handles:
            os.close(handle)
    with suppress(ChildProcessError):  # the wardens see their callers go, and end by themselves
        os.waitpid(-1, 0)
    if settings["tier"] != "A":
        remove_tree(settings["base"])


# What a package computes, imports and keeps on first use is done here once, not in every program.
_FIRST_USE = {
    "sympy": """
from sympy import Eq, Integer, Matrix, Symbol, expand, exp, factor, integrate, latex, limit, pi, simplify, sin, solve, sqrt
x = Symbol("x")
str(Integer(2) ** 10 + sqrt(8)), latex(x**2 / 2), pi.evalf(20), factor(expand((x + 1) ** 2)), Matrix([[1, 2], [3, 4]]).inv()
solve(Eq(x**2 - 2, 0), x), simplify(sin(x) ** 2 + x / x), integrate(x * exp(x), x), limit(sin(x) / x, x, 0)
""",
}


def _open_streams() -> None:
    """Standard streams for the programs to come, over descriptors 0 to 2, whatever these are by then."""
    os.dup2(2, 1)  # a pipe, as a program has it: neither can be searched
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    for name, number in (("stdout", 1), ("stderr", 2)):
        raw = io.BufferedWriter(io.FileIO(number, "w", closefd=False))
        text = io.TextIOWrapper(raw, "utf-8", "backslashreplace", line_buffering=True)
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)


# ---- one call --------------------------------------------------------------------------------------------------------
class Warden:
    """Runs one program: forks it confined, bounds it, replies."""

    def __init__(self, connection: socket.socket, settings: dict, opened: list, program_filter: confine.Filter, proc: int):
        self.connection, self.settings, self.opened = connection, settings, opened
        self.filter, self.proc = program_filter, proc
        self.scratch = settings["scratch"]

    def work(self) -> None:
        """One call from request to reply."""
        confine.die_with_parent()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        request = json.loads(receive(self.connection))
        private = self.settings["tier"] == "A"
        if private:
            confine.enter_call(self.scratch, MAX_DISK, MAX_FILES)
        else:
            self.scratch = os.path.join(self.settings["base"], str(os.getpid()))
            os.mkdir(self.scratch, 0o700)
        try:
            reply, outputs = self._supervise(request)
        finally:
            if not private:
                remove_tree(self.scratch)
        header = json.dumps(reply | {"sizes": [len(o) for o in outputs]}).encode()
        send(self.connection, struct.pack(">I", len(header)), header, *outputs)
        os._exit(0)

    def _supervise(self, request: dict) -> tuple[dict, list[bytes]]:
        ends = [os.pipe() for _ in range(2)]
        stdin = os.memfd_create("stdin")
        os.write(stdin, request["stdin"].encode("utf-8", "surrogatepass"))
        os.lseek(stdin, 0, os.SEEK_SET)
        start = time.monotonic()
        child = os.fork()
        if child == 0:
            try:
                run_confined(self, request, (stdin, ends[0][1], ends[1][1]))
            except BaseException as error:  # the confinement failed: the program has not started
                os.write(2, f"the sandbox could not be closed: {error!r}\n".encode())
            finally:
                os._exit(1)
        for handle in (stdin, ends[0][1], ends[1][1]):
            os.close(handle)
        readers = [end[0] for end in ends]
        outputs, verdict, why = self._watch(child, readers, start + request["timeout_s"])
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        seconds = time.monotonic() - start
        for reader, output in zip(readers, outputs, strict=True):
            _drain(reader, output)
        if verdict is None and any(len(output) > MAX_OUTPUT for output in outputs):
            verdict, why = "output", f"more than {MAX_OUTPUT} bytes of output"
        if verdict is None:
            verdict, why = _outcome(status)
        return {"status": verdict, "why": why, "seconds": seconds}, [bytes(output[:MAX_OUTPUT]) for output in outputs]

    def _watch(self, child: int, readers: list[int], deadline: float) -> tuple[list[bytearray], str | None, str]:
        """Collect output until the program ends (None) or breaks a bound (its status and why)."""
        ended = os.pidfd_open(child)
        outputs = {reader: bytearray() for reader in readers}
        poll = select.poll()
        for handle in (ended, *readers):
            poll.register(handle, select.POLLIN)
        poll.register(self.connection, select.POLLRDHUP | select.POLLHUP)
        looked = 0.0
        while True:
            now = time.monotonic()
            if now >= deadline:
                return list(outputs.values()), "timeout", "the time limit was reached"
            if now - looked >= WATCH_S:
                looked = now
                if excess := self._excess(child):
                    return list(outputs.values()), "killed", excess
            for handle, _ in poll.poll(1000 * min(WATCH_S, deadline - now) + 1):
                if handle == ended:
                    return list(outputs.values()), None, ""
                if handle == self.connection.fileno():
                    return list(outputs.values()), "killed", "the caller is gone"
                piece = os.read(handle, 65_536)
                outputs[handle] += piece
                if not piece:
                    poll.unregister(handle)
                if len(outputs[handle]) > MAX_OUTPUT:
                    return list(outputs.values()), "output", f"more than {MAX_OUTPUT} bytes of output"

    def _excess(self, child: int) -> str:
        """Which bound the program broke, or nothing."""
        with suppress(OSError):  # it has just ended
            if os.stat(f"{child}/task", dir_fd=self.proc).st_nlink - 2 > MAX_THREADS:
                return f"more than {MAX_THREADS} threads"
        if self.settings["tier"] != "A" and not within(self.scratch, MAX_FILES, MAX_DISK):
            return f"more than {MAX_FILES} files or {MAX_DISK >> 20} MiB of files"
        return ""


def _drain(reader: int, output: bytearray) -> None:
    """What is left in the pipe of a dead program."""
    os.set_blocking(reader, False)
    with suppress(BlockingIOError):
        while len(output) <= MAX_OUTPUT and (piece := os.read(reader, 65_536)):
            output += piece


def _outcome(status: int) -> tuple[str, str]:
    """Status and reason from a wait status."""
    code = os.waitstatus_to_exitcode(status)
    if code == MEMORY_EXIT:
        return "memory", ""
    if code == -signal.SIGKILL:
        return "killed", "killed by the system, as when memory runs out"
    if code < 0:
        return "error", f"stopped by {signal.Signals(-code).name if -code in set(signal.Signals) else f'signal {-code}'}"
    return ("ok", "") if code == 0 else ("error", "")


# ---- the program -----------------------------------------------------------------------------------------------------
def run_confined(warden: Warden, request: dict, streams: tuple[int, int, int]) -> None:
    """In the program's process: confine it, then run the code as ``python main.py`` would, and exit."""
    for number, handle in enumerate(streams):
        os.dup2(handle, number)
    scratch = warden.scratch
    rules = [*warden.opened, *confine.open_rules([(scratch, confine.READ_WRITE)])]
    os.chdir(scratch)
    for name in ("SIGPIPE", "SIGCHLD"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    confine.drop_rights()
    confine.restrict(rules)
    confine.die_with_parent()
    os.closerange(3, 1 << 20)
    confine.limit(
        warden.settings["mapped"] + request["memory_bytes"],
        SPARE,
        int(request["timeout_s"] * (os.cpu_count() or 1)) + 2,
        MAX_FILE_BYTES,
        OPEN_FILES,
    )
    warden.filter.install()
    os.environ.update(HOME=scratch, TMPDIR=scratch)
    _write_files(request["files"])
    _run(request["code"], scratch)


def _write_files(files: dict[str, str]) -> None:
    for name, content in files.items():
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        with open(name, "wb") as file:
            file.write(base64.b64decode(content))


def _run(code: str, scratch: str) -> None:
    leave, flush = os._exit, (sys.stdout.flush, sys.stderr.flush)
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    sys.modules.pop("confine", None)
    sys.argv[:], sys.path[:] = [NAME], [scratch, *sys.path]
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # otherwise every fork draws the same numbers
    sys.addaudithook(_explain)
    linecache.cache[NAME] = (len(code), None, [line[:MAX_LINE] for line in code.splitlines(True)], NAME)
    status = 1
    try:
        status = _status_of(lambda: exec(compile(code, NAME, "exec", dont_inherit=True), main.__dict__), main)
        threading._shutdown()
        atexit._run_exitfuncs()
    finally:
        for stream in flush:
            with suppress(BaseException):
                stream()
        leave(status)


def _status_of(work, main: types.ModuleType) -> int:
    """Run, report an exception as Python does, and return the exit status."""
    try:
        work()
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return (leaving.code or 0) & 0xFF
        print(leaving.code, file=sys.stderr)
        return 1
    except MemoryError as error:
        import resource

        main.__dict__.clear()  # what filled the memory
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        _report(error)
        return MEMORY_EXIT
    except BaseException as error:
        _report(error)
        return 1
    return 0


def _report(error: BaseException) -> None:
    try:
        if isinstance(error, SyntaxError) and error.text and len(error.text) > MAX_LINE:
            error.text, error.offset = error.text[:MAX_LINE], None
        ours = sum(1 for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == __file__)
        trace = error.__traceback__
        for _ in range(ours):
            trace = trace.tb_next if trace else None
        traceback.print_exception(type(error), error, trace)
    except BaseException:  # the exception's own methods fail, or memory is short
        with suppress(BaseException):
            os.write(2, f"{type(error).__name__}\n".encode())


_REFUSED = {
    "os.system": "start other programs", "subprocess.Popen": "start other programs", "os.exec": "start other programs",
    "os.posix_spawn": "start other programs", "os.spawn": "start other programs", "os.fork": "fork", "os.forkpty": "fork",
    "socket.connect": "use the network", "socket.bind": "use the network", "socket.getaddrinfo": "use the network",
    "socket.gethostbyname": "use the network",
}  # fmt: skip


def _explain(event: str, arguments: tuple) -> None:
    """A sentence instead of a bare "Operation not permitted". The kernel refuses these anyway."""
    what = _REFUSED.get(event)
    if what:
        raise PermissionError(1, f"this sandbox cannot {what}")


# ---- files -----------------------------------------------------------------------------------------------------------
def within(folder: str, files: int, size: int) -> bool:
    """Whether a folder holds at most so many entries and bytes. What cannot be looked into counts as too much."""
    waiting = [folder]
    try:
        while waiting:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    found = entry.stat(follow_symlinks=False)
                    files, size = files - 1, size - 512 * found.st_blocks
                    if files < 0 or size < 0:
                        return False
                    if stat.S_ISDIR(found.st_mode):
                        waiting.append(entry.path)
    except FileNotFoundError:  # it went while we looked; the next look finds the rest
        return True
    except OSError:
        return False
    return True


def remove_tree(folder: str) -> None:
    """Remove a folder that untrusted code filled: no link is followed, no depth and no mode gets in the way."""
    for _ in range(100 * MAX_FILES):  # each pass takes one level away
        with suppress(OSError):
            for entry in _opened(folder):
                if entry.is_dir(follow_symlinks=False):
                    for inner in _opened(entry.path):
                        if inner.is_dir(follow_symlinks=False):
                            os.chmod(inner.path, 0o700)  # a folder moves only when it may be written
                        os.rename(inner.path, os.path.join(folder, os.urandom(12).hex()))
                    os.rmdir(entry.path)
                else:
                    os.unlink(entry.path)
        with suppress(OSError):
            os.rmdir(folder)
        if not os.path.lexists(folder):
            return


def _opened(folder: str) -> list[os.DirEntry]:
    os.chmod(folder, 0o700)
    with os.scandir(folder) as entries:
        return list(entries)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), json.loads(sys.argv[2]))
