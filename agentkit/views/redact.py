"""Masking secrets before anything is shown to others: in parameters, outputs and trajectories.

Three signs give a secret away: the name it stands under, the shape of a well-known token, and the value of an
environment variable of this process whose name looks secret. Leaves out secrets that look like ordinary words
and stand under no telling name, which no program can find.
"""

import os
import re
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
    "api access secret private signing encryption auth client account service ssh deploy master app "
    "judge".split()
)
_HARMLESS = frozenset(
    "eos bos pad unk sep cls mask stop end start special next max min num n count new".split()
)

_SHAPES = re.compile(
    r"""
    -----BEGIN[ ][A-Z ]{0,40}PRIVATE[ ]KEY-----(?:(?!-----).){0,10000}(?:-----END[ ][A-Z ]{0,40}-----)?  # PEM
    | (?<![A-Za-z0-9])(?:
        hf_[A-Za-z0-9]{16,} | api_org_[A-Za-z0-9]{16,}  # Hugging Face
      | sk-[A-Za-z0-9_-]{16,} | [sr]k_(?:live|test)_[A-Za-z0-9]{10,}  # OpenAI, Anthropic, Stripe
      | gh[pousr]_[A-Za-z0-9]{20,} | github_pat_[A-Za-z0-9_]{20,} | glpat-[A-Za-z0-9_-]{16,}  # GitHub, GitLab
      | xox[a-z]-[A-Za-z0-9-]{10,} | xapp-[A-Za-z0-9-]{10,}  # Slack
      | (?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16} | AIza[A-Za-z0-9_-]{30,} | ya29\.[A-Za-z0-9_-]{20,}  # AWS, Google
      | (?:npm|pypi|gsk|r8|dckr_pat|dop_v1|lsv2_pt|lsv2_sk|shpat|nvapi|tvly|pplx|xai|wandb_v1|sntrys|figd|glsa
        |hvs|rnd)[_-][A-Za-z0-9_-]{16,}  # that announce themselves
      | SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,} | AGE-SECRET-KEY-[A-Z0-9]{20,}
      | eyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]*  # JSON web token
    )
    | (?<=[Bb]earer[ ])(?=[^\s"']{0,400}\d)[A-Za-z0-9._~+/=-]{12,400}  # of a request's header
    | (?<=://)[^\s/:@'"<>]{0,200}:[^\s/@'"<>]{1,200}(?=@)  # user:password@host
    """,
    re.VERBOSE | re.DOTALL,
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


def redact_text(text: str, secrets: Iterable[str] = ()) -> str:
    """Text of any length with every secret, and those of ``secrets``, masked; the time is linear in it."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    return _ASSIGNED.sub(_masked, _SHAPES.sub(MASK, text))


def _masked(match: re.Match) -> str:
    if not is_secret_name(match["name"]):
        return match[0]
    return match[0][: match.start("value") - match.start()] + MASK


def redact(value: Any, secrets: Iterable[str] = ()) -> Any:
    """The same JSON-like value, masked in its texts and, whole, where a name looks secret."""
    secrets = tuple(secrets)
    if isinstance(value, str):
        return redact_text(value, secrets)
    if isinstance(value, Mapping):
        return {redact_text(str(name), secrets): _entry(str(name), v, secrets) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(redact(item, secrets) for item in value)
    return value


def _entry(name: str, value: Any, secrets: tuple[str, ...]) -> Any:
    if value in (None, "", 0) or isinstance(value, bool | float):
        return value
    if is_secret_name(name) and not isinstance(value, Mapping):
        return MASK
    return redact(value, secrets)
