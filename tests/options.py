"""The command line of the scripts among the tests."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any


def options(doc: str, **defaults: int | Sequence[str]) -> Any:
    """Options by name, whole numbers or words of those given, which are all taken by default."""
    parser = argparse.ArgumentParser(description=doc.split("\n")[0])
    for name, default in defaults.items():
        if isinstance(default, int):
            parser.add_argument(f"--{name}", type=int, default=default)
        else:
            parser.add_argument(f"--{name}", nargs="+", choices=list(default), default=list(default))
    return parser.parse_args()
