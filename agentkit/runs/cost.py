"""What a recipe costs before anything is spent, and what a run cost: device-hours, wall clock and money.

Rates (seconds of one device for a trajectory) come from params/prices.yaml or are measured on a run; phases
follow from counting trajectories in the recipe. The wall clock on n devices assumes that each phase splits
over them evenly. Leaves out memory, and storage or network charges of a provider.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pandas as pd

from agentkit.recipe import Recipe, find_file, project_file, read_yaml
from agentkit.records import RecipeError, RunError
from agentkit.runs import Run, numbered_rows, project_root
from agentkit.runs.files import located
from agentkit.runs.schemas import read_as

PHASES = (
    "SFT baseline (cold start, measurement)",
    "Rollout generation",
    "GRPO training updates",
    "Validation evaluations",
    "Final evaluation",  # controls included
    "Everything else",
)
EXTRA = 1.0  # rollouts in place of dead groups, as a multiple of a step's, at most
PRICES = "prices.yaml"
TIMINGS = ("rollout_seconds", "update_seconds", "val_seconds")  # of train/metrics.jsonl, phases 1 to 3


@dataclass(frozen=True, slots=True)
class Rates:
    """Seconds of one device."""

    rollout: float  # a trajectory sampled for training
    evaluation: float  # a trajectory sampled for validation or a test
    update: float  # forward and backward pass of one trajectory, an iteration
    demonstration: float  # forward and backward pass of one demonstration of the cold start
    other: float  # a run: diagnostics, loading models
    source: str  # where these figures come from
    task: float = 0.0  # a task of the suite, built
    device: str = "GPU"  # or CPU, which nobody rents by the hour


@dataclass(frozen=True, slots=True)
class Prices:
    """params/prices.yaml."""

    currency: str
    providers: dict[str, float]  # per device-hour
    rates: dict[str, Rates]  # by model; "default" serves the others

    def rates_of(self, recipe: Recipe) -> Rates:
        """The rates of a recipe's model, or the default ones; calls that fail for the moment are repeated."""
        rates, times = self.rates.get(recipe.model, self.rates["default"]), 1 / (1 - recipe.tool_failures)
        longer = {name: times * getattr(rates, name) for name in ("rollout", "evaluation", "update")}
        return dataclasses.replace(rates, **longer)


def read_prices(path: str | Path | None = None, near: str | Path | None = None) -> Prices:
    """Read the prices; by default ``prices_file``, which may lie ``near``. Raises RecipeError."""
    path = prices_file(near) if path is None else located(path)
    values = read_yaml(path)
    try:
        return read_as(Prices, values)
    except ValueError as error:
        raise RecipeError(f"{path} is no price file ({error}): write it like params/prices.yaml") from None


def prices_file(near: str | Path | None = None) -> Path:
    """params/prices.yaml of the project; where it has none, that of the project or folder where a recipe or
    run lies, or else agentkit's own.
    """
    places = [project_root() / "params" / PRICES]
    if near is not None:
        places += [project_root(near) / "params" / PRICES, Path(near).parent / PRICES]
    places.append(project_file("params", PRICES))
    return next((place for place in places if place.is_file()), places[0])


# ---- from a recipe
def _planned(recipe: Recipe) -> Recipe:
    """The recipe with as many tasks as the file of its ``tasks`` has rows, and epochs over these as steps."""
    recipe = recipe.but(n_tasks=_given(recipe).total() or recipe.n_tasks)
    return recipe.planned(_sizes(recipe)["train"])


def _given(recipe: Recipe) -> Counter[str]:
    """Rows of each split in the file of its ``tasks``."""
    with suppress(RecipeError, RunError, OSError):  # it names none, or one that cannot be read
        file = find_file(recipe.tasks)
        return _rows(file, file.stat().st_mtime_ns)
    return Counter()


def _sizes(recipe: Recipe) -> dict[str, int]:
    """Tasks of each split: as the file of its ``tasks`` names them, where it names several (Lab.adopt)."""
    given = _given(recipe)
    if len(given) > 1:
        drawn = 0 if given["validation"] else given["train"] // 5
        validation = given["validation"] + drawn
        return {"train": given["train"] - drawn, "validation": validation, "test": given["test"]}
    shares = {"train": 0.70, "validation": 0.15, "test": 0.15}
    return {name: round(recipe.n_tasks * share) for name, share in shares.items()}


@lru_cache(maxsize=16)
def _rows(file: Path, changed: int) -> Counter[str]:
    """How many rows of each split a file has, counted once while it stays as it is."""
    return Counter(str(row.get("split", "train")) for _, row in numbered_rows(file) if isinstance(row, dict))


def counts(recipe: Recipe, n_test: int = 0, dead: float = 0.0) -> dict[str, int]:
    """How many trajectories a recipe asks for, by what for; ``n_test`` is a test that is known.

    ``dead`` is the share of groups that teach nothing, which others may replace (``replacing``). Each control
    is tested as GRPO is. sft_more is trained on every task's demonstrations; rft samples as many as GRPO,
    and is trained on as many.
    """
    recipe = _planned(recipe)
    sizes = _sizes(recipe)
    test, validation, train = n_test or sizes["test"], sizes["validation"], sizes["train"]
    batch, controls = recipe.prompts_per_step * recipe.group_size, recipe.controls
    shown = min(train, recipe.sft_tasks or train)
    evaluated = test * recipe.test_samples
    steps = math.ceil(recipe.steps / recipe.minibatches)  # that sample
    sampled = steps * batch * (1 + replacing(recipe, dead, train))
    rollouts, updates = round(sampled), recipe.steps * batch // recipe.minibatches
    return {
        "demonstrations": shown * recipe.sft_transcripts * recipe.sft_epochs if recipe.sft else 0,
        "baseline": evaluated * (2 if recipe.measure_base and recipe.sft else 1)
        + train * recipe.filter_rollouts,
        "rollouts": rollouts,
        "updates": updates,
        "validation": validations(recipe) * min(recipe.val_tasks, validation),
        "final": evaluated * (1 + len(controls)),
        "control rollouts": rollouts * ("rft" in controls),
        "control updates": sum(
            train * recipe.sft_transcripts if n == "sft_more" else updates for n in controls
        ),
    }


def replacing(recipe: Recipe, dead: float, train: int) -> float:
    """What replacing dead groups adds to the sampling of a step, as a share of it.

    Fresh groups are as often dead. Their trajectories are so many; but they come in rounds, each as long as
    its longest trajectory: the mean of both, and no more than the budget or the ``train`` tasks not in use.
    """
    if recipe.dead_groups != "replace":
        return 0.0
    most = min(EXTRA, max(0.0, train / recipe.prompts_per_step - 1))
    if dead >= 1:
        return most
    rounds = sum(1 - (1 - dead**number) ** recipe.prompts_per_step for number in range(1, 100))
    return min((dead / (1 - dead) + rounds) / 2, most)


def validations(recipe: Recipe) -> int:
    """Validations of a training: before the first step, every ``val_every`` steps, and after the last."""
    return 1 + math.ceil(recipe.steps / recipe.val_every)


def forecast(recipe: Recipe, rates: Rates, n_test: int = 0, dead: float = 0.0) -> dict[str, float]:
    """Device seconds of each phase; ``n_test`` and ``dead`` as in ``counts``."""
    n, recipe = counts(recipe, n_test, dead), _planned(recipe)
    seconds = (
        n["demonstrations"] * rates.demonstration + n["baseline"] * rates.evaluation,
        n["rollouts"] * rates.rollout,
        n["updates"] * rates.update,
        n["validation"] * rates.evaluation,
        n["final"] * rates.evaluation
        + n["control rollouts"] * rates.rollout
        + n["control updates"] * rates.update,
        rates.other + recipe.n_tasks * rates.task,
    )
    return dict(zip(PHASES, seconds, strict=True))


# ---- from a run
def sampled(metrics: pd.DataFrame, recipe: Recipe) -> pd.Series:
    """Trajectories that each row of a training's metrics sampled, those in place of dead groups included."""
    batch = recipe.prompts_per_step * recipe.group_size
    samples = metrics["rollout_seconds"].notna()  # other rows are validation, or train on the same rollouts
    return samples * (batch + metrics["extra_rollouts"].fillna(0))


def actual(run: Run) -> dict[str, float]:
    """Device seconds of each phase of a run that is done, one device a process."""
    ended = {name: stage for name, stage in run.manifest["stages"].items() if stage.get("status") != "failed"}
    stages = {name: stage["seconds"] for name, stage in ended.items() if "seconds" in stage}
    spent = {PHASES[0]: stages.get("02_baseline"), PHASES[4]: stages.get("05_compare")}
    training = _training_seconds(run)
    if training:
        spent |= dict(zip(PHASES[1:4], training.values(), strict=True))
        rest = max(0.0, stages.get("03_grpo", 0.0) - sum(training.values()))
        spent[PHASES[5]] = stages.get("01_tasks", 0.0) + stages.get("04_diagnostics", 0.0) + rest
    fallback, by_phase = Recipe.of(run).processes, {PHASES[0]: "02_baseline", PHASES[4]: "05_compare"}
    used = {name: stage.get("devices", fallback) for name, stage in run.manifest["stages"].items()}
    devices = {phase: used.get(by_phase.get(phase, "03_grpo"), fallback) for phase in PHASES}
    return {phase: spent[phase] * devices[phase] for phase in PHASES if spent.get(phase) is not None}


def told(run: Run, recipe: Recipe, n_test: int) -> dict[str, float]:
    """Rates that notebooks 01 and 02 of a run tell: ``task``, and ``evaluation`` of the SFT agent."""
    found, stages = {}, run.manifest["stages"]
    if seconds := stages.get("01_tasks", {}).get("seconds"):
        found["task"] = seconds / _planned(recipe).n_tasks
    before = stages.get("02_baseline", {})
    if seconds := before.get("measured", {}).get("sft"):
        n = counts(recipe, n_test)
        base = n["final"] / (1 + len(recipe.controls)) * (recipe.measure_base and recipe.sft)
        found["evaluation"] = seconds * before.get("devices", recipe.processes) / (n["baseline"] - base)
    return found


def made_in(run: Run, policy: str) -> float:
    """Device seconds of what made a policy of a run: notebook 02, then GRPO's 03, or a control's part of 05.

    All of 05 where the run does not say what its controls took.
    """
    stages, fallback = run.manifest["stages"], Recipe.of(run).processes
    names = {"base": [], "sft": [], "grpo": ["03_grpo"]}.get(policy, ["05_compare"])
    spent = 0.0
    for name in [*["02_baseline"] * (policy != "base"), *names]:
        stage = stages.get(name, {})
        seconds = stage.get("controls", {}).get(policy, stage).get("seconds", 0.0)
        if name == "03_grpo":  # of a training that was resumed the stage knows its last part
            seconds = max(seconds, sum(_training_seconds(run).values()))
        spent += seconds * stage.get("devices", fallback)
    return spent


def measured_rates(run: Run) -> Rates:
    """Rates measured on a run with its own recipe. Raises RunError when it has not trained yet."""
    spent, recipe = actual(run), Recipe.of(run)
    metrics = _training_metrics(run)
    steps = int(metrics["rollout_seconds"].notna().sum())  # that sampled; others train on the same rollouts
    if not steps:
        raise RunError(
            f"{run.path} has no finished training step to measure a rate on. Run notebook 03 first."
        )
    batch = recipe.prompts_per_step * recipe.group_size
    n, validated = counts(recipe, tests_of(run)), int(metrics["val_seconds"].notna().sum())
    rollout = evaluation = spent[PHASES[1]] / (steps * batch)
    if PHASES[4] in spent:
        stage = run.manifest["stages"]["05_compare"]
        apart = sum(took.get("seconds", 0.0) for took in stage.get("controls", {}).values())  # tests included
        tested = n["final"] / (1 + len(recipe.controls))
        evaluation = spent[PHASES[4]] * max(0.0, 1 - apart / (stage["seconds"] or 1.0)) / tested
    elif validated:
        evaluation = spent[PHASES[3]] / (validated * n["validation"] / validations(_planned(recipe)))
    cold_start = max(0.0, spent.get(PHASES[0], 0.0) - n["baseline"] * evaluation)
    return Rates(
        rollout=rollout,
        evaluation=evaluation,
        update=spent[PHASES[2]] / (steps * batch),
        demonstration=cold_start / n["demonstrations"] if n["demonstrations"] else 0.0,
        other=spent[PHASES[5]],
        source=f"measured on {run.path.name}, {steps} steps with processes: {recipe.processes}",
        device=device_of(run),
    )


def tests_of(run: Run, recipe: Recipe | None = None) -> int:
    """Test tasks of a run, new templates among them; 0 where it has no suite yet, or not the recipe's."""
    own, keys = Recipe.of(run).everything(), {*Recipe.keys_of("01_tasks")} - {"run", "lab"}
    if recipe is not None and any(value != own[k] for k, value in recipe.everything().items() if k in keys):
        return 0
    return sum(task.split == "test" for task in run.tasks) if run.file("tasks.jsonl").exists() else 0


def device_of(run: Run) -> str:
    """Whether a run was made on a CPU or on GPUs, as far as its version of torch and its model tell."""
    if str(run.manifest["versions"].get("torch")).endswith("+cpu"):
        return "CPU"
    if not prices_file(run.path).exists():  # outside a checkout
        return "GPU"
    return read_prices(near=run.path).rates_of(Recipe.of(run)).device


def _training_metrics(run: Run) -> pd.DataFrame:
    """Step and timings of train/metrics.jsonl; empty before the first step."""
    metrics = run.metrics if run.file("train", "metrics.jsonl").exists() else pd.DataFrame()
    return metrics.reindex(columns=("step", *TIMINGS)).astype(float)


def _training_seconds(run: Run) -> dict[str, float]:
    """Sums of the three timings; empty before the first step."""
    metrics = _training_metrics(run)
    if not metrics["rollout_seconds"].notna().any():
        return {}
    return {name: float(metrics[name].sum()) for name in TIMINGS}


# ---- tables
def phase_table(seconds: Mapping[str, float], devices: int = 4) -> pd.DataFrame:
    """GPU-hours of each phase and their wall clock on ``devices`` GPUs, with the sum of the run.

    Of 0 GPUs, the time on a CPU.
    """
    rows = [*seconds.items(), ("Run total", sum(seconds.values()))]
    if not devices:
        return pd.DataFrame([(name, duration(s)) for name, s in rows], columns=("Phase", "On one CPU"))
    columns = ("Phase", "GPU-hours", f"Wall clock ({devices} GPU{'s' * (devices > 1)})")
    return pd.DataFrame([(name, hours(s / 3600), duration(s / devices)) for name, s in rows], columns=columns)


def money_table(seconds: Mapping[str, float], prices: Prices) -> pd.DataFrame:
    """Money of a run, by provider."""
    total, sign = sum(seconds.values()) / 3600, prices.currency
    rows = [
        (name, f"{sign}{price:.2f}" if price else "free", f"{sign}{total * price:,.2f}")
        for name, price in prices.providers.items()
    ]
    return pd.DataFrame(rows, columns=("Provider", f"{sign}/GPU-hour", "Run"))


def against_table(run: Run, prices: Prices) -> pd.DataFrame:
    """What a run was forecast to take from its recipe and its test, and what it took: device time by phase.

    Of a training that has not ended the steps so far are forecast; phases that are not done yet show a dash.
    """
    recipe, spent = Recipe.of(run), actual(run)
    if _training_seconds(run):
        recipe = recipe.but(steps=max(1, int(run.metrics["step"].max())), epochs=0)
    predicted = forecast(recipe, prices.rates_of(recipe), tests_of(run))
    rows = [_against(phase, predicted[phase], spent.get(phase)) for phase in PHASES]
    rows.append(_against("Phases that are done", sum(predicted[p] for p in spent), sum(spent.values())))
    return pd.DataFrame(rows, columns=("Phase", "Predicted", "Actual", "Actual / predicted"))


def _against(phase: str, predicted: float, spent: float | None) -> tuple[str, str, str, str]:
    if spent is None:
        return phase, duration(predicted), "–", "–"
    return phase, duration(predicted), duration(spent), f"{spent / predicted:.2f}" if predicted else "–"


def hours(value: float) -> str:
    """Hours as text, with as many places as say something: 55, 2.5, 0.083."""
    if value >= 20:
        return f"{value:,.0f}"
    if value >= 2:
        return f"{value:.1f}"
    return f"{value:.2g}" if value else "0"


def duration(seconds: float) -> str:
    """Seconds as text in the unit that suits them: 45 s, 12.5 min, 10.5 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"
