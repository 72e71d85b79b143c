"""What a recipe costs before anything is spent, and what a run cost after it: device-hours, wall clock and
money.

The tables are those of the document "RLVR for Agents". Rates (seconds of one device for a trajectory) come
from params/prices.yaml or are measured on a run; phases follow from counting trajectories in the recipe. The
wall clock on n devices assumes that each phase splits over them evenly. Leaves out: memory, and storage or
network charges of a provider.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from agentkit.runs import Run, RunError, project_root
from agentkit.runs.recipe import Recipe, RecipeError

PHASES = (
    "SFT baseline (cold start, measurement)",
    "Rollout generation",
    "GRPO training updates",
    "Validation evaluations",
    "Final evaluation",
    "Everything else",
)


@dataclass(frozen=True, slots=True)
class Rates:
    """Seconds of one device."""

    rollout: float  # a trajectory sampled for training
    evaluation: float  # a trajectory sampled for validation or a test
    update: float  # forward and backward pass of one trajectory, an iteration
    demonstration: float  # forward and backward pass of one demonstration of the cold start
    other: float  # a run: building tasks, diagnostics, loading models
    source: str  # where these figures come from


@dataclass(frozen=True, slots=True)
class Prices:
    """params/prices.yaml."""

    currency: str
    providers: dict[str, float]  # per device-hour
    rates: dict[str, Rates]  # by model; "default" serves the others
    project: dict[str, float]  # parts of a project, in multiples of its main run
    other_costs: dict[str, tuple[float, float]]  # from, to

    def rates_of(self, model: str) -> Rates:
        """The rates of a model, or the default ones."""
        return self.rates.get(model, self.rates["default"])


def read_prices(path: str | Path | None = None) -> Prices:
    """Read the prices; by default params/prices.yaml of the project. Raises RecipeError naming what is wrong
    with them.
    """
    path = project_root() / "params" / "prices.yaml" if path is None else Path(path)
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(
            f"{path} cannot be read ({error.strerror}). Name a price file with --prices."
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise RecipeError(f"{path} is not valid YAML: {str(error)[:200]}") from None
    names = [field.name for field in dataclasses.fields(Prices)]
    if not isinstance(found, dict) or set(found) != set(names):
        raise RecipeError(f"{path} must hold exactly these keys: {', '.join(names)}")
    for name in names[1:]:
        if not isinstance(found[name], dict):
            raise RecipeError(f"{path}: {name} must map names to numbers")
    rates = {str(model): _rates(path, model, values) for model, values in found["rates"].items()}
    if "default" not in rates:
        raise RecipeError(f"{path}: rates must have an entry 'default', for models that are not named")
    numbers = {
        name: {str(k): _amount(path, f"{name}, {k}", v) for k, v in found[name].items()}
        for name in ("providers", "project")
    }
    return Prices(
        str(found["currency"]), rates=rates, other_costs=_ranges(path, found["other_costs"]), **numbers
    )


def _rates(path: Path, model: Any, values: Any) -> Rates:
    names = [field.name for field in dataclasses.fields(Rates)]
    if not isinstance(values, dict) or set(values) != set(names):
        raise RecipeError(f"{path}: the rates of {model} must be exactly {', '.join(names)}")
    numbers = {name: _amount(path, f"rates of {model}, {name}", values[name]) for name in names[:-1]}
    return Rates(**numbers, source=str(values["source"]))


def _ranges(path: Path, costs: dict) -> dict[str, tuple[float, float]]:
    for name, value in costs.items():
        if not isinstance(value, list) or len(value) != 2:
            raise RecipeError(f"{path}: other_costs, {name} is {value!r}; write it as [from, to]")
    return {
        str(name): tuple(_amount(path, f"other_costs, {name}", v) for v in pair)
        for name, pair in costs.items()
    }


def _amount(path: Path, place: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise RecipeError(f"{path}: {place} is {value!r}; it must be a number of at least 0")
    return float(value)


# ---- from a recipe
# ---------------------------------------------------------------------------------------------------
def counts(recipe: Recipe) -> dict[str, int]:
    """How many trajectories a recipe asks for: demonstrations, baseline, rollouts, updates, validation and
    final.
    """
    test, validation, train = (round(recipe.n_tasks * share) for share in (0.15, 0.15, 0.70))
    batch = recipe.prompts_per_step * recipe.group_size
    evaluated = test * (recipe.test_samples + 1)  # the samples, and once greedily
    return {
        "demonstrations": train * recipe.sft_transcripts * recipe.sft_epochs if recipe.sft else 0,
        "baseline": evaluated,
        "rollouts": math.ceil(recipe.steps / recipe.num_iterations) * batch,
        "updates": recipe.steps * batch,
        "validation": validations(recipe) * min(recipe.val_tasks, validation) * recipe.val_samples,
        "final": evaluated,
    }


def validations(recipe: Recipe) -> int:
    """Validations of a training: before the first step, every ``val_every`` steps, and after the last."""
    return 1 + math.ceil(recipe.steps / recipe.val_every)


def forecast(recipe: Recipe, rates: Rates) -> dict[str, float]:
    """Device seconds of each phase."""
    n = counts(recipe)
    seconds = (
        n["demonstrations"] * rates.demonstration + n["baseline"] * rates.evaluation,
        n["rollouts"] * rates.rollout,
        n["updates"] * rates.update,
        n["validation"] * rates.evaluation,
        n["final"] * rates.evaluation,
        rates.other,
    )
    return dict(zip(PHASES, seconds, strict=True))


# ---- from a run
# ------------------------------------------------------------------------------------------------------
def actual(run: Run, devices: int = 1) -> dict[str, float]:
    """Device seconds that each phase of a run took; phases that are not done yet are left out.

    Args:
        run: a finished or half-finished run.
        devices: how many it ran on.
    """
    stages = {
        name: entry.get("seconds")
        for name, entry in run.manifest["stages"].items()
        if isinstance(entry, dict)
    }
    stages = {
        name: float(s) for name, s in stages.items() if isinstance(s, int | float) and not isinstance(s, bool)
    }
    spent = {PHASES[0]: stages.get("02_baseline"), PHASES[4]: stages.get("05_compare")}
    training, columns = _training_seconds(run), ("rollout_seconds", "update_seconds", "val_seconds")
    if training is not None:
        spent |= dict(zip(PHASES[1:4], (training[c] for c in columns), strict=True))
        rest = max(0.0, stages.get("03_grpo", 0.0) - sum(training.values()))
        spent[PHASES[5]] = stages.get("01_tasks", 0.0) + stages.get("04_diagnostics", 0.0) + rest
    return {phase: spent[phase] * devices for phase in PHASES if spent.get(phase) is not None}


def measured_rates(run: Run, devices: int = 1) -> Rates:
    """Rates measured on a run with its own recipe. Raises RunError when it has not trained yet."""
    training, spent, recipe = _training_seconds(run), actual(run, devices), recipe_of(run)
    if training is None:
        raise RunError(
            f"{run.path} has no finished training step, so there is no rate to measure. Run notebook 03 "
            "first."
        )
    metrics = run.metrics.drop_duplicates("step", keep="last")
    steps = int(metrics["rollout_seconds"].notna().sum())
    batch = recipe.prompts_per_step * recipe.group_size
    n = counts(recipe)
    rollout = evaluation = spent[PHASES[1]] / (math.ceil(steps / recipe.num_iterations) * batch)
    done = int(metrics["val_seconds"].notna().sum()) if "val_seconds" in metrics else 0
    if PHASES[4] in spent:
        evaluation = spent[PHASES[4]] / n["final"]
    elif done:
        evaluation = spent[PHASES[3]] / (done * n["validation"] / validations(recipe))
    cold_start = max(0.0, spent.get(PHASES[0], 0.0) - n["baseline"] * evaluation)
    return Rates(
        rollout=rollout,
        evaluation=evaluation,
        update=spent[PHASES[2]] / (steps * batch),
        demonstration=cold_start / n["demonstrations"] if n["demonstrations"] else 0.0,
        other=spent[PHASES[5]],
        source=f"measured on {run.path.name}, {steps} steps on {devices} device{'s' * (devices > 1)}",
    )


def recipe_of(run: Run) -> Recipe:
    """The recipe a run was made with, keys of other versions left out."""
    used, known = run.manifest.get("recipe"), Recipe.keys()
    return Recipe.from_mapping(
        {k: v for k, v in used.items() if k in known} if isinstance(used, dict) else {}
    )


def _training_seconds(run: Run) -> dict[str, float] | None:
    """Sums of the three timings of train/metrics.jsonl, a resumed step counted once; None before the first
    step.
    """
    if not run.file("train", "metrics.jsonl").exists():
        return None
    metrics = run.metrics
    if (
        "step" not in metrics
        or "rollout_seconds" not in metrics
        or not metrics["rollout_seconds"].notna().any()
    ):
        return None
    metrics = metrics.drop_duplicates("step", keep="last")
    columns = ("rollout_seconds", "update_seconds", "val_seconds")
    return {
        c: float(pd.to_numeric(metrics[c], errors="coerce").sum()) if c in metrics else 0.0 for c in columns
    }


# ---- tables
# ----------------------------------------------------------------------------------------------------------
def phase_table(seconds: Mapping[str, float], devices: int = 4) -> pd.DataFrame:
    """Device-hours of each phase and their wall clock on ``devices`` devices, with the sum of the run."""
    rows = [*seconds.items(), ("Main run total", sum(seconds.values()))]
    columns = ("Phase", "GPU-hours", f"Wall clock ({devices} GPU{'s' * (devices > 1)})")
    return pd.DataFrame([(name, hours(s / 3600), duration(s / devices)) for name, s in rows], columns=columns)


def project_table(seconds: Mapping[str, float], prices: Prices) -> pd.DataFrame:
    """Device-hours of the whole project, part by part."""
    run = sum(seconds.values()) / 3600
    rows = [(name, hours(run * share)) for name, share in prices.project.items()]
    return pd.DataFrame(
        [*rows, ("Total", hours(run * sum(prices.project.values())))], columns=("Component", "GPU-hours")
    )


def money_table(seconds: Mapping[str, float], prices: Prices) -> pd.DataFrame:
    """Money of the main run and of the project, by provider."""
    run, c = sum(seconds.values()) / 3600, prices.currency
    project = run * sum(prices.project.values())
    rows = [
        (name, f"{c}{price:.2f}" if price else "free", f"{c}{run * price:,.2f}", f"{c}{project * price:,.2f}")
        for name, price in prices.providers.items()
    ]
    return pd.DataFrame(rows, columns=("Provider", f"{c}/GPU-hour", "Main run", "Project"))


def other_table(prices: Prices) -> pd.DataFrame:
    """Costs beside computing, with their sum."""
    c, values = prices.currency, list(prices.other_costs.items())
    total = ("Total besides computing", tuple(sum(v[i] for _, v in values) for i in (0, 1)))
    return pd.DataFrame(
        [(name, f"{c}{low:,.0f}-{high:,.0f}") for name, (low, high) in [*values, total]],
        columns=("Item", "Cost"),
    )


def against_table(run: Run, prices: Prices, devices: int = 1) -> pd.DataFrame:
    """What a run was forecast to take from its recipe alone, and what it took, in device time, phase by
    phase.

    Of a training that has not ended the steps so far are forecast; phases that are not done yet show a dash.
    """
    recipe, spent, training = recipe_of(run), actual(run, devices), _training_seconds(run)
    if training is not None:
        recipe = dataclasses.replace(recipe, steps=max(1, int(run.metrics["step"].max())))
    predicted = forecast(recipe, prices.rates_of(recipe.model))
    rows = [(p, predicted[p], spent.get(p)) for p in PHASES]
    done = [(a, b) for _, a, b in rows if b is not None]
    rows.append(("Phases that are done", sum(a for a, _ in done), sum(b for _, b in done)))
    cells = [
        (p, duration(a), "–" if b is None else duration(b), f"{b / a:.2f}" if a and b is not None else "–")
        for p, a, b in rows
    ]
    return pd.DataFrame(cells, columns=("Phase", "Predicted", "Actual", "Actual / predicted"))


def hours(value: float) -> str:
    """Hours as text, with as many places as say something: 55, 2.5, 0.083."""
    return (
        f"{value:,.0f}" if value >= 20 else f"{value:.1f}" if value >= 2 else f"{value:.2g}" if value else "0"
    )


def duration(seconds: float) -> str:
    """Seconds as text in the unit that suits them: 45 s, 12.5 min, 10.5 h."""
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.1f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )
