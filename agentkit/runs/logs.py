"""A training log of TRL, read for the alarms: trainer_state.json, its log history as JSON or JSONL, or a CSV.

Columns are known by TRL's names and by ours, others by a mapping. A quantity that only looks alike is not
taken for another: a reward is no success, and a success of 40 no share. Leaves out rollouts, and so the
measures that are counted in them, and what a console printed.
"""

import csv
import math
import warnings
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from agentkit.records import DataError
from agentkit.runs.files import parse_json, read_jsonl

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
Rows = list[dict[str, Any]]


def read_log(
    path: str | Path, columns: Mapping[str, str] | None = None
) -> tuple[list[dict[str, float]], list[str]]:
    """A log's steps as rows of metrics, and its columns that no alarm knows; ``columns`` maps our names to
    the log's.

    Raises:
        DataError: it is no such log, or no step has a known column; the message names its columns.
    """
    path, columns = Path(path), columns or {}
    if wrong := [name for name in columns if name not in NAMES]:
        raise DataError(f"--column {wrong[0]}=..: no alarm knows {wrong[0]!r}; name one of {_listed(NAMES)}.")
    rows = _rows(path)
    held = {name: f" ({value!r:.40} is no number)" for row in rows for name, value in row.items()}
    rows = [{name: n for name, v in row.items() if (n := _number(v)) is not None} for row in rows]
    held |= dict.fromkeys((name for row in rows for name in row), "")
    if absent := [f"{name!r}{held.get(name, '')}" for name in columns.values() if held.get(name) != ""]:
        raise DataError(f"{path} has no column of numbers {absent[0]}; it has {_listed(held)}.")
    sources = {ours: (columns[ours],) if ours in columns else names for ours, names in NAMES.items()}
    for ours, most in MOST.items():  # other units, as percent
        for name in sources[ours]:
            values = [row[name] for row in rows if name in row]
            if odd := [value for value in values if value < -ROUNDING or value > most + ROUNDING]:
                held[name] = f" ({odd[0]:g} is {'no share' if most == 1 else 'negative'}, so no {ours})"
        sources[ours] = tuple(name for name in sources[ours] if not held.get(name))
    known = {name for names in sources.values() for name in names}
    steps = _steps(path, rows, sources)
    if not any(row["step"] > 0 and row.keys() - {"step", "planned_steps"} for row in steps):
        raise DataError(
            f"{path} has no column 'step' of whole numbers from 1 on and another that an alarm knows; it has "
            f"{_listed(held)}. Say which they are, such as --column step=iteration --column kl=my_kl."
        )
    unknown = [n for n, why in held.items() if why or not (n in known or n.startswith("rewards/"))]
    return steps, [f"{name}{held[name]}" for name in unknown]


def _steps(path: Path, rows: Rows, sources: Mapping[str, Iterable[str]]) -> Rows:
    """A step's rows together, as TRL logs it in several; a warning says where steps are missing."""
    steps: dict[int, dict[str, Any]] = {}
    for found in rows:
        row = {
            o: found[names[0]] for o, some in sources.items() if (names := [n for n in some if n in found])
        }
        if row.get("step", math.nan) % 1 == 0:
            held = steps.setdefault(int(row["step"]), {})
            # pandas fills with NaN what an evaluation's row lacks
            held |= {o: v for o, v in (row | _components(found)).items() if v == v or o not in held}
    pairs = list(pairwise(sorted(step for step in steps if step > 0)))
    usual = median(b - a for a, b in pairs) if pairs else 1
    if gaps := [f"{a + usual:g} to {b - usual:g}" for a, b in pairs if b - a > 2 * usual]:
        warnings.warn(f"{path}: there is a gap: steps {', '.join(gaps[:3])} have no row.", stacklevel=3)
    return [row | {"step": step} for step, row in sorted(steps.items())]


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
    shared: dict[str, Any] = {}
    try:
        if path.suffix == ".jsonl":
            rows = read_jsonl(path)  # says so where the last line is torn
        else:
            text = path.read_text(encoding="utf-8-sig")
            is_json = path.suffix == ".json"
            rows = parse_json(text) if is_json else list(csv.DictReader(text.splitlines(keepends=True)))
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}).") from None
    except (ValueError, csv.Error) as error:
        raise DataError(f"{path} is damaged, or no training log ({str(error)[:120]}).") from None
    if isinstance(rows, dict):  # trainer_state.json
        shared, rows = {"max_steps": rows.get("max_steps")}, rows.get("log_history")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path} is no list of rows, and has no 'log_history'. Name a training log.")
    return [
        shared | {str(name): value for name, value in row.items() if name and value not in (None, "")}
        for row in rows
    ]


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
