"""What this machine lends to the process: cores and memory. Leaves out GPUs and the disk (doctor)."""

import os
from contextlib import suppress
from pathlib import Path

import psutil

CGROUPS = Path("/sys/fs/cgroup")


def cores() -> int:
    """Processor cores that this process may use, which taskset, batch systems and cgroups make fewer."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [quota.split() for quota in _of_cgroups("cpu", "cpu.cfs_quota_us", "cpu.max")]
    shares = [int(quota[0]) / int((quota[1:] or ["100000"])[0]) for quota in quotas if quota[0].isdigit()]
    return max(1, int(min([here, *shares])))


def machine_memory() -> int:
    """Bytes of memory that this process may have: the machine's, or the least that its cgroups allow."""
    limits = _of_cgroups("memory", "memory.limit_in_bytes", "memory.max")
    return min([psutil.virtual_memory().total, *(int(limit) for limit in limits if limit.isdigit())])


def _of_cgroups(kind: str, old: str, new: str) -> list[str]:
    """What the control groups of this process say in a file, named ``old`` in the first version of them."""
    found = []
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, kinds, group = line.split(":", 2)
            if kinds and kind not in kinds.split(","):
                continue
            root, name = (CGROUPS / kind, old) if kinds else (CGROUPS, new)
            folder = root / group.lstrip("/")
            for place in (folder, *folder.parents):
                with suppress(OSError, UnicodeError):  # none there
                    found.append((place / name).read_text().strip())
    return list(filter(None, found))
