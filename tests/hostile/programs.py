# ruff: noqa: E501 - programs read better on one line
"""Hostile and ordinary programs with their right outcome. HOME, SECRET, PARENT, PORT, UNIX and LITTER are
filled in.

ERR (a Python error that the program sees, the run goes on), KILL (stopped at a limit), FINE (it runs and gets
nothing).
"""

from dataclasses import dataclass

ERR, FINE = ("error",), ("ok",)
CRASH = ("error", "killed", "memory", "timeout")  # it ends by itself or is ended; it never succeeds


@dataclass(frozen=True)
class Program:
    name: str
    code: str
    status: tuple[str, ...]
    says: str = ""  # stands in stdout or stderr
    timeout_s: float = 10.0
    memory_mb: int = 512


def _c(call: str) -> str:
    """A C library call that must fail, without Python's own checks in the way."""
    return f"import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\nr = libc.{call}\nassert r == -1, r\nprint('errno', ctypes.get_errno())"


# C library calls that the filter refuses
CALLS = [
    ("TCP without the socket module", "socket(2, 1, 0)"), ("fork by C", "fork()"),
    ("ptrace the parent", "ptrace(16, PARENT, 0, 0)"), ("a user namespace", "unshare(0x10000000)"),
    ("read the parent's memory by call", "syscall(310, PARENT, 0, 0, 0, 0, 0)"),
    ("a mount", "mount(b'none', b'/tmp', b'tmpfs', 0, 0)"), ("another root", "chroot(b'.')"),
    ("io_uring", "syscall(425, 8, 0)"), ("bpf", "syscall(321, 0, 0, 0)"), ("keyring", "syscall(250, 0, 0, 0)"),
    ("userfaultfd", "syscall(323, 0)"), ("perf", "syscall(298, 0, 0, 0, 0, 0)"),
    ("death signal lifted", "prctl(1, 0, 0, 0, 0)"), ("a virtual machine's socket", "socket(40, 1, 0)"),
    ("the secret by openat2", "syscall(437, -100, b'SECRET', bytes(24), 24)"),
    ("the secret by a file handle", "syscall(304, -100, bytes(128), 0)"),
    ("a descriptor of the trainer's", "syscall(438, 0, 0, 0)"), ("weaker filters", "syscall(317, 1, 0, 0)"),
    ("a handle on the trainer", "syscall(434, PARENT, 0)"),
    ("the trainer's memory written", "syscall(311, PARENT, 0, 0, 0, 0, 0)"),
    ("a thread's signal to the trainer", "syscall(234, PARENT, PARENT, 9)"),
    ("clone that shares memory alone", "syscall(56, 0x111, 0, 0, 0, 0)"),
    ("a thread in another namespace", "syscall(56, 0x10000 | 0x800 | 0x100 | 0x20000, 0, 0, 0, 0)"),
    ("a program from a descriptor", "syscall(322, 0, b'/bin/true', 0, 0, 0)"),
    ("a mount by the new calls", "syscall(430, b'tmpfs', 0)"),
    ("the trainer's folders watched", "syscall(254, 0, b'HOME', 0xfff)"),
]  # fmt: skip


HOSTILE = [
    *(Program(name, _c(call), FINE, "errno 1") for name, call in CALLS),
    # ---- reading what is not its own
    Program("secret file", "print(open('SECRET').read())", ERR, "Error"),
    Program("secret through a link", "import os\nos.symlink('SECRET', 'x')\nprint(open('x').read())", ERR, "Error"),
    Program("secret by hard link", "import os\nos.link('SECRET', 'x')\nprint(open('x').read())", ERR, "Error"),
    Program("secret by mmap of a C open", "import ctypes\nlibc = ctypes.CDLL(None)\nassert libc.open(b'SECRET', 0) == -1", FINE),
    Program("secret by sendfile", "import os\nos.sendfile(1, os.open('SECRET', os.O_RDONLY), 0, 99)", ERR),
    Program("home", "import os\nprint(os.listdir('HOME'))", ERR, "Error"),
    Program("environment", "import os\nprint([k for k in os.environ if 'SECRET' in k or 'KEY' in k])", FINE, "[]"),
    Program("own /proc environ", "print('-plan' 'ted' in open('/proc/self/environ').read())", ERR, "Error"),
    Program("parent's /proc environ", "print(open('/proc/PARENT/environ').read())", ERR, "Error"),
    Program("all of /proc", "import os\nprint([open(f'/proc/{p}/cmdline').read() for p in os.listdir('/proc')])", ERR, "Error"),
    Program("inherited descriptors", "import os\nfor n in range(3, 1000):\n    try: os.fstat(n)\n    except OSError: continue\n    print('open', n)", FINE, ""),
    Program("other installed packages", "import agentkit", ERR, "ModuleNotFoundError"),
    Program("the corpus", "import glob, os\nprint(open(glob.glob('CORPUS')[0], 'rb').read(9))", ERR, "Error"),
    Program("other calls' folders", "import os\nprint([open(os.path.join(r, f)).read() for r, _, fs in os.walk('..') for f in fs if 'planted' in f])", FINE, "[]", timeout_s=60),
    # ---- reaching out
    Program("TCP to loopback", "import socket\nsocket.create_connection(('127.0.0.1', PORT), 2)", ERR, "PermissionError"),
    Program("a name looked up", "import socket\nsocket.getaddrinfo('example.com', 80)", ERR),
    Program("pathname Unix socket", "import socket\nsocket.socket(socket.AF_UNIX).connect('UNIX')", ERR, "PermissionError"),
    Program("Unix datagram", "import socket\na, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\na.sendto(b'x', 'UNIX')", ERR, "PermissionError"),
    Program("Unix connect on a pair", "import socket\na, b = socket.socketpair()\na.connect('UNIX')", ERR, "PermissionError"),
    Program("sendto on a pair", "import socket\na, b = socket.socketpair()\na.sendto(b'x', 'UNIX')", ERR, "PermissionError"),
    # ---- writing elsewhere
    Program("write at home", "open('HOME/LITTER', 'w')", ERR, "Error"),
    Program("write to /dev/shm", "open('/dev/shm/LITTER', 'w')", ERR, "Error"),
    Program("shared memory", "from multiprocessing import shared_memory\nshared_memory.SharedMemory('LITTER', create=True, size=9)", ERR),
    Program("litter in /tmp", "import pathlib, tempfile\npathlib.Path(tempfile.gettempdir(), 'LITTER').write_text('x')", FINE),
    Program("overwrite the library", "import json\nopen(json.__file__, 'a').write('#')", ERR, "Error"),
    Program("modes of a secret", "import os\nos.chmod('SECRET', 0o777)\nprint('pretended')", ("ok", "error")),
    Program("times of a secret", "import os\nos.utime('SECRET', (1, 1))", ("ok", "error")),
    Program("owner of a secret", "import os\nos.chown('SECRET', 1, 1)", ERR, "Error"),
    Program("attribute of a secret", "import os\nos.setxattr('SECRET', 'user.x', b'1')", ERR, "Error"),
    Program("a device", "import os, stat\nos.mknod('disk', stat.S_IFBLK | 0o600, os.makedev(8, 0))", ERR, "Error"),
    Program("a pipe in the folder", "import os\nos.mkfifo('pipe')", ERR, "Error"),
    Program("the disk", "open('/dev/vda', 'rb').read(1)\nopen('/dev/sda', 'rb').read(1)", ERR, "Error"),
    Program("a terminal's input", "import fcntl, termios\nfcntl.ioctl(0, termios.TIOCSTI, b'x')", ERR, "Error"),
    Program("result is a link", "import os\nos.symlink('SECRET', 'result.json')\nos.symlink('SECRET', 'stdout')", FINE),
    # ---- using too much
    Program("2 GiB of stdout", "while True: print('x' * 2**20)", ("output",)),
    Program("4 GiB", "x = bytearray(4 * 2**30)", ("memory",), "MemoryError"),
    Program("4 GiB of small things", "x = []\nwhile True: x.append([x])", ("memory", "timeout"), "", 20.0, 128),
    Program("memory files", "import os\nos.memfd_create('x')", ERR, "Error"),
    Program("2,000 small threads", "import threading, time\nthreading.stack_size(32768)\nfor _ in range(2000): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\ntime.sleep(60)", ("killed", "error"), "threads"),
    Program("SIGTERM ignored", "import signal\nfor s in range(1, 32):\n    try: signal.signal(s, signal.SIG_IGN)\n    except OSError: pass\nwhile True: pass", ("timeout",), "", 0.5),
    Program("loop in atexit", "import atexit\natexit.register(lambda: [0 for _ in iter(int, 1)])", ("timeout",), "", 0.5),
    Program("exceptions swallowed", "while True:\n    try:\n        while True: pass\n    except BaseException: pass", ("timeout",), "", 0.5),
    Program("512 MiB file", "with open('big', 'wb') as f:\n    for _ in range(512): f.write(bytes(2**20))", ("error", "killed"), ""),
    Program("512 MiB in files without a name", "import os, time\nx = []\nfor _ in range(50):\n    x.append(open('x', 'wb', 0))\n    os.unlink('x')\n    for _ in range(10): x[-1].write(bytes(2**20))\ntime.sleep(1)", ("error", "killed")),
    Program("512 MiB reserved", "import os\nos.posix_fallocate(os.open('big', os.O_CREAT | os.O_RDWR), 0, 512 * 2**20)", ("error", "killed")),
    Program("20,000 files", "for n in range(20_000): open(str(n), 'w').close()\nimport time\ntime.sleep(1)", ("error", "killed")),
    Program("20,000 folders deep", "import os\nfor n in range(20_000):\n    os.mkdir('d')\n    os.chdir('d')\nimport time\ntime.sleep(1)", ("error", "killed")),
    Program("folders that cannot be opened", "import os\nos.umask(0o777)\nos.makedirs('a/b', exist_ok=True)\nos.mkdir('c')", ("ok", "error", "killed")),
    Program("10,000 descriptors", "x = [open('/dev/null') for _ in range(10_000)]", ERR, "Too many open files"),
    # ---- other processes
    Program("double-fork daemon", "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(60)", ERR, "PermissionError"),
    Program("clone3", _c("syscall(435, 0, 0)"), FINE, "errno 38"),
    Program("kill the parent", "import os, signal\nos.kill(os.getppid() or PARENT, signal.SIGKILL)", ERR, "Error"),
    Program("kill everybody", "import os\nos.kill(-1, 9)", ERR, "Error"),
    Program("signal through a descriptor", "import fcntl, os\nr, w = os.pipe()\nfcntl.fcntl(r, fcntl.F_SETOWN, PARENT)", ERR, "Error"),
    Program("limits of the parent", "import resource\nresource.prlimit(PARENT, resource.RLIMIT_CPU, (0, 0))", ERR, "Error"),
    Program("own limits raised", "import resource\nresource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40))", ERR, "Error"),
    Program("rights back", "import os\nos.setuid(0)", ERR, "Error"),
    Program("another architecture's calls", _c("syscall(0x40000000 + 57)"), FINE, "errno 38"),
    Program("a program", "import subprocess\nsubprocess.run(['id'])", ERR, "PermissionError"),
    Program("a shell by C", "import ctypes\nlibc = ctypes.CDLL(None)\nassert libc.system(b'echo out') != 0\nprint('none')", FINE, "none"),
    # ---- a second round: what one wall alone must stop
    Program("the secret from its own folder", "import os\nos.chdir('HOME')\nprint(open('secret').read())", ERR, "Error"),
    Program("a file written through a link", "import os\nos.symlink('HOME/LITTER', 'x')\nopen('x', 'w')", ERR, "Error"),
    Program("a file moved out", "import os\nopen('x', 'w').close()\nos.rename('x', 'HOME/LITTER')", ERR, "Error"),
    Program("the neighbours' folders removed", "import os, shutil\nshutil.rmtree(os.path.dirname(os.getcwd()))", ERR, "Error"),
    Program("a file that cannot be removed", "import fcntl\nfcntl.ioctl(open('x', 'w'), 0x40086602, (0x10).to_bytes(8, 'little'))", ERR, "Error"),
    Program("a file of a terabyte", "import os\nos.truncate(os.open('x', os.O_CREAT | os.O_RDWR), 2**40)", ("error", "killed")),
    Program("odd names", "for name in ('a' * 255, 'b\\nc', '\\udcff', ' ', '-rf', '*'): open(name, 'w').close()", FINE),
    Program("its own memory through /proc", "open('/proc/self/mem', 'r+b')", ERR, "Error"),
    Program("the system through /proc/1/root", "import os\nprint(os.listdir('/proc/1/root'), os.listdir('/proc/self/root'))", ERR, "Error"),
    Program("what earlier programs left in memory", "import gc\nprint([o for o in gc.get_objects() if isinstance(o, dict) and 'agentkit' '-planted' in str(list(o.values()))[:9999]])", FINE, "[]", 60.0),
    Program("an address with an empty low half", "import ctypes, socket\na, b = socket.socketpair()\nlibc = ctypes.CDLL(None, use_errno=True)\nr = libc.syscall(44, a.fileno(), b'x', 1, 0, ctypes.c_ulong(1 << 32), 16)\nassert r == -1\nprint('errno', ctypes.get_errno())", FINE, "errno 1"),
    Program("descriptors sent through a pair", "import socket\na, b = socket.socketpair()\nsocket.send_fds(a, [b'x'], [0])", ERR, "PermissionError"),
    Program("a higher rank", "import os\nos.nice(-5)", ERR, "Error"),
    Program("stopped for ever", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", ("timeout",), "", 0.5),
    Program("the processor's limit ignored", "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass", ("timeout",), "", 0.5),
    Program("many busy threads", "import hashlib, threading\ndata = bytes(10**7)\ndef work():\n    while True: hashlib.sha256(data)\nfor _ in range(32): threading.Thread(target=work).start()", ("timeout",), "", 1.0),
    # ---- breaking the interpreter
    Program("segfault", "import ctypes\nctypes.string_at(0)", ERR, "signal 11"),
    Program("endless recursion", "def f(): f()\nf()", ERR, "RecursionError"),
    Program("C stack overflow", "import sys\nsys.setrecursionlimit(10**9)\nclass A:\n    def __getattr__(self, n): return getattr(self, n)\nA().x", CRASH, "", 20.0),
    Program("a million brackets", "(" * 10**6 + ")" * 10**6 if False else "x = " + "(" * 900_000, ERR, "SyntaxError"),
    Program("lone surrogate printed", "print('\\ud800')", FINE, "\\ud800"),
    Program("invalid UTF-8 printed", "import os\nos.write(1, b'\\xff\\xfe')", FINE, "\\xff\\xfe"),
    Program("terminal codes printed", "print('\\x1b[2J\\x07\\x00')", FINE, "\\x1b[2J\\x07\\x00"),
    Program("an exception that cannot be shown", "class E(Exception):\n    def __str__(self): raise E\nraise E", ERR, "E"),
    Program("standard streams closed", "import os, sys\nos.close(1); os.close(2)\nraise ValueError", ERR),
    Program("exit function replaced", "import os\nos._exit = lambda code: None\nraise ValueError", ERR, "ValueError"),
    Program("hooks replaced", "import sys, traceback\ntraceback.print_exception = None\nsys.excepthook = None\nraise ValueError", ERR, "ValueError"),
]  # fmt: skip

ORDINARY = [
    ("arithmetic", "print(sum(i * i for i in range(10)))", "285"),
    ("zoneinfo", "from zoneinfo import ZoneInfo\nfrom datetime import datetime\nprint(datetime(2024, 7, 1, tzinfo=ZoneInfo('Europe/Paris')).utcoffset())", "2:00:00"),
    ("dataclasses", "from dataclasses import dataclass, asdict\n@dataclass(order=True)\nclass P:\n    x: int\n    y: int = 2\nprint(asdict(P(1)), P(1) < P(2))", "{'x': 1, 'y': 2} True"),
    ("pickle", "import pickle\nclass P: pass\nprint(type(pickle.loads(pickle.dumps(P()))) is P)", "True"),
    ("sqlite file", "import sqlite3\nc = sqlite3.connect('a.db')\nc.execute('create table t(x)')\nc.execute('insert into t values (5)')\nc.commit()\nprint(c.execute('select * from t').fetchall())", "[(5,)]"),
    ("thread pool", "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(32) as p: print(sum(p.map(lambda x: x * 2, range(100))))", "9900"),
    ("a thread left running", "import threading, time\nthreading.Thread(target=lambda: (time.sleep(.05), print('late'))).start()", "late"),
    ("asyncio", "import asyncio\nasync def f(n):\n    await asyncio.sleep(.01)\n    return n\nasync def main(): return await asyncio.gather(*map(f, range(3)))\nprint(asyncio.run(main()))", "[0, 1, 2]"),
    ("temporary folder", "import tempfile, os\nwith tempfile.TemporaryDirectory() as d:\n    open(os.path.join(d, 'a'), 'w').write('1')\n    print(os.listdir(d))", "['a']"),
    ("pathlib", "from pathlib import Path\nPath('d/e').mkdir(parents=True)\nPath('d/e/f.txt').write_text('hé')\nprint([p.name for p in Path('.').rglob('*.txt')], Path('d/e/f.txt').read_text())", "['f.txt'] hé"),
    ("os", "import os\nos.makedirs('x/y')\nos.rename('x', 'z')\nprint(os.path.isdir('z/y'), os.getcwd() == os.path.realpath('.'))", "True True"),
    ("signal", "import signal\nsignal.signal(signal.SIGALRM, lambda *_: print('alarm'))\nsignal.setitimer(signal.ITIMER_REAL, .01)\nsignal.pause()", "alarm"),
    ("atexit", "import atexit\natexit.register(print, 'bye')", "bye"),
    ("annotations later", "from __future__ import annotations\ndef f(x: nothing): return x\nprint(f(1))", "1"),
    ("input", "print(int(input()) + 1)", "42"),
    ("numpy", "import numpy as np\nprint(np.linalg.solve(np.eye(2) * 2, [2, 4]))", "[1. 2.]"),
    ("sympy", "import sympy as s\nx = s.symbols('x')\nprint(s.integrate(s.sin(x), x), s.solve(x**2 - 4))", "-cos(x) [-2, 2]"),
    ("scipy", "from scipy.optimize import brentq\nprint(round(brentq(lambda x: x * x - 2, 0, 2), 6))", "1.414214"),
]  # fmt: skip
