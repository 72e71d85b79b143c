"""What programs may read: the interpreter, its libraries and PACKAGES.

Leaves out every other installed package, which is as if it were not there.
"""

import os
import sys
import sysconfig
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path

PACKAGES = ("numpy", "sympy", "mpmath", "scipy", "pandas", "networkx", "dateutil", "pytz", "tzdata", "six")
PRELOADED = ("numpy", "sympy")  # imported once, in a zygote of their own, for the programs that name them
LIBRARIES = ("/usr/lib", "/lib", "/usr/lib64", "/lib64", f"{sys.base_prefix}/lib")
DATA = ("/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo", "/usr/share/locale")
DEVICES = ("/dev/urandom", "/dev/random", "/dev/zero", "/dev/null")


def preloaded(code: str) -> tuple[str, ...]:
    """The packages worth having ready for a program: none, or all of PRELOADED where it names one."""
    if not any(name in code for name in PRELOADED):
        return ()
    return tuple(name for name in PRELOADED if name in _installed())


@lru_cache(maxsize=1)
def _installed() -> dict[str, str]:
    """The folder in which this process finds each of PACKAGES: its own, the user's or the system's."""
    specs = {name: PathFinder.find_spec(name) for name in PACKAGES}  # not one that a test has put there
    return {
        name: os.path.realpath(Path(spec.origin).parents[spec.submodule_search_locations is not None])
        for name, spec in specs.items()
        if spec and spec.has_location and os.path.exists(spec.origin)
    }


@lru_cache(maxsize=1)
def zygote_settings() -> dict:
    """Landlock's rules for what may be read, and where modules are looked for."""
    paths = sysconfig.get_paths()
    stdlib = os.path.realpath(paths["stdlib"])
    sites = {os.path.realpath(paths[key]) for key in ("purelib", "platlib")}
    hidden = [*sites, f"{stdlib}/site-packages", f"{stdlib}/dist-packages", "/usr/lib/python3/dist-packages"]
    installed = _installed()
    ours = [f"{installed[name]}/{name}{suffix}" for name in installed for suffix in ("", ".py", ".libs")]
    packages = [path for path in ours if os.path.exists(path)]
    roots = [*filter(os.path.exists, LIBRARIES), stdlib, *DATA, *DEVICES, *packages]
    rules = [(folder, "list") for folder in installed.values()]  # to look for the packages, and no more
    rules += [rule for root in roots for rule in _rules(root, hidden, packages)]
    beside_stdlib = [p for p in sys.path if p and os.path.realpath(p).startswith(os.path.dirname(stdlib))]
    return {
        "rules": list(dict.fromkeys(rules)),
        "path": [path for path in beside_stdlib if os.path.realpath(path) not in hidden],
        "installed": installed,
    }


def _rules(root: str, hidden: list[str], packages: list[str]) -> list[tuple[str, str]]:
    """Landlock rules for reading a path: whole where nothing in it is hidden, else child by child."""
    root = os.path.realpath(root)
    if root in hidden:
        return [(root, "list")]
    hides = any(path.startswith(f"{root}/") and os.path.exists(path) for path in hidden)
    if root in packages or not hides:
        return [(root, "read")]
    rules = [(root, "list")]
    for entry in sorted(os.listdir(root)):
        rules += _rules(os.path.join(root, entry), hidden, packages)
    return rules
