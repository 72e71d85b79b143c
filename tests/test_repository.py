"""The house rules that a reader relies on, checked on the files themselves: import directions, notebooks,
recipes. Each check is a function from a folder to a list of faults.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import nbformat
import papermill

from agentkit.recipe import Recipe, read_recipe

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
RECIPES = sorted(
    path for path in (ROOT / "params").glob("*.yaml") if path.name != "prices.yaml"
)  # which is no recipe

# the rooms in the order in which data walks through them; a module imports from its own row and the ones
# above it
LAYERS = (
    ("records", "recipe", "machine", "sandbox", "nano"),  # nano is only the place of the shipped weights
    ("trajectories", "rows", "runs"),
    ("tools",),
    ("verifiers",),
    ("tasks", "rollouts", "evaluation"),
    ("policies", "rewards", "diagnostics"),
    ("lab", "training", "views"),
    ("preflight",),
    ("cli", "doctor", "__init__"),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
TORCH_ALLOWED = ("policies", "rollouts.tokens", "training")


# ---- imports
def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class _WithoutTypes(ast.NodeTransformer):
    """Leaves out what only type checkers import: nothing of it happens."""

    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if ast.unparse(node.test) == "TYPE_CHECKING" else self.generic_visit(node)


def imported_names(path: Path, module: str, modules: set[str]) -> list[str]:
    """Every module that a file imports, at any depth: in functions, relative, and import_module("literal")."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    names = []
    for node in ast.walk(_WithoutTypes().visit(ast.parse(path.read_text(encoding="utf-8")))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join(above + ([node.module] if node.module else []))
            targets = {f"{base}.{alias.name}" for alias in node.names}
            names += sorted(targets & modules) + ([base] if targets - modules else [])
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if function in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                names.append(node.args[0].value)
    return names


def layer_of(module: str) -> str:
    """The name a module goes by in LAYERS: its package's, or its own, or agentkit itself."""
    return (module.split(".")[1:] or ["__init__"])[0]


def import_graph(root: Path) -> dict[str, list[str]]:
    paths = {module_name(path, root): path for path in sorted((root / "agentkit").rglob("*.py"))}
    return {module: imported_names(path, module, set(paths)) for module, path in paths.items()}


def find_cycle(graph: dict[str, list[str]]) -> list[str]:
    """One import cycle between files as a closed walk, or []. A package's own __init__ may import its parts."""
    done: set[str] = set()

    def visit(module: str, trail: list[str]) -> list[str]:
        if module in trail:
            return trail[trail.index(module) :] + [module]
        if module in done or module not in graph:
            return []
        for target in graph[module]:
            if target != module and (cycle := visit(target, [*trail, module])):
                return cycle
        done.add(module)
        return []

    return next((cycle for module in graph if (cycle := visit(module, []))), [])


def import_faults(root: Path) -> list[str]:
    graph = import_graph(root)
    faults = []
    for module, targets in graph.items():
        own = layer_of(module)
        if own not in LEVEL:
            faults.append(f"{module} has no layer: add {own} to LAYERS in tests/test_repository.py")
            continue
        for target in targets:
            top = target.split(".")[0]
            if top == "torch" and not module.removeprefix("agentkit.").startswith(TORCH_ALLOWED):
                faults.append(f"{module} imports {target}: torch belongs to {', '.join(TORCH_ALLOWED)} only")
            if top == "agentkit" and LEVEL.get(layer_of(target), -1) > LEVEL[own]:
                faults.append(f"{module} imports {target}: upward")
    cycle = find_cycle(graph)
    return faults + ([f"import cycle: {' -> '.join(cycle)}"] if cycle else [])


def test_imports_go_one_way():
    assert import_faults(ROOT) == []


def test_building_tasks_and_reading_a_run_load_no_torch(tmp_path):
    """Nor anything else that takes seconds: everything such work needs is imported, and used once."""
    code = """
import sys
from agentkit import Suite, cli, doctor, evaluation, load_run, verifiers
from agentkit.views import export, plots
from agentkit.runs import Run, append_jsonl, write_trajectories
run = Run.create(sys.argv[1])
Suite.build({"families": ["A", "B"], "n_tasks": 20, "seed": 0}).save(run.file("tasks.jsonl"))
write_trajectories(run.file("eval", "grpo.parquet"), [])
append_jsonl(run.file("train", "metrics.jsonl"), {"step": 1})
run = load_run(run.path)
assert len(run.tasks) == 20 and run.trajectories("grpo") == [] and len(run.metrics) == 1
doctor.examine()
print(sorted({"torch", "transformers", "trl", "peft", "vllm", "ray", "datasets", "accelerate"} & set(sys.modules)))
"""
    child = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.strip() == "[]"


# ---- notebooks
def source_of(cell: dict) -> str:
    return cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])


def without_magics(source: str) -> str:
    """The same lines with IPython's % and ! lines turned into pass, so that ast can read them."""
    return re.sub(r"^(\s*)[%!].*$", r"\1pass", source, flags=re.MULTILINE)


def parameter_faults(source: str) -> list[str]:
    """The parameters cell: plain literals, one a line, nothing papermill's reader would skip."""
    faults = []
    for node in ast.parse(source).body:
        target = node.target if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [None])[0]
        if not isinstance(target, ast.Name) or node.value is None:
            faults.append(f"parameters cell, line {node.lineno}: not a plain assignment")
            continue
        try:
            value = ast.literal_eval(node.value)
        except ValueError:
            faults.append(f"parameter {target.id}: not a literal")
            continue
        if not isinstance(value, int | float | str | bool | list | dict):
            faults.append(
                f"parameter {target.id}: {type(value).__name__} is not int, float, str, bool, list or dict"
            )
        if isinstance(value, str) and re.search("[=#]", value):
            faults.append(f"parameter {target.id}: '=' or '#' in its default")
        if node.lineno != node.end_lineno:
            faults.append(f"parameter {target.id}: longer than one line")
    return faults


def notebook_faults(path: Path) -> list[str]:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    tagged = [cell for cell in code if "parameters" in cell["metadata"].get("tags", [])]
    faults = [] if len(tagged) == 1 else [f"{len(tagged)} cells tagged parameters, not one"]
    if notebook["metadata"].get("kernelspec", {}).get("name") != "python3":
        faults.append("kernelspec is not python3")
    for index, cell in enumerate(code, start=1):
        source = source_of(cell)
        if cell["outputs"] or cell["execution_count"] is not None:
            faults.append(f"code cell {index}: outputs not stripped (nbstripout)")
        if cell in tagged and len(source.splitlines()) > 15:
            faults.append(f"{len(source.splitlines())} parameters, more than the 15 that are turned by hand")
        if len(source.splitlines()) > 25:
            faults.append(f"code cell {index}: {len(source.splitlines())} lines, more than 25")
        for node in ast.walk(ast.parse(without_magics(source))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                lines = node.end_lineno - node.lineno + 1
                if lines > 15 and not isinstance(node, ast.ClassDef):
                    faults.append(f"code cell {index}: def {node.name} has {lines} lines, more than 15")
    for cell in tagged:
        faults += parameter_faults(source_of(cell))
    if len(tagged) == 1 and not faults:
        read = papermill.inspect_notebook(str(path))
        names = [
            getattr(node, "target", None) or node.targets[0] for node in ast.parse(source_of(tagged[0])).body
        ]
        faults += [f"papermill does not see parameter {name.id}" for name in names if name.id not in read]
        faults += [
            f"parameter {name}: no help comment" for name, entry in read.items() if not entry["help"].strip()
        ]
    return faults


def test_notebooks_are_as_style_asks():
    for path in NOTEBOOKS:
        assert notebook_faults(path) == [], path
        shown = papermill.inspect_notebook(str(path))
        assert list(shown) == ["sweep" if path.stem == "06_ablations" else "recipe", "run", "changes"]
        assert (ROOT / ast.literal_eval(next(iter(shown.values()))["default"])).is_file()


def test_notebooks_install_from_the_projects_address():
    address = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
    for path in NOTEBOOKS:
        assert f"%pip install -q git+{address}" in path.read_text(encoding="utf-8"), path


# ---- recipes
def test_every_recipe_is_sound():
    for recipe in RECIPES:
        assert set(read_recipe(recipe)) <= set(Recipe.keys())
        assert max(map(len, recipe.read_text(encoding="utf-8").splitlines())) <= 110, recipe


def test_every_recipe_key_is_read_by_something():
    """As recipe.KEY in the package or a notebook, or in the recipe's own checks and properties."""
    sources = [path.read_text(encoding="utf-8") for path in [*(ROOT / "agentkit").rglob("*.py"), *NOTEBOOKS]]
    read = set(re.findall(r"(?:(?<=recipe\.)|(?<=self\.))[a-z_0-9]+", "".join(sources)))
    assert set(Recipe.keys()) - read - {"base"} == set()


def test_no_other_cell_assigns_a_recipe_key():
    """Run All twice would read it as a change to the recipe. A Lab or a table is none."""
    cells = [
        c for path in NOTEBOOKS for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"
    ]
    trees = [
        ast.parse(without_magics(cell.source))
        for cell in cells
        if "parameters" not in cell.metadata.get("tags", ()) and not cell.source.startswith("%%writefile")
    ]
    stored = [
        n.id
        for t in trees
        for n in ast.walk(t)
        if isinstance(getattr(n, "ctx", None), ast.Store) and hasattr(n, "id")
    ]
    assert set(stored) & set(Recipe.keys()) <= {"lab", "steps", "sft", "reward"}


# ---- files
HOME_PATH = re.compile(r"(?<![\w.])(?:/(?:home|Users|root)/[\w.-]+|[A-Z]:\\Users\\\w+)")


def project_files(root: Path) -> list[Path]:
    """What is or would be committed; without git, everything outside hidden folders, outputs and caches."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        names = subprocess.run(command, capture_output=True, check=True).stdout.decode().split("\0")
        return [path for name in names if name and (path := root / name).is_file()]
    except (OSError, subprocess.CalledProcessError):
        skipped = {".venv", ".git", "outputs", "__pycache__", ".ruff_cache", ".pytest_cache", ".hypothesis"}
        return [
            path
            for path in root.rglob("*")
            if path.is_file() and not skipped & set(path.relative_to(root).parts)
        ]


def machine_paths(root: Path, files: list[Path]) -> list[str]:
    found = []
    for path in files:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        place = path.relative_to(root)
        found += [
            f"{place}:{n}" for n, line in enumerate(lines, 1) if HOME_PATH.search(line) or f"{root}/" in line
        ]
    return found


def test_no_file_names_a_path_of_one_machine():
    assert machine_paths(ROOT, project_files(ROOT)) == []


def requirement(text: str) -> tuple[str, str]:
    name, version = re.match(r"([\w.-]+)(?:\[.*\])?(?:==([\w.]+))?", text).groups()
    return re.sub(r"[-_.]+", "-", name).lower(), version or ""


def test_the_lock_holds_every_dependency_at_its_pin():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    locked = dict(requirement(line) for line in lines if not line.startswith("#"))
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines if not line.startswith("#"))
    for name, version in map(requirement, project["dependencies"] + project["optional-dependencies"]["test"]):
        assert locked.get(name), f"{name} is not in requirements.lock"
        assert version in ("", locked[name]), (
            f"{name}: {version} in pyproject.toml, {locked[name]} in requirements.lock"
        )


LONGEST = 50  # lines of a function, from def to its end, docstring included


def long_functions(root: Path) -> list[str]:
    return [
        f"{path.relative_to(root)}: {node.name} has {lines} lines, more than {LONGEST}"
        for path in sorted((root / "agentkit").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (lines := node.end_lineno - node.lineno + 1) > LONGEST
    ]


def test_no_function_is_long():
    assert long_functions(ROOT) == []


def test_ruff_has_nothing_to_say():
    for words in (["check"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *words, "."]
        child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert child.returncode == 0, child.stdout + child.stderr


# ---- size
CEILING = 16_340  # statements of the package; 14,000 is the aim, tests/README.md says what stands in the way


def test_the_package_stays_under_its_ceiling():
    rooms = Counter()
    for path in (ROOT / "agentkit").rglob("*.py"):
        room = path.relative_to(ROOT / "agentkit").parts[0]
        rooms[room] += sum(
            isinstance(node, ast.stmt) for node in ast.walk(ast.parse(path.read_text("utf-8")))
        )
    print(dict(rooms.most_common()))
    assert rooms.total() <= CEILING, rooms
