"""The zygote: a clean process that forks one confined process per call and bounds it.

    trainer --control socket--> zygote --fork--> program (confined), one a call

Run as a script; see agentkit.sandbox. The zygote holds no data: a call's code comes in a file of its own,
which only its program reads, and what the program writes goes into two more. The zygote
watches the clock, threads and files, kills, and says how it ended. When the trainer ends, the control socket
closes and the zygote ends, and every program with it. Leaves out all of agentkit but its neighbour confine:
what is imported here is what untrusted code finds in its memory.
"""

import atexit
import gc
import importlib.machinery
import io
import json
import linecache
import marshal
import math
import os
import resource
import select
import signal
import site
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
MAX_FILES, MAX_FILE_BYTES, MAX_DISK = 1_000, 32 * 2**20, 64 * 2**20  # in a program's folder
MAX_LEVELS = 50  # of folders there
OPEN_FILES = 128
MEMORY_EXIT = 86  # exit status of a program that ended with a MemoryError
WATCH_S = 0.02  # how often time, threads and files are looked at
WALL = 3  # times its processor time a program may take on the clock, since it shares the cores
LATE = "the time limit was reached"
MAX_LINE = 500  # characters of a line of code in a traceback
NAME = "main.py"  # what tracebacks call the program


class Installed:
    """Finds the installed packages that programs may import; the others are as if they were not there."""

    def __init__(self, folders: dict[str, str]):
        self.folders = folders

    def find_spec(self, name: str, path: list[str] | None = None, target: object = None) -> object:
        if path is None and name in self.folders:
            return importlib.machinery.PathFinder.find_spec(name, [self.folders[name]])
        return None


# ---- the zygote
def serve(control: socket.socket, settings: dict) -> None:
    """Get ready, say so, then run a program for every request, until the trainer is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the trainer may ignore it
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # programs get a limit of their own
    _load_packages(settings)
    sys.stdout.reconfigure(errors="backslashreplace", line_buffering=True)
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # where memory runs out, these processes go first, not the trainer
    with open("/proc/self/statm") as file:
        settings["mapped"] = int(file.read().split()[0]) * os.sysconf("SC_PAGESIZE")
    gc.collect()
    confine.gain_nothing()
    opened = confine.open_rules([*map(tuple, settings["rules"]), ("/dev/null", confine.READ_WRITE)])
    supervisor = Supervisor(control, settings, opened, proc)
    gc.freeze()  # keeps the collector from touching, and so copying, every page in every fork
    control.sendall(b"ready")
    supervisor.work()
    remove_tree(settings["base"])


def _load_packages(settings: dict) -> None:
    threading.stack_size(1 << 20)
    site.setquit()  # exit, quit and help, as where Python is run without -S
    site.sethelper()
    sys.path[:] = settings["path"]
    sys.meta_path.append(Installed(settings["installed"]))
    for name in settings["preload"]:
        importlib.import_module(name)
        with suppress(Exception):  # another version's; it then costs the programs time, nothing more
            exec(_FIRST_USE.get(name, ""), {})


# What a package computes, imports and keeps on first use is done here once, not in every program.
_FIRST_USE = {
    "sympy": """
from sympy import Eq, Integer, Matrix, Symbol, expand, exp, factor, integrate, latex, limit, pi, simplify, sin
from sympy import solve, sqrt
x = Symbol("x")
str(Integer(2) ** 10 + sqrt(8)), latex(x**2 / 2), pi.evalf(20), factor(expand((x + 1) ** 2))
Matrix([[1, 2], [3, 4]]).inv()
solve(Eq(x**2 - 2, 0), x), simplify(sin(x) ** 2 + x / x), integrate(x * exp(x), x), limit(sin(x) / x, x, 0)
"""
}


# ---- the calls
class Call:
    """One program: its process, the socket of its caller, and the bound that it broke, if any."""

    def __init__(self, process: int, connection: socket.socket, timeout_s: float, scratch: str):
        self.process, self.connection, self.scratch = process, connection, scratch
        self.timeout_s, self.start = timeout_s, time.monotonic()
        self.pidfd = confine.process_handle(process)  # readable when it has ended
        self.broke = self.why = ""

    def is_late(self) -> bool:
        """Whether its processor time, or on the clock WALL times that, is over."""
        clock = ~self.process << 3 | 2  # the processor time of all its threads: man 3 clock_getcpuclockid
        is_over = time.monotonic() - self.start >= WALL * self.timeout_s
        return is_over or time.clock_gettime(clock) >= self.timeout_s

    def stop(self, broke: str, why: str) -> None:
        """Kill the program, for the first bound that it broke."""
        if not self.broke:
            self.broke, self.why = broke, why
        os.kill(self.process, signal.SIGKILL)  # not waited for yet, so the number is still its own

    def finish(self) -> None:
        _, status, used = os.wait4(self.process, 0)
        os.close(self.pidfd)
        code, seconds = os.waitstatus_to_exitcode(status), time.monotonic() - self.start
        if not self.broke and code == -signal.SIGKILL and used.ru_utime + used.ru_stime >= self.timeout_s:
            self.broke, self.why = "timeout", LATE  # the kernel was first, as with many threads
        reply(self.connection, broke=self.broke, why=self.why, seconds=seconds, exit=code)


def reply(connection: socket.socket, **message: str | float) -> None:
    with suppress(OSError), connection:  # it may be gone
        connection.send(json.dumps(message).encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


class Supervisor:
    """Forks a confined program for every request, bounds it, replies."""

    def __init__(self, control: socket.socket, settings: dict, opened: list, proc: int):
        self.control, self.settings, self.opened, self.proc = control, settings, opened, proc
        self.process = os.getpid()
        self.filter = confine.Filter()
        self.ruleset = confine.Ruleset(opened)  # for the next program
        self.calls: dict[int, Call] = {}  # by pidfd
        self.callers: dict[int, Call] = {}  # by the caller's socket, as long as the caller is there
        self.poll = select.poll()
        self.poll.register(control, select.POLLIN)

    def work(self) -> None:
        """Until the trainer is gone."""
        next_look = 0.0
        while True:
            if time.monotonic() >= next_look:
                self._look()
                next_look = time.monotonic() + WATCH_S
            events = dict(self.poll.poll(1000 * WATCH_S if self.calls else None))
            request = events.pop(self.control.fileno(), None)
            for handle in events:
                self._handle(handle)
            if request and not self._start():  # last: it may open descriptors that were just closed
                break
        for call in self.calls.values():
            os.kill(call.process, signal.SIGKILL)
            os.waitpid(call.process, 0)

    def _look(self) -> None:
        """Stop the programs that are beyond a bound."""
        for call in self.calls.values():
            if call.is_late():
                call.stop("timeout", LATE)
            elif excess := self._excess(call):
                call.stop("killed", excess)

    def _excess(self, call: Call) -> str:
        """Which bound the program broke, or nothing."""
        left = MAX_DISK
        with suppress(OSError, ValueError):  # it has just ended
            if os.stat(f"{call.process}/task", dir_fd=self.proc).st_nlink - 2 > MAX_THREADS:
                return f"more than {MAX_THREADS} threads"
            left -= self._nameless(call.process)
        if left >= 0 and within(call.scratch, MAX_FILES, left):
            return ""
        return f"more than {MAX_FILES} files, {MAX_DISK >> 20} MiB or {MAX_LEVELS} levels of folders"

    def _nameless(self, process: int) -> int:
        """Bytes of the files that a process holds open and that no folder lists any more."""
        folder, blocks = os.open(f"{process}/fd", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self.proc), {}
        try:
            for name in os.listdir(folder):
                with suppress(FileNotFoundError):  # it was closed while we looked
                    status = os.stat(name, dir_fd=folder)
                    if not status.st_nlink:
                        blocks[status.st_dev, status.st_ino] = 512 * status.st_blocks
        finally:
            os.close(folder)
        return sum(blocks.values())

    def _handle(self, handle: int) -> None:
        if handle in self.calls:
            call = self.calls.pop(handle)
            self.poll.unregister(handle)
            if self.callers.pop(call.connection.fileno(), None):
                self.poll.unregister(call.connection)
            call.finish()
        elif handle in self.callers:
            self.poll.unregister(handle)
            self.callers.pop(handle).stop("stopped", "the caller wants no more")

    def _start(self) -> bool:
        """Take a request and fork its program. False when the trainer is gone."""
        message, handles, _, _ = socket.recv_fds(self.control, 4096, 5)
        if not message:
            return False
        scratch = message[8:].decode()
        caller, program, *streams = handles
        connection = socket.socket(fileno=caller)
        try:
            child = os.fork()
        except OSError as error:
            reply(connection, broke="refused", why=f"no process could be started: {error.strerror}")
            child = -1
        if child == 0:
            try:
                for number, stream in enumerate(streams):
                    os.dup2(stream, number)
                run_confined(self, scratch, program)
            except BaseException as error:  # the confinement failed: the program has not started
                reply(connection, broke="refused", why=f"it could not be closed: {error!r}")
            finally:
                os._exit(1)
        for handle in (program, *streams):
            os.close(handle)
        if child > 0:
            call = Call(child, connection, *struct.unpack("d", message[:8]), scratch)
            self.calls[call.pidfd] = self.callers[caller] = call
            self.poll.register(call.pidfd, select.POLLIN)
            self.poll.register(caller, select.POLLRDHUP)
            self.ruleset.close()
            self.ruleset = confine.Ruleset(self.opened)  # hundreds of rules, while the program starts
        return True


# ---- the program
def run_confined(supervisor: Supervisor, scratch: str, program: int) -> None:
    """In the program's process: confine it, then run the code as ``python main.py`` would, and exit."""
    os.setsid()  # a scheduling group of its own, where a session makes one: its threads weigh as one
    with io.FileIO(program) as file:
        request = marshal.loads(file.readall())
    supervisor.ruleset.allow(confine.open_rules([(scratch, confine.READ_WRITE)]))
    os.chdir(scratch)
    confine.drop_rights()
    supervisor.ruleset.restrict()
    confine.die_with_parent()
    if os.getppid() != supervisor.process:  # it died before that
        os._exit(1)
    for name, content in request["files"].items():
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        with open(name, "wb") as file:
            file.write(content)
    confine.limit(
        supervisor.settings["mapped"] + request["memory_bytes"],
        math.ceil(request["timeout_s"]) + 1,
        MAX_FILE_BYTES,
        OPEN_FILES,
    )
    supervisor.filter.install()
    os.closerange(3, 1 << 20)  # the last step that can fail: until here the caller is told
    os.environ["HOME"] = os.environ["TMPDIR"] = scratch
    _run(request["code"], scratch)


def _run(code: str, scratch: str) -> None:
    leave, flush = os._exit, (sys.stdout.flush, sys.stderr.flush)
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=__builtins__, __file__=os.path.join(scratch, NAME))
    sys.modules["__main__"] = main
    sys.modules.pop("confine", None)
    sys.argv[:], sys.path[:] = [NAME], [scratch, *sys.path]
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # otherwise every fork draws the same numbers
    linecache.cache[NAME] = (len(code), None, [line[:MAX_LINE] for line in code.splitlines(True)], NAME)
    status = 1
    try:
        status = _execute(code, main.__dict__)
        threading._shutdown()
        atexit._run_exitfuncs()
    finally:
        for stream in flush:
            with suppress(BaseException):
                stream()
        leave(status)


def _execute(code: str, scope: dict) -> int:
    """Run the program, report an exception as Python does, and return the exit status."""
    try:
        exec(compile(code, NAME, "exec", dont_inherit=True), scope)
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return (leaving.code or 0) & 0xFF
        print(leaving.code, file=sys.stderr)
        return 1
    except MemoryError as error:
        scope.clear()  # what filled the memory
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
        traceback.print_exception(type(error), error, error.__traceback__.tb_next)  # without this file's
    except BaseException:  # the exception's own methods fail, or memory is short
        with suppress(BaseException):
            os.write(2, f"{type(error).__name__}\n".encode())


# ---- files
# Untrusted code fills these folders, perhaps while they are read: every step goes from an open folder to a
# name in it.
def within(folder: str, files: int, size: int) -> bool:
    """Whether a folder holds at most so many entries, bytes and levels; not where it cannot be read."""
    left = [files, size]

    def fits(name: str, parent: int | None, levels: int) -> bool:
        handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
        try:
            with os.scandir(handle) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):  # it went while we looked; the next look finds the rest
                        status = entry.stat(follow_symlinks=False)
                        left[0] -= 1
                        left[1] -= 512 * status.st_blocks
                        if min(left) < 0:
                            return False
                        deeper = stat.S_ISDIR(status.st_mode)
                        if deeper and not (levels and fits(entry.name, handle, levels - 1)):
                            return False
        finally:
            os.close(handle)
        return True

    try:
        return fits(folder, None, MAX_LEVELS)
    except FileNotFoundError:
        return True
    except OSError:
        return False


def remove_tree(folder: str) -> None:
    """Remove a folder that untrusted code filled: no link is followed, no depth and no mode is in the way."""
    import shutil
    import subprocess

    with suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):
        for command in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
            subprocess.run([*command, folder], check=False, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), json.loads(sys.argv[2]))
