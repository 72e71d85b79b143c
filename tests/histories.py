"""Simulated training histories in numbers: what simulated rollouts (synthetic) leave out of a run's shape.

Runs of 45 to 500 steps with batches of 8 to 256, noise that hangs together from step to step and has heavy
tails, warm-up and learning-rate schedules, entropies of 0.3 to 1.5 nats, outlier tokens in the KL, batches
without a gradient. A fault sets in at once or creeps in over a part of the run. Leaves out rollouts, and so
the measures that are counted in them one by one.
"""

import zlib
from collections.abc import Callable

import numpy as np
from benchmarks.synthetic import CONSEQUENCES, Simulated

from agentkit.diagnostics.measures import observe

LENGTHS, BATCHES = (45, 60, 100, 200, 500), (8, 16, 32, 64, 128, 256)
EVERY = 10  # steps between validations of VALIDATED tasks
VALIDATED = 100
Columns = dict[str, np.ndarray]  # a value a step


def history(fault: str | None, seed: int, steps: int | None = None) -> Simulated:
    """One run, with a fault of FAULTS or healthy; ``seed`` draws everything, rows hold all there is."""
    rng = np.random.default_rng([seed, 2, zlib.crc32((fault or "healthy").encode())])
    n, batch = steps or int(rng.choice(LENGTHS)), int(rng.choice(BATCHES))
    columns, onset = _healthy(rng, n, batch, flat=fault in FLAT), 0
    if fault is not None:
        onset = 1 if fault in FLAT else int(rng.integers(n // 4, n // 2))
        ramp = int(rng.choice([1, 3, max(4, n // 6)]))
        depth = np.clip((np.arange(1, n + 1) - onset + 1) / ramp, 0, 1)
        FAULTS[fault](columns, depth, float(rng.uniform(0.2, 1)), rng)
        if fault in HALTS:
            columns["success"][onset:] += columns["success"][onset] - columns["mean"][onset:]
    columns["success"] = np.clip(columns["success"], 0, 1)
    rows = [
        {name: float(v[i]) for name, v in columns.items() if name != "mean" and np.isfinite(v[i])}
        for i in range(n)
    ]
    rows = [{"step": i + 1, "planned_steps": n, "trajectories": batch} | row for i, row in enumerate(rows)]
    return Simulated(fault, onset, [(row, []) for row in rows])


def observed(run: Simulated) -> list:
    return [observe(row) for row, _ in run.steps]


def noise(rng: np.random.Generator, n: int) -> np.ndarray:
    """(n,) of variance about 1: autocorrelated, with the tails of Student's t."""
    tie, tail = rng.uniform(0, 0.85), rng.uniform(3.5, 12)
    shocks = rng.standard_t(tail, n) / np.sqrt(tail / (tail - 2)) * np.sqrt(1 - tie**2)
    values = np.zeros(n)
    for i in range(n):
        values[i] = tie * values[i - 1] + shocks[i] if i else shocks[0] / np.sqrt(1 - tie**2)
    return values


def _healthy(rng: np.random.Generator, n: int, batch: int, flat: bool) -> Columns:
    warm, shape = int(rng.choice([0, 0, n // 20, n // 10])), str(rng.choice(["constant", "linear", "cosine"]))
    t = np.arange(1, n + 1)
    falling = {
        "constant": np.ones(n),
        "linear": 1 - t / (n + 1),
        "cosine": 0.5 + 0.5 * np.cos(np.pi * t / n),
    }[shape]
    rate = np.minimum(1.0, t / max(warm, 1)) * falling
    done = np.cumsum(rate) / np.cumsum(rate)[-1]
    start = rng.uniform(0.1, 0.6)
    gain = 0.0 if flat else rng.uniform(0.1, min(0.5, 0.95 - start))
    mean = start + gain * (1 - np.exp(-done / rng.uniform(0.1, 0.6))) / (1 - np.exp(-1 / 0.3))
    mean = np.minimum(mean, 0.97)

    def wobble(size: float) -> np.ndarray:
        return np.exp(size * noise(rng, n))

    spread = np.sqrt(mean * (1 - mean) * rng.uniform(1, 3) / batch)
    few = np.sqrt(64 / batch)

    def habit() -> np.ndarray:
        return wobble(0.05 * few**0.5)

    kl = rng.uniform(0.001, 0.03) * done * wobble(0.3)
    outliers = (rng.random(n) < 0.03) * rng.pareto(1.2, n) * 0.02 * few
    idle = rng.random(n) < (rng.uniform(0.5, 0.7) if rng.random() < 0.1 else 0.05)  # batches of dead groups
    columns = {
        "mean": mean,
        "success": mean + spread * noise(rng, n),
        "learning_rate": 1e-5 * rate,
        "kl": kl + outliers,
        "entropy": rng.uniform(0.3, 1.5) * (1 + (rng.uniform(0.4, 1.1) - 1) * done) * wobble(0.08 * few**0.5),
        "grad_norm": np.where(idle, 0.0, rng.uniform(0.02, 2) * (1 + 2 * (t < warm)) * wobble(0.35)),
        "clip_fraction": np.minimum(rng.uniform(0, 0.04) * wobble(0.4), 0.12),
        "mismatch": rng.uniform(0, 0.03) * wobble(0.3),
        "completion_tokens": rng.uniform(80, 2000) * (1 + rng.uniform(-0.3, 0.5) * done) * habit(),
        "calls": rng.uniform(1, 5) * (1 + rng.uniform(-0.3, 0.4) * done) * habit(),
        "no_tool": np.clip(rng.uniform(0, 0.1) + 0.02 * few * noise(rng, n), 0, 1),
        "truncated": np.clip(rng.uniform(0, 0.12) + 0.03 * few * noise(rng, n), 0, 1),
        "timeouts": np.clip(rng.uniform(0, 0.01) + 0.004 * few * noise(rng, n), 0, 1),
        "call_seconds": rng.choice([rng.uniform(0.01, 0.5), rng.uniform(2, 20)]) * wobble(0.25),
        "identical": np.clip(rng.uniform(0, 0.55) + 0.2 * done + 0.05 * few * noise(rng, n), 0, 0.75),
        "template": np.clip(rng.choice([0.02, 0.9]) + 0.03 * few * noise(rng, n), 0, 1),
        "answer_top": np.clip(rng.uniform(0.02, 0.3) + 0.04 * few * noise(rng, n), 0, 1),
        "cache_conflicts": np.zeros(n),
        "audited": np.full(n, 16.0),
        "audit_disagreement": np.clip(rng.uniform(0, 0.1) + 0.06 * noise(rng, n), 0, 1),
        "reward_gap": np.full(n, 1.0),
        "reward_wrong": 0.1 + 0.05 * few**0.5 * noise(rng, n),
        "explains/success": np.clip(rng.uniform(0.5, 1) + 0.1 * noise(rng, n), 0, 1),
        "explains/format": np.clip(0.2 + 0.1 * noise(rng, n), 0, 1),
        "stuck": np.clip(rng.uniform(0.05, 0.4) + 0.08 * few * noise(rng, n), 0, 1),
    }  # fmt: skip
    columns["solved"] = np.clip(mean**3 + 0.05 * noise(rng, n), 0, 1)
    columns["zero_variance"] = np.clip(columns["stuck"] + columns["solved"], 0, 1)
    columns["kl_median"] = 0.6 * kl
    columns["reward"] = columns["success"] + columns["reward_wrong"]
    columns |= {
        "scored/penalty": np.ones(n),
        "low/penalty": np.zeros(n),
        "high/penalty": np.zeros(n),
    }  # never strikes
    columns |= {"scored/format": np.ones(n), "low/format": np.zeros(n), "high/format": np.ones(n)}
    at = t % EVERY == 0
    share = rng.binomial(VALIDATED, np.clip(mean - 0.03, 0.02, 0.98)) / VALIDATED
    columns["val_success"] = np.where(at, share, np.nan)
    half = 1.96 * np.sqrt(np.maximum(share * (1 - share), 0.01) / VALIDATED)
    return columns | {
        "val_ci_low": np.where(at, share - half, np.nan),
        "val_ci_high": np.where(at, share + half, np.nan),
    }


# ---- faults: what each changes, from its depth (0 to 1) at each step
def _towards(name: str, low: float, high: float) -> Callable:
    def plant(c: Columns, depth: np.ndarray, strength: float, rng: np.random.Generator) -> None:
        target = low + (high - low) * strength
        c[name] = c[name] * (1 - depth) + depth * np.clip(target + 0.03 * noise(rng, len(depth)), 0, 1)

    return plant


def _times(name: str, low: float, high: float) -> Callable:
    def plant(c: Columns, depth: np.ndarray, strength: float, rng: np.random.Generator) -> None:
        c[name] = c[name] * (1 + depth * (low + (high - low) * strength))

    return plant


def _kl(c: Columns, depth: np.ndarray, strength: float, rng: np.random.Generator) -> None:
    jump = depth * (0.25 + strength)
    c["kl"], c["kl_median"] = c["kl"] + jump, c["kl_median"] + 0.6 * jump


def _gradient(c: Columns, depth: np.ndarray, strength: float, rng: np.random.Generator) -> None:
    usual = np.median(c["grad_norm"][c["grad_norm"] > 0])
    at = (depth > 0) & (rng.random(len(depth)) < 0.15)
    at[np.argmax(depth > 0)] = True
    c["grad_norm"] = np.where(at, usual * (15 + 60 * strength), c["grad_norm"])


def _overfit(c: Columns, depth: np.ndarray, strength: float, rng: np.random.Generator) -> None:
    since = np.clip(np.cumsum(depth) / (0.3 * len(depth)), 0, 1) * (0.25 + 0.2 * strength)
    c["success"] = c["success"] + 0.3 * since
    share = rng.binomial(VALIDATED, np.clip(c["mean"] - 0.03 - since, 0.02, 0.98)) / VALIDATED
    half = 1.96 * np.sqrt(np.maximum(share * (1 - share), 0.01) / VALIDATED)
    at = np.isfinite(c["val_success"])
    for name, values in (("val_success", share), ("val_ci_low", share - half), ("val_ci_high", share + half)):
        c[name] = np.where(at, values, np.nan)


def _dominated(c: Columns, depth: np.ndarray, strength: float, rng: np.random.Generator) -> None:
    c["explains/format"], c["explains/success"] = (
        np.clip(level + 0.05 * noise(rng, len(depth)), 0, 1) for level in (0.8 + 0.15 * strength, 0.1)
    )


def _dead(c: Columns, depth: np.ndarray, strength: float, rng: np.random.Generator) -> None:
    c["high/format"] = np.where(depth > 0, 0.0, c["high/format"])


def _hacked(c: Columns, depth: np.ndarray, strength: float, rng: np.random.Generator) -> None:
    if strength < 0.5:  # paid for something else
        c["reward_wrong"] = c["reward_wrong"] + depth * (0.4 + strength)
    else:
        _towards("audit_disagreement", 0.3, 0.9)(c, depth, strength, rng)


def _template(c: Columns, depth: np.ndarray, strength: float, rng: np.random.Generator) -> None:
    c["template"] = np.minimum(c["template"], 0.1)  # where the first action was of the task's own
    _towards("template", 0.7, 1)(c, depth, strength, rng)


def _stale(c: Columns, depth: np.ndarray, strength: float, rng: np.random.Generator) -> None:
    c["cache_conflicts"] = np.where(depth > 0, rng.poisson(0.5 + strength, len(depth)), 0.0)


def _stuck(c: Columns, depth: np.ndarray, strength: float, rng: np.random.Generator) -> None:
    _towards("stuck", 0.8, 1.0)(c, depth, strength, rng)
    c["zero_variance"] = np.clip(c["stuck"] + 0.02, 0, 1)


def _abandoned(c: Columns, depth: np.ndarray, strength: float, rng: np.random.Generator) -> None:
    left = 1 - depth * (0.55 + 0.4 * strength)
    c["calls"], c["no_tool"] = c["calls"] * left, np.clip(1 - (1 - c["no_tool"]) * left, 0, 1)


FAULTS: dict[str, Callable] = {
    "zero_variance": _stuck, "dead_component": _dead, "reward_hacking": _hacked, "dominance": _dominated,
    "tool_abandonment": _abandoned, "call_inflation": _times("calls", 0.8, 3), "overfitting": _overfit,
    "answer_collapse": _towards("answer_top", 0.6, 1), "mode_collapse": _towards("identical", 0.9, 1),
    "entropy_collapse": _times("entropy", -0.85, -0.99), "kl_spike": _kl, "gradient_spike": _gradient,
    "clip_drift": _towards("clip_fraction", 0.2, 0.5), "engine_mismatch": _towards("mismatch", 0.15, 1),
    "length_explosion": _times("completion_tokens", 1, 4), "truncation": _towards("truncated", 0.4, 0.9),
    "template_collapse": _template, "slow_tools": _times("call_seconds", 5, 40),
    "stalled_learning": lambda c, depth, strength, rng: None, "stale_cache": _stale,
}  # fmt: skip
FLAT = ("zero_variance", "dominance", "stalled_learning")
HALTS = tuple(name for name in CONSEQUENCES if "stalled_learning" in CONSEQUENCES[name] and name not in FLAT)
