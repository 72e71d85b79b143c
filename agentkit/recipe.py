"""A recipe: every parameter of a run, with its default, its bounds and one line of help.

A recipe is a flat YAML in params/. It may begin from another one (``base: nano.yaml``) and hold what differs.
Defaults are those of the document "RLVR for Agents" for a real model; params/nano.yaml holds what suits the
small agent. Leaves out what cannot be said in one value: families, verifiers and rewards of one's own stand
in a lab file (agentkit.lab).
"""

import contextlib
import difflib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from agentkit.records import RecipeError

if TYPE_CHECKING:
    from agentkit.runs.run import Run

Preset = Literal["plan", "none", "toolrl", "toolrla", "tcr", "tcr_paper"]
Loss = Literal["grpo", "dapo", "dr_grpo", "bnpo", "cispo"]
Mismatch = Literal[
    "auto", "off", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask",
    "geometric_truncate", "geometric_mask",
]  # fmt: skip
Advantage = Literal["group", "dr_grpo", "rloo", "batch_std", "reinforce_baseline", "gdpo", "turn", "step"]
Flaw = Literal["skip_lookup", "wrong_operation", "in_head", "give_up", "malformed"]
SCRIPTED = "scripted"  # what ``model`` says to mean a stand-in that plays the tasks' plans
FILES = ("lab", "tasks", "model", "chat_template", "transcripts")  # keys that may name files


def _number(value: Any) -> Any:
    """1e-6 as text is a number: so YAML 1.1 reads it, and papermill hands it on."""
    with contextlib.suppress(ValueError):
        return float(value) if isinstance(value, str) else value
    return value


def _names(value: Any) -> Any:
    """Names as a list, however they are written: one, several with commas, or a list."""
    return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value


Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Number = Annotated[float, BeforeValidator(_number)]
Share = Annotated[Number, Field(ge=0, le=1)]
Weight = Annotated[Number, Field(ge=0)]
Seconds = Annotated[Number, Field(gt=0)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]
Word = Annotated[str, Field(pattern=r"^[\w.+-]+$")]
Split = BeforeValidator(_names)
Switch = Annotated[bool, BeforeValidator(lambda value: {"true": True, "false": False}.get(str(value), value))]
OrOff = BeforeValidator(lambda value: "off" if value is False else value)  # YAML 1.1's reading of the word


def _key(default: Any, help: str, stages: str = "3") -> Any:
    """A key with its help, and the notebooks, by number, whose results depend on it: none on a key that says
    where, how much at once and how safely one is executed.
    """
    return Field(default, description=help, json_schema_extra={"stages": stages})


class Recipe(BaseModel):
    """All parameters. Raises RecipeError where a key or value is unknown, or two do not go together."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    base: str = _key("", "another recipe, relative to this one, that this one begins from", "")
    lab: str = _key("", "file with families, verifiers and rewards of your own (agentkit new)", "12345")
    seed: Count = _key(0, "of every random choice but the suite's", "235")
    # 01 tasks
    families: Annotated[list[str], Split] = _key(["A", "B", "C"], "task families", "1")
    n_tasks: Annotated[int, Field(ge=20)] = _key(1200, "tasks in the suite, split 70/15/15", "1")
    suite_seed: Count = _key(0, "of the suite, so that seeds share one test", "1")
    tasks: str = _key("", "in place of families: a tasks.jsonl, or a public data set such as gsm8k", "1")
    new_templates: Annotated[list[str], Split] = _key(
        [], "kinds of question that only the test has, such as A total4; reported apart", "1"
    )
    filter_rollouts: Count = _key(
        0, "rollouts of each training task; what none or all solve is left out; 0: off", "235"
    )
    max_prompt_tokens: Count = _key(0, "tasks with a longer prompt are left out; 0: no limit", "235")
    # the agent and its rollouts
    model: str = _key("nano", "the agent: nano, scripted, a model folder or a hub name", "235")
    skill: Share = _key(0.6, "model scripted: chance that it plays a plan to its end", "235")
    chat_template: str = _key("", "a file, a name that TRL ships, or training; empty: the model's own", "235")
    template_arguments: dict[Name, Word | bool | int | float] = _key(
        {}, "what the chat template is called with, such as {enable_thinking: false}", "235"
    )
    max_turns: Positive = _key(10, "policy calls in one trajectory", "235")
    max_turn_tokens: Annotated[int, Field(ge=4)] = _key(1024, "tokens sampled in one turn", "235")
    max_tokens: Annotated[int, Field(ge=16)] = _key(8192, "completion tokens, tool replies included", "235")
    max_observation: Annotated[int, Field(ge=16)] = _key(500, "tokens of one tool reply (Search-R1's)", "235")
    top_k: Positive = _key(3, "passages the search tool returns", "1235")
    tool_timeout_s: Seconds = _key(10.0, "of a tool call, where the tool declares no limit", "235")
    trajectory_timeout_s: Seconds = _key(600.0, "of a trajectory; a longer one is not scored", "235")
    tool_failures: Share = _key(0.0, "chance that a call fails for the moment; repeated it may work", "235")
    temperature: Annotated[Number, Field(ge=0.05, le=2)] = _key(0.7, "of sampling, in every notebook", "235")
    engine: Literal["transformers", "vllm", "server", "unsloth"] = _key(
        "transformers", "what samples; servers are started by agentkit serve, unsloth also trains", "235"
    )
    server_urls: Annotated[list[str], Split] = _key(
        [], "engine server: its replicas, such as http://localhost:8000", ""
    )
    engine_memory: Annotated[Number, Field(gt=0, lt=1)] = _key(
        0.3, "share of the GPU's memory for the engine; transformers: for keys and values", ""
    )
    load_in_4bit: Switch = _key(False, "engine unsloth: base weights in 4 bits while training")
    precision: Literal["auto", "float32", "bfloat16"] = _key(
        "auto", "of the weights; auto: bfloat16 on a GPU, else float32", "235"
    )
    max_batch: Positive = _key(128, "trajectories sampled together", "")
    deterministic: Switch = _key(
        False, "batches do not depend on timing: exact to the bit on a CPU, slower with slow tools", "235"
    )
    # 02 baseline
    sft: Switch = _key(False, "fine-tune the agent on demonstrations first", "235")
    sft_tasks: Count = _key(0, "training tasks that are demonstrated; 0 is all", "2")
    sft_transcripts: Positive = _key(2, "demonstrations for each training task", "2")
    sft_tool_failures: Share = _key(0.0, "tool_failures while the expert demonstrates", "25")
    sft_epochs: Positive = _key(1, "passes over the demonstrations", "2")
    sft_learning_rate: Share = _key(1e-4, "peak of the cold start, after 10 steps", "2")
    sft_batch: Positive = _key(16, "demonstrations in one optimiser step", "2")
    flaws: dict[Flaw, Share] = _key({}, "how often expert or stand-in errs, such as {in_head: 0.4}", "2")
    transcripts: str = _key("", "messages data set to imitate in place of the scripted expert", "2")
    test_samples: Positive = _key(4, "sampled trajectories for each test task", "25")
    measure_base: Switch = _key(False, "measure the agent before its cold start too: base, SFT, RL", "2")
    # 03 GRPO
    train_difficulty: Annotated[list[Literal["easy", "medium", "hard"]], Split] = _key(
        [], "train on easy, medium or hard tasks only; empty: all", "35"
    )
    steps: Positive = _key(200, "optimiser steps")
    epochs: Count = _key(
        0, "passes over the training tasks; 0: no limit. The default of steps does not cut them short"
    )
    prompts_per_step: Positive = _key(8, "groups in one step")
    group_size: Annotated[int, Field(ge=2)] = _key(8, "trajectories in a group, G")
    micro_batch: Positive = _key(8, "trajectories in one forward and backward pass")
    minibatches: Positive = _key(1, "optimiser steps that one batch of rollouts is split into")
    learning_rate: Share = _key(1e-5, "of GRPO, for LoRA")
    lr_schedule: Literal["constant_with_warmup", "linear", "cosine"] = _key(
        "constant_with_warmup", "of GRPO; linear and cosine end at zero"
    )
    warmup_steps: Count = _key(0, "steps of linear warm-up")
    max_grad_norm: Weight = _key(1.0, "gradient clipping")
    beta: Weight = _key(0.05, "weight of the KL penalty against the SFT reference")
    loss_type: Loss = _key("grpo", "how token losses are averaged, as TRL names it")
    clip_epsilon: Share = _key(0.2, "clip range of the probability ratio")
    clip_epsilon_high: Weight = _key(0.0, "its upper side; 0 is clip_epsilon; cispo: cap of the ratio")
    mismatch: Annotated[Mismatch, OrOff] = _key("auto", "weights where engine and trainer disagree")
    lora_r: Positive = _key(16, "LoRA rank", "23")
    lora_alpha: Positive = _key(32, "LoRA scale", "23")
    reward: Preset | dict[str, Number] = _key(
        "plan", "a preset, or weights of components such as {correctness: 1, format: 0.1}", "35"
    )
    advantage: Name = _key("group", "estimator of advantages; one of the lab file's too")
    dead_groups: Literal["keep", "drop", "replace"] = _key(
        "keep", "groups of equal rewards; replace takes fresh tasks"
    )
    mask_truncated: Switch = _key(False, "leave truncated trajectories out of the loss")
    hindsight_weight: Weight = _key(
        0.0, "weight of imitating code rollouts as answers to the tasks they did solve; 0: off"
    )
    preflight: Annotated[Literal["refuse", "warn", "off"], OrOff] = _key(
        "refuse", "checks before training: refuse a hopeless run, warn only, or off", ""
    )
    val_every: Positive = _key(10, "steps between validations")
    val_tasks: Positive = _key(60, "validation tasks used, spread over the suite")
    measure_last: Switch = _key(
        False, "where validation keeps step 0, keep and measure the last step in its place"
    )
    save_every: Count = _key(
        5, "steps between checkpoints; 0 writes one only when training ends or stops", ""
    )
    report_to: Literal["none", "tensorboard", "wandb"] = _key(
        "none", "where metrics go besides the run: tensorboard, wandb", ""
    )
    controls: Annotated[list[Literal["sft_more", "rft"]], Split] = _key(
        [], "what GRPO is compared with besides: sft_more is SFT on every task", "5"
    )
    # several GPUs
    gpus: Literal["auto"] | Positive = _key("auto", "how many to use; auto: all that are visible", "")
    processes: Positive = _key(1, "that train together; if left out, one for each visible GPU")
    shard: Switch = _key(False, "spread the model's layers over the processes that train", "235")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise RecipeError(_told(error)) from None

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """A recipe from its keys, checked together. Raises RecipeError."""
        if odd := [name for name in values if not isinstance(name, str)]:
            raise RecipeError(f"unknown recipe key {odd[0]!r:.100}: a key is a word")
        recipe = cls(**values)
        refuse([*_engine(recipe), *_training(recipe), *batch_rules(recipe)])
        return recipe

    @classmethod
    def load(cls, path: str | Path, **changes: Any) -> Self:
        """The recipe in a YAML file with changes. Raises RecipeError naming the file and the key."""
        return cls.from_mapping(read_recipe(path) | changes)

    @classmethod
    def of(cls, run: "Run") -> Self:
        """The recipe a run was made with. Raises RecipeError naming run.json."""
        kept = {k: v for k, v in run.manifest["recipe"].items() if k != "report_to"}  # where metrics went
        try:
            return cls.from_mapping(kept)
        except RecipeError as error:
            raise RecipeError(f"{run.file('run.json')}: {error}") from None

    @classmethod
    def from_notebook(cls, namespace: dict[str, Any]) -> Self:
        """The recipe of a notebook: the file or mapping ``recipe`` with ``changes``, both of its parameters
        cell, and the recipe keys that are variables beside them, as papermill injects, which win.

        Raises RecipeError, also where ``recipe`` is no longer what the parameters cell assigned.
        """
        plain = (str, int, float, bool, list, dict)
        mine = {name: x for name, x in namespace.items() if isinstance(x, plain) and name[:1] != "_"}
        recipe, changes = mine.get("recipe"), mine.get("changes", {})
        if not isinstance(recipe, str | dict) or not isinstance(changes, dict):
            raise RecipeError("recipe is no longer what the parameters cell says: run that cell again first")
        if not namespace.get("_recipe_was_read"):  # later, variables of any name may stand there
            for name in mine.keys() - cls.model_fields.keys():
                if close := difflib.get_close_matches(name, cls.model_fields, n=1, cutoff=0.75):
                    raise RecipeError(f"unknown parameter {name!r}: did you mean {close[0]!r}?")
            namespace["_recipe_was_read"] = True
        given = changes | {name: x for name, x in mine.items() if name in cls.model_fields}
        values = read_recipe(recipe) if isinstance(recipe, str) else recipe
        return cls.from_mapping(values | beside(Path.cwd() / "notebook", given))

    @classmethod
    def keys(cls) -> dict[str, FieldInfo]:
        """Every recipe key; ``defaults`` shows them to people."""
        return dict(cls.model_fields)

    @classmethod
    def defaults(cls) -> str:
        """Every key with its default and help, to read and to copy from: a recipe in YAML."""
        rows = [(f"{name}: {json.dumps(key.default)}", key.description) for name, key in cls.keys().items()]
        return "\n".join(f"{row:<26} # {help}" for row, help in rows)

    @classmethod
    def keys_of(cls, stage: str) -> list[str]:
        """Names of the keys that the results of a notebook such as "02_baseline" depend on."""
        letter = stage.removeprefix("0")[0]
        return [name for name, key in cls.keys().items() if letter in key.json_schema_extra["stages"]]

    def but(self, **changes: Any) -> Self:
        """The recipe with other values, which are not checked."""
        return self.model_copy(update=changes)

    def planned(self, n_tasks: int) -> Self:
        """The recipe with ``epochs`` over so many training tasks as steps; 200 ``steps`` are no limit."""
        if not self.epochs:
            return self
        steps = self.epochs * max(1, n_tasks // self.prompts_per_step) * self.minibatches
        steps = steps if self.steps == self.keys()["steps"].default else min(steps, self.steps)
        return self.but(steps=steps, epochs=0)

    def used(self) -> dict[str, Any]:
        """The parameters that were set."""
        return {name: value for name, value in self.everything().items() if name in self.model_fields_set}

    def everything(self) -> dict[str, Any]:
        """All parameters, set or not."""
        return {name: getattr(self, name) for name in self.keys()}

    @property
    def can_train(self) -> bool:
        """Whether the agent is a model, and no stand-in."""
        return self.model != SCRIPTED

    @property
    def chat(self) -> tuple[str, dict[str, Any]]:
        """The chat template, a file where there is one, and what it is called with."""
        name = self.chat_template
        with contextlib.suppress(RecipeError):
            name = str(find_file(name)) if name else ""
        return name, self.template_arguments


# ---- keys that do not go together: whether a recipe breaks a rule, and the sentence that says so
Rules = list[tuple[Any, str]]


def refuse(rules: Rules) -> None:
    """Raise RecipeError with the sentence of the first rule that is broken, where one is."""
    if broken := [sentence for is_broken, sentence in rules if is_broken]:
        raise RecipeError(broken[0])


def _engine(recipe: Recipe) -> Rules:
    engine = recipe.engine
    odd = [url for url in recipe.server_urls if not re.fullmatch(r"https?://[^/@\s?#]+(/v1)?/?", url)]
    shown = re.sub(r"//.*@", "//...@", "".join(odd[:1]))[:80]  # without a password
    return [
        (
            (engine == "server") != bool(recipe.server_urls),
            "engine server and server_urls belong together, as in: server_urls: http://localhost:8000",
        ),
        (odd, f"server_urls holds {shown!r}; use http://HOST:PORT, with no path, user or password"),
        (
            recipe.load_in_4bit and engine != "unsloth",
            f"load_in_4bit needs engine: unsloth, and engine is {engine!r}",
        ),
        (
            recipe.deterministic and engine != "transformers",
            f"deterministic needs engine: transformers, and engine is {engine!r}",
        ),
        (
            recipe.processes > 1 and engine == "unsloth",
            f"processes: {recipe.processes} is not for engine 'unsloth', which trains in one process on one "
            "card here: leave processes out, or use engine: vllm, which samples as fast",
        ),
    ]


def _training(recipe: Recipe) -> Rules:
    engine, high = recipe.engine, recipe.clip_epsilon_high or recipe.clip_epsilon
    return [
        (
            recipe.base,
            f"base: {recipe.base[:60]} is for a recipe's file: run that file, and change keys of it",
        ),
        (
            not recipe.can_train and (recipe.sft or recipe.controls or engine != "transformers"),
            "model: scripted plays the tasks' plans and learns nothing: set sft: false, and leave engine and "
            "controls out",
        ),
        (
            recipe.loss_type == "cispo" and high < 1,
            f"loss_type cispo caps the ratio at clip_epsilon_high, which is {high:g}: set it to 1 or more",
        ),
        (
            recipe.shard and engine not in ("vllm", "server"),
            f"shard does not go with engine: {engine}, which samples with the weights that are trained, and "
            "these are spread: use engine: vllm, or server",
        ),
        (
            recipe.shard and recipe.hindsight_weight,
            "shard does not go with hindsight_weight, whose batches are not as many in every process: leave "
            "one out",
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
    size, share = recipe.micro_batch, rollouts // recipe.processes
    return [
        (rollouts % size, f"micro_batch {size} must divide prompts_per_step * group_size = {rollouts}"),
        (
            recipe.prompts_per_step % recipe.processes or share % size,
            f"processes {recipe.processes} must divide prompts_per_step {recipe.prompts_per_step}, so that "
            f"no group is split, and micro_batch {size} the {share} trajectories of each",
        ),
        (
            share // size % recipe.minibatches,
            f"minibatches {recipe.minibatches} must divide the {share // size} forward and backward passes "
            "of a batch (prompts_per_step * group_size / processes / micro_batch): lower it, or micro_batch",
        ),
    ]


def sentence(error: ValidationError) -> str:
    """The first fault that pydantic found: its place, the value, and what it should be."""
    first = error.errors(include_url=False, include_context=False)[0]
    place = ".".join(part for part in map(str, first["loc"]) if re.fullmatch(r"\w+", part))
    if first["type"] in ("missing", "extra_forbidden"):
        return f"it {'lacks' if first['type'] == 'missing' else 'has an unknown key'} {place!a:.80}"
    says = first["msg"].replace("Input should", "it should").replace("valid integer", "whole number")
    return f"{place or 'it'} is {ascii(first['input'])[:100]}; {says.replace('a valid string', 'text')}"


def _told(error: ValidationError) -> str:
    """The first fault of a recipe, with the key's meaning or the key that was meant."""
    name = str(error.errors()[0]["loc"][0])
    keys = Recipe.keys()
    if name in keys:
        grid = isinstance(error.errors()[0]["input"], list)
        way = "a list is a grid, for agentkit sweep" if grid else keys[name].description
        return f"{sentence(error)} ({way})"
    (close,) = difflib.get_close_matches(name, keys, n=1, cutoff=0.0)
    return f"unknown recipe key {name[:100]!r}: did you mean {close!r}?"


# ---- files: recipes, what they name, and where these lie
def project_root(start: str | Path | None = None) -> Path:
    """The nearest folder at or above ``start``, the working directory by default, that holds notebooks/ and
    params/, else ``start`` itself.
    """
    start = Path(start or Path.cwd()).resolve()
    for folder in (start, *start.parents):
        if (folder / "notebooks").is_dir() and (folder / "params").is_dir():
            return folder
    return start


def project_file(*parts: str) -> Path:
    """A file of the project that one works in; where it has none, of the recipes and notebooks that ship."""
    package = Path(__file__).resolve().parent
    places = [root.joinpath(*parts) for root in (project_root(), package.parent, package / "project")]
    return next((place for place in places if place.exists()), places[0])


def located(path: str | Path) -> Path:
    """A path as people write it: ~ is their home, and outputs/ and params/ are the project's if not here."""
    path = Path(os.path.expanduser(path))
    if path.parts[:1] not in (("outputs",), ("params",)) or path.exists():
        return path
    return project_file(*path.parts) if path.parts[0] == "params" else project_root() / path


def find_file(name: str) -> Path:
    """A file that a recipe names: here, in the project's folder, or in params/. Raises RecipeError."""
    root, name = project_root(), os.path.expanduser(name)
    for path in (Path(name), root / name, project_file("params", name)):
        if path.is_file():
            return path.resolve()
    raise RecipeError(f"there is no file {name!r}, neither here nor in {root} nor in {root / 'params'}")


def read_recipe(path: str | Path) -> dict[str, Any]:
    """The keys that a recipe and those it begins from (``base``) set, checked. Raises RecipeError."""
    return _read_chain(located(path).resolve(), ())


def _read_chain(path: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    if path in above:
        raise RecipeError(f"{path}: base leads in a circle: {' -> '.join(p.name for p in (*above, path))}")
    values = read_yaml(path)
    base = values.pop("base", "")
    if not isinstance(base, str):
        raise RecipeError(f"{path}: base is {base!r:.100}; name one other recipe, such as base: nano.yaml")
    values = beside(path, values)
    if base:
        places = [path.parent / base, project_file("params", base)]
        below = next((place for place in places if place.exists()), places[0])
        values = _read_chain(below.resolve(), (*above, path)) | values
    try:
        Recipe.from_mapping(values)
    except RecipeError as error:
        raise RecipeError(f"{path}: {error}") from None
    return values


def beside(recipe: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a recipe or sweep, files among them as seen from the project's folder if they lie there."""
    return {key: _beside(recipe.parent, key, x) if key in FILES else x for key, x in values.items()}


def _beside(place: Path, key: str, name: Any) -> Any:
    """A file or folder in a place or, where it is not, from here; what is neither stays as it is written."""
    source, mark, rows = str(name).partition(":")  # tasks: rows of a public data set
    if key == "tasks" and mark:
        return f"{source}:{_beside(place, 'model', rows)}"
    path = Path(os.path.expanduser(str(name)))
    folders = key == "model" and name not in (
        "nano",
        SCRIPTED,
    )  # a data set such as gsm8k is none, whatever lies here
    found = [p for p in (place / path, path) if p.is_file() or (folders and p.is_dir())]
    if not name or not found:
        return name
    file, root = found[0].resolve(), project_root()
    return str(file.relative_to(root) if file.is_relative_to(root) else file)


class _Loader(yaml.SafeLoader):
    """YAML 1.2's plain values: off, on, yes and no are words, and so are 010 and 1:30."""

    yaml_implicit_resolvers: dict[str, list[Any]] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping, no key of which is given twice: of two, one would silently count."""
        keys = [key.value for key, _ in node.value]
        if twice := [key for n, key in enumerate(keys) if key in keys[:n]]:
            raise RecipeError(f"{twice[0]!r:.100} is set twice; keep one of the two")
        return super().construct_mapping(node, deep)


for _tag, _form, _first in (
    ("bool", "true|True|false|False", "tTfF"),
    ("int", r"[-+]?(0|[1-9][0-9]*)", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("null", "~|null|", ["~", "n", ""]),
    ("merge", "<<", "<"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^({_form})$"), list(_first))


def parse_yaml(text: str) -> Any:
    """A YAML value. Raises RecipeError."""
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise RecipeError(f"it is not valid YAML: {' '.join(str(error).split())[:200]}") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises RecipeError, which names the file."""
    try:
        values = parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        way = "recipes and prices lie in params/, sweeps in params/sweeps/"
        raise RecipeError(f"{path} cannot be read ({error.strerror}): {way}") from None
    except (RecipeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: {error}") from None
    if not isinstance(values, dict):
        raise RecipeError(f"{path} is no mapping of keys to values, such as 'seed: 3'")
    return values
