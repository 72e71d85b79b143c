"""The sandbox as its callers see it: results, limits, refusal where there is none, and nothing left behind.

What hostile programs do in it is in hostile/test_programs.py.
"""

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest

from agentkit.machine import cores
from agentkit.runs import project_root
from agentkit.sandbox import paths, run_python, zygote
from agentkit.sandbox import run as sandbox

ROOT = project_root(__file__)

# asked of the kernel and not of the sandbox: one that is broken fails these tests
if sys.platform != "linux" or ctypes.CDLL(None).syscall(444, None, 0, 1) < 1:  # Landlock's version
    pytest.skip("no sandbox without Linux and its Landlock", allow_module_level=True)


@pytest.fixture(autouse=True)
def _fresh():
    """Tests that change what a zygote would find end the ones they started."""
    yield
    if sandbox._missing:
        sandbox.close()


# ---- results
def test_a_program_runs():
    result = run_python("import sys\nprint(1 + 1)\nprint('warned', file=sys.stderr)")
    assert (result.status, result.stdout, result.stderr) == ("ok", "2\n", "warned\n")
    assert result.seconds > 0


def test_a_traceback_shows_the_programs_lines_only():
    result = run_python("def f(x):\n    return 1 / x\nf(0)")
    assert result.status == "error" and "agentkit" not in result.stderr and "zygote" not in result.stderr
    assert '  File "main.py", line 2, in f\n    return 1 / x' in result.stderr
    assert result.stderr.startswith("Traceback")
    assert result.stderr.endswith("ZeroDivisionError: division by zero\n")
    refused = run_python("import subprocess\nsubprocess.run('id')").stderr
    assert "line 2, in <module>" in refused and "zygote" not in refused
    assert refused.endswith("PermissionError: [Errno 1] Operation not permitted\n")


def test_files_and_input_reach_the_program():
    files = {"a.txt": "é", "data/b.bin": b"\0\xff", "helper.py": "def f(): return 7"}
    code = "import sys, helper\nprint(open('a.txt').read(), open('data/b.bin', 'rb').read(), helper.f(), sys.stdin.read())"
    assert run_python(code, files=files, stdin="in\nput").stdout == "é b'\\x00\\xff' 7 in\nput\n"
    found = run_python(np.str_(code), files=files, stdin=np.str_("in"), timeout_s=np.float64(5))
    assert found.stdout == "é b'\\x00\\xff' 7 in\n"  # whatever kind of text a data set holds


def test_output_is_cut_at_its_limit():
    exact = run_python(f"print('x' * {zygote.MAX_OUTPUT - 1})")
    assert exact.status == "ok" and len(exact.stdout) == zygote.MAX_OUTPUT
    more = run_python(f"print('x' * {zygote.MAX_OUTPUT})")
    assert more.status == "output" and len(more.stdout) == zygote.MAX_OUTPUT


def test_time_is_the_processors_and_three_times_that_on_the_clock():
    busy = run_python("while True: pass", timeout_s=0.4)
    assert busy.status == "timeout" and 0.4 <= busy.seconds < 60
    napping = "import time\ntime.sleep(3)\nprint('awake')"
    assert run_python(napping, timeout_s=2).stdout == "awake\n"
    asleep = run_python("import time\ntime.sleep(600)", timeout_s=0.4)
    assert asleep.status == "timeout" and 1.2 <= asleep.seconds < 60


def test_a_container_that_is_lent_some_cores_has_no_more(tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "cpu.max").write_text("max 100000")
    (tmp_path / "a" / "cpu.max").write_text("250000 100000")
    read, own = Path.read_text, Path("/proc/self/cgroup")
    monkeypatch.setattr(Path, "read_text", lambda path: "0::/a/b" if path == own else read(path))
    monkeypatch.setattr("agentkit.machine.CGROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64))
    assert cores() == 2


def test_nothing_passes_from_one_call_to_the_next():
    changes = "builtins.print = None\njson.dumps = None\nsys.path.clear()\nopen('x', 'w').close()"
    run_python(f"import builtins, json, sys\n{changes}")
    found = run_python("import json, os\nprint(json.dumps(os.listdir('.')), len(os.listdir('.')))")
    assert found.stdout == "[] 0\n"
    code = "import random, numpy\nprint(random.random(), numpy.random.rand())"
    assert len({run_python(code, timeout_s=30).stdout for _ in range(3)}) == 3


def test_a_package_is_found_where_the_trainer_finds_it_and_its_neighbours_are_not(tmp_path, monkeypatch):
    """As in a user's site or on PYTHONPATH."""
    (tmp_path / "pytz").mkdir()
    (tmp_path / "pytz" / "__init__.py").write_text("where = 'here'")
    (tmp_path / "secret.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    for settings in (paths._installed, paths.zygote_settings):
        settings.cache_clear()
    sandbox.close()
    try:
        assert run_python("import numpy, pytz\nprint(pytz.where)").stdout == "here\n"
        for act in ("import secret", f"open({str(tmp_path / 'secret.py')!r})"):
            assert run_python(act).status == "error"
    finally:
        sandbox.close()
        for settings in (paths._installed, paths.zygote_settings):
            settings.cache_clear()


# ---- the caller's mistakes
BAD = [
    ({"timeout_s": 0}, "seconds above 0"), ({"timeout_s": float("nan")}, "seconds above 0"),
    ({"timeout_s": float("inf")}, "at most 3600"), ({"memory_mb": 1}, "at least 16"), ({"memory_mb": 64.5}, "whole MiB"),
    ({"files": {"../x": ""}}, "no relative name"), ({"files": {"/etc/x": ""}}, "no relative name"),
    ({"files": {"a/../../x": ""}}, "no relative name"), ({"files": {"": ""}}, "no relative name"),
    ({"files": {"a\0b": ""}}, "no relative name"), ({"stdin": "x" * (sandbox.MAX_INPUT + 1)}, "more than"),
]  # fmt: skip


def test_a_bad_argument_is_refused():
    for options, says in BAD:
        with pytest.raises(ValueError, match=says):
            run_python("print(1)", **options)


# ---- many at once
def test_a_forked_child_has_a_sandbox_of_its_own():
    run_python("")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, run_python("print('child')", timeout_s=60).stdout.encode())
            sandbox.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 100) == b"child\n"
    os.close(reader), os.close(writer)
    assert run_python("print('parent')").stdout == "parent\n"


def test_a_killed_zygote_is_started_again():
    run_python("")
    folder = sandbox._zygotes[()].base
    sandbox._zygotes[()].process.kill()
    sandbox._zygotes[()].process.wait()
    assert run_python("print(1)").stdout == "1\n"
    assert not os.path.exists(folder)


# ---- failing closed
def test_without_a_sandbox_the_refusal_names_the_ways_out(monkeypatch):
    monkeypatch.setattr(sandbox, "_missing", "nothing here")
    refused = run_python("print(1)")
    assert (refused.status, refused.stdout) == ("refused", "")
    assert all(part in refused.stderr for part in ("nothing here", "Docker", "Linux 5.13", "families: A,B"))


def test_a_sandbox_whose_canary_gets_out_is_not_used(monkeypatch):
    sandbox.close()
    monkeypatch.setattr(sandbox.canaries, "fault", lambda run: "it got out")
    result = run_python("print(1)")
    assert (result.status, result.stdout) == ("refused", "")
    assert "it got out" in result.stderr and sandbox.missing() == "a canary: it got out"


def test_canaries_notice_a_missing_wall(monkeypatch, tmp_path):
    """Each wall taken down in turn, for real: the canaries must see it."""
    source = Path(zygote.__file__).parent
    walls = ("    supervisor.filter.install()\n", "    supervisor.ruleset.restrict()\n", "    confine.limit(")
    for number, wall in enumerate(walls):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "confine.py").write_text((source / "confine.py").read_text())
        text = (source / "zygote.py").read_text()
        assert wall in text
        gone = "    (lambda *_: None)(" if wall.endswith("(") else ""
        (folder / "zygote.py").write_text(text.replace(wall, gone))
        monkeypatch.setattr(zygote, "__file__", str(folder / "zygote.py"))
        sandbox.close()
        with pytest.raises(sandbox.SandboxError, match="canary"):
            sandbox._zygote(())
    (folder / "zygote.py").write_text(text.replace(walls[0], "    raise OSError('no room for filters')\n"))
    with pytest.raises(sandbox.SandboxError, match="no room for filters"):
        sandbox._zygote(())
    monkeypatch.undo()
    sandbox.close()


# ---- nothing left behind
def test_a_flood_does_not_fill_the_caller():
    """S5: 2 GiB of output, at most 16 MiB more memory here."""
    run_python("print(1)")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB, the highest so far
    result = run_python("import os\nfor _ in range(2048): os.write(1, bytes(2**20))", timeout_s=30)
    assert result.status == "output"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before <= 16 * 2**10


def test_a_soak_leaves_nothing():
    """Descriptors, processes, memory and files are as before. AGENTKIT_SOAK=10000 makes it long."""
    programs = ["print(1)", "1 / 0", "import os\nos.kill(os.getpid(), 9)", "x = ' ' * 2**33", "open('a/b', 'w')",
                "import os\nos.makedirs('d/e/f')\nos.symlink('/', 'l')", "print('x' * 10**6)"]  # fmt: skip
    for code in programs:
        run_python(code)
    process = psutil.Process()
    before = process.num_fds(), process.memory_info().rss, len(process.children(recursive=True))
    for index in range(int(os.environ.get("AGENTKIT_SOAK", 140))):
        run_python(programs[index % len(programs)], timeout_s=20)
    deadline = time.monotonic() + 20
    while len(process.children(recursive=True)) > before[2] and time.monotonic() < deadline:
        time.sleep(0.05)
    after = process.num_fds(), process.memory_info().rss, len(process.children(recursive=True))
    assert after[0] <= before[0] + 5 and after[1] - before[1] <= 50 * 2**20 and after[2] <= before[2]
    assert [p for z in sandbox._zygotes.values() for p in os.listdir(z.base)] == []


def test_programs_at_the_same_time_keep_to_themselves():
    """One zygote watches them all: each gets its own input, outcome, output and time limit."""
    kinds = [
        ("print(input(), open('f').read()); import os; print(os.listdir())", "ok", "{0} {0}\n['f']\n"),
        ("print('x' * 10**6)", "output", None),
        ("import time; print({0}, flush=True); time.sleep(600)", "timeout", "{0}\n"),
        ("print({0}); 1 / 0", "error", "{0}\n"),
        ("x = ' ' * 2**34", "memory", ""),
        ("import ctypes; ctypes.string_at(0)", "error", ""),
    ]

    def run(index):
        code, status, shows = kinds[index % len(kinds)]
        limit = 2 + index % 5 / 10 if status == "timeout" else 60
        code = code.replace("{0}", str(index))
        return limit, run_python(code, stdin=str(index), files={"f": str(index)}, timeout_s=limit)

    with ThreadPoolExecutor(24) as pool:
        found = list(pool.map(run, range(48)))
    for index, (limit, result) in enumerate(found):
        _, status, shows = kinds[index % len(kinds)]
        assert result.status == status, (index, result)
        assert shows is None or result.stdout == shows.replace("{0}", str(index))
        assert status != "timeout" or limit <= result.seconds < 300


def test_closing_ends_what_runs():
    run_python("")
    process = psutil.Process()
    before = len(process.children(recursive=True))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(run_python, "import time; time.sleep(300)", timeout_s=600)
        deadline = time.monotonic() + 30
        while len(process.children(recursive=True)) <= before and time.monotonic() < deadline:
            time.sleep(0.05)  # until it runs
        sandbox.close()
        assert waiting.result(60).status == "refused"
    assert run_python("print(1)").stdout == "1\n"


def test_a_killed_trainer_takes_everything_with_it(tmp_path):
    code = (
        "import tempfile, sys; tempfile.tempdir = sys.argv[1]\n"
        "from agentkit import sandbox\nsandbox.run_python('')\nprint('up', flush=True)\n"
        'sandbox.run_python(\'open("x", "w")\\nimport time\\ntime.sleep(600)\', timeout_s=900)'
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    trainer = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert trainer.stdout.readline() == "up\n"
    family: list[psutil.Process] = []
    deadline = time.monotonic() + 60
    while len(family) < 2 and time.monotonic() < deadline:
        family = psutil.Process(trainer.pid).children(recursive=True)
        time.sleep(0.05)
    assert len(family) == 2  # zygote and program
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    _, alive = psutil.wait_procs(family, timeout=60)
    assert alive == []
    assert list(tmp_path.iterdir()) == []


def test_what_an_interrupted_caller_leaves_is_removed_without_following_links(tmp_path):
    """The program trades folders for links as fast as it can."""
    code = (
        "import ctypes, os\ntrade = ctypes.CDLL(None).renameat2\n"
        f"for i in range(40): os.mkdir(f'd{{i}}'); os.symlink({str(tmp_path)!r}, f'l{{i}}')\n"
        "while True:\n for i in range(40): trade(-100, b'd%d' % i, -100, b'l%d' % i, 2)"
    )

    class Stop(Exception):
        pass

    def interrupt(*_):
        raise Stop

    run_python("")
    (tmp_path / "kept").write_text("x")
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for number in range(20):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.02 + number / 100)
                run_python(code, timeout_s=20)
            except Stop:
                pass
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert [p.name for p in tmp_path.iterdir()] == ["kept"]
    base = sandbox._zygotes[()].base
    sandbox.close()  # an interrupt may have come in the middle of removing
    assert not os.path.exists(base)
