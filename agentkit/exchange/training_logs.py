"""Training logs made elsewhere, read for the alarms: trainer_state.json, TRL's log history, JSONL of verl,
prime-rl and SkyRL, what TRL and verl print, JSON of columns, and a CSV such as W&B's.

Columns are known by the names those trainers give them, others by a mapping. A quantity that only looks alike
is not taken for another: a reward is no success, a difference of probabilities none of log-probabilities, and
a success of 40 no share. Leaves out rollouts, and so the measures that are counted in them.
"""

import ast
import csv
import math
import re
import warnings
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from agentkit.diagnostics.measures import StepMeasures, observe
from agentkit.diagnostics.rules import lacks
from agentkit.records import DataError
from agentkit.runs import open_file, parse_json, read_jsonl

NAMES = {  # ours: what TRL, verl, prime-rl and SkyRL call it, the best first; W&B puts train/ before TRL's
    "step": ("step", "global_step", "training/global_step", "trainer/global_step", "_step"),
    "planned_steps": ("max_steps", "planned_steps"),
    "loss": ("loss", "actor/pg_loss", "loss/mean", "policy/policy_loss", "policy_loss"),
    "grad_norm": ("grad_norm", "actor/grad_norm", "optim/grad_norm", "policy/raw_grad_norm"),
    "learning_rate": ("learning_rate", "actor/lr", "optim/lr", "policy/policy_lr", "actor_lr"),
    "kl": ("kl", "actor/kl_loss", "actor/reward_kl_penalty", "policy/policy_kl"),
    "entropy": (
        "entropy", "actor/entropy", "actor/entropy_loss", "entropy/mean", "entropy/all/mean",
        "policy/policy_entropy",
    ),
    "clip_fraction": (
        "clip_ratio/region_mean", "clip_ratio", "actor/pg_clipfrac", "clip_fraction", "policy/ppo_clip_ratio",
        "policy_clip_ratio",
    ),
    "mismatch": ("sampling/sampling_logp_difference/mean", "mismatch"),
    "reward": (
        "reward", "critic/score/mean", "critic/rewards/mean", "reward/mean", "reward/all/mean",
        "reward/avg_raw_reward",
    ),
    "success": ("success", "rewards/accuracy_reward/mean", "rewards/accuracy_reward"),
    "val_success": ("val_success", "eval_rewards/accuracy_reward/mean", "eval_rewards/accuracy_reward"),
    "completion_tokens": (
        "completions/mean_length", "completion_length", "response_length/mean", "seq_len/mean",
        "seq_len/all/mean", "completion_tokens", "generate/avg_num_tokens", "response_length",
    ),
    "truncated": (
        "completions/clipped_ratio", "response_length/clip_ratio", "is_truncated/mean",
        "is_truncated/all/mean", "truncated",
    ),
    "zero_variance": ("frac_reward_zero_std", "zero_variance"),
    "calls": ("tools/call_frequency", "calls"),
}  # fmt: skip
KNOWN = frozenset(name for names in NAMES.values() for name in names)
SHARES = ("success", "val_success", "clip_fraction", "truncated", "zero_variance")
COUNTS = ("entropy", "grad_norm", "learning_rate", "mismatch", "completion_tokens", "calls")
MOST = dict.fromkeys(SHARES, 1.0) | dict.fromkeys(COUNTS, math.inf)  # of what is never below 0
ROUNDING = 1e-6  # by which a share or a count may leave its range
# A line of verl's console; after a quote it is a note in JSON, whose strings never begin on a line before.
STEP = re.compile(r'^[^"\n]*?\b(step:\d+ - .*)', re.MULTILINE)
PAIR = re.compile(r"(?<!\S)([^\s:]+):(?:np\.\w+\()?([-+.\w]+)")
PRINTED = re.compile(r"\{'[^{}\n]{1,20000}\}")  # a step as TRL prints it, behind a progress bar or alone
Rows = list[dict[str, Any]]


def read_log(
    path: str | Path, columns: Mapping[str, str] | None = None
) -> tuple[list[StepMeasures], list[str]]:
    """The steps of a log, and its columns that no alarm knows; ``columns`` maps our names to the log's.

    Raises:
        DataError: it is no such log, or no alarm could look at anything in it; the message names its columns.
    """
    path, columns = Path(path), {ours: _plain(theirs) for ours, theirs in (columns or {}).items()}
    if wrong := [name for name in columns if name not in NAMES]:
        raise DataError(f"--column {wrong[0]}=..: no alarm knows {wrong[0]!r}; name one of {_listed(NAMES)}.")
    rows = [{_plain(name): value for name, value in row.items()} for row in _rows(path)]
    held = {name: f" ({value!r:.40} is no number)" for row in rows for name, value in row.items()}
    rows = [{name: n for name, v in row.items() if (n := _number(v)) is not None} for row in rows]
    held |= dict.fromkeys((name for row in rows for name in row), "")
    if absent := [f"{name!r}{held.get(name, '')}" for name in columns.values() if held.get(name) != ""]:
        raise DataError(f"{path} has no column of numbers {absent[0]}; it has {_listed(held)}.")
    sources = {ours: [columns[ours]] if ours in columns else names for ours, names in NAMES.items()}
    for ours, most in MOST.items():  # other units, as percent
        for name in sources[ours]:
            values = [row[name] for row in rows if name in row]
            if odd := [value for value in values if value < -ROUNDING or value > most + ROUNDING]:
                held[name] = f" ({odd[0]:g} is {'no share' if most == 1 else 'negative'}, so no {ours})"
        sources[ours] = [name for name in sources[ours] if not held.get(name)]
    known = {name for names in sources.values() for name in names}
    unknown = [
        f"{name}{why}"
        for name, why in held.items()
        if why or not (name in known or name.startswith("rewards/"))
    ]
    if not (counted := [name for name in sources["step"] if held.get(name) == ""]):
        _count(path, rows, sources)
    sources["step"] = counted[:1] or sources["step"]  # W&B's own counts other rows too
    steps = _steps(path, rows, sources)
    if not any(step.number > 0 for step in steps):
        raise DataError(
            f"{path} has no column 'step' of whole numbers from 1 on and another that an alarm knows; it has "
            f"{_listed(held)}. Say which they are, such as --column step=iteration --column kl=my_kl."
        )
    needs = tuple(need for some in lacks([]).values() for need in some)
    finite = (name for step in steps for name, value in step.values.items() if math.isfinite(value))
    if not any(name.startswith(needs) for name in finite):  # too few steps for an alarm is told by coverage
        needed = ", ".join(name for name in NAMES if name in needs)
        alone = ", ".join(name for name in held if name in known)
        other = f" Columns that no alarm knows: {_listed(unknown)}." if unknown else ""
        raise DataError(
            f"{path}: no alarm can judge from {alone} alone; add one of: {needed}. "
            f"For a column of another name say --column kl=my_kl.{other}"
        )
    return steps, unknown


def _plain(name: str) -> str:
    """A column's name without what W&B puts in front of TRL's."""
    return re.sub("^eval/", "eval_", name.removeprefix("train/"))


def _steps(path: Path, rows: Rows, sources: Mapping[str, Iterable[str]]) -> list[StepMeasures]:
    """A step's rows together, as TRL logs it in several; a warning says where steps are missing."""
    steps: dict[int, dict[str, Any]] = {}
    for found in rows:
        row = {
            o: found[names[0]] for o, some in sources.items() if (names := [n for n in some if n in found])
        }
        if row.get("step", math.nan) % 1 == 0:
            held = steps.setdefault(int(row["step"]), {})  # TRL's step has several rows
            # pandas fills with NaN what an evaluation's row lacks
            held |= {o: v for o, v in (row | _components(found)).items() if v == v or o not in held}
    pairs = list(pairwise(sorted(step for step in steps if step > 0)))
    usual = median(b - a for a, b in pairs) if pairs else 1
    if gaps := [f"{a + usual:g} to {b - usual:g}" for a, b in pairs if b - a > 2 * usual]:
        warnings.warn(f"{path}: there is a gap: steps {', '.join(gaps[:3])} have no row.", stacklevel=3)
    return [observe(row | {"step": step}) for step, row in sorted(steps.items())]


def _components(found: Mapping[str, float]) -> dict[str, float]:
    """A reward function's mean and spread as the range of a component."""
    row = {}
    for name, mean in found.items():
        component = name.removeprefix("rewards/").removesuffix("/mean")
        spread = found.get(f"rewards/{component}/std", math.nan)
        if name == f"rewards/{component}/mean" and math.isfinite(mean + spread):
            row |= {f"low/{component}": mean - spread, f"high/{component}": mean + spread}
            row[f"scored/{component}"] = 1.0
    return row


def _rows(path: Path) -> Rows:
    """Rows as they stand. Raises DataError where the file is damaged, or something else."""
    try:
        with open_file(path) as file:
            text = file.read().decode("utf-8-sig")
        rows = _parsed(path, text)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}).") from None
    except (ValueError, csv.Error) as error:
        raise DataError(f"{path} is damaged, or no training log ({str(error)[:120]}).") from None
    shared: dict[str, Any] = {}
    if isinstance(rows, dict):  # trainer_state.json
        shared, rows = {"max_steps": rows.get("max_steps")}, rows.get("log_history")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path} is no list of rows, and has no 'log_history'. Name a training log.")
    flat = []
    for row in rows:
        inner = row.get("data")  # verl: {"step": 3, "data": {..}}
        row = {k: v for k, v in row.items() if k != "data"} | inner if isinstance(inner, dict) else row
        flat.append(
            shared | {str(name): value for name, value in row.items() if name and value not in (None, "")}
        )
    return flat


def _parsed(path: Path, text: str) -> Any:
    """JSON, JSON lines, what verl or TRL print, or a table, by what the text looks like."""
    suffix, first = path.suffix.lower(), text.lstrip().partition("\n")[0]
    if suffix in (".jsonl", ".ndjson") or re.match(r"\{(?!').*\}\n\{", text.lstrip()):
        return read_jsonl(path)  # says so where the last line is torn
    if steps := STEP.findall(text):
        return [dict(PAIR.findall(step)) for step in steps]
    if suffix == ".json" or re.match(r"\s*[{\[]\s*(?:[\[{]\s*)?[\"\]}]", text):
        return _with_rows(parse_json(text))
    printed = [row for row in map(_literal, PRINTED.findall(text)) if row]
    if suffix not in (".csv", ".tsv") and any(not KNOWN.isdisjoint(map(_plain, row)) for row in printed):
        return printed
    return list(csv.DictReader(text.splitlines(keepends=True), delimiter=max(",;\t", key=first.count)))


def _literal(text: str) -> dict[str, Any] | None:
    """A dictionary that Python printed, or None; nan and inf, which no literal is, as a number beyond any."""
    text = re.sub(r"\bnp\.\w+\(([^()]*)\)", r"\1", text)
    try:
        row = ast.literal_eval(re.sub(r"(?<=[:\s])[-+]?(?:nan|inf)\b", "1e999", text))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    return {str(name): value for name, value in row.items()} if isinstance(row, dict) else None


def _with_rows(parsed: Any) -> Any:
    """An object that holds its rows under one key, or a list of each column, as one with ``log_history``."""
    if not isinstance(parsed, dict) or "log_history" in parsed:
        return parsed
    lists = {name: value for name, value in parsed.items() if isinstance(value, list) and value}
    rows = next(iter(lists.values()), [])
    if len(lists) > 1 and len(set(map(len, lists.values()))) == 1:
        rows = [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
    elif len(lists) != 1 or not all(isinstance(row, dict) for row in rows):
        return parsed
    return {"max_steps": parsed.get("max_steps"), "log_history": rows}


def _count(path: Path, rows: Rows, sources: Mapping[str, Iterable[str]]) -> None:
    """Count the rows of a training as its steps; an evaluation's belongs to the step before."""
    settings = ("step", "planned_steps", "learning_rate")
    measured = {name for ours, names in sources.items() if ours not in settings for name in names}
    steps = 0
    for row in rows:
        steps += any(name in measured and not name.startswith("eval") for name in row)
        row["step"] = steps
    if steps:
        warnings.warn(f"{path}: its rows have no step number and are counted as steps.", stacklevel=3)


def _number(value: Any) -> float | None:
    """A number, or a table's text that is one, as float; what is not finite as NaN, anything else None."""
    try:
        value = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else None
    except (ValueError, OverflowError):
        return math.nan if isinstance(value, int) else None
    return value if value is None or math.isfinite(value) else math.nan


def _listed(names: Iterable[str]) -> str:
    some = list(names)
    return (", ".join(some[:12]) or "none") + (f" and {len(some) - 12} more" if len(some) > 12 else "")
