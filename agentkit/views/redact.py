"""Masking secrets before anything is shown to others: in parameters, outputs and trajectories.

Two signs give a secret away: the name it stands under, and the value of an environment variable of this
process whose name looks secret. Leaves out every other secret: no guess is made by what a text looks like.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any
from urllib.parse import quote

MASK = "[masked]"

# words of a key's name: any of the first, or the last word among the second
_ALWAYS = frozenset(
    "password passwd passphrase pwd secret secrets credential credentials apikey authorization".split()
)
_LAST = frozenset("token auth bearer cookie cookies pat jwt".split())
_KEY_OF = frozenset(
    "api access secret private signing encryption auth client account service ssh deploy master app "
    "judge".split()
)
_HARMLESS = frozenset(
    "eos bos pad unk sep cls mask stop end start special next max min num n count new".split()
)

# a name and its value in text: MY_TOKEN=value, "api_key": "value", client_secret: value, --api-key value
_ASSIGNED = re.compile(
    r"""
    (?<![\w.-])(?P<flag>--)?(?P<name>[A-Za-z_][\w.-]{2,80})
    (?:\\?["'`]?\]?\s{0,3}(?:=>|[:=])\s{0,3}|(?(flag)[ \t]{1,3}(?!-)|(?!)))
    (?P<quote>\\?["'`])?(?:(?:[Bb]earer|[Bb]asic|[Tt]oken)\s)?
    (?P<value>
        (?(quote)(?:(?!(?P=quote))(?:\\.|[^\\\n])){4,}+(?=(?P=quote)|\Z)|(?!))  # to the closing quote
      | [^\s"'`,;&<>()\[\]{}\\][^\s"'`]{3}\S*  # or, where there is none, to white space
    )
    """,
    re.VERBOSE,
)


def is_secret_name(name: str) -> bool:
    """Whether something of this name is a secret: api_key, HF_TOKEN, dbPassword."""
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)]
    if not words:
        return False
    if _ALWAYS & set(words):
        return True
    before = words[-2] if len(words) > 1 else ""
    if words[-1] in ("key", "keys"):
        return before in _KEY_OF
    return words[-1] in _LAST and before not in _HARMLESS


def environment_secrets() -> tuple[str, ...]:
    """Values of variables whose names look secret or end in _KEY, longest first, from 6 characters on."""
    folders = ("PWD", "OLDPWD")
    own = {name: value for name, value in os.environ.items() if name not in folders}
    named = (value for name, value in own.items() if is_secret_name(name) or name.endswith("_KEY"))
    values = {value for value in named if len(value) >= 6}
    return tuple(sorted(values | {quote(value, safe="") for value in values}, key=lambda v: (-len(v), v)))


def redact_text(text: str, secrets: Iterable[str]) -> str:
    """Text of any length with every secret masked; the time is linear in it."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    return _ASSIGNED.sub(_masked, text)


def _masked(match: re.Match) -> str:
    if not is_secret_name(match["name"]):
        return match[0]
    return match[0][: match.start("value") - match.start()] + MASK


def redact(value: Any, secrets: tuple[str, ...] | None = None) -> Any:
    """The same JSON-like value or record, masked in its texts and, whole, where a name looks secret."""
    secrets = environment_secrets() if secrets is None else secrets
    if isinstance(value, str):
        return value if isinstance(value, Enum) else redact_text(value, secrets)
    if isinstance(value, Mapping):
        return {redact_text(str(name), secrets): _entry(str(name), v, secrets) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(redact(item, secrets) for item in value)
    if is_dataclass(value):
        return replace(value, **{f.name: redact(getattr(value, f.name), secrets) for f in fields(value)})
    return value


def _entry(name: str, value: Any, secrets: tuple[str, ...]) -> Any:
    is_masked = (
        isinstance(value, str | int) and value and not isinstance(value, bool) and is_secret_name(name)
    )
    return MASK if is_masked else redact(value, secrets)
