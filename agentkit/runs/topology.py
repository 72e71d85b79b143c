"""Which GPUs do what: everything in this process, every process rolls out and trains (colocate), or servers
roll out and the other cards train (split).

A choice with its reason, from what is visible, the recipe, and whether rollouts and updates fit on one card
together; and how long one waits for the others. Leaves out starting anything (training.launch,
policies.server_processes) and finding the cards (sweep_slots.gpu_count, or torch).
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentkit.recipe import Recipe, batch_rules, refuse
from agentkit.records import RecipeError

CARDS = "CUDA_VISIBLE_DEVICES"  # read by CUDA once, so it is set before a process looks for a GPU
SETTING_UP_S = 1800.0  # to load a model, start an engine, save a checkpoint


@dataclass(frozen=True, slots=True)
class Topology:
    """Who uses which card, by the names that CUDA_VISIBLE_DEVICES takes; no names on a CPU."""

    kind: str  # here, colocate or split
    processes: int = 1  # that train together
    cards: tuple[str, ...] = ()  # all that are used
    replicas: int = 0  # servers, on the last of the cards
    why: str = ""
    tensor_parallel: int = 1  # cards of a server

    @property
    def training(self) -> tuple[str, ...]:
        return self.cards[: self.processes]

    @property
    def serving(self) -> tuple[str, ...]:
        """The cards of each replica, with commas; "" where there are none."""
        size = self.tensor_parallel
        cards = self.cards[len(self.cards) - self.replicas * size :] if self.cards else ("",) * self.replicas
        return tuple(",".join(cards[i : i + size]) for i in range(0, len(cards), size if self.cards else 1))

    @property
    def workers(self) -> int:
        """Processes of a job that does not train: every card, or as many as train on a CPU."""
        return len(self.cards) or self.processes

    def __str__(self) -> str:
        n, m = self.processes, self.replicas
        ranks = f"{n} processes train" if n > 1 else "1 process trains"
        ranks = f"{'this process works' if self.kind == 'here' else ranks} on {_named(self.training)}"
        if m:
            served = f"{m} servers roll out" if m > 1 else "1 server rolls out"
            cards = ",".join(self.serving).split(",") if self.cards else ()
            ranks = f"{served} on {_named(cards)}, and {ranks}"
        return f"{self.kind}: {ranks}: {self.why}"


def _named(cards: Sequence[str]) -> str:
    return f"GPU{'s' * (len(cards) > 1)} {', '.join(cards)}" if cards else "the CPU"


def visible(count: int) -> tuple[str, ...]:
    """Names of the first ``count`` cards that this process may use."""
    named = [name.strip() for name in os.environ.get(CARDS, "").split(",") if name.strip()]
    return tuple(named[:count] if len(named) >= count else map(str, range(count)))


def choose(recipe: Recipe, count: int, fits: str = "fits") -> Topology:
    """The topology of a recipe where ``count`` GPUs are visible.

    ``fits`` says what the memory plan found for a rollout and an update on one card (``MemoryPlan.advice``).
    Raises RecipeError where the recipe asks for what is not there.
    """
    made = _chosen(recipe, count, fits)
    if recipe.shard and made.processes == 1:
        raise RecipeError(
            "shard spreads a model over the processes that train, and there is one: set processes, or gpus, "
            "so that there are two at least, each with a GPU"
        )
    return made


def _chosen(recipe: Recipe, count: int, fits: str) -> Topology:
    cards = visible(_wanted(recipe, count))
    if recipe.engine == "unsloth" and (len(cards) > 1 or recipe.topology == "split"):
        why = "Unsloth trains in one process on one card here, several were never tried"
        return Topology("here" if count == 1 else "colocate", 1, cards[:1], why=why)
    kind, why = recipe.topology, f"the recipe says topology: {recipe.topology}"
    if kind == "auto":
        kind, why = _best(recipe, len(cards), fits)
    if kind == "split":
        return _split(recipe, cards, why)
    processes = _most(recipe, len(cards))
    if processes == 1 and count <= 1:
        return Topology("here", 1, cards, why="one device does everything in turn")
    if "prompts_per_step" in recipe.given:  # else of a notebook that does not train
        refuse(batch_rules(recipe.but(processes=processes)))
    return Topology("colocate", processes, cards, why=why)


def _wanted(recipe: Recipe, count: int) -> int:
    """How many cards are used."""
    wanted = count if recipe.gpus == "auto" else int(recipe.gpus)
    if wanted > count:
        raise RecipeError(
            f"gpus is {wanted}, and {count} can be seen here (nvidia-smi and CUDA_VISIBLE_DEVICES tell): "
            "set gpus to auto or to a number that is there"
        )
    if wanted and "processes" in recipe.given and recipe.processes > wanted:
        raise RecipeError(
            f"processes: {recipe.processes} need a GPU each, and {wanted} can be used here: lower it"
        )
    return wanted


def _most(recipe: Recipe, cards: int) -> int:
    """The largest number of processes that whole groups can be dealt to, or what the recipe says."""
    if "processes" in recipe.given or not cards:
        return recipe.processes
    return max((n for n in range(2, cards + 1) if _goes(recipe, n)), default=1)


def _goes(recipe: Recipe, processes: int) -> bool:
    """Whether so many share the recipe's batch evenly."""
    return not any(is_broken for is_broken, _ in batch_rules(recipe.but(processes=processes)))


def _best(recipe: Recipe, cards: int, fits: str) -> tuple[str, str]:
    """Colocate, but where a card does not hold both; in turn, a split leaves cards idle."""
    fixed = recipe.deterministic or "processes" in recipe.given
    free = recipe.engine == "vllm" and not fixed
    if fits != "fits" and cards > 1 and free:
        return "split", f"rollouts and updates do not fit on one card together ({fits})"
    if cards < 2:
        return "colocate", "one device" if cards else f"processes: {recipe.processes} on the CPU"
    return "colocate", "all cards roll out and then all train; in a split some wait for the others"


def _split(recipe: Recipe, cards: Sequence[str], why: str) -> Topology:
    count, size = len(cards), recipe.tensor_parallel
    replicas = recipe.replicas or max(1, count // 2 // size)
    left, most = count - replicas * size, (count - 1) // size
    servers = f"replicas: {replicas}" + (f" of {size} GPUs" if size > 1 else "")
    refuse(
        [
            (
                recipe.engine not in ("vllm", "transformers"),
                f"topology: split starts servers of its own, and engine is {recipe.engine!r}: leave engine "
                "out, or set topology to auto",
            ),
            (
                count == 1,
                "topology: split needs two GPUs, one that rolls out and one that trains: use colocate",
            ),
            (
                cards and left < 1,
                f"{servers} leave none of {count} GPUs to train: "
                + (f"set {most} at most" if most else "lower tensor_parallel"),
            ),
        ]
    )
    training = _most(recipe, left) if cards else recipe.processes
    if cards and training > left:
        raise RecipeError(f"processes: {training} and {servers} need a GPU each of {count}: lower one")
    return Topology("split", training, tuple(cards), replicas, why, size)


def patience(recipe: Recipe) -> float:
    """Seconds that a process may wait for the others: all their trajectories may run into their limit."""
    test = math.ceil(0.15 * recipe.n_tasks) * recipe.test_samples
    most = max(recipe.prompts_per_step * recipe.group_size, recipe.val_tasks * recipe.val_samples, test)
    return SETTING_UP_S + math.ceil(most / recipe.max_batch) * recipe.trajectory_timeout_s


def settled(recipe: Recipe, topology: Topology, urls: Sequence[str] = ()) -> dict[str, Any]:
    """The recipe that one of the processes works with; ``urls`` are the servers that were started for it."""
    known = _goes(recipe, topology.processes)  # a notebook that does not train has not the recipe's batch
    changes: dict[str, Any] = {"processes": topology.processes if known else 1}
    if topology.kind == "split":  # also where it was chosen
        changes["topology"] = "split"
    if urls:
        changes |= {"engine": "server", "server_urls": ",".join(urls), "tensor_parallel": 1}
    return recipe.everything() | changes
