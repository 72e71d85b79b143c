"""A lab file on disk: begun with an example, loaded as a module, and known by a hash of it and the files
beside it that it imports.

Leaves out what it may define and what that is for (agentkit.lab).
"""

import ast
import contextlib
import hashlib
import importlib.util
import inspect
import re
import site
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType

from agentkit.recipe import project_file, project_root
from agentkit.records import RecipeError
from agentkit.runs.files import write_bytes

_FILES: set[Path] = set()  # that lab files have imported from beside them
_FOLDERS: list[str] = []  # of lab files, the newest first; they stand at the end of sys.path


def new_lab(name: str, notebooks: bool = False) -> list[Path]:
    """Write params/NAME.yaml, NAME-real.yaml and labs/NAME.py, copies of the shop's, and where asked for
    notebooks and recipes that are not here yet. Raises RecipeError for a bad name or one that is taken.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,60}", name):
        raise RecipeError(
            f"the name {name[:40]!r} is refused: use a letter, then letters, digits, '_' and '-'"
        )
    folder, ships = project_root() / "params", project_file("params", "shop.yaml").parents[1]
    made = {folder / f"{name}{end}": f"shop{end}" for end in (".yaml", "-real.yaml")}
    made[folder / "labs" / f"{name}.py"] = "labs/shop.py"
    if taken := [path for path in made if path.exists()]:
        raise RecipeError(f"{taken[0]} exists already: choose another name, or move it away")
    for path, example in made.items():
        text = (ships / "params" / example).read_bytes().replace(b"labs/shop.py", f"labs/{name}.py".encode())
        write_bytes(path, text.replace(b"shop.yaml", f"{name}.yaml".encode()))
    for part in ("notebooks", "params") if notebooks else ():
        for file in (path for path in (ships / part).rglob("*") if path.is_file()):
            target = folder.parent / file.relative_to(ships)
            if not target.exists():
                write_bytes(target, file.read_bytes())
    return list(made)


def load_module(path: Path) -> ModuleType:
    """A lab file as a module, loaded anew each time, and with it what it imports from beside it. Raises
    RecipeError with the line that failed, also where it would end the program.
    """
    name = f"agentkit_lab_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise RecipeError(f"the lab file {path} is no Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pickles and dataclasses look for it there
    try:
        _forget_others(path)
        with contextlib.redirect_stdout(sys.stderr):  # what it prints is no part of a command's result
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise RecipeError(f"the lab file {path}: {blame(error)}") from error
    return module


def _forget_others(path: Path) -> None:
    """Have modules beside a lab file found, after all libraries, and those of earlier ones loaded anew."""
    files = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
    old = {name for name, file in files.items() if file and Path(file).resolve() in _FILES}
    folders = {name.rpartition(".")[0] for name in old}  # those without __init__.py have no file
    for name in old | {name for name in folders if name in files and files[name] is None}:
        del sys.modules[name]
    _FILES.update(file.resolve() for file in files_of(path)[1:])
    sys.path[:] = [place for place in sys.path if place not in _FOLDERS]
    folder = str(path.parent)
    _FOLDERS[:] = [folder, *(other for other in _FOLDERS if other != folder)]
    sys.path.extend(_FOLDERS)
    importlib.invalidate_caches()


_LIBRARIES = (*map(sysconfig.get_path, ("stdlib", "purelib", "platlib")), *site.getsitepackages())
OTHERS = (*map(str, (Path(__file__).parents[1], *_LIBRARIES)), "<")  # how paths begin that are not the user's


def blame(error: BaseException) -> str:
    """What an error of a user's code says, with the innermost line that is neither ours nor a library's."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [(frame.filename, frame.lineno) for frame in frames if not frame.filename.startswith(OTHERS)]
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        lines.append((error.filename, error.lineno))
    where = f"{Path(lines[-1][0]).name}, line {lines[-1][1]}: " if lines else ""
    try:
        return f"{where}{type(error).__name__}: {error}"
    except Exception as second:  # its __str__ is the user's too
        return f"{where}{type(error).__name__}, whose __str__ raises {type(second).__name__}"


def takes(function: Callable, name: str) -> bool:
    """Whether a function has a parameter of this name."""
    return name in inspect.signature(function).parameters


def check_takes(what: str, function: Callable, *arguments: str) -> None:
    """Raise RecipeError where a user's function cannot be called with these arguments, in this order, and
    ``state``, where it asks for that.
    """
    try:
        named = {"state": None} if takes(function, "state") else {}
        inspect.signature(function).bind(*arguments, **named)
    except (TypeError, ValueError) as error:
        raise RecipeError(f"{what} cannot be called with ({', '.join(arguments)}): {error}") from None


def lab_digest(path: Path) -> str:
    """A hash of a lab file and of what it imports from beside it, directly or through each other.

    Raises RecipeError where one of them is no Python.
    """
    found = hashlib.sha256()
    try:
        for file in files_of(path):
            found.update(file.read_text(encoding="utf-8-sig").encode())
    except (SyntaxError, ValueError) as error:  # such as null bytes, or another encoding
        raise RecipeError(f"the lab file {path}: {blame(error)}") from error
    return found.hexdigest()[:16]


def with_sources(digest: str, functions: Iterable[Callable]) -> str:
    """A lab's digest with functions of a notebook, so that one that was edited makes another lab."""
    for function in functions:
        try:
            source = inspect.getsource(function)
        except (OSError, TypeError):  # no text of it is known: it is like no other
            source = repr(function)
        digest = hashlib.sha256(f"{digest}\0{source}".encode("utf-8", "replace")).hexdigest()[:16]
    return digest


def files_of(path: Path) -> list[Path]:
    """A lab file and what it imports from beside it, directly or through each other."""
    files = [path]
    for file in files:  # which grow meanwhile
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8-sig"), str(file))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                if (first := name.split(".")[0]) not in ("", "agentkit"):  # which a lab may lie beside
                    found = [path.parent / f"{first}.py", *sorted((path.parent / first).rglob("*.py"))]
                    files += [beside for beside in found if beside.is_file() and beside not in files]
    return files
