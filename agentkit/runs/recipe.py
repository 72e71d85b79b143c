"""A recipe: every parameter of a run, with its default, its bounds and one line of help.

A recipe is one flat YAML in params/; every key is a parameter of at least one notebook. Defaults are those of
the document "RLVR for Agents" for a real model; params/nano.yaml holds what suits the small agent. Unknown
keys and values out of bounds are errors that name the way out. Leaves out what cannot be said in one value:
families, verifiers and rewards of one's own stand in a lab file (agentkit.lab).
"""

import ast
import contextlib
import dataclasses
import difflib
import itertools
import json
import math
import os
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import yaml

from agentkit.records import RecipeError
from agentkit.runs.files import MANIFEST, located, open_file, project_root

if TYPE_CHECKING:
    from agentkit.runs.run import Run

REWARDS = (
    *("plan", "none", "toolrl", "toolrla", "image", "tcr", "tcr_paper"),
    *("drawing", "ordebug", "ordebug_solver"),
)
LOSSES = ("grpo", "dapo", "dr_grpo", "bnpo", "cispo")
MISMATCH = (
    "auto",
    "off",
    *(f"{level}_{kind}" for level in ("token", "sequence", "geometric") for kind in ("truncate", "mask")),
)
TOOL_FORMATS = ("auto", "hermes", "qwen3_coder", "llama3", "glm")
ADVANTAGES = (
    "group",
    "dr_grpo",
    "rloo",
    "batch_std",
    "reinforce_baseline",
    "gdpo",
    "difficulty",
    "turn",
    "step",
)


def _key(
    default: Any,
    help: str,
    low: float | None = None,
    high: float | None = None,
    *,
    stages: str = "3",
    words: tuple[str, ...] = (),
    listed: bool = False,
    file: bool = False,
) -> Any:
    """A key with its bounds, and the notebooks, by number, that it is handed to.

    It may be one of ``words``; several with commas where it is ``listed``. A ``file`` or folder that it names
    is relative to the recipe.
    """
    kind = {"words": words, "listed": listed, "file": file}
    return field(default=default, metadata=kind | {"help": help, "low": low, "high": high, "stages": stages})


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """All parameters. ``Recipe.from_mapping`` checks types and bounds."""

    run: str = _key("", "run folder; empty means outputs/lab", stages="12345")
    lab: str = _key(
        "", "file with families, verifiers and rewards of your own (agentkit new)", stages="12345", file=True
    )
    seed: int = _key(0, "of every random choice but the suite's", 0, 2**31 - 1, stages="235")
    # 01 tasks
    families: str = _key("A,B,C", "task families, separated by commas", stages="1", listed=True)
    n_tasks: int = _key(1200, "tasks in the suite, split 70/15/15", 20, 50_000, stages="1")
    variety: str = _key(
        "plain", "kinds of questions: plain, or wide for more of them", stages="1", words=("plain", "wide")
    )
    new_templates: str = _key(
        "",
        "templates only the test has, such as A total4, with commas; reported apart",
        stages="1",
        listed=True,
    )
    suite_seed: int = _key(0, "of the suite, so that seeds share one test", 0, 2**31 - 1, stages="1")
    tasks: str = _key(
        "", "in place of families: a tasks.jsonl, or a public data set such as gsm8k", stages="1", file=True
    )
    # the agent and its rollouts
    model: str = _key("nano", "the agent: nano, a model folder or a hub name", stages="235", file=True)
    max_turns: int = _key(10, "policy calls in one trajectory", 1, 100, stages="235")
    max_turn_tokens: int = _key(1024, "tokens sampled in one turn", 4, 32_768, stages="235")
    max_tokens: int = _key(8192, "completion tokens, tool replies included", 16, 131_072, stages="235")
    max_prompt_tokens: int = _key(
        0, "tokens of a prompt; tasks with a longer one are left out; 0: no limit", 0, 131_072, stages="235"
    )
    top_k: int = _key(3, "passages the search tool returns", 1, 20, stages="1235")
    tool_format: str = _key(
        "auto",
        "how the agent writes tool calls: " + ", ".join(TOOL_FORMATS),
        stages="235",
        words=TOOL_FORMATS,
    )
    chat_template: str = _key(
        "",
        "a file, the name of one that TRL ships, or training; empty: the model's own",
        stages="235",
        file=True,
    )
    template_arguments: str = _key(
        "", "what the chat template is called with, such as enable_thinking=false", stages="235", listed=True
    )
    thinking: str = _key(
        "kept",
        "thoughts: kept as sampled, or cut (the loop ends those that reach max_thought_tokens); dropped is "
        "refused with the reason",
        stages="235",
        words=("kept", "cut", "dropped"),
    )
    max_thought_tokens: int = _key(512, "thinking cut: tokens of one thought", 1, 32_768, stages="235")
    tool_timeout_s: float = _key(
        10.0, "seconds a tool call may take, where the tool declares no limit", 0.1, 3600, stages="235"
    )
    trajectory_timeout_s: float = _key(
        600.0, "seconds of wall clock for one trajectory; a longer one is not scored", 1, 86_400, stages="235"
    )
    max_observation: int = _key(
        500, "tokens of one tool reply; longer ones are cut (Search-R1's limit)", 16, 32_768, stages="235"
    )
    tool_cache: str = _key(
        "", "file of answers of pure tools; empty means the user's cache folder, off means none", stages="235"
    )
    tool_failures: float = _key(
        0.0,
        "chance that a tool call fails for the moment; the same call repeated may work",
        0,
        0.9,
        stages="235",
    )
    temperature: float = _key(0.7, "of sampling, in training and evaluation", 0.05, 2.0, stages="235")
    max_batch: int = _key(128, "trajectories sampled together", 1, 4096, stages="235")
    engine: str = _key(
        "transformers",
        "what samples: transformers, vllm, server (agentkit serve) or unsloth (it also trains)",
        stages="235",
        words=("transformers", "vllm", "server", "unsloth"),
    )
    server_urls: str = _key(
        "",
        "engine server: its replicas, separated by commas, such as http://localhost:8000",
        stages="235",
        listed=True,
    )
    precision: str = _key(
        "auto",
        "of the weights: float32, bfloat16, or auto: bfloat16 on a GPU, else float32",
        stages="235",
        words=("auto", "float32", "bfloat16"),
    )
    weight_sync: str = _key(
        "auto",
        "how vllm and servers get weights: merged (all), lora (the adapter); auto: lora in bfloat16",
        stages="235",
        words=("auto", "merged", "lora"),
    )
    sync_threshold: float = _key(
        0.0,
        "mean nats engine and trainer may differ; 0: 0.001 in float32, 0.05 in half, no sudden jump",
        0,
        10,
        stages="235",
    )
    engine_memory: float = _key(
        0.3,
        "share of the GPU's memory for the engine; transformers: for keys and values",
        0.01,
        0.99,
        stages="235",
    )
    load_in_4bit: bool = _key(
        False, "engine unsloth: base weights in 4 bits while training; needs bitsandbytes"
    )
    deterministic: bool = _key(
        False,
        "batches do not depend on timing: exact to the bit on a CPU, slower with slow tools",
        stages="235",
    )
    # 02 baseline
    sft: bool = _key(False, "fine-tune the agent on demonstrations first", stages="235")
    sft_tasks: int = _key(0, "training tasks that are demonstrated; 0 is all", 0, 1_000_000, stages="2")
    sft_transcripts: int = _key(2, "demonstrations for each training task", 1, 64, stages="2")
    sft_tool_failures: float = _key(
        0.0,
        "chance that a tool call fails while the expert demonstrates; see tool_failures",
        0,
        0.9,
        stages="25",
    )
    sft_epochs: int = _key(1, "passes over the demonstrations", 1, 50, stages="2")
    sft_learning_rate: float = _key(
        1e-4, "peak learning rate of the cold start, after 10 steps", 0, 1, stages="2"
    )
    sft_batch: int = _key(16, "demonstrations in one optimiser step", 1, 1024, stages="2")
    sft_micro_batch: int = _key(
        8, "demonstrations in one forward and backward pass, at most", 1, 1024, stages="2"
    )
    flaw_skip_lookup: float = _key(0.0, "chance to skip a lookup after the first", 0, 1, stages="2")
    flaw_wrong_operation: float = _key(0.0, "chance to use the wrong operation", 0, 1, stages="2")
    flaw_in_head: float = _key(0.0, "chance to compute without the calculator", 0, 1, stages="2")
    flaw_give_up: float = _key(0.0, "chance to give up before a lookup", 0, 1, stages="2")
    flaw_malformed: float = _key(0.0, "chance of a malformed call before the right one", 0, 1, stages="2")
    test_samples: int = _key(4, "sampled trajectories for each test task", 1, 64, stages="25")
    transcripts: str = _key(
        "", "messages data set to imitate in place of the scripted expert", stages="2", file=True
    )
    filter_rollouts: int = _key(
        0, "rollouts of each training task; what none or all solve is left out; 0 is off, 8 GRPO-TCR's",
        0, 64, stages="235",
    )  # fmt: skip
    measure_base: bool = _key(False, "measure the agent before its cold start too: base, SFT, RL", stages="2")
    # 03 GRPO
    train_difficulty: str = _key(
        "",
        "easy, medium or hard tasks only, with commas; empty: all",
        stages="35",
        listed=True,
        words=("easy", "medium", "hard"),
    )
    steps: int = _key(200, "optimiser steps", 1, 100_000)
    epochs: int = _key(
        0,
        "passes over the training tasks; of these and steps, unless that is 200, the fewer; 0: steps",
        0,
        1000,
    )
    prompts_per_step: int = _key(8, "groups in one step", 1, 4096)
    group_size: int = _key(8, "trajectories in a group, G", 2, 256)
    micro_batch: int = _key(8, "trajectories in one forward and backward pass", 1, 1024)
    micro_batch_tokens: int = _key(
        0, "tokens in one such pass, the longest first, in place of micro_batch; 0 is off", 0, 2**24
    )
    minibatches: int = _key(1, "optimiser steps that one batch of rollouts is split into", 1, 1024)
    num_iterations: int = _key(1, "passes over each batch of rollouts", 1, 16)
    learning_rate: float = _key(1e-5, "of GRPO, for LoRA", 0, 1)
    lr_schedule: str = _key(
        "constant_with_warmup",
        "of GRPO: constant_with_warmup, linear or cosine (both end at zero)",
        words=("constant_with_warmup", "linear", "cosine"),
    )
    warmup_steps: int = _key(0, "steps of linear warm-up", 0, 100_000)
    max_grad_norm: float = _key(1.0, "gradient clipping", 0, 1e6)
    beta: float = _key(0.05, "weight of the KL penalty against the SFT reference", 0, 10)
    loss_type: str = _key("grpo", "TRL's loss: " + ", ".join(LOSSES), words=LOSSES)
    importance_level: str = _key(
        "token", "level of the probability ratio: token, or sequence (GSPO)", words=("token", "sequence")
    )
    clip_epsilon: float = _key(0.2, "clip range of the probability ratio", 0, 1)
    clip_epsilon_high: float = _key(
        0.0, "its upper side (clip-higher); 0 is clip_epsilon; cispo: cap of the ratio", 0, 1000
    )
    dual_clip: float = _key(
        0.0, "cap of the ratio where the advantage is negative, 3 is usual; 0 is off", 0, 1000
    )
    mismatch: str = _key(
        "auto",
        "weights where engine and trainer disagree: " + ", ".join(MISMATCH) + "; auto: token_truncate where "
        "they can (half precision, or an engine with weights of its own)",
        words=MISMATCH,
    )
    mismatch_cap: float = _key(2.0, "largest weight, C", 1, 1000)
    mismatch_floor: float = _key(0.0, "smallest weight; IcePop's mask takes 0.5 and a cap of 5", 0, 1)
    share_prefixes: bool = _key(
        True, "compute what trajectories have in common once: as exact, and faster", stages="23"
    )
    lora_r: int = _key(16, "LoRA rank", 1, 1024, stages="23")
    lora_alpha: int = _key(32, "LoRA scale", 1, 4096, stages="23")
    reward: str = _key("plan", "preset: " + ", ".join(REWARDS), stages="35", words=REWARDS)
    reward_combine: str = _key(
        "sum",
        "how weighted components become one number: sum or product",
        stages="35",
        words=("sum", "product"),
    )
    reward_correctness: float = _key(1.0, "plan: weight of the verifier's verdict", -100, 100, stages="35")
    reward_format: float = _key(
        0.1, "plan: weight of the share of tool calls that ran", -100, 100, stages="35"
    )
    reward_efficiency: float = _key(1.0, "plan: weight of -0.02 a turn when correct", -100, 100, stages="35")
    reward_process: float = _key(
        0.0, "weight of the share of subgoals reached; 0 leaves it out", -100, 100, stages="35"
    )
    reward_overlong: float = _key(
        0.0, "weight of the soft overlong punishment; 0 leaves it out", -100, 100, stages="35"
    )
    overlong_buffer: int = _key(
        256, "tokens below max_tokens from which overlong rewards fall", 1, 131_072, stages="35"
    )
    reward_judge: float = _key(
        0.0, "weight of a judging model's verdict; 0 leaves it out", -100, 100, stages="35"
    )
    reward_noise: float = _key(
        0.0, "standard deviation of noise in the reward; 0 is none, and is advised", 0, 100
    )
    advantage: str = _key("group", "estimator: " + ", ".join(ADVANTAGES), words=ADVANTAGES)
    turn_lambda: float = _key(1.0, "advantage turn: weight of the outcome in a turn", 0, 100)
    step_weight: float = _key(
        1.0,
        "advantage step: weight of the groups of turns that begin in the same state (GiGPO's steps)",
        0,
        100,
    )
    step_gamma: float = _key(0.95, "advantage step: discount of the outcome, a turn", 0, 1)
    dead_groups: str = _key(
        "keep",
        "groups of equal rewards: keep, drop, or replace by fresh tasks",
        words=("keep", "drop", "replace"),
    )
    extra_rollouts: float = _key(1.0, "budget for replacing, as a multiple of a step's rollouts", 0, 100)
    resample_correct: bool = _key(False, "GRPO-RoC: sample twice the group, keep the cleanest right ones")
    mask_void: bool = _key(False, "leave trajectories with a turn without call and answer out of the loss")
    mask_truncated: bool = _key(False, "leave truncated trajectories out of the loss")
    hindsight_weight: float = _key(
        0.0, "weight in GRPO's loss of imitating what code rollouts did achieve; 0 is off", 0, 100
    )
    hindsight_keep: float = _key(
        1.0, "share of a task's lessons that is imitated, those nearest to what was asked", 0.01, 1
    )
    hindsight_samples: int = _key(
        128, "hindsight replay: programs sampled for a task in a round", 1, 4096, stages="d"
    )
    hindsight_learning_rate: float = _key(1e-5, "of hindsight replay", 0, 1, stages="d")
    controls: str = _key(
        "",
        "what GRPO is compared with besides: sft_more (SFT on every task), rft; with commas",
        stages="5",
        listed=True,
        words=("sft_more", "rft"),
    )
    gaia: str = _key(
        "",
        "a further test: the folder with GAIA's files, or hub; empty is none (agentkit gaia)",
        stages="5",
        file=True,
    )
    preflight: str = _key(
        "refuse",
        "look before training: refuse a hopeless run, warn only, or off",
        words=("refuse", "warn", "off"),
    )
    report_to: str = _key(
        "none",
        "where metrics go besides the run folder: none, tensorboard, wandb or trackio",
        words=("none", "tensorboard", "wandb", "trackio"),
    )
    val_every: int = _key(10, "steps between validations", 1, 100_000)
    val_tasks: int = _key(60, "validation tasks used, spread over the suite", 1, 100_000)
    val_samples: int = _key(1, "sampled trajectories for each validation task", 1, 64)
    # runs that survive
    resume: str = _key(
        "auto",
        "auto: go on from the newest sound checkpoint; never: start anew, what is there is kept aside",
        words=("auto", "never"),
    )
    save_every: int = _key(
        5, "steps between checkpoints; 0 writes one only when training ends or is stopped", 0, 100_000
    )
    until_solved: bool = _key(False, "end training once every task of a step was solved by some rollout")
    patience: int = _key(
        0, "validations without improvement before training ends early; 0 is never", 0, 100_000
    )
    # drawing: single-task training
    drawings: str = _key(
        "lines", "tasks to solve one by one: lines, 12, 16, 20, 25, with commas", stages="d", listed=True
    )
    methods: str = _key(
        "grpo,her,hybrid", "how to train until a drawing is solved, with commas", stages="d", listed=True
    )
    n_seeds: int = _key(1, "seeds for each drawing and method, from seed on", 1, 100, stages="d")
    # several GPUs
    gpus: str = _key("auto", "GPUs to use: auto (all that are visible) or a number", stages="235")
    topology: str = _key(
        "auto",
        "colocate (every GPU rolls out and trains), split (servers roll out, the others train), or auto",
        words=("auto", "colocate", "split"),
        stages="235",
    )
    processes: int = _key(
        1, "processes that train together, one a GPU; left out where GPUs are visible: all", 1, 1024
    )
    replicas: int = _key(
        0, "topology split: servers that roll out; 0: as many as half of the GPUs hold", 0, 1024, stages="235"
    )
    shard: bool = _key(
        False,
        "spread the model's layers over the processes that train, for models larger than a card",
        stages="235",
    )
    tensor_parallel: int = _key(
        1, "topology split: cards that one server spreads its model over", 1, 64, stages="235"
    )
    given: frozenset[str] = field(default=frozenset(), repr=False, compare=False)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], *, together: bool = True) -> Self:
        """Check keys, types, bounds and, but for a run that was made, whether they go ``together``. Raises
        RecipeError.
        """
        fields = cls.keys()
        for name in values:
            if name not in fields:
                shown = str(name)[:100]
                (close,) = difflib.get_close_matches(shown, fields, n=1, cutoff=0.0)
                raise RecipeError(f"unknown recipe key {shown!r}: did you mean {close!r}?")
        recipe = cls(
            **{name: _checked(fields[name], value) for name, value in values.items()}, given=frozenset(values)
        )
        _template_arguments(recipe.template_arguments)
        rooms = (_clipping, _engine, _larger_than_a_card, _reward, batch_rules, _thinking)
        for rules in rooms if together else ():
            refuse(rules(recipe))
        return recipe

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The recipe in a YAML file. Raises RecipeError naming the file, the key and the way out."""
        return cls.from_mapping(read_recipe(path))

    @classmethod
    def of(cls, run: "Run") -> Self:
        """The recipe a run was made with, keys of other versions left out, and where its metrics went.

        Raises RecipeError naming run.json.
        """
        known = cls.keys().keys() - {"report_to"}
        try:
            kept = {name: value for name, value in run.manifest["recipe"].items() if name in known}
            return cls.from_mapping(kept, together=False)
        except RecipeError as error:
            raise RecipeError(f"{run.file(MANIFEST)}: {error}") from None

    @classmethod
    def from_notebook(cls, namespace: Mapping[str, Any]) -> Self:
        """Read the parameters a notebook defined, papermill's injected ones included.

        Called right after the parameters cell: every plain value assigned there and since must be a known
        key, so that a misspelled parameter stops the notebook instead of being ignored. What cells left
        behind that ran before it, such as those of an earlier Run All, is not looked at.

        Raises RecipeError, also where ``run``, ``lab`` or ``tasks`` is what a later cell made of it.
        """
        plain = (str, int, float, bool, list, dict, type(None))
        names = _assigned_since_parameters(namespace.get("In", [])) or set(namespace) - _IPYTHON
        mine = {n: v for n, v in namespace.items() if n in names and isinstance(v, plain)}
        for name in ("run", "lab", "tasks"):
            if name in names and name in namespace and not isinstance(namespace[name], str):
                raise RecipeError(
                    f"{name} is no longer the text that the parameters cell assigned, but of type "
                    f"{type(namespace[name]).__name__}: run that cell again, then this one"
                )
        return cls.from_mapping({n: v for n, v in mine.items() if not n.startswith(("_", "PAPERMILL_"))})

    @classmethod
    def keys(cls) -> dict[str, dataclasses.Field]:
        """Every recipe key as a dataclass field; ``defaults`` shows them to people."""
        return {f.name: f for f in dataclasses.fields(cls) if "help" in f.metadata}

    @classmethod
    def defaults(cls) -> str:
        """Every key with its default and help, to read and to copy from: a recipe in YAML."""
        rows = [(f"{name}: {json.dumps(k.default)}", k.metadata["help"]) for name, k in cls.keys().items()]
        return "\n".join(f"{row:<36} # {help}" for row, help in rows)

    @classmethod
    def keys_of(cls, stage: str) -> list[str]:
        """Names of the keys that a notebook such as "02_baseline" or "drawing" is handed."""
        letter = stage.removeprefix("0")[0]
        return [name for name, key in cls.keys().items() if letter in key.metadata["stages"]]

    def planned(self, n_tasks: int) -> Self:
        """The recipe with ``epochs`` over so many training tasks as steps.

        ``steps`` at its default is no limit: a notebook's parameters cell names it always.
        """
        if not self.epochs:
            return self
        batches = self.epochs * max(1, n_tasks // self.prompts_per_step)
        steps = batches * self.minibatches * self.num_iterations
        steps = steps if self.steps == self.keys()["steps"].default else min(steps, self.steps)
        return dataclasses.replace(self, steps=steps, epochs=0, given=self.given | {"steps"})

    def used(self) -> dict[str, Any]:
        """The parameters that were set, defaults of the notebook included."""
        return {name: getattr(self, name) for name in self.keys() if name in self.given}

    def everything(self) -> dict[str, Any]:
        """All parameters, set or not."""
        return {name: getattr(self, name) for name in self.keys()}

    @property
    def servers(self) -> list[str]:
        """The replicas of engine server."""
        return listed(self.server_urls)

    @property
    def chat(self) -> tuple[str, dict[str, Any]]:
        """The chat template, a file where there is one, and what it is called with."""
        name = self.chat_template
        with contextlib.suppress(RecipeError):
            name = str(find_file(name)) if name else ""
        return name, _template_arguments(self.template_arguments)

    @property
    def control_names(self) -> list[str]:
        """Names of the control policies to train."""
        return listed(self.controls)

    @property
    def flaws(self) -> dict[str, float]:
        """The demonstrating expert's flaw rates."""
        names = ("skip_lookup", "wrong_operation", "in_head", "give_up", "malformed")
        return {name: getattr(self, f"flaw_{name}") for name in names}


FILES = tuple(name for name, key in Recipe.keys().items() if key.metadata["file"])


# ---- keys that do not go together: whether a recipe breaks a rule, and the sentence that says so
Rules = list[tuple[Any, str]]


def refuse(rules: Rules) -> None:
    """Raise RecipeError with the sentence of the first rule that is broken, where one is."""
    if broken := [sentence for is_broken, sentence in rules if is_broken]:
        raise RecipeError(broken[0])


def _clipping(recipe: Recipe) -> Rules:
    high, is_cispo = recipe.clip_epsilon_high or recipe.clip_epsilon, recipe.loss_type == "cispo"
    return [
        (
            is_cispo and high < 1,
            "loss_type cispo caps the ratio itself at clip_epsilon_high, "
            f"which is {high:g}; set it to 1 or more",
        ),
        (is_cispo and recipe.dual_clip, "loss_type cispo has no dual clip: leave dual_clip out"),
        (
            0 < recipe.dual_clip <= 1 + high,
            f"dual_clip is {recipe.dual_clip:g}; it must lie above 1 + the clip range = {1 + high:g}",
        ),
    ]


def _engine(recipe: Recipe) -> Rules:
    odd = next((url for url in recipe.servers if not re.fullmatch(r"https?://[^/@\s?#]+(/v1)?/?", url)), "")
    shown = re.sub(r"//.*@", "//...@", odd)[:80]  # without a password
    return [
        (
            (recipe.engine == "server") != bool(recipe.servers),
            "engine server and server_urls belong together, as in: server_urls: http://localhost:8000",
        ),
        (odd, f"server_urls holds {shown!r}; use http://HOST:PORT, with no path, user or password"),
        (
            recipe.load_in_4bit and recipe.engine != "unsloth",
            f"load_in_4bit needs engine: unsloth, and engine is {recipe.engine!r}",
        ),
        (
            recipe.deterministic and recipe.engine != "transformers",
            f"deterministic needs engine: transformers, and engine is {recipe.engine!r}",
        ),
        (
            recipe.deterministic and recipe.topology == "split",
            "deterministic needs rollouts in the processes that train, and topology is split: set "
            "deterministic: false, or leave topology out",
        ),
        (
            recipe.processes > 1 and recipe.engine == "unsloth",
            f"processes: {recipe.processes} is not for engine 'unsloth', which trains in one process on one "
            "card here: leave processes out, or use engine: vllm, which samples as fast",
        ),
        (
            not re.fullmatch(r"auto|[1-9]\d{0,3}", recipe.gpus),
            f"gpus is {recipe.gpus[:40]!r}; use auto, or how many, such as 2",
        ),
    ]


def _larger_than_a_card(recipe: Recipe) -> Rules:
    return [
        (
            recipe.tensor_parallel > 1 and recipe.topology != "split",
            f"tensor_parallel: {recipe.tensor_parallel} is for the servers of topology: split; servers of "
            "your own take it from agentkit serve --tensor-parallel, and an engine in a process that trains "
            "has that process' card only",
        ),
        (
            recipe.shard and recipe.engine not in ("vllm", "server"),
            f"shard does not go with engine: {recipe.engine}, which samples with the weights that are "
            "trained: sharded ones are there only while all processes compute together. Use engine: vllm, "
            "or server",
        ),
        (
            recipe.gaia and (recipe.shard or recipe.tensor_parallel > 1),
            "gaia measures in one process, on one card: leave it out where the model is larger than a card",
        ),
        (
            recipe.shard and recipe.weight_sync == "merged",
            "shard hands the adapter alone to engines: leave weight_sync: merged out",
        ),
        (
            recipe.shard and recipe.hindsight_weight,
            "shard does not go with hindsight_weight, whose batches are not as many in every process: leave "
            "one out",
        ),
    ]


def _reward(recipe: Recipe) -> Rules:
    weights, keys = ("reward_correctness", "reward_format", "reward_efficiency"), Recipe.keys()
    changed = next((name for name in weights if getattr(recipe, name) != keys[name].default), "")
    return [
        (
            changed and recipe.reward != "plan",
            f"{changed} is a weight of reward plan, not of reward {recipe.reward}: leave it out",
        ),
        (
            recipe.advantage == "gdpo" and recipe.reward_combine == "product",
            "advantage: gdpo normalises each component by itself and adds them up, so that reward_combine: "
            "product would do nothing: use sum, or advantage: group",
        ),
        (
            recipe.reward_noise and (recipe.advantage == "gdpo" or recipe.reward_combine == "product"),
            "reward_noise is added to the reward: use reward_combine: sum, and an advantage other than gdpo",
        ),
        (
            recipe.transcripts and not recipe.sft,
            "transcripts is what the cold start imitates, and sft is false: set sft: true, or leave "
            "transcripts out",
        ),
    ]


def batch_rules(recipe: Recipe) -> Rules:
    """How a batch of rollouts is divided into processes and passes."""
    rollouts = recipe.prompts_per_step * recipe.group_size
    size = 1 if recipe.micro_batch_tokens else recipe.micro_batch
    share = rollouts // recipe.processes
    return [
        (
            0 < recipe.micro_batch_tokens < recipe.max_tokens,
            f"micro_batch_tokens {recipe.micro_batch_tokens} is less than max_tokens {recipe.max_tokens}, "
            "which one trajectory may have: raise it, or lower max_tokens",
        ),
        (
            rollouts % size,
            f"micro_batch {recipe.micro_batch} must divide prompts_per_step * group_size = {rollouts}; "
            "micro_batch_tokens in its place takes any number",
        ),
        (
            recipe.prompts_per_step % recipe.processes or share % size,
            f"processes {recipe.processes} must divide prompts_per_step {recipe.prompts_per_step}, so that "
            f"no group is split, and micro_batch {recipe.micro_batch} the {share} trajectories of each",
        ),
        (
            share // size % recipe.minibatches,
            f"minibatches {recipe.minibatches} must divide the {share // size} forward and backward passes "
            "of a batch (prompts_per_step * group_size / processes / micro_batch): lower it, or micro_batch",
        ),
    ]


def _thinking(recipe: Recipe) -> Rules:
    return [
        (
            recipe.thinking == "dropped",
            "thinking: dropped would take a turn's thoughts out of what the next turns read, so that no one "
            "sequence of tokens is what was sampled, and log-probabilities, mask and KL would be those of a "
            "text that the agent never read. Use thinking: cut with max_thought_tokens, which bounds each "
            "thought and stays exact, or template_arguments: enable_thinking=false, which many templates "
            "know",
        ),
        (
            recipe.thinking == "cut" and recipe.max_thought_tokens >= recipe.max_turn_tokens,
            f"thinking: cut at max_thought_tokens {recipe.max_thought_tokens} does nothing where "
            f"max_turn_tokens {recipe.max_turn_tokens} ends the turn first: lower the one or raise the other",
        ),
    ]


def listed(text: str) -> list[str]:
    """The words of a text with commas between them."""
    return [word.strip() for word in text.split(",") if word.strip()]


def _template_arguments(text: str) -> dict[str, Any]:
    """Names and values of a text such as "enable_thinking=false, reasoning_effort=low"."""
    arguments = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, _, value = map(str.strip, part.partition("="))
        word = re.fullmatch(r"[\w.+-]+", value)
        known = yaml.safe_load(value) if word else None
        if not name.isidentifier() or not isinstance(known, str | int | float):
            raise RecipeError(
                f"template_arguments holds {part[:60]!r}, which is no NAME=VALUE with a word, a number, true "
                "or false: write enable_thinking=false, reasoning_effort=low"
            )
        arguments[name] = known
    return arguments


_WORDS = {"off": False, "no": False, "on": True, "yes": True}
_IPYTHON = frozenset({"In", "Out", "exit", "quit", "get_ipython", "open"})
# the first cell of a notebook, and none that opens a run; papermill's own, which may assign run, is the next
_PARAMETERS = re.compile(
    r"(?!# Parameters\n)(?s:.*\n)?run\s*(?::[^=\n]*)?=(?!=)(?!\s*[\w.]*\b(?:Run|load_run)\b)"
)


def _assigned_since_parameters(cells: list[str]) -> set[str]:
    """Names that IPython's cells assign, from the newest parameters cell on; none where there is none."""
    begins = [number for number, cell in enumerate(cells) if _PARAMETERS.match(cell)]
    others = Recipe.keys().keys() - {"run"}  # a cell without any of them only names another run
    begins = [number for number in begins if _names(cells[number]) & others] or begins
    return set().union(*map(_names, cells[begins[-1] : -1])) if begins else set()


def _names(cell: str) -> set[str]:
    with contextlib.suppress(SyntaxError):
        return {n.id for n in ast.walk(ast.parse(cell)) if isinstance(n, ast.Name)}
    return set()


def _checked(spec: dataclasses.Field, value: Any) -> Any:
    """A key's value as its type. Raises RecipeError naming the value, the key and what is allowed."""
    kind, key = type(spec.default), spec.metadata
    if kind is float and isinstance(value, int | str) and not isinstance(value, bool):
        with contextlib.suppress(ValueError, OverflowError):  # YAML reads 1e-6 as text
            value = float(value)
    if spec.name in ("gpus", "drawings"):  # whose words are numbers, too
        value = [str(v) if type(v) is int else v for v in value] if isinstance(value, list) else value
        value = str(value) if type(value) is int else value
    if key["listed"] and isinstance(value, list) and all(isinstance(name, str) for name in value):
        value = ",".join(value)
    if kind is bool and value in ("true", "false"):  # papermill's -p hands these on as text
        value = value == "true"
    if kind is str and isinstance(value, bool):  # what YAML 1.1 makes of the words off, no, on and yes
        offered = key["words"] or re.findall(r"\w+", key["help"])
        value = next((word for word in offered if _WORDS.get(word) is value), value)
    shown = f"{spec.name} is {reprlib.repr(value)[:100]}"  # a value may be of any size
    quotes = ""
    if kind is str and isinstance(value, bool):
        words = " and ".join(word for word, meant in _WORDS.items() if meant is value)
        quotes = f" (YAML reads {words} as {value}; in quotes they are words)"
    if key["words"] and not key["listed"] and value not in key["words"]:
        raise RecipeError(f"{shown}; use {', '.join(key['words'])}{quotes}")
    if type(value) is not kind:
        raise RecipeError(f"{shown}; it must be of type {kind.__name__} ({key['help']}){quotes}")
    if key["low"] is not None and not key["low"] <= value <= key["high"]:
        raise RecipeError(f"{shown}; it must lie between {key['low']:g} and {key['high']:g} ({key['help']})")
    if not key["listed"]:
        return value
    named = listed(value)
    if key["words"] and (unknown := set(named) - set(key["words"])):
        some = f"{', '.join(key['words'])}, or several with commas"
        raise RecipeError(f"{spec.name} names {min(unknown)[:60]!r}; use {some}")
    return ",".join(named)  # one spelling of one choice


def read_recipe(path: str | Path) -> dict[str, Any]:
    """The keys a YAML recipe sets, checked. Raises RecipeError."""
    values = read_yaml(path := located(path))
    try:
        Recipe.from_mapping(values)
    except RecipeError as error:
        raise RecipeError(f"{path}: {error}") from None
    return beside(path, values)


def find_file(name: str) -> Path:
    """A file that a recipe names: here, in the project's folder, or in its params/. Raises RecipeError."""
    root, name = project_root(), os.path.expanduser(name)
    for path in (Path(name), root / name, root / "params" / name):
        if path.is_file():
            return path.resolve()
    raise RecipeError(f"there is no file {name!r}, neither here nor in {root} nor in {root / 'params'}")


def beside(recipe: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a recipe or sweep, files among them as seen from the project's folder if they lie there."""
    words = ("nano", "hub")  # of an agent and a data set, however folders here are called
    return {
        key: _beside(recipe.parent, x, key in ("model", "gaia") and x not in words) if key in FILES else x
        for key, x in values.items()
    }


def _beside(place: Path, name: Any, folders: bool) -> Any:
    """A file or folder in a place or, where it is not, from here; of ``folders`` from here only if asked."""
    path = os.path.expanduser(str(name))
    file = (place / path).resolve()
    if not file.exists() and (os.path.isfile(path) or (folders and os.path.isdir(path))):
        file = Path(path).resolve()
    if not name or not file.exists():
        source, mark, rows = str(name).partition(":")  # tasks: rows of a public data set
        found = _beside(place, rows, True) if mark and rows and f"_{source}".isidentifier() else rows
        return name if found == rows else f"{source}:{found}"
    root = project_root()
    return str(file.relative_to(root) if file.is_relative_to(root) else file)


def read_yaml(path: Path, *, flat: bool = True) -> dict[str, Any]:
    """The mapping in a YAML file, its keys the words written; ``flat``, to plain values or lists of them.

    Raises RecipeError, which names the file.
    """
    try:
        with open_file(path) as file:
            root = yaml.compose(text := file.read().decode("utf-8"), yaml.SafeLoader)
        if not isinstance(root, yaml.MappingNode):
            one = "flat mapping of keys to values, such as 'seed: 3'" if flat else "mapping of keys to values"
            raise RecipeError(f"it is no {one}")
        if _written_out(root, flat, {}) > _MOST:
            raise RecipeError(f"its aliases (*) stand for more than {_MOST:,} values, or for themselves")
        return yaml.SafeLoader(text).construct_document(root)
    except FileNotFoundError:
        raise RecipeError(
            f"{path} does not exist: recipes and prices lie in params/, sweeps in params/sweeps/"
        ) from None
    except OSError as error:
        raise RecipeError(f"{path} cannot be read: {error.strerror}") from None
    except RecipeError as error:
        raise RecipeError(f"{path}: {error}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise RecipeError(f"{path} is not valid YAML: {' '.join(str(error).split())[:200]}") from None
    except (LookupError, AttributeError, TypeError, ArithmeticError):  # PyYAML's, where it constructs
        why = "a value is not of the kind that its tag, such as !!bool, says"
        raise RecipeError(f"{path} is not valid YAML: {why}") from None


_MOST = 100_000  # values of a file, its aliases written out


def _written_out(node: yaml.Node, flat: bool, sizes: dict[int, float]) -> float:
    """How many values a node stands for, its mappings checked before any value is made, each once.

    A few aliases of aliases are more than the memory holds.
    """
    if id(node) not in sizes:
        sizes[id(node)] = math.inf  # what an alias of itself stands for
        parts = [] if isinstance(node, yaml.ScalarNode) else node.value
        if isinstance(node, yaml.MappingNode):
            _check_keys(node, flat)
            parts = itertools.chain(*node.value)
        sizes[id(node)] = 1.0 + sum(_written_out(part, flat, sizes) for part in parts)
    return sizes[id(node)]


def _check_keys(mapping: yaml.MappingNode, flat: bool) -> None:
    """Words, each given once: of a key given twice one would silently count."""
    seen: set[str] = set()
    for key, value in mapping.value:
        place = f"line {key.start_mark.line + 1}"
        items = value.value if isinstance(value, yaml.SequenceNode) else [value]
        if not all(isinstance(node, yaml.ScalarNode) for node in ((key, *items) if flat else (key,))):
            what = "is nested; a recipe is flat: one 'key: value' a line"
            raise RecipeError(f"{place} {what if flat else 'has a key that is no word: write key: value'}")
        if key.value in seen:
            raise RecipeError(f"{place} sets {key.value[:100]!r} again; keep one of the two")
        seen.add(key.value)
        for name in [key] if key.value != "against" else [key, value]:  # off, no and 4 are words there
            if isinstance(name, yaml.ScalarNode) and not name.tag.endswith(":merge"):
                name.tag = "tag:yaml.org,2002:str"
