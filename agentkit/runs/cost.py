"""What a recipe will take and what a run took: device-hours and money by phase, in one table.

Rates (seconds of one device for a trajectory) were measured or come from a roofline; both stand in
params/prices.yaml. Phases follow from counting trajectories in the recipe. Leaves out memory
(training.memory), time that tools take where nothing overlaps them, and storage or network charges.
"""

import math
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from agentkit.recipe import Recipe, find_file, located, project_file, read_yaml
from agentkit.records import RecipeError, RunError
from agentkit.rows import numbered_rows
from agentkit.runs import Run
from agentkit.runs.schemas import read_as

PHASES = (
    "SFT baseline (cold start, measurement)",
    "Rollout generation",
    "GRPO training updates",
    "Validation evaluations",
    "Final evaluation",  # controls included
    "Everything else",
)
TIMINGS = ("rollout_seconds", "update_seconds", "val_seconds")  # of train/metrics.jsonl, phases 1 to 3
PROMPT = 1024  # tokens of system prompt, tools and question
LOADING = 600.0  # seconds a run, for starting engines, diagnostics and tables
SPREAD = {"likely": 1.0, "fast": 0.75, "slow": 1.25}  # about measured rates; as wide as forecasts erred
_STAGES = {"02_baseline": PHASES[0], "05_compare": PHASES[4]}  # each one phase; the others make up the last


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

    def times(self, factor: float) -> "Rates":
        """All rates but those of a task and of the rest."""
        parts = ("rollout", "evaluation", "update", "demonstration")
        return replace(self, **{name: factor * getattr(self, name) for name in parts})


@dataclass(frozen=True, slots=True)
class Device:
    """What a data sheet says."""

    tflops: float  # bfloat16, dense
    tb_s: float  # of its memory


@dataclass(frozen=True, slots=True)
class Model:
    """What a model card says."""

    billions: float  # parameters that a token meets
    kv_kb: float  # keys and values of a token, in kilobytes


@dataclass(frozen=True, slots=True)
class Belief:
    """How much of a device is used, and how long trajectories get: what a roofline does not know."""

    bandwidth: float  # share of the device's, in decoding
    decode_s: float  # a decoding step, beside reading weights, keys and values
    compute: float  # share of the device's, in an update or in reading prompts
    filled: float  # share of max_tokens that a trajectory fills


@dataclass(frozen=True, slots=True)
class Prices:
    """params/prices.yaml."""

    currency: str
    providers: dict[str, float]  # per device-hour
    device: str  # one of devices: what the providers rent
    devices: dict[str, Device]
    models: dict[str, Model]  # by name; others are known by the number of billions in theirs
    beliefs: dict[str, Belief]  # likely, fast and slow
    measured: dict[str, Rates]  # by model, where a run was timed

    def rates_of(self, recipe: Recipe, case: str = "likely") -> Rates:
        """Of a recipe's model: measured ones, or a roofline's. ``case``: likely, fast or slow.

        Calls that fail for the moment are repeated.
        """
        known = self.measured.get(recipe.model)
        known = known.times(SPREAD[case]) if known else self._roofline(recipe, case)
        times = 1 / (1 - recipe.tool_failures)
        longer = {name: times * getattr(known, name) for name in ("rollout", "evaluation", "update")}
        return replace(known, **longer)

    def _roofline(self, recipe: Recipe, case: str) -> Rates:
        """From sizes and data sheets: a step of decoding reads the weights and the keys and values of every
        row; a token costs 2 operations a parameter forward, and 6 in an update (forward, again for
        checkpointing, backward; the weights of a LoRA's base have no gradient), and 2 more for the reference
        where beta asks for one.
        """
        model, device, belief = self._model(recipe.model), self.devices[self.device], self.beliefs[case]
        own = belief.filled * recipe.max_tokens
        flops = belief.compute * device.tflops * 1e12
        weights = model.billions * 1e9 * (0.56 if recipe.load_in_4bit else 2)  # 4 bits and their scales
        cached = (PROMPT + own / 2) * model.kv_kb * 1e3

        def sampled(rows: int) -> float:
            moved = (weights + rows * cached) / (belief.bandwidth * device.tb_s * 1e12)
            return own * (moved + belief.decode_s) / rows + 2e9 * model.billions * (PROMPT + own) / flops

        learnt = 6e9 * model.billions * (PROMPT + own) / flops
        update = learnt * (4 / 3 if recipe.beta else 1)
        batch = min(recipe.max_batch, recipe.prompts_per_step * recipe.group_size)
        size = f"{model.billions:g} billion parameters on one {self.device}"
        source = f"estimated for {size}, {PROMPT} + {own:,.0f} tokens a trajectory; not measured"
        return Rates(sampled(batch), sampled(recipe.max_batch), update, learnt, LOADING, source)

    def _model(self, name: str) -> Model:
        if name in self.models:
            return self.models[name]
        if found := re.search(r"(\d+(?:\.\d+)?)[Bb]\b", Path(name).name):
            return Model(float(found[1]), self.models["default"].kv_kb)
        return self.models["default"]


def read_prices(path: str | Path | None = None) -> Prices:
    """Read a price file, by default params/prices.yaml. Raises RecipeError."""
    path = project_file("params", "prices.yaml") if path is None else located(path)
    try:
        prices = read_as(Prices, read_yaml(path))
    except ValueError as error:
        raise RecipeError(f"{path} is no price file ({error}): write it like params/prices.yaml") from None
    lacks = {"devices": {prices.device}, "models": {"default"}, "beliefs": set(SPREAD)}
    for name, keys in lacks.items():
        if missing := keys - set(getattr(prices, name)):
            raise RecipeError(f"{path}: {name} has no {min(missing)}: write it like params/prices.yaml")
    return prices


# ---- from a recipe
def sizes(recipe: Recipe) -> dict[str, int]:
    """Tasks of each split: those of the file of its ``tasks``, or shares of n_tasks."""
    given: Counter[str] = Counter()
    with suppress(RecipeError, RunError, OSError):  # it names none, or one that cannot be read
        rows = numbered_rows(find_file(recipe.tasks)) if recipe.tasks else ()
        given.update(str(row.get("split") or "train") for _, row in rows if isinstance(row, dict))
    if len(given) > 1:  # the file splits itself; a fifth of its training tasks validates where none do
        drawn = 0 if given["validation"] else given["train"] // 5
        validation = given["validation"] + drawn
        return {"train": given["train"] - drawn, "validation": validation, "test": given["test"]}
    total, shares = given.total() or recipe.n_tasks, {"train": 0.7, "validation": 0.15, "test": 0.15}
    return {name: round(total * share) for name, share in shares.items()}


def counts(recipe: Recipe, n_test: int = 0) -> dict[str, int]:
    """How many trajectories a recipe asks for, by what for; ``n_test`` is a test that is known.

    Each control is tested as GRPO is. sft_more is trained on every task's demonstrations; rft samples as many
    as GRPO, and is trained on as many.
    """
    n = sizes(recipe)
    recipe = recipe.planned(n["train"])
    batch, controls = recipe.prompts_per_step * recipe.group_size, recipe.controls
    tested = (n_test or n["test"]) * recipe.test_samples
    steps = math.ceil(recipe.steps / recipe.minibatches)  # that sample
    rollouts = steps * batch
    updates = recipe.steps * batch // recipe.minibatches
    demonstrations = n["train"] * recipe.sft_transcripts
    validations = 1 + math.ceil(recipe.steps / recipe.val_every)
    shown = min(n["train"], recipe.sft_tasks or n["train"]) * recipe.sft_transcripts * recipe.sft_epochs
    return {
        "demonstrations": shown if recipe.sft else 0,
        "baseline": tested * (1 + (recipe.measure_base and recipe.sft)) + n["train"] * recipe.filter_rollouts,
        "rollouts": rollouts,
        "updates": updates,
        "validation": validations * min(recipe.val_tasks, n["validation"]),
        "final": tested * (1 + len(controls)),
        "control rollouts": rollouts * ("rft" in controls),
        "control updates": sum(demonstrations if name == "sft_more" else updates for name in controls),
    }


def forecast(recipe: Recipe, rates: Rates, n_test: int = 0) -> dict[str, float]:
    """Device seconds of each phase; ``n_test`` as in ``counts``."""
    n = counts(recipe, n_test)
    controls = n["control rollouts"] * rates.rollout + n["control updates"] * rates.update
    seconds = (
        n["demonstrations"] * rates.demonstration + n["baseline"] * rates.evaluation,
        n["rollouts"] * rates.rollout,
        n["updates"] * rates.update,
        n["validation"] * rates.evaluation,
        n["final"] * rates.evaluation + controls,
        rates.other + sum(sizes(recipe).values()) * rates.task,
    )
    return dict(zip(PHASES, seconds, strict=True))


# ---- from a run
def sampled(metrics: pd.DataFrame, recipe: Recipe) -> pd.Series:
    """Trajectories that each row of a training's metrics sampled, those in place of dead groups included."""
    batch = recipe.prompts_per_step * recipe.group_size
    samples = metrics["rollout_seconds"].notna()  # other rows are validation, or train on the same rollouts
    return samples * (batch + metrics["extra_rollouts"].fillna(0))


def actual(run: Run) -> dict[str, float]:
    """Device seconds of each phase that is done in a run, one device a process."""
    spent: dict[str, float] = {}
    for name, stage in run.manifest["stages"].items():
        seconds = stage.get("seconds", 0.0) * stage.get("devices", 1) * (stage.get("status") == "done")
        if name == "03_grpo" and run.file("train", "metrics.jsonl").exists():
            trained = run.metrics.reindex(columns=TIMINGS).astype(float).sum() * stage.get("devices", 1)
            spent |= dict(zip(PHASES[1:4], map(float, trained), strict=True))
            seconds = max(0.0, seconds - float(trained.sum()))
        phase = _STAGES.get(name, PHASES[5])
        spent[phase] = spent.get(phase, 0.0) + seconds
    return {phase: spent[phase] for phase in PHASES if spent.get(phase)}


# ---- the table
def planned(recipe: Recipe, prices: Prices) -> dict[str, dict[str, float]]:
    """Device seconds of each phase: if all is fast, likely, and if all is slow."""
    cases = {"fast": "at least", "likely": "planned", "slow": "at most"}
    return {name: forecast(recipe, prices.rates_of(recipe, case)) for case, name in cases.items()}


def table(columns: dict[str, dict[str, float]], prices: Prices, device: str = "GPU") -> pd.DataFrame:
    """Device time of each phase in each column, its sum, and what it costs at each provider."""
    total = {name: sum(seconds.values()) for name, seconds in columns.items()}
    rows = {}
    for phase in PHASES:
        rows[phase] = {name: duration(s[phase]) if phase in s else "–" for name, s in columns.items()}
    rows["Run total"] = {name: duration(seconds) for name, seconds in total.items()}
    for provider, price in prices.providers.items() if device == "GPU" else ():
        rows[f"{provider}, {prices.currency}{price:.2f} an hour"] = {
            name: f"{prices.currency}{seconds / 3600 * price:,.2f}" for name, seconds in total.items()
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("device time").reset_index()


def hours(value: float) -> str:
    """Hours as text, with as many places as say something: 55, 2.5, 0.083."""
    places = f"{value:.2g}" if value < 2 else f"{value:.1f}"
    return f"{value:,.0f}" if value >= 20 else places


def duration(seconds: float) -> str:
    """Seconds as text in the unit that suits them: 45 s, 12.5 min, 10.5 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
