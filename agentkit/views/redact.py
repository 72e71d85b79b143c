"""Masking secrets before anything is shown to others: in parameters, outputs and trajectories.

Two signs give a secret away: the name it stands under, and the value of an environment variable of this
process whose name looks secret. Leaves out every other secret: no guess is made by what a text looks like.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any
from urllib.parse import quote

MASK = "[masked]"

_SECRET = re.compile(  # in a name in snake case
    r"password|passwd|passphrase|secret|credential|authorization|api_?key"
    r"|(^|_)(token|pwd|pat|jwt|auth|bearer|cookies?)$"
    r"|(access|auth|private|signing|encryption|client|account|service|ssh|deploy|master|app|judge)_keys?$"
)
_HARMLESS = re.compile(  # not admin_token or session_token, which end like two of these
    r"(^|_)(eos|bos|pad|unk|sep|cls|mask|stop|end|start|special|next|max|min|n|new)_token$"
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
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)
    snake = "_".join(words).lower()
    return bool(_SECRET.search(snake)) and not _HARMLESS.search(snake)


def environment_secrets() -> tuple[str, ...]:
    """Values of variables whose names look secret or end in _KEY, longest first, from 6 characters on."""
    own = {name: value for name, value in os.environ.items() if name not in ("PWD", "OLDPWD")}
    values = {v for name, v in own.items() if len(v) >= 6 and (is_secret_name(name) or name.endswith("_KEY"))}
    return tuple(sorted(values | {quote(value, safe="") for value in values}, key=len, reverse=True))


def redact(value: Any, secrets: tuple[str, ...] | None = None) -> Any:
    """The same JSON-like value or record, masked in its texts and, whole, where a name looks secret."""
    secrets = environment_secrets() if secrets is None else secrets
    if isinstance(value, str) and not isinstance(value, Enum):
        for secret in secrets:
            value = value.replace(secret, MASK)
        return _ASSIGNED.sub(_masked, value)
    if isinstance(value, Mapping):
        return {redact(str(name), secrets): _entry(str(name), own, secrets) for name, own in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(redact(item, secrets) for item in value)
    if is_dataclass(value):
        return replace(value, **{f.name: redact(getattr(value, f.name), secrets) for f in fields(value)})
    return value


def _masked(match: re.Match) -> str:
    if not is_secret_name(match["name"]):
        return match[0]
    return match[0][: match.start("value") - match.start()] + MASK


def _entry(name: str, value: Any, secrets: tuple[str, ...]) -> Any:
    is_text = isinstance(value, str | int) and not isinstance(value, bool)
    return MASK if is_text and value and is_secret_name(name) else redact(value, secrets)
