"""Training logs made elsewhere, read for the alarms: trainer_state.json, TRL's log history, verl's and
prime-rl's JSONL, and a CSV.

Columns are known by the names those trainers give them, others by a mapping. A quantity that only looks alike
is not taken for another: a reward is no success, a difference of probabilities none of log-probabilities.
Leaves out rollouts, and so the measures that are counted in them.
"""

import csv
import io
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentkit.diagnostics.measures import StepMeasures, observe
from agentkit.diagnostics.rules import RULES, lacks
from agentkit.exchange.conversation import number
from agentkit.records import DataError
from agentkit.runs import open_file, parse_json, read_jsonl

NAMES = {  # ours: what TRL, verl and prime-rl call it
    "step": ("step", "global_step", "training/global_step", "_step"),
    "planned_steps": ("max_steps", "planned_steps"),
    "loss": ("loss", "actor/pg_loss", "loss/mean"),
    "grad_norm": ("grad_norm", "actor/grad_norm", "optim/grad_norm"),
    "learning_rate": ("learning_rate", "actor/lr", "optim/lr"),
    "kl": ("kl", "actor/kl_loss", "actor/reward_kl_penalty"),
    "entropy": ("entropy", "actor/entropy", "actor/entropy_loss", "entropy/mean", "entropy/all/mean"),
    "clip_fraction": ("clip_ratio/region_mean", "clip_ratio", "actor/pg_clipfrac", "clip_fraction"),
    "mismatch": ("sampling/sampling_logp_difference/mean", "mismatch"),
    "reward": ("reward", "critic/score/mean", "critic/rewards/mean", "reward/mean", "reward/all/mean"),
    "success": ("success", "rewards/accuracy_reward/mean"),
    "val_success": ("val_success", "eval_rewards/accuracy_reward/mean"),
    "completion_tokens": (
        "completions/mean_length", "completion_length", "response_length/mean", "seq_len/mean",
        "seq_len/all/mean", "completion_tokens",
    ),
    "truncated": (
        "completions/clipped_ratio", "response_length/clip_ratio", "is_truncated/mean",
        "is_truncated/all/mean", "truncated",
    ),
    "zero_variance": ("frac_reward_zero_std", "zero_variance"),
    "calls": ("tools/call_frequency", "calls"),
}  # fmt: skip
_OURS = {theirs: ours for ours, names in NAMES.items() for theirs in names}


def read_log(
    path: str | Path, columns: Mapping[str, str] | None = None
) -> tuple[list[StepMeasures], list[str]]:
    """The steps of a log, and its columns that no alarm knows; ``columns`` maps our names to the log's.

    Raises:
        DataError: it is no such log, or no alarm could look at anything in it; the message names its columns.
    """
    if wrong := [name for name in columns or {} if name not in NAMES]:
        raise DataError(f"--column {wrong[0]}=..: no alarm knows {wrong[0]!r}; name one of {_listed(NAMES)}.")
    named = {theirs: name for name, theirs in (columns or {}).items()}
    path, ours = Path(path), {k: v for k, v in _OURS.items() if v not in named.values()} | named
    rows, unknown, held = {}, {}, {}
    for found in _rows(path):
        row = _own(found, ours)
        held |= dict.fromkeys(found)
        unknown |= dict.fromkeys(
            name for name in found if name not in ours and not name.startswith("rewards/")
        )
        step = row.get("step")
        if step is not None and step == int(step):
            rows.setdefault(int(step), {}).update(row)  # TRL logs a step in several rows
    if absent := sorted(theirs for theirs in (columns or {}).values() if theirs not in held):
        raise DataError(f"{path} has no column {absent[0]!r}; it has {_listed(held)}.")
    steps = [observe(row | {"step": step}) for step, row in sorted(rows.items())]
    if not any(step.number > 0 for step in steps):
        way_out = "Say which they are, such as --column step=iteration --column kl=my_kl."
        raise DataError(
            f"{path} has no column 'step' and another that an alarm knows; it has {_listed(held)}. {way_out}"
        )
    if len(lacks(steps)) == len(RULES):
        alone = ", ".join(name for name in held if name in ours)
        needed = ", ".join(name for name in NAMES if any(name in needs for needs in lacks([]).values()))
        other = f" Columns that no alarm knows: {_listed(unknown)}." if unknown else ""
        raise DataError(
            f"{path}: no alarm can judge from {alone} alone; add one of: {needed}. "
            f"For a column of another name say --column kl=my_kl.{other}"
        )
    return steps, list(unknown)


def _own(found: Mapping[str, Any], ours: Mapping[str, str]) -> dict[str, Any]:
    """One row under our names; a reward function's mean and spread as the range of a component."""
    row: dict[str, Any] = {}
    for theirs, value in found.items():
        name, value = ours.get(theirs), number(value)
        if name is not None:
            row[name] = value if name not in row or row[name] is None else row[name]
    for theirs in found:
        if theirs.startswith("rewards/") and theirs.endswith("/mean"):
            component = theirs.removeprefix("rewards/").removesuffix("/mean")
            mean, spread = number(found[theirs]), number(found.get(f"rewards/{component}/std"))
            if mean is not None and spread is not None:
                row |= {f"low/{component}": mean - spread, f"high/{component}": mean + spread}
                row[f"scored/{component}"] = 1.0
    return row


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows as they stand. Raises DataError where the file is damaged, or something else."""
    try:
        with open_file(path) as file:
            text = file.read().decode("utf-8-sig")
        if path.suffix.lower() == ".csv":
            rows = list(csv.DictReader(io.StringIO(text)))
        elif path.suffix.lower() in (".jsonl", ".ndjson"):
            rows = read_jsonl(path)  # says so where the last line is torn
        else:
            rows = parse_json(text)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}).") from None
    except (ValueError, csv.Error) as error:
        raise DataError(f"{path} is damaged, or no training log ({str(error)[:120]}).") from None
    shared: dict[str, Any] = {}
    if isinstance(rows, dict):  # trainer_state.json
        shared, rows = {"max_steps": rows.get("max_steps")}, rows.get("log_history")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path} is no list of rows, and has no 'log_history'. Name a training log.")
    for row in rows:
        inner = row.get("data")  # verl: {"step": 3, "data": {..}}
        row = {k: v for k, v in row.items() if k != "data"} | inner if isinstance(inner, dict) else row
        values = shared | {str(name): _float(value) for name, value in row.items() if name is not None}
        yield {name: value for name, value in values.items() if value is not None}


def _float(value: Any) -> Any:
    """A CSV's text as a number where it is one; what is not finite as NaN."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, float) and not math.isfinite(value):
        return math.nan
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _listed(names: Mapping[str, Any]) -> str:
    some = ", ".join(list(names)[:12]) or "none"
    return some + (f" and {len(names) - 12} more" if len(names) > 12 else "")
