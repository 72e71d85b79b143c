"""Simulated training runs, healthy and with one planted fault, to measure the alarms on.

A run is a learning curve with its noise: which tasks a step draws, who succeeds, calls, lengths, answers,
metrics. The ranges are those that stored runs of the small agent show, drawn wider, so that no two runs have
the same scale. A fault sets in at a drawn step and strength, suddenly or over a few steps. Leaves out
policies: nothing is learnt here, only imitated.
"""

import math
import random
import tomllib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from agentkit.records import StopReason, ToolResult, Trajectory, Turn

PROMPTS = 8  # groups in a step
TASKS = 400
VAL_TASKS = 60
STEPS = 45
IDS = tuple(range(4096))

_TABLES = tomllib.loads(Path(__file__).with_name("synthetic.toml").read_text(encoding="utf-8"))
CONSEQUENCES: dict[str, list[str]] = _TABLES["consequences"]  # what a fault brings with it

World = dict[str, Any]  # what one simulated step is drawn from; a fault changes some of it
METRICS = ("kl", "entropy", "grad_norm", "clip_fraction", "mismatch", "loss")  # which a step's row holds
HEALTHY = _TABLES["healthy"] | {"dead": None}  # dead: the value of a component that never varies


@dataclass(frozen=True)
class Simulated:
    fault: str | None
    onset: int  # the step at which the fault sets in; 0 where there is none
    steps: list[tuple[dict[str, Any], list[Trajectory]]]  # metrics row and rollouts


def simulate(fault: str | None, seed: int, steps: int = STEPS) -> Simulated:
    """One run, with a fault of CONSEQUENCES or healthy; ``seed`` draws everything."""
    rng = np.random.default_rng([seed, zlib.crc32((fault or "healthy").encode())])
    onset = 0
    if fault is not None:
        from_the_start = fault in _TABLES["flat"] or (fault == "dead_component" and rng.random() < 0.5)
        onset = 1 if from_the_start else int(rng.integers(12, 24))
    strength, ramp = float(rng.uniform(0, 1)), int(rng.choice([1, 1, 3, 6]))
    curve = _Curve(rng, fault)
    rows = []
    for step in range(steps + 1):
        depth = 0.0 if fault is None or step < onset else min(1.0, (step - onset + 1) / ramp)
        world = curve.world(step if not (fault in _TABLES["halts"] and depth) else onset)
        if depth:
            world |= FAULTS[fault](world, Planted(depth, strength, step - onset, rng))
        rows.append(_step(step, world, curve, rng))
    return Simulated(fault, onset, rows)


class _Curve:
    """A healthy learning curve with scales of its own."""

    def __init__(self, rng: np.random.Generator, fault: str | None):
        self.rng = rng
        self.group = int(rng.choice([4, 8]))
        self.start = float(rng.uniform(0.2, 0.55))
        self.end = self.start if fault in _TABLES["flat"] else float(rng.uniform(self.start + 0.2, 0.93))
        self.pace = float(rng.uniform(6, 18))
        self.spread = float(rng.uniform(0.8, 2.5))  # of tasks' difficulty, in logits
        self.tasks = rng.normal(0, self.spread, TASKS)
        self.scales = {name: float(rng.uniform(*bounds)) for name, bounds in _TABLES["scales"].items()}
        self.every = int(rng.integers(5, 11))  # steps between validations

    def world(self, step: int) -> World:
        scales, done = self.scales, 1 - np.exp(-step / self.pace)
        noise = lambda sigma: float(np.exp(self.rng.normal(0, sigma)))  # noqa: E731 - a factor about 1
        return HEALTHY | {
            "kl": scales["kl"] * done * noise(0.5),
            "entropy": scales["entropy"] * (1 + (scales["entropy_left"] - 1) * done) * noise(0.25),
            "grad_norm": scales["grad_norm"] * noise(0.4),
            "clip_fraction": scales["clip_fraction"] * noise(0.4),
            "mismatch": scales["mismatch"] * noise(0.3),
            "loss": float(self.rng.normal(0, 0.05)),
            "calls": scales["calls"] * (1 + (scales["more_calls"] - 1) * done) * noise(0.08),
            "tokens": scales["tokens"] * noise(0.06),  # of a turn
            "copied": scales["copied"],  # rollouts that repeat another of their group
            "success": self.start + (self.end - self.start) * done,
        }


# ---- faults
@dataclass(frozen=True)
class Planted:
    """A fault at one step."""

    depth: float  # 0 to 1 while it sets in
    strength: float  # 0 mild to 1 strong
    since: int  # steps
    rng: np.random.Generator

    def mix(self, mild: float, strong: float) -> float:
        """Between a mild and a strong fault, as far as it has set in."""
        return self.depth * (mild + (strong - mild) * self.strength)


def _hacking(world: World, fault: Planted) -> World:
    """Paid for something else; or answers that only the verifier likes."""
    return {"bonus": fault.mix(0.3, 1.2)} if fault.strength < 0.5 else {"doubt": fault.mix(0.1, 0.9)}


def _kl_spike(world: World, fault: Planted) -> World:
    passed = fault.since >= 3 and fault.strength <= 0.5
    return {} if passed else {"kl": fault.depth * (0.2 + 1.5 * fault.strength)}


def _gradient_spike(world: World, fault: Planted) -> World:
    spike = math.nan if fault.strength > 0.85 else world["grad_norm"] * (12 + 60 * fault.strength)
    return {} if fault.since % 7 else {"grad_norm": spike}


def _collapse(world: World, fault: Planted) -> World:
    """Copies of each other, or a policy that is sure of everything."""
    if fault.since and fault.strength < 0.5:
        return {"entropy": world["entropy"] * (1 - fault.depth * (0.85 + 0.28 * fault.strength))}
    return {"copied": max(world["copied"], fault.mix(0.88, 1.0))} if fault.strength >= 0.5 else {}


def _truncation(world: World, fault: Planted) -> World:
    cut = fault.mix(0.3, 0.9)
    return {"cut": cut, "success": world["success"] * (1 - cut / 2)}


# what each changes in a world
FAULTS: dict[str, Callable[[World, Planted], World]] = {
    "zero_variance": lambda w, f: {"stuck": f.mix(0.7, 1.0)},
    "dead_component": lambda w, f: {"dead": 0.0 if f.strength < 0.5 else -0.1},
    "reward_hacking": _hacking,
    "tool_abandonment": lambda w, f: {
        "silent": f.mix(0.5, 1.0),
        "success": w["success"] * (1 - 0.3 * f.depth),
    },
    "call_inflation": lambda w, f: {"calls": w["calls"] * (1 + f.mix(1.0, 3.0))},
    "mode_collapse": _collapse,
    "kl_spike": _kl_spike,
    "gradient_spike": _gradient_spike,
    "engine_mismatch": lambda w, f: {"mismatch": f.mix(0.15, 1.5)},
    "length_explosion": lambda w, f: {"tokens": w["tokens"] * (1 + f.mix(1.2, 4.0))},
    "truncation": _truncation,
    "overfitting": lambda w, f: {"val_drop": min(1.0, f.since / 12) * (0.3 + 0.3 * f.strength)},
}


# ---- a step
def _step(
    step: int, world: World, curve: _Curve, rng: np.random.Generator
) -> tuple[dict[str, Any], list[Trajectory]]:
    """The metrics row and the rollouts of a step; step 0 is the validation before training."""
    row: dict[str, Any] = {"step": step}
    if step % curve.every == 0:
        row |= _validation(max(0.02, world["success"] * (1 - world["val_drop"])), rng)
    if step == 0:
        return row, []
    if world["val_drop"]:
        world |= {"success": min(0.97, world["success"] + 0.5 * world["val_drop"])}
    draw = random.Random(int(rng.integers(1 << 60)))  # for single numbers, which numpy draws slowly
    tasks = draw.sample(range(TASKS), PROMPTS)
    trajectories = [t for task in tasks for t in _group(step, task, world, curve, draw)]
    liked = int(rng.binomial(16, min(0.99, world["success"])))
    refused = int(rng.binomial(liked, min(world["doubt"] + curve.scales["doubt"], 1.0)))
    row |= {name: world[name] for name in METRICS} | {
        "reward_std": float(np.std([t.reward for t in trajectories], ddof=1)),
        "audited": 16,
        "audit_success": (liked - refused) / 16,
        "audit_disagreement": refused / liked if liked else None,
    }
    return row, trajectories


def _validation(success: float, rng: np.random.Generator) -> dict[str, float]:
    share = rng.binomial(VAL_TASKS, min(success, 1.0)) / VAL_TASKS
    half = 1.96 * np.sqrt(max(share * (1 - share), 0.02) / VAL_TASKS)
    low, high = max(0.0, share - half), min(1.0, share + half)
    return {"val_success": float(share), "val_ci_low": low, "val_ci_high": high}


def _group(step: int, task: int, world: World, curve: _Curve, rng: random.Random) -> Iterator[Trajectory]:
    logit = math.log(world["success"] / (1 - world["success"])) * math.sqrt(1 + 0.35 * curve.spread**2)
    chance = 1 / (1 + math.exp(-logit - curve.tasks[task]))
    stuck, first = rng.random() < world["stuck"], None
    for sample in range(curve.group):
        silent = rng.random() < world["silent"]
        if first is not None and rng.random() < world["copied"] and not silent:
            yield replace(first, sample=sample)
            continue
        success = rng.random() < chance and not stuck
        trajectory = _rollout(step, task, sample, success, silent, world, rng)
        if stuck:
            trajectory = replace(trajectory, reward=0.0, components=dict.fromkeys(trajectory.components, 0.0))
        first = first or trajectory
        yield trajectory


def _rollout(
    step: int, task: int, sample: int, right: bool, silent: bool, world: World, rng: random.Random
) -> Trajectory:
    calls = 0 if silent else max(1, round(rng.gauss(world["calls"], 0.7)))
    turns = _turns(task + 1, calls, world, rng)
    length = max(8, int(world["tokens"] * len(turns) * math.exp(rng.gauss(0, 0.15))))
    cut = rng.random() < world["cut"]
    success = float(right and not cut)
    ok = [result.ok for turn in turns for result in turn.results]
    components: dict[str, float | None] = {
        "correctness": success,
        "format": sum(ok) / max(len(ok), 1),
        "efficiency": -0.02 * len(turns) if success else 0.0,
    }
    if world["bonus"]:
        components["bonus"] = min(2.0, max(0.0, rng.gauss(world["bonus"], 0.2)))
    if world["dead"] is not None:
        components["tool"] = world["dead"]
    answer = f"gold {task}" if success else f"guess {task} {rng.randrange(30)}"
    return Trajectory(
        task_id=str(task), policy="grpo", sample=sample, seed=0, prompt_ids=(), completion_ids=IDS[:length],
        action_mask=(), old_logprobs=(), turns=turns,
        stop_reason=StopReason.TOKEN_LIMIT if cut else StopReason.ANSWER, answer=None if cut else answer,
        success=success, components=components,
        reward=sum(world["weights"].get(name, 1.0) * value for name, value in components.items()),
        step=step,
    )  # fmt: skip


def _turns(entity: int, calls: int, world: World, rng: random.Random) -> tuple[Turn, ...]:
    turns = []
    for n in range(calls):
        ok = rng.random() >= world["failures"]
        result = ToolResult("search", {"query": f"{entity} {n}"}, f"fact {entity} {n}", ok)
        turns.append(Turn(f"call {entity} {n}", (0, 0), (result,)))
    return (*turns, Turn(f"say {rng.getrandbits(30)}", (0, 0)))
