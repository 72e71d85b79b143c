"""What programs in tiers A and B may read: the interpreter, its libraries and PACKAGES, but no other
installed package.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import lru_cache
from importlib.util import find_spec

PACKAGES = ("numpy", "sympy", "mpmath", "scipy", "pandas", "networkx", "dateutil", "pytz", "tzdata", "six")
PRELOADED = ("numpy", "sympy")  # imported once, in a zygote of their own, for the programs that name them


def preloaded(code: str) -> tuple[str, ...]:
    """The packages worth having ready for a program: none, or all of PRELOADED where it names one."""
    return _installed() if any(name in code for name in PRELOADED) else ()


@lru_cache(maxsize=1)
def _installed() -> tuple[str, ...]:
    return tuple(name for name in PRELOADED if find_spec(name))


@lru_cache(maxsize=1)
def places() -> dict:
    """The zygote's settings: what is shown and hidden, Landlock's rules for it, and where modules are looked
    for.
    """
    paths = sysconfig.get_paths()
    stdlib = os.path.realpath(paths["stdlib"])
    sites = sorted({os.path.realpath(paths[key]) for key in ("purelib", "platlib")})
    libraries = [
        p for p in ("/usr/lib", "/lib", "/usr/lib64", "/lib64", f"{sys.base_prefix}/lib") if os.path.exists(p)
    ]
    hidden = [*sites, f"{stdlib}/site-packages", f"{stdlib}/dist-packages", "/usr/lib/python3/dist-packages"]
    packages = [
        os.path.join(site, entry) for site in sites for entry in sorted(os.listdir(site)) if _is_shown(entry)
    ]
    data = ["/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo", "/usr/share/locale"]
    devices = ["/dev/urandom", "/dev/random", "/dev/zero", "/dev/null"]
    shown = [*libraries, stdlib, *data, *devices]
    rules = list(
        dict.fromkeys(rule for root in (*shown, *sites, *packages) for rule in _rules(root, hidden, packages))
    )
    path = [
        p
        for p in sys.path
        if p and os.path.realpath(p).startswith(os.path.dirname(stdlib)) and os.path.realpath(p) not in hidden
    ]
    within_tmp = any(
        path.startswith("/tmp/") for path in (*shown, *packages)
    )  # installed there: an empty /tmp would hide it
    found = {"shown": shown, "hidden": hidden, "packages": packages, "rules": rules}
    found |= {"scratch": "/scratch" if within_tmp else "/tmp"}
    return found | {"path": path, "names": PACKAGES, "sites": sites}


def _is_shown(entry: str) -> bool:
    return entry.removesuffix(".py").removesuffix(".libs") in PACKAGES


def _rules(root: str, hidden: list[str], packages: list[str]) -> list[tuple[str, str]]:
    """Landlock rules that let a place be read without what is hidden in it: whole where nothing is, else
    child by child.
    """
    root = os.path.realpath(root)
    if root in hidden:
        return [(root, "list")]
    if root in packages or not any(path.startswith(f"{root}/") and os.path.exists(path) for path in hidden):
        return [(root, "read")]
    inner = [
        rule
        for entry in sorted(os.listdir(root))
        for rule in _rules(os.path.join(root, entry), hidden, packages)
    ]
    return [(root, "list"), *inner]
