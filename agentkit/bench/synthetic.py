"""Simulated training runs, healthy and with one planted fault, to measure the alarms on.

A run is a learning curve with its noise: which tasks a step draws, who succeeds, calls, lengths, answers,
metrics. The ranges are those that stored runs of the small agent show, drawn wider, so that no two runs have
the same scale. A fault sets in at a drawn step and strength, suddenly or over a few steps. Leaves out:
policies. Nothing is learnt here, only imitated.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from agentkit.records import StopReason, ToolResult, Trajectory, Turn

PROMPTS = 8  # groups in a step
TASKS = 400
VAL_TASKS = 60
STEPS = 45
IDS = tuple(range(4096))

# what a fault brings with it, so that an alarm about it is no mistake
CONSEQUENCES: dict[str, tuple[str, ...]] = {
    "zero_variance": ("dead_component", "stalled_learning", "dominance"),
    "dead_component": (),
    "reward_hacking": ("dominance", "stalled_learning", "overfitting"),
    "dominance": ("stalled_learning", "reward_hacking"),
    "tool_abandonment": ("stalled_learning",),
    "call_inflation": ("length_explosion", "truncation", "stalled_learning"),
    "answer_collapse": ("zero_variance", "dead_component", "stalled_learning", "overfitting", "dominance"),
    "mode_collapse": ("zero_variance", "entropy_collapse", "stalled_learning", "dominance"),
    "entropy_collapse": ("mode_collapse", "stalled_learning"),
    "kl_spike": (),
    "gradient_spike": (),
    "clip_drift": (),
    "engine_mismatch": ("stalled_learning",),
    "length_explosion": ("truncation", "stalled_learning"),
    "truncation": ("zero_variance", "stalled_learning"),
    "template_collapse": ("answer_collapse", "stalled_learning"),
    "overfitting": (),
    "stalled_learning": (),
    "slow_tools": (),
    "stale_cache": (),
}
FLAT = ("zero_variance", "dominance", "stalled_learning")  # nothing is learnt from the first step on
HALTS = ("tool_abandonment", "call_inflation", "answer_collapse", "mode_collapse", "entropy_collapse", "length_explosion",
         "truncation", "template_collapse", "reward_hacking")  # learning stops where it sets in  # fmt: skip


@dataclass
class World:
    """What one simulated step is drawn from; a fault changes some of it."""

    success: float
    calls: float
    tokens: float  # of a turn
    failures: float = 0.03  # of calls
    silent: float = 0.01  # trajectories without a call
    common: float = 0.02  # trajectories that give the commonest answer
    copied: float = 0.4  # rollouts that repeat another of their group
    template: float = 0.0  # first actions shared over tasks
    cut: float = 0.01
    stuck: float = 0.0  # groups whose rewards are equal by a fault
    seconds: float = 0.05  # of a call
    timeouts: float = 0.0
    stale: float = 0.0  # groups in which a cached reply is old
    bonus: float = 0.0  # a component that pays for something else
    weights: dict[str, float] = field(
        default_factory=lambda: {"correctness": 1.0, "format": 0.1, "efficiency": 1.0}
    )
    dead: float | None = None  # value of a component that never varies
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Simulated:
    """One simulated run."""

    fault: str | None
    onset: int  # the step at which the fault sets in; 0 where there is none
    steps: list[tuple[dict[str, Any], list[Trajectory]]]  # metrics row and rollouts


def simulate(fault: str | None, seed: int, steps: int = STEPS) -> Simulated:
    """One run.

    Args:
        fault: a key of CONSEQUENCES, or None for a healthy run.
        seed: draws everything.
        steps: optimiser steps.
    """
    if fault is not None and fault not in CONSEQUENCES:
        raise ValueError(f"there is no fault {fault!r}: use one of {', '.join(CONSEQUENCES)}")
    rng = np.random.default_rng([seed, zlib.crc32((fault or "healthy").encode())])
    onset = 0
    if fault is not None:
        from_the_start = fault in FLAT or (fault == "dead_component" and rng.random() < 0.5)
        onset = 1 if from_the_start else int(rng.integers(12, 24))
    strength, ramp = float(rng.uniform(0, 1)), int(rng.choice([1, 1, 3, 6]))
    curve = _Curve(rng, fault)
    rows = []
    for step in range(steps + 1):
        depth = 0.0 if fault is None or step < onset else min(1.0, (step - onset + 1) / ramp)
        world = curve.world(step if not (fault in HALTS and depth) else onset)
        if depth:
            plant(world, fault, depth, strength, step - onset, rng)
        rows.append(_step(step, world, curve, rng))
    return Simulated(fault, onset, rows)


class _Curve:
    """A healthy learning curve with scales of its own."""

    def __init__(self, rng: np.random.Generator, fault: str | None):
        self.rng = rng
        self.group = int(rng.choice([4, 8]))
        self.start = float(rng.uniform(0.2, 0.55))
        self.end = self.start if fault in FLAT else float(rng.uniform(self.start + 0.2, 0.93))
        self.pace = float(rng.uniform(6, 18))
        self.spread = float(rng.uniform(0.8, 2.5))  # of tasks' difficulty, in logits
        self.tasks = rng.normal(0, self.spread, TASKS)
        self.calls = float(rng.uniform(1.2, 4.0))
        self.more_calls = float(rng.uniform(0.8, 1.5))
        self.tokens = float(rng.uniform(30, 120))
        self.entropy = float(rng.uniform(0.03, 0.8))
        self.entropy_left = float(rng.uniform(0.35, 1.2))
        self.kl = float(rng.uniform(0.003, 0.05))
        self.grad = float(rng.uniform(0.02, 1.5))
        self.clip = float(rng.uniform(0, 0.04))
        self.mismatch = float(rng.uniform(0, 0.03))
        self.seconds = float(rng.uniform(0.005, 0.15))
        self.copied = float(rng.uniform(0.0, 0.55))
        self.doubt = float(rng.uniform(0.0, 0.1))  # answers that the auditor refuses though they are accepted
        self.every = int(rng.integers(5, 11))

    def world(self, step: int) -> World:
        rng, done = self.rng, 1 - np.exp(-step / self.pace)
        noise = lambda sigma: float(np.exp(rng.normal(0, sigma)))  # noqa: E731 - a factor around 1
        success = self.start + (self.end - self.start) * done
        metrics = {
            "kl": self.kl * done * noise(0.5),
            "entropy": self.entropy * (1 + (self.entropy_left - 1) * done) * noise(0.25),
            "grad_norm": self.grad * noise(0.4),
            "clip_fraction": self.clip * noise(0.4),
            "mismatch": self.mismatch * noise(0.3),
            "loss": float(rng.normal(0, 0.05)),
        }
        calls = self.calls * (1 + (self.more_calls - 1) * done) * noise(0.08)
        seconds = self.seconds * noise(0.3)
        return World(
            success, calls, self.tokens * noise(0.06), copied=self.copied, seconds=seconds, metrics=metrics
        )


def plant(
    world: World, fault: str | None, depth: float, strength: float, since: int, rng: np.random.Generator
) -> None:
    """Change a step's world by a fault: ``depth`` 0 to 1 while it sets in, ``strength`` 0 mild to 1 strong."""
    mix = lambda low, high: depth * (low + (high - low) * strength)  # noqa: E731 - of a mild and a strong fault
    m = world.metrics
    if fault == "zero_variance":
        world.stuck = mix(0.7, 1.0)
    elif fault == "dead_component":
        world.dead = 0.0 if strength < 0.5 else -0.1
    elif fault == "reward_hacking" and strength < 0.5:
        world.bonus = mix(0.3, 1.2)
    elif fault == "reward_hacking":
        m["doubt"] = mix(0.1, 0.9)
    elif fault == "dominance":
        world.weights = {"correctness": 0.1, "format": 1.0 + 2 * strength, "efficiency": 0.1}
        world.bonus, world.failures = 0.0, 0.3
    elif fault == "tool_abandonment":
        world.silent = mix(0.5, 1.0)
        world.success *= 1 - 0.3 * depth
    elif fault == "call_inflation":
        world.calls *= 1 + mix(1.0, 3.0)
    elif fault == "answer_collapse":
        world.common = mix(0.6, 1.0)
        world.success *= 1 - 0.6 * depth
    elif fault == "mode_collapse":
        world.copied = max(world.copied, mix(0.88, 1.0))
    elif fault == "entropy_collapse":
        m["entropy"] *= 1 - mix(0.85, 0.99)
    elif fault == "kl_spike" and (since < 3 or strength > 0.5):
        m["kl"] = depth * (0.2 + 1.5 * strength)
    elif fault == "gradient_spike" and since % 7 == 0:
        m["grad_norm"] = float("nan") if strength > 0.85 else m["grad_norm"] * (12 + 60 * strength)
    elif fault == "clip_drift":
        m["clip_fraction"] = mix(0.2, 0.5) * float(np.exp(rng.normal(0, 0.2)))
    elif fault == "engine_mismatch":
        m["mismatch"] = mix(0.15, 1.5)
    elif fault == "length_explosion":
        world.tokens *= 1 + mix(1.2, 4.0)
    elif fault == "truncation":
        world.cut = mix(0.3, 0.9)
        world.success *= 1 - world.cut / 2
    elif fault == "template_collapse":
        world.template = mix(0.6, 1.0)
    elif fault == "overfitting":
        m["val_drop"] = min(1.0, since / 12) * (0.3 + 0.3 * strength)
    elif fault == "slow_tools" and strength < 0.3:
        world.timeouts = depth * (0.1 + strength)
    elif fault == "slow_tools":
        world.seconds = depth * (2 + 8 * strength)
    elif fault == "stale_cache":
        world.stale = 0.15 + 0.5 * strength


def _step(
    step: int, world: World, curve: _Curve, rng: np.random.Generator
) -> tuple[dict[str, Any], list[Trajectory]]:
    """The metrics row and the rollouts of a step; step 0 is the validation before training."""
    row: dict[str, Any] = {"step": step}
    metrics = dict(world.metrics)
    doubt, drop = metrics.pop("doubt", 0.0) + curve.doubt, metrics.pop("val_drop", 0.0)
    if step % curve.every == 0:
        row |= _validation(max(0.02, world.success * (1 - drop)), rng)
    if step == 0:
        return row, []
    if drop:
        world.success = min(0.97, world.success + 0.5 * drop)
    draw = random.Random(int(rng.integers(1 << 60)))  # for single numbers, which numpy draws slowly
    trajectories = [
        t for task in draw.sample(range(TASKS), PROMPTS) for t in _group(step, task, world, curve, draw)
    ]
    rewards = np.array([t.reward for t in trajectories]).reshape(PROMPTS, -1)
    liked = int(rng.binomial(16, min(0.99, world.success)))
    refused = int(rng.binomial(liked, min(doubt, 1.0)))
    row |= metrics | {"reward_std": float(rewards.std(1, ddof=1).mean())}
    row |= {
        "audited": 16,
        "audit_success": (liked - refused) / 16,
        "audit_disagreement": refused / liked if liked else None,
    }
    return row, trajectories


def _validation(success: float, rng: np.random.Generator) -> dict[str, float]:
    found = rng.binomial(VAL_TASKS, min(success, 1.0)) / VAL_TASKS
    half = 1.96 * np.sqrt(max(found * (1 - found), 0.02) / VAL_TASKS)
    return {
        "val_success": float(found),
        "val_ci_low": max(0.0, found - half),
        "val_ci_high": min(1.0, found + half),
    }


def _group(step: int, task: int, world: World, curve: _Curve, rng: random.Random) -> Iterator[Trajectory]:
    """G rollouts of one task; copies repeat the first of the group."""
    logit = (
        math.log(world.success / (1 - world.success)) * math.sqrt(1 + 0.35 * curve.spread**2)
        + curve.tasks[task]
    )
    chance, stuck, first = 1 / (1 + math.exp(-logit)), rng.random() < world.stuck, None
    for sample in range(curve.group):
        odd = {name for name in ("common", "template", "silent") if rng.random() < getattr(world, name)}
        if first is not None and rng.random() < world.copied and not odd:
            yield replace(first, sample=sample)
            continue
        success = rng.random() < chance and not stuck and not ("common" in odd and world.common > 0.1)
        trajectory = _rollout(step, task, sample, success, odd, world, rng)
        if stuck:
            trajectory = replace(trajectory, reward=0.0, components=dict.fromkeys(trajectory.components, 0.0))
        first = first or trajectory
        yield trajectory


def _rollout(
    step: int, task: int, sample: int, right: bool, odd: set[str], world: World, rng: random.Random
) -> Trajectory:
    """One trajectory whose record shows what the world says."""
    calls = 0 if "silent" in odd else max(1, round(rng.gauss(world.calls, 0.7)))
    turns = _turns(0 if "template" in odd else task + 1, calls, world, rng)
    if len(turns) > 1 and sample == 0 and rng.random() < world.stale:
        fresh = replace(turns[0].results[0], observation="a fact", ok=True)
        turns = (
            replace(turns[0], results=(fresh, replace(fresh, observation="an older fact", cached=True))),
            *turns[1:],
        )
    length = max(8, int(world.tokens * len(turns) * math.exp(rng.gauss(0, 0.15))))
    cut = rng.random() < world.cut
    success = float(right and not cut)
    ok = [result.ok for turn in turns for result in turn.results]
    components: dict[str, float | None] = {"correctness": success, "format": sum(ok) / max(len(ok), 1)}
    components["efficiency"] = -0.02 * len(turns) if success else 0.0
    if world.bonus:
        components["bonus"] = min(2.0, max(0.0, rng.gauss(world.bonus, 0.2)))
    if world.dead is not None:
        components["tool"] = world.dead
    reward = sum(world.weights.get(name, 1.0) * value for name, value in components.items())
    answer = "42" if "common" in odd else f"gold {task}" if success else f"guess {task} {rng.randrange(30)}"
    stop = StopReason.TOKEN_LIMIT if cut else StopReason.ANSWER
    ids = (rng.getrandbits(30), *IDS[: min(length, 3000)])
    answer = None if cut else answer
    return Trajectory(
        str(task),
        "grpo",
        sample,
        0,
        (),
        ids,
        (),
        (),
        turns,
        stop,
        answer,
        success,
        "",
        components,
        reward,
        None,
        step,
    )


def _turns(entity: int, calls: int, world: World, rng: random.Random) -> tuple[Turn, ...]:
    turns = []
    for n in range(calls):
        late = rng.random() < world.timeouts
        ok, seconds = (
            not late and rng.random() >= world.failures,
            world.seconds * math.exp(rng.gauss(0, 0.3)),
        )
        said = "Error: search did not answer within 10 s." if late else f"fact {entity} {n}"
        turns.append(
            Turn(
                f"call {entity} {n}",
                (0, 0),
                (ToolResult("search", {"query": f"{entity} {n}"}, said, ok, seconds),),
            )
        )
    return (*turns, Turn("say", (0, 0)))
