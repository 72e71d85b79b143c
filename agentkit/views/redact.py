"""Masking secrets before anything is shown to others: keys and tokens in parameters, outputs and
trajectories.

Four signs give a secret away: the name of the key it stands under, the shape of a well-known token, a value
right after a word such as "password=" or "Bearer", and the value of an environment variable of this process
whose name looks secret.
Leaves out: secrets that look like ordinary words and stand under no telling name, which no program can find.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

MASK = "[masked]"

# words of a key's name: any of the first, or the last word among the second
_ALWAYS = frozenset(
    "password passwd passphrase pwd secret secrets credential credentials apikey authorization".split()
)
_LAST = frozenset("token auth bearer cookie cookies pat jwt".split())
_KEY_OF = frozenset(
    "api access secret private signing encryption auth client account service ssh deploy master app".split()
)
_HARMLESS = frozenset(
    "eos bos pad unk sep cls mask stop end start special next max min num n count new".split()
)

_SHAPES = re.compile(
    r"""
    -----BEGIN[ ][A-Z ]{0,40}PRIVATE[ ]KEY-----(?:(?!-----).){0,10000}(?:-----END[ ][A-Z ]{0,40}-----)?       # PEM
    | (?<![A-Za-z0-9])(?:
        hf_[A-Za-z0-9]{16,} | api_org_[A-Za-z0-9]{16,}                                             # Hugging Face
      | sk-[A-Za-z0-9_-]{16,} | [sr]k_(?:live|test)_[A-Za-z0-9]{10,}                               # OpenAI, Anthropic, Stripe
      | gh[pousr]_[A-Za-z0-9]{20,} | github_pat_[A-Za-z0-9_]{20,} | glpat-[A-Za-z0-9_-]{16,}       # GitHub, GitLab
      | xox[a-z]-[A-Za-z0-9-]{10,} | xapp-[A-Za-z0-9-]{10,}                                        # Slack
      | (?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16} | AIza[A-Za-z0-9_-]{30,} | ya29\.[A-Za-z0-9_-]{20,}    # AWS, Google
      | (?:npm|pypi|gsk|r8|dckr_pat|dop_v1|lsv2_pt|lsv2_sk|shpat|nvapi|tvly|pplx|xai|wandb_v1|sntrys|figd|glsa|hvs|rnd)
        [_-][A-Za-z0-9_-]{16,}                                                                     # that announce themselves
      | SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,} | AGE-SECRET-KEY-[A-Z0-9]{20,}
      | eyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]*                                    # JSON web token
    )
    | (?<=://)[^\s/:@'"<>]{0,200}:[^\s/@'"<>]{1,200}(?=@)                                          # user:password@host
    """,
    re.VERBOSE | re.DOTALL,
)
_JOIN = r"""\\?["'`]?\s{0,3}(?P<join>[:=]|=>|\bis\b)\s{0,3}\\?["'`]?(?:(?:bearer|basic|token)\s{1,3})?"""
_VALUE = r"""(?P<value>[^\s"'`,;&<>()\[\]{}\\]{%d,400})"""
# after these words any value is a secret; after those of the second kind only one that looks random
_SURE = re.compile(
    r"(?i)(?:password|passwd|passphrase|pwd|secret|(?:api|access|private)[ _-]?key|(?:auth|access)[ _-]?token)"
    + _JOIN
    + _VALUE % 4
)
_PERHAPS = re.compile(
    r"(?i)(?:(?:token|key|auth|authorization|credentials?|cookie|sig|signature|pat)"
    + _JOIN
    + r"|\b(?:bearer|basic|token|key)\s{1,3})"
    + _VALUE % 12
)
# any name that looks secret, as in MY_TOKEN=value
_ASSIGNED = re.compile(
    r"(?<![\w.-])(?P<name>[A-Za-z_][\w.-]{2,80})" + _JOIN.replace(r"|\bis\b", "") + _VALUE % 4
)


def is_secret_name(name: str) -> bool:
    """Whether a key, a parameter or an environment variable of this name holds a secret: api_key, HF_TOKEN,
    dbPassword.
    """
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)
    words = [word.lower() for word in words]
    if not words:
        return False
    if _ALWAYS & set(words):
        return True
    before = words[-2] if len(words) > 1 else ""
    if words[-1] in ("key", "keys"):
        return before in _KEY_OF
    return words[-1] in _LAST and before not in _HARMLESS


def looks_random(text: str) -> bool:
    """Whether text looks like a generated token: 12 characters or more, letters with digits, many different
    ones.

    Shannon entropy of at least 2.5 bits a character; English words run together have no digits, numbers no
    letters.
    """
    if len(text) < 12 or not re.search(r"\d", text) or not re.search(r"[A-Za-z]", text):
        return False
    counts = Counter(text)
    return -sum(n / len(text) * math.log2(n / len(text)) for n in counts.values()) >= 2.5


def environment_secrets(environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Values of the environment variables whose names look secret, longest first; those under 6 characters
    are no secrets.
    """
    environment = os.environ if environment is None else environment
    values = {value for name, value in environment.items() if is_secret_name(name) and len(value) >= 6}
    return tuple(sorted(values | {quote(value, safe="") for value in values}, key=lambda v: (-len(v), v)))


def redact_text(text: str, secrets: Iterable[str] = ()) -> str:
    """Text with every secret replaced by "[masked]".

    Args:
        text: anything, of any length; the time is linear in it.
        secrets: exact strings to mask too, as ``environment_secrets`` gives them.
    """
    for secret in secrets:
        text = text.replace(secret, MASK)
    text = _SHAPES.sub(MASK, text)
    text = _SURE.sub(
        lambda m: m[0] if m["join"].lower() == "is" and m["value"].isalpha() else _masked_value(m), text
    )
    text = _ASSIGNED.sub(lambda m: _masked_value(m) if is_secret_name(m["name"]) and _sure(m) else m[0], text)
    return _PERHAPS.sub(lambda m: _masked_value(m) if looks_random(m["value"]) else m[0], text)


def _sure(match: re.Match) -> bool:
    """Whether an assignment to a secret name is one: "token: a word" may be prose."""
    return (
        match["join"] != ":"
        or bool(re.search(r"[_.-]|[a-z][A-Z]", match["name"]))
        or looks_random(match["value"])
    )


def _masked_value(match: re.Match) -> str:
    return match[0][: match.start("value") - match.start()] + MASK


def redact(value: Any, secrets: Iterable[str] = ()) -> Any:
    """The same JSON-like value with every secret replaced: in texts, and whole values under names that look
    secret.
    """
    secrets = tuple(secrets)
    if isinstance(value, str):
        return redact_text(value, secrets)
    if isinstance(value, Mapping):
        return {redact_text(str(k), secrets): _redact_entry(str(k), v, secrets) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(redact(item, secrets) for item in value)
    return value


def _redact_entry(name: str, value: Any, secrets: tuple[str, ...]) -> Any:
    if value in (None, "", 0) or isinstance(value, bool | float):
        return value
    named = is_secret_name(name) and not isinstance(value, Mapping)
    key = isinstance(value, str) and name.lower().endswith(("key", "signature")) and looks_random(value)
    return MASK if named or key else redact(value, secrets)
