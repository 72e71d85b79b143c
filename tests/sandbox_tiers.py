"""The tiers this machine must offer, asked of the kernel and not of the sandbox: a tier that is broken fails
its tests.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys


def expected_tiers() -> list[str]:
    """A where Landlock and unprivileged namespaces with mounts are there, B where Landlock is."""
    if (
        sys.platform != "linux" or ctypes.CDLL(None).syscall(444, None, 0, 1) < 1
    ):  # landlock_create_ruleset: its version
        return []
    mount = ["unshare", "-Urmpin", "--fork", "mount", "-t", "tmpfs", "none", "/mnt"]
    namespaces = shutil.which("unshare") and subprocess.run(mount, capture_output=True).returncode == 0
    return ["A", "B"] if namespaces else ["B"]
