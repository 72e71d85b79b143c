"""A training log of TRL, read for the alarms: trainer_state.json, its log history as JSON or JSONL, or a CSV.

Columns are known by TRL's names and by ours, others by a mapping. A quantity that only looks alike is not
taken for another: a reward is no success, and a success of 40 no share. Leaves out rollouts, and so the
measures that are counted in them, and what a console printed.
"""

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentkit.records import DataError
from agentkit.rows import parse_json, read_jsonl

NAMES = {  # ours: TRL's, the best first
    "step": ("step", "global_step"),
    "planned_steps": ("max_steps", "planned_steps"),
    "loss": ("loss",),
    "grad_norm": ("grad_norm",),
    "learning_rate": ("learning_rate",),
    "kl": ("kl",),
    "entropy": ("entropy",),
    "clip_fraction": ("clip_ratio/region_mean", "clip_ratio", "clip_fraction"),
    "mismatch": ("sampling/sampling_logp_difference/mean", "mismatch"),
    "reward": ("reward",),
    "success": ("success", "rewards/accuracy_reward/mean", "rewards/accuracy_reward"),
    "val_success": ("val_success", "eval_rewards/accuracy_reward/mean", "eval_rewards/accuracy_reward"),
    "completion_tokens": ("completions/mean_length", "completion_length", "completion_tokens"),
    "truncated": ("completions/clipped_ratio", "truncated"),
    "zero_variance": ("frac_reward_zero_std", "zero_variance"),
    "calls": ("tools/call_frequency", "calls"),
}
SHARES = ("success", "val_success", "clip_fraction", "truncated", "zero_variance")
COUNTS = ("entropy", "grad_norm", "learning_rate", "mismatch", "completion_tokens", "calls")
MOST = dict.fromkeys(SHARES, 1.0) | dict.fromkeys(COUNTS, math.inf)  # of what is never below 0
ROUNDING = 1e-6  # by which a share or a count may leave its range


def read_log(
    path: str | Path, columns: Mapping[str, str] | None = None
) -> tuple[list[dict[str, float]], list[str]]:
    """A log's steps as rows of metrics, and its columns that no alarm knows; ``columns`` maps our names to
    the log's.

    Raises DataError where it is no such log, or no step has a known column; the message names its columns.
    """
    path, columns = Path(path), columns or {}
    if wrong := [name for name in columns if name not in NAMES]:
        known = ", ".join(NAMES)
        raise DataError(f"--column {wrong[0]}=..: no alarm knows {wrong[0]!r}; name one of {known}.")
    rows = [{name: n for name, v in row.items() if (n := _number(v)) is not None} for row in _rows(path)]
    held: dict[str, list[float]] = {}
    for name, value in (item for row in rows for item in row.items()):
        held.setdefault(name, []).append(value)
    if absent := [name for name in columns.values() if name not in held]:
        raise DataError(f"{path} has no column of numbers {absent[0]!r}; it has {', '.join(held)}.")
    sources = {own: (columns[own],) if own in columns else names for own, names in NAMES.items()}
    for own, most in MOST.items():  # other units, as percent
        odd = {n for n, found in held.items() if any(x < -ROUNDING or x > most + ROUNDING for x in found)}
        sources[own] = tuple(name for name in sources[own] if name not in odd)
    steps = _steps(rows, sources)
    if not any(row["step"] > 0 and row.keys() - {"step", "planned_steps"} for row in steps):
        raise DataError(
            f"{path} has no column 'step' of whole numbers from 1 on and another that an alarm knows; it has "
            f"{', '.join(held)}. Say which they are, such as --column step=iteration --column kl=my_kl."
        )
    used = {name for names in sources.values() for name in names}
    return steps, [name for name in held if name not in used and not name.startswith("rewards/")]


def _steps(rows: Iterable[dict[str, float]], sources: Mapping[str, Sequence[str]]) -> list[dict[str, float]]:
    """A step's rows together, as TRL logs it in several."""
    steps: dict[int, dict[str, float]] = {}
    for found in rows:
        row = {own: found[n] for own, names in sources.items() for n in reversed(names) if n in found}
        if row.get("step", math.nan) % 1 == 0:
            held = steps.setdefault(int(row["step"]), {})
            # pandas fills with NaN what an evaluation's row lacks
            held |= {own: v for own, v in (row | _components(found)).items() if v == v or own not in held}
    return [row | {"step": step} for step, row in sorted(steps.items())]


def _components(found: Mapping[str, float]) -> dict[str, float]:
    """A reward function's mean and spread as the range of a component."""
    row = {}
    for name, mean in found.items():
        component = name.removeprefix("rewards/").removesuffix("/mean")
        spread = found.get(f"rewards/{component}/std")
        if name == f"rewards/{component}/mean" and spread is not None and math.isfinite(mean + spread):
            row |= {f"low/{component}": mean - spread, f"high/{component}": mean + spread}
            row[f"scored/{component}"] = 1.0
    return row


def _rows(path: Path) -> list[dict[str, Any]]:
    """Rows as they stand. Raises DataError where the file is damaged, or something else."""
    try:
        if path.suffix == ".jsonl":
            rows = read_jsonl(path)  # says so where the last line is torn
        else:
            text = path.read_text(encoding="utf-8-sig")
            rows = parse_json(text) if path.suffix == ".json" else list(csv.DictReader(text.splitlines()))
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{path} is damaged, or no training log ({str(error)[:120]}).") from None
    if isinstance(rows, dict):  # trainer_state.json
        shared, rows = {"max_steps": rows.get("max_steps")}, rows.get("log_history")
        rows = [shared | row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path} is no list of rows, and has no 'log_history'. Name a training log.")
    return rows


def _number(value: Any) -> float | None:
    """A number, or a table's text that is one, as float; what is not finite as NaN, anything else None."""
    try:
        number = float(str(value))  # of True and the like no number
    except ValueError:
        return None
    return number if math.isfinite(number) else math.nan
