"""Training in several processes, one a GPU: started from a notebook as a child that is watched and stopped
cleanly.

Functions and classes defined in a notebook's cells are written to a module first, so that nothing has to be
pickled. Leaves out machines beyond this one, and what each process does (grpo).
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import json
import linecache
import os
import re
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from agentkit.runs import Run, RunError, read_json, write_bytes, write_json
from agentkit.runs.recipe import Recipe

JOB, MODULE, LOG = ".job.json", "cell_functions.py", "launch.log"  # in the run's folder
# set for workers whose standard input ends when the process that launched them does
WATCH = "AGENTKIT_STOP_WITH_STDIN"
MARK = "agentkit-metrics "  # a line of the child's output that is a row of metrics
STOP_S = 60.0  # to write a checkpoint, before the child is killed


def launch(
    run: Run,
    recipe: Recipe,
    environment: Callable[[], object] | None = None,
    reward: Mapping[str, tuple[Callable, float]] | None = None,
    on_metrics: Callable[[dict[str, Any]], None] = lambda row: None,
) -> dict[str, Any]:
    """Train in ``recipe.processes`` processes and return what ``grpo.train`` returns.

    Interrupting it stops the child after its step, with a checkpoint; so does the end of this process.

    Args:
        run: holds tasks.jsonl, and sft/ where the recipe asks for it.
        recipe: all parameters.
        environment: as for AgentGRPOTrainer; it may be defined in a notebook cell.
        reward: likewise.
        on_metrics: called with every row of metrics.

    Raises:
        RunError: the child failed; the message ends with what it said.
    """
    module = run.file(MODULE)
    write_bytes(module, export({"environment": environment, "reward": reward}).encode())
    write_json(run.file(JOB), {"recipe": recipe.everything()})
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        str(recipe.processes),
    ]
    command += ["-m", "agentkit.training.worker", str(run.path.resolve())]
    threads = max((os.cpu_count() or 1) // recipe.processes, 1)
    environ = {
        "OMP_NUM_THREADS": str(threads),
        **os.environ,
        WATCH: "1",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    pipe = subprocess.PIPE
    with write_bytes(run.file(LOG), b"").open("wb") as log:
        child = subprocess.Popen(
            command, env=environ, stdin=pipe, stdout=pipe, stderr=log, text=True, start_new_session=True
        )
    try:
        _follow(child, on_metrics)
    except BaseException:
        _stop(child)
        raise
    if child.returncode:
        said = run.file(LOG).read_text(encoding="utf-8", errors="replace").splitlines()
        errors = [line.strip() for line in said if re.match(r"(\[rank\d+\]: *)?\w*(Error|Stopped): ", line)]
        why = " | ".join(errors[-1:] or said[-3:])[:600]
        raise RunError(f"training in {recipe.processes} processes failed (see {run.file(LOG)}): {why}")
    return read_json(run.file(JOB))["result"]


def _follow(child: subprocess.Popen, on_metrics: Callable[[dict[str, Any]], None]) -> None:
    for line in child.stdout:
        if line.startswith(MARK):
            on_metrics(json.loads(line.removeprefix(MARK)))
    child.wait()


def _stop(child: subprocess.Popen) -> None:
    """SIGTERM, time for a checkpoint, then SIGKILL; the whole group either way."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGTERM)
    timer = threading.Timer(STOP_S, lambda: child.poll() is None and os.killpg(child.pid, signal.SIGKILL))
    timer.start()
    try:
        _follow(child, lambda row: None)
    finally:
        timer.cancel()


# ---- what a notebook's cells define, as a module
# ----------------------------------------------------------------------
def export(objects: Mapping[str, Any]) -> str:
    """Python text that defines the same objects under the same names, with all that they refer to.

    Functions and classes of installed modules are imported; those defined in a notebook or script are copied
    from their source, as are the functions, modules and plain values they use.

    Raises:
        RunError: something cannot be written down, such as a closure, a lambda or an open file; the message
            names it.
    """
    writer = _Writer()
    bindings = [f"{name} = {writer.expression(value, name)}" for name, value in objects.items()]
    return "\n".join([*writer.imports, "", *writer.definitions, *bindings, ""])


class _Writer:
    """Collects imports and definitions in the order they are needed."""

    def __init__(self) -> None:
        self.imports: list[str] = []
        self.definitions: list[str] = []
        self._names: dict[str, Any] = {}

    def expression(self, value: Any, place: str) -> str:
        """Text that evaluates to ``value``; ``place`` is for messages."""
        if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType | types.ModuleType):
            return self._define(value.__name__.rpartition(".")[2], value)
        if type(value) in (list, tuple):
            inner = ", ".join(self.expression(item, place) for item in value)
            return f"[{inner}]" if type(value) is list else f"({inner}{',' * (len(value) == 1)})"
        if isinstance(value, dict):
            inner = ", ".join(
                f"{key!r}: {self.expression(item, f'{place}[{key!r}]')}" for key, item in value.items()
            )
            plain = "{" + inner + "}"
            return plain if type(value) is dict else f"{self.expression(type(value), place)}({plain})"
        try:
            if ast.literal_eval(repr(value)) == value:
                return repr(value)
        except (ValueError, SyntaxError, TypeError):
            pass
        raise RunError(
            f"{place} refers to an object of type {type(value).__name__}, which cannot be written into a "
            "module: make it inside "
            "the function that uses it, or put both into a file of yours and import them."
        )

    def _define(self, name: str, value: Any) -> str:
        """Make sure that a function, class or module exists under a name."""
        if name in self._names:
            if self._names[name] is not value:
                raise RunError(f"two different objects are called {name}: rename one of them.")
            return name
        self._names[name] = value
        if isinstance(value, types.ModuleType):
            self.imports.append(f"import {value.__name__} as {name}")
        elif _importable(value):
            self.imports.append(f"from {value.__module__} import {value.__qualname__} as {name}")
        else:
            self._copy(name, value)
        return name

    def _copy(self, name: str, value: Any) -> None:
        tree, text = _source(value)
        scope = getattr(value, "__globals__", None) or vars(sys.modules[value.__module__])
        used = {
            node.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        }
        for other in sorted(used & scope.keys() - {name} - set(vars(builtins))):
            found = scope[other]
            if isinstance(found, type | types.FunctionType | types.BuiltinFunctionType | types.ModuleType):
                self._define(other, found)
            elif other not in self._names:
                self._names[other] = found
                self.definitions.append(f"{other} = {self.expression(found, f'{other}, which {name} uses,')}")
        self.definitions.append(f"{text}\n" if tree.name == name else f"{text}\n\n\n{name} = {tree.name}\n")


def _importable(value: Any) -> bool:
    """Whether a fresh process finds the same object where this one says it is."""
    module = sys.modules.get(value.__module__)
    found = getattr(module, value.__qualname__, None) if "." not in value.__qualname__ else None
    return (
        value.__module__ != "__main__"
        and found is value
        and importlib.util.find_spec(value.__module__) is not None
    )


def _source(value: Any) -> tuple[ast.FunctionDef | ast.ClassDef, str]:
    """The syntax tree and text of a function's or class' definition; a notebook's cells are in linecache."""
    code = getattr(value, "__code__", None) or next(
        (f.__code__ for f in vars(value).values() if hasattr(f, "__code__")), None
    )
    lines = linecache.getlines(code.co_filename) if code else []
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    found = [
        node
        for node in ast.parse("".join(lines)).body
        if isinstance(node, kinds) and node.name == value.__name__
    ]
    if not found or getattr(value, "__closure__", None):
        raise RunError(
            f"{value.__qualname__} cannot be written into a module: define it with def or class at the top "
            "of a cell, and "
            "not inside another function."
        )
    first = min([found[-1].lineno, *(decorator.lineno for decorator in found[-1].decorator_list)])
    return found[-1], "".join(lines[first - 1 : found[-1].end_lineno]).rstrip()


def load_module(path: Path) -> dict[str, Any]:
    """What an exported module defines."""
    spec = importlib.util.spec_from_file_location("cell_functions", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["cell_functions"] = module
    spec.loader.exec_module(module)
    return vars(module)
