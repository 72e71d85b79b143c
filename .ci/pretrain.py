"""Make the small agent: a tokenizer and a model trained from nothing on transcripts about made-up worlds.

    .venv/bin/python .ci/pretrain.py                              # again; under 45 minutes on two cores
    .venv/bin/python .ci/pretrain.py --lab params/labs/drawing.py --out outputs/drawing-agent  # further

The transcripts are rollouts of the scripted expert through the real tools and the real rollout loop; half
come from a flawless expert, half from experts of mixed quality, as a crawl would hold both. Loss on the
expert's own tokens only. A made-up world is a corpus file with the same tables, names and numbers resembling
the real ones in form only, so the same families, tools and expert work on it. Everything is seeded. With
``--lab`` the agent that ships goes on with all its weights on flawless transcripts of that file's families
alone, for tasks that it has never met. Leaves out checkpoints to go on from: a new run starts over.
"""

import argparse
import copy
import dataclasses
import json
import math
import random
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from corpus import TABLES, build
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from agentkit.lab import Lab
from agentkit.nano import DATA, NANO
from agentkit.policies.loading import load_tokenizer, merged
from agentkit.policies.scripted import Flaws, ScriptedPolicy
from agentkit.policies.transformers import TransformersPolicy
from agentkit.records import RecipeError, SuiteError, Task, Trajectory
from agentkit.rollouts import Limits, rollout
from agentkit.tasks import DEFAULT_FAMILIES, Family, PlanError, shipped_families, solve
from agentkit.tools.corpus import Corpus, facts, passage

_NAMES = tomllib.loads(Path(__file__).with_name("names.toml").read_text(encoding="utf-8"))
_FRAGMENTS, _SMALL = _NAMES["fragments"].split(), _NAMES["small"].split()
TRIES = 2_000  # drafts of a family for a task
COUNTRIES, CITIES, ELEMENTS, FILMS = 60, 150, 60, 220


def word(rng: random.Random, parts: int | None = None) -> str:
    """One made-up capitalised word: fragments as many languages have them, or now and then any letters."""
    if rng.random() < 0.12:
        text = "".join(rng.choice(_NAMES["letters"]) for _ in range(rng.randint(2, 8)))
    else:
        text = "".join(rng.choice(_FRAGMENTS) for _ in range(parts or rng.choice([1, 2, 2, 2, 3])))
    return text.capitalize() + (rng.choice(_NAMES["suffixes"]) if rng.random() < 0.12 else "")


def place(rng: random.Random) -> str:
    words = [word(rng) for _ in range(rng.choices([1, 2, 3], [7, 4, 1])[0])]
    if len(words) == 3:
        words[1] = rng.choice(["and", "de", "of", "del", "la", words[1]])
    return rng.choices([" ", "-"], [6, 1])[0].join(words)


def person(rng: random.Random) -> str:
    first = word(rng, 2) if rng.random() < 0.9 else f"{rng.choice('ABCDEFGHJKLMNPRSTW')}."
    initial, particle = f"{rng.choice('ABCDEFGHJKLMNPRSTW')}.", rng.choice(["de", "van", "von", "Mc", "O'"])
    middle = rng.choices([[], [initial], [particle]], [10, 1, 2])[0]
    return " ".join([first, *middle, word(rng, rng.choice([1, 2, 3]))])


def title(rng: random.Random) -> str:
    """A made-up film title, with small words, numbers and punctuation as titles have them."""
    words = [word(rng) for _ in range(rng.choices([1, 2, 3, 4], [3, 4, 3, 1])[0])]
    for i in range(1, len(words)):
        if rng.random() < 0.35:
            words.insert(i, rng.choice(_SMALL))
    if rng.random() < 0.3:
        words.insert(0, rng.choice(["The", "The", "A", "My", "No", "I"]))
    if rng.random() < 0.08:
        words.append(str(rng.randint(2, 2100)))
    if rng.random() < 0.08:
        words[0] += rng.choice(["'s", ":", ",", " &", "!", "'", "."])
    return " ".join(words)


def _distinct(make: Callable[[random.Random], str], rng: random.Random, count: int) -> list[str]:
    names: dict[str, None] = {}
    while len(names) < count:
        names.setdefault(make(rng))
    return list(names)


def _element(rng: random.Random) -> str:
    return word(rng, rng.choice([2, 3])) + rng.choice(["", "ium", "on"])


def _size(rng: random.Random, low: float, high: float) -> int:
    return int(10 ** rng.uniform(low, high))


def make_world(path: str | Path, seed: int) -> Path:
    rng = random.Random(f"world-{seed}")
    countries, cities = _distinct(place, rng, COUNTRIES), _distinct(place, rng, CITIES)
    currencies = [word(rng) for _ in range(25)]
    tables: dict[str, list[tuple]] = {name: [] for name in TABLES}
    for i, name in enumerate(countries):
        people, area = _size(rng, 2.5, 9.2), _size(rng, 0.8, 7.2)
        currency, continent = rng.choice(currencies), rng.choice(_NAMES["continents"])
        tables["country"].append((name, f"{i:02d}", cities[i], people, area, currency, continent))
    for name in countries:
        others = [other for other in countries if other != name]
        tables["neighbour"] += [(name, other) for other in rng.sample(others, rng.choice([1, 1, 2, 3]))]
    tables["city"] = [
        (name, countries[i] if i < COUNTRIES else rng.choice(countries), _size(rng, 4.7, 7.4))
        for i, name in enumerate(cities)
    ]
    finders = _distinct(person, rng, ELEMENTS)
    for i, name in enumerate(_distinct(_element, rng, ELEMENTS)):
        symbol = name[: rng.choice([1, 2])].capitalize()
        weight, year = round(rng.uniform(1, 300), 3), rng.randint(1600, 2020)
        tables["element"].append((name, symbol, i + 1, weight, year, finders[i]))
    directors = _distinct(person, rng, FILMS // 3)
    tables["film"] = [
        (name, rng.randint(1920, 2020), rng.randint(40, 240), rng.choice(directors), rng.choice(countries))
        for name in _distinct(title, rng, FILMS)
    ]
    tables["indicator"] = [
        (name, year, round(rng.uniform(25, 90), 1), round(10 ** rng.uniform(2.3, 5), 1))
        for name in countries
        for year in rng.sample(range(1950, 2020), 3)
    ]
    return build(path, tables)


TEMPLATE = DATA / "chat_template.jinja"
VOCABULARY = 2048
MUON_RATE, ADAM_RATE = 2e-2, 3e-3
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKUP = ["<tools>", "</tools>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
UNCUT = Limits(max_turn_tokens=2048, max_tokens=8192)  # of the expert: the first tokenizer knows only bytes
# digits one by one, words with their leading space, and what lies between them: JSON syntax takes few tokens
_SPLIT = r"\p{N}| ?\p{L}+|(?:(?! \p{L})[^\p{L}\p{N}])+"
MODEL = {
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 48,
    "tie_word_embeddings": True,
    "max_position_embeddings": 2048,
    "rope_theta": 10_000.0,
}


def families_of(corpus: Corpus, lab: str = "") -> dict[str, Family]:
    """The families to train on: the three that ship, or those of a lab file alone."""
    if lab:
        opened = Lab.open({"lab": lab})
        return {name: opened.families[name] for name in sorted(opened.own_families)}
    shipped = shipped_families(corpus)
    return {name: shipped[name] for name in DEFAULT_FAMILIES}


def draft_tasks(
    corpus: Corpus, count: int, rng: random.Random, families: dict[str, Family] | None = None
) -> list[Task]:
    """Tasks of each of these families about one world, each solvable through the real tools.

    Raises SuiteError for a family that drafts none.
    """
    families, tasks, tries = families or families_of(corpus), [], 0
    while len(tasks) < count:
        name = list(families)[len(tasks) % len(families)]
        tries += 1
        if tries > TRIES * (len(tasks) + 1) or families[name].draft is None:
            raise SuiteError(f"family {name} has no tasks about made-up worlds")
        task = families[name].draft(corpus, rng)
        if task is None:
            continue
        try:
            if "search" in task.tools:  # which may find another fact; programs were run when drafted
                solve(task, families[name].environment())
        except PlanError:
            continue
        tasks.append(dataclasses.replace(task, id=f"{name}-{len(tasks)}", family=name))
    return tasks


def mixed_quality(rng: random.Random) -> list[Flaws]:
    """Twenty experts: ten flawless, ten with rates of their own."""
    names = ("skip_lookup", "wrong_operation", "in_head", "give_up", "malformed")
    return [Flaws()] * 10 + [Flaws(**{n: rng.choice([0, 0, 0.1, 0.3]) for n in names}) for _ in range(10)]


def transcripts(tokenizer: Any, worlds: range, per_world: int, lab: str = "") -> Iterator[list[Trajectory]]:
    """Each world's rollouts of experts of mixed quality; of a flawless one on a lab file's families.

    Two worlds at a time, each in a process of its own, while the caller waits: training has all cores.
    """
    play = partial(_play_world, tokenizer, per_world, lab)
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        for i in range(0, len(worlds), 2):
            yield from pool.map(play, worlds[i : i + 2])


def _play_world(tokenizer: Any, count: int, lab: str, number: int) -> list[Trajectory]:
    with tempfile.TemporaryDirectory() as folder:
        corpus = Corpus(make_world(Path(folder) / "world.sqlite", number))
        rng = random.Random(f"transcripts-{number}")
        policy, families = (
            ScriptedPolicy(tokenizer, Flaws() if lab else mixed_quality(rng)),
            families_of(corpus, lab),
        )
        tasks = draft_tasks(corpus, count, rng, families)
        return rollout(tasks, policy, environment=_environments(families), seed=number, limits=UNCUT)


def _environments(families: dict[str, Family]) -> dict[str, Any]:
    return {name: family.environment for name, family in families.items()}


def make_tokenizer() -> PreTrainedTokenizerFast:
    bytes_only = _wrap(_bpe([]))
    texts = [
        bytes_only.decode(t.prompt_ids + t.completion_ids)
        for batch in transcripts(bytes_only, range(900_000, 900_006), 250)
        for t in batch
    ]
    rng = random.Random("tokenizer")
    texts += [f" {rng.choice([person, place, title])(rng)}" for _ in range(20_000)]
    return _wrap(_bpe(texts))


def _bpe(texts: Sequence[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(MARKUP),
        special_tokens=CONTROL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _wrap(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    wrapped.add_tokens(MARKUP)  # added, not special: decoding keeps them
    wrapped.chat_template = TEMPLATE.read_text(encoding="utf-8")
    return wrapped


def make_model(tokenizer: Any, seed: int) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    ids = {
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
    }
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=len(tokenizer), **MODEL, **ids))


def batches(
    trajectories: Sequence[Trajectory], size: int, rng: random.Random, pad: int
) -> Iterator[tuple[torch.Tensor, ...]]:
    """Ids, labels and mask (B, T), rows of like length together, batches in random order."""
    order = sorted(trajectories, key=lambda t: len(t.completion_ids) + rng.random() * 30)
    groups = [order[i : i + size] for i in range(0, len(order), size)]
    rng.shuffle(groups)
    for group in groups:
        rows = [(t.prompt_ids + t.completion_ids, (0,) * len(t.prompt_ids) + t.action_mask) for t in group]
        yield collate(rows, pad)


def copy_batches(
    tokenizer: Any, steps: int, size: int = 32, count: int = 5
) -> Iterator[tuple[torch.Tensor, ...]]:
    """Ids, labels and mask of sentences about a made-up world, twice, in two orders; loss on the second time.

    Copying is the skill everything else rests on, learnt fastest where half of all tokens are copies.
    """
    with tempfile.TemporaryDirectory() as folder:
        for step in range(steps):
            if step % 50 == 0:
                corpus = Corpus(make_world(Path(folder) / f"{step}.sqlite", 800_000 + step))
                sentences = [passage(*fact) for fact in facts(corpus.connection)]
                rng = random.Random(f"copies-{step}")
            rows = []
            for _ in range(size):
                chosen = rng.sample(sentences, count)
                first = tokenizer("\n".join(chosen) + "\n")["input_ids"]
                second = tokenizer("\n".join(rng.sample(chosen, count)) + "\n")["input_ids"]
                rows.append((first + second, [0] * len(first) + [1] * len(second)))
            yield collate(rows, tokenizer.pad_token_id)


def collate(rows: Sequence[tuple[Sequence[int], Sequence[int]]], pad: int) -> tuple[torch.Tensor, ...]:
    """Ids, labels and mask (B, T) of rows (token ids, 1 where a token is trained), padded on the right."""
    tokens, trained = ([torch.tensor(values) for values in column] for column in zip(*rows, strict=True))
    ids = pad_sequence(tokens, batch_first=True, padding_value=pad)
    mask = pad_sequence([torch.ones_like(row) for row in tokens], batch_first=True)
    return ids, ids.where(pad_sequence(trained, batch_first=True).bool(), -100), mask


@dataclass(slots=True)
class _Training:
    """Model, optimiser and the running count; the learning rate decays over a wall-clock budget."""

    model: Any
    optimizers: dict[torch.optim.Optimizer, float]  # with the peak learning rate of each
    seconds: float
    start: float = field(default_factory=time.monotonic)
    step: int = 0
    tokens: int = 0
    losses: list[float] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)  # token ids

    def update(self, ids: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor) -> None:
        done = min(1.0, self.elapsed / self.seconds)
        share = min(1.0, (self.step + 1) / 50) * 0.5 * (1 + math.cos(math.pi * done))
        for optimizer, peak in self.optimizers.items():
            for group in optimizer.param_groups:
                group["lr"] = peak * share
        trained = labels[:, 1:] != -100  # padding is on the right: under causal attention it needs no mask
        with torch.autocast("cpu", torch.bfloat16):
            hidden = self.model.model(ids).last_hidden_state[:, :-1]
            logits = self.model.lm_head(hidden[trained])
        loss = torch.nn.functional.cross_entropy(logits.float(), labels[:, 1:][trained])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step, self.tokens = self.step + 1, self.tokens + int(mask.sum())
        self.seen.update(ids.unique().tolist())
        self.losses = [*self.losses[-49:], loss.item()]
        if self.step % 50 == 0:
            print(f"step {self.step} loss {self.loss:.4f} minutes {self.elapsed / 60:.1f}", flush=True)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.start

    @property
    def loss(self) -> float:
        return sum(self.losses) / len(self.losses)


@torch.no_grad()
def tell_apart(model: Any, unseen: Sequence[int], seed: int) -> None:
    """Move the embeddings of tokens that never occurred apart, each by a random vector of length 1.

    Pre-training pushes them all in one direction (a cosine of 0.97), which keeps them from being said; but
    an adapter of later training could then not choose between them. They keep that direction as well.
    """
    embeddings = model.get_input_embeddings().weight
    noise = torch.randn(len(unseen), embeddings.shape[1], generator=torch.Generator().manual_seed(seed))
    embeddings[list(unseen)] += torch.nn.functional.normalize(noise, dim=1).to(embeddings)


def make_optimizers(model: Any) -> dict[torch.optim.Optimizer, float]:
    """Muon for the layers' matrices, AdamW for embeddings and norms; each with its peak learning rate."""
    matrices, others = [], []
    for name, parameter in model.named_parameters():
        (matrices if parameter.ndim == 2 and "embed" not in name else others).append(parameter)
    muon = torch.optim.Muon(matrices, lr=0.0, weight_decay=0.01, momentum=0.95)
    adam = torch.optim.AdamW(others, lr=0.0, betas=(0.9, 0.98), weight_decay=0.0)
    return {muon: MUON_RATE, adam: ADAM_RATE}


def pretrain(
    out: Path = DATA,
    *,
    seed: int = 0,
    minutes: float = 44.0,
    lab: str = "",
    copy_steps: int = 400,
    per_world: int = 400,
    measured: int = 200,
) -> dict:
    """Train tokenizer and model and write them to ``out``; returns the report that is stored with them.

    Until it is done it stands beside that folder, in <out>.unfinished. Over ``minutes`` of wall clock the
    learning rate decays to zero; each of a world's transcripts is seen once, and success is told on
    ``measured`` tasks of another world. With a ``lab`` file the agent that ships is trained further on its
    families, and its tokenizer kept. Raises SuiteError for a family that has no tasks about made-up worlds.
    """
    tokenizer = load_tokenizer(NANO) if lab else make_tokenizer()
    model = merged(NANO, (), torch.float32).train() if lab else make_model(tokenizer, seed)
    training, rng = _Training(model, make_optimizers(model), 60 * minutes), random.Random(seed)
    for batch in copy_batches(tokenizer, 0 if lab else copy_steps):
        training.update(*batch)
    for number, world in enumerate(transcripts(tokenizer, range(1_000_000), per_world, lab)):
        for batch in batches(world, 16, rng, tokenizer.pad_token_id):
            training.update(*batch)
        if number % 10 == 9:
            save(model, tokenizer, out, {"unfinished": True, "steps": training.step, "seed": seed})
        if training.elapsed > training.seconds:
            break
    unseen = sorted(set(range(len(tokenizer))) - training.seen)
    if not lab:
        tell_apart(model, unseen, seed)
    report = {
        "seed": seed,
        "minutes": minutes,
        "lab": lab,
        "steps": training.step,
        "tokens": training.tokens,
        "unseen": len(unseen),
        "loss": training.loss,
        "greedy_success_unseen_world": greedy_success(model, tokenizer, lab, measured),
    }
    save(model, tokenizer, out, report)
    return report


def greedy_success(model: Any, tokenizer: Any, lab: str = "", count: int = 200) -> float:
    with tempfile.TemporaryDirectory() as folder:
        corpus = Corpus(make_world(Path(folder) / "unseen.sqlite", 1_000_000))
        families = families_of(corpus, lab)
        tasks = draft_tasks(corpus, count, random.Random("unseen"), families)
        policy = TransformersPolicy(model, tokenizer)
        trajectories = rollout(tasks, policy, environment=_environments(families), temperature=0.0)
    return sum(t.success or 0.0 for t in trajectories) / len(trajectories)


def save(model: Any, tokenizer: Any, out: Path, report: dict) -> None:
    """Write an agent beside ``out``, and once it is finished move its files there; others there stay."""
    out = out.resolve()
    new = out.with_name(f"{out.name}.unfinished")
    new.mkdir(parents=True, exist_ok=True)
    copy.deepcopy(model).to(torch.float16).save_pretrained(new)
    tokenizer.save_pretrained(new)
    shutil.copy(TEMPLATE, new)
    (new / "pretraining.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if "unfinished" not in report:
        out.mkdir(exist_ok=True)
        for file in new.iterdir():
            shutil.move(file, out / file.name)
        new.rmdir()


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=DATA, help="folder to write; else the agent that ships")
    parser.add_argument("--seed", type=int, default=0, help="of first weights and batches")
    parser.add_argument("--minutes", type=float, default=44.0, help="wall-clock budget of the training")
    parser.add_argument(
        "--lab", default="", help="train the agent that ships further on this file's families"
    )
    chosen = parser.parse_args(words)
    if chosen.lab and chosen.out == DATA:
        parser.error("say --out FOLDER: an agent for other families does not replace the one that ships")
    try:
        print(pretrain(**vars(chosen)))
    except (SuiteError, RecipeError) as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
