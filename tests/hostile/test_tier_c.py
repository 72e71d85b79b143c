"""Tier C, where Deno and Pyodide are there: hostile programs, JavaScript of theirs included, and ordinary
ones.
"""

from __future__ import annotations

import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from hostile.programs import HOSTILE, ORDINARY, Program
from sandbox_tiers import pyodide_folder

from agentkit import doctor, sandbox
from agentkit.sandbox import pyodide
from agentkit.tools.corpus import corpus_path

needs_pyodide = pytest.mark.skipif(not pyodide_folder(), reason=f"tier C is not installed: {pyodide.GET}")
ENDED = {"memory", "timeout", "output", "killed"}
EVERY = (
    1 if os.environ.get("AGENTKIT_SOAK") else 32
)  # of the programs, more of JavaScript: a call takes seconds
LACKING = {"threads", "thread pool", "a thread left running", "queue", "asyncio thread", "signal", "sqlite", "sqlite file",
           "zoneinfo", "zlib", "numpy", "numpy random", "sympy", "pandas", "scipy"}  # fmt: skip

# JavaScript's own functions, and through them everything that Deno has
_JS = """
import asyncio, pyodide_js
function = pyodide_js.constructor.constructor
js = lambda script: function("return " + script)()
async def wait(script): return await js(script)
"""
JAVASCRIPT = [
    Program(
        script,
        f"{_JS}print({'asyncio.run(wait' if script.startswith('import(') else '(js'}({script!r})))",
        status,
        says,
    )
    for script, status, says in [
        ("typeof Deno", ("ok",), "object"),  # within reach, and without a right
        ("Deno.readTextFileSync('SECRET')", ("error",), "NotCapable"),
        ("Deno.writeTextFileSync('HOME/LITTER', 'x')", ("error",), "NotCapable"),
        ("Deno.env.get('AGENTKIT_TEST_SECRET_KEY')", ("error",), "NotCapable"),
        ("new Deno.Command('/bin/true').outputSync()", ("error",), "NotCapable"),
        ("Deno.kill(PARENT, 'SIGKILL')", ("error",), "NotCapable"),
        ("Deno.dlopen('SECRET', {})", ("error",), "NotCapable"),
        ("Deno.permissions.requestSync({name: 'read'}).state", ("ok",), "denied"),
        ("localStorage.setItem('a', 'b')", ("error",), "NotADirectory"),
        ("import('node:fs').then(fs => fs.readFileSync('SECRET', 'utf8'))", ("error",), "NotCapable"),
        ("import('node:child_process').then(c => c.execSync('id'))", ("error",), "NotCapable"),
        ("import('https://example.com/x.js')", ("error",), "example.com"),
        ("import('data:text/javascript,').then(() => Deno.connect({port: 9}))", ("error",), "NotCapable"),
        ("import('data:text/javascript,').then(() => caches.open('x'))", ("error",), "cache"),
        ("(() => { const a = []; while (true) a.push(new Uint8Array(1 << 26).fill(1)) })()", ("memory",), ""),
        ("(() => { while (true) Deno.stdout.writeSync(new Uint8Array(1 << 20)) })()", ("output",), ""),
        (
            "(() => { while (true) new Worker('data:text/javascript,for(;;);', {type: 'module'}) })()",
            ("timeout", "memory"),
            "",
        ),
        ("Deno.exit(7)", ("error",), ""),
    ]
]


@pytest.fixture
def tier_c(monkeypatch):
    """Tier C with its canaries proven: for the first test only, they take a while."""
    monkeypatch.setenv(pyodide.FOLDER, pyodide_folder())


@pytest.fixture
def unproven():
    """Nothing is proven before the test, and nothing of it stays."""
    sandbox.close()
    yield
    sandbox.close()


def filled(code: str, home: Path) -> str:
    places = {
        "SECRET": f"{home}/secret",
        "UNIX": f"{home}/socket",
        "CORPUS": str(corpus_path()),
        "PARENT": str(os.getpid()),
    }
    for name, value in (places | {"PORT": "9", "LITTER": "agentkit-litter", "HOME": str(home)}).items():
        code = code.replace(name, value) if name != "HOME" else code.replace("'HOME", f"'{value}")
    return code


def together(programs, run) -> list:
    with ThreadPoolExecutor(max(2, os.cpu_count() or 1)) as pool:
        return [(program, result) for program, result in zip(programs, pool.map(run, programs), strict=True)]


@needs_pyodide
@pytest.mark.slow
def test_hostile_programs_are_contained(tier_c, tmp_path, monkeypatch):
    """Programs of the corpus, and what JavaScript adds. No kernel answers here, so other errors are as good."""
    (tmp_path / "secret").write_text("agentkit-planted")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("AGENTKIT_TEST_SECRET_KEY", "agentkit-planted")

    def run(program: Program) -> sandbox.Result:
        code = filled(program.code, tmp_path)
        return sandbox.run_python(
            code, tier="C", timeout_s=min(program.timeout_s, 5), memory_mb=program.memory_mb
        )

    wrong = []
    for program, result in together([*JAVASCRIPT[:: min(EVERY, 3)], *HOSTILE[::EVERY]], run):
        limited = set(program.status) <= ENDED
        expected = (
            set(program.status)
            if program in JAVASCRIPT
            else {*ENDED, "error"} | (set() if limited else {"ok"})
        )
        said = result.stdout + result.stderr
        fine = result.status in expected and result.tier == "C" and "agentkit-planted" not in said
        if not fine or (program in JAVASCRIPT and program.says not in said):
            wrong.append((program.name, result))
    assert wrong == []
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["secret", "tmp"]
    assert (tmp_path / "secret").read_text() == "agentkit-planted"
    assert not list(Path("/tmp").glob("agentkit-litter*"))
    assert [p.cmdline() for p in psutil.Process().children(recursive=True) if "deno" in p.name()] == []


@needs_pyodide
@pytest.mark.slow
def test_ordinary_programs_run(tier_c):
    chosen = [program for program in ORDINARY if program[0] not in LACKING][::EVERY]
    found = together(chosen, lambda p: sandbox.run_python(p[1], tier="C", stdin="41\n", timeout_s=60))
    assert [
        (name, result)
        for (name, _, shows), result in found
        if result.stdout.strip() != shows or result.status != "ok"
    ] == []


@needs_pyodide
def test_a_call_has_files_and_a_clock_of_its_own(tier_c):
    result = sandbox.run_python(
        "print(open('a/b.txt').read())\nwhile True: pass", tier="C", timeout_s=0.5, files={"a/b.txt": "x"}
    )
    assert (result.status, result.stdout, result.tier) == ("timeout", "x\n", "C")
    assert 0.5 <= result.seconds < 5  # loading Python does not count
    assert sandbox.run_python("print(open('a/b.txt').read())", tier="C").status == "error"


@needs_pyodide
def test_it_stands_in_where_nothing_else_works_and_only_when_asked_for(tier_c, unproven, monkeypatch):
    monkeypatch.setattr(
        sandbox, "_zygote", lambda *_: (_ for _ in ()).throw(sandbox.SandboxError("no Landlock"))
    )
    result = sandbox.run_python("print(6 * 7)")
    assert (result.status, result.stdout, result.tier) == ("ok", "42\n", "C")
    assert "no Landlock" in sandbox.current_tier().why and "#b3261e" in sandbox.current_tier()._repr_html_()
    monkeypatch.delenv(pyodide.FOLDER)
    sandbox.close()
    assert sandbox.run_python("print(6 * 7)").status == "refused" and sandbox.current_tier().name == "D"


@needs_pyodide
def test_a_right_that_is_left_is_noticed(tier_c, unproven, monkeypatch):
    monkeypatch.setattr(pyodide, "_FLAGS", [*pyodide._FLAGS, "--allow-env"])
    result = sandbox.run_python("print(1)", tier="C")
    assert result.status == "refused" and "see the environment, the right to env" in result.stderr


@pytest.mark.parametrize("folder", ["", "/nowhere"])
def test_without_it_the_way_to_get_it_is_named(unproven, monkeypatch, folder):
    monkeypatch.setenv(pyodide.FOLDER, folder)
    start = time.monotonic()
    result = sandbox.run_python("print(1)", tier="C")
    assert result.status == "refused" and pyodide.GET in result.stderr and time.monotonic() - start < 5


def test_doctor_names_the_way_to_tier_c():
    plenty = {"total": 99.0, "free": 99.0}
    found = {
        "sandbox_tier": "D",
        "sandbox_why": "",
        "gpus": [{}],
        "engines": {},
        "disk_gb": plenty,
        "memory_gb": plenty,
    }
    assert pyodide.GET in doctor.gaps(found)[0]["fix"]
    assert "standard library only" in doctor.gaps(found | {"sandbox_tier": "C"})[0]["costs"]
