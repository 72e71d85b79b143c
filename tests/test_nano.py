"""The agent that ships: small, made from made-up worlds, and able to use its tools on real facts."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
from functools import partial

import pretrain as module
import pytest
import torch
from pretrain import (
    _play_world,
    batches,
    collate,
    copy_batches,
    draft_tasks,
    main,
    make_model,
    make_optimizers,
    make_world,
    pretrain,
    tell_apart,
    transcripts,
)

from agentkit.nano import DATA
from agentkit.policies.loading import load_agent, load_tokenizer
from agentkit.policies.transformers import TransformersPolicy
from agentkit.rollouts import rollout
from agentkit.tools.corpus import Corpus, facts
from agentkit.tools.environments import CorpusEnvironment


def test_it_is_small_and_of_the_stated_architecture():
    model, tokenizer = load_agent("nano")
    assert 1e6 <= model.num_parameters() <= 4e6 and model.config.model_type == "qwen3"
    assert sum(f.stat().st_size for f in DATA.iterdir()) < 8e6
    assert "unfinished" not in json.loads((DATA / "pretraining.json").read_text())
    assert all(len(tokenizer(digits)["input_ids"]) == len(digits) for digits in ("7", "66987244", "2024"))


def test_tokens_that_pretraining_never_met_can_be_told_apart():
    """Later training must be able to choose between them: braces and quotes of other calls are among them."""
    model, tokenizer = load_agent("nano")
    embeddings = torch.nn.functional.normalize(model.get_input_embeddings().weight.detach().float(), dim=1)
    pieces = ["{", "}}", '": ', '["', "()", "[", "]", "<|", "&", "$", "%", "Q", "X", "Z"]
    ids = sorted({token for piece in pieces for token in tokenizer(piece)["input_ids"]})
    near = (embeddings[ids] @ embeddings.T).index_fill(1, torch.tensor(ids), 0.0)
    alike = (embeddings[ids] @ embeddings[ids].T).fill_diagonal_(0.0)
    assert near.max() < 0.9 and alike.max() < 0.9

    small = make_model(tokenizer, 0)
    weights = small.get_input_embeddings().weight
    before = weights.detach().clone()
    with torch.no_grad():
        weights[[3, 5, 7]] = weights[3].clone()
    tell_apart(small, [3, 5, 7], seed=0)
    directions = torch.nn.functional.normalize(weights.detach()[[3, 5, 7]], dim=1)
    assert (directions @ directions.T).fill_diagonal_(0.0).max() < 0.5
    others = [token for token in range(len(weights)) if token not in (3, 5, 7)]
    assert torch.equal(weights[others], before[others])


def test_made_up_worlds_state_no_fact_of_the_corpus(corpus, tmp_path):
    real = {(kind, entity, str(value)) for kind, entity, value in facts(corpus.connection)}
    for seed in range(3):
        world = Corpus(make_world(tmp_path / f"{seed}.sqlite", seed))
        made_up = {(kind, entity, str(value)) for kind, entity, value in facts(world.connection)}
        assert len(made_up) > 1000 and not made_up & real


def test_it_uses_its_tools_on_real_facts(suite, corpus):
    """Greedily it solves most easy tasks: the formats and the copying carry over to names it never saw."""
    tasks = [t for t in suite if t.difficulty == "easy"][:40]
    found = rollout(
        tasks,
        TransformersPolicy(*load_agent("nano")),
        environment=partial(CorpusEnvironment, corpus),
        temperature=0.0,
    )
    assert sum(t.success for t in found) / len(found) > 0.6


def test_pretraining_data_train_the_expert_s_own_tokens_only(tmp_path):
    _, tokenizer = load_agent("nano")
    world = next(transcripts(tokenizer, range(7, 8), 12))
    for ids, labels, mask in batches(world, 4, random.Random(0), tokenizer.pad_token_id):
        text = tokenizer.decode(ids[labels != -100])
        assert "<tool_response>" not in text and "Answer:" in text
        assert (labels[mask == 0] == -100).all()


def test_an_adapter_that_is_named_as_a_model_is_told_what_to_do(tmp_path):
    """What TRL and Unsloth leave of a supervised fine-tuning."""
    from engines import adapter_on

    model, tokenizer = load_agent("nano")
    adapter_on(model, 0.01, rank=2).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(FileNotFoundError, match="is a LoRA adapter, and a model is wanted: fold it in first"):
        load_agent(str(tmp_path))


@pytest.mark.parametrize("content", [b"version https://git-lfs.github.com/spec/v1\n", b"\x08"])
def test_a_damaged_model_is_a_sentence(tmp_path, content):
    """Such as one that git-lfs was to bring, or half of one."""
    folder = shutil.copytree(DATA, tmp_path / "agent")
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(FileNotFoundError, match="cannot load the model .*/agent'"):
        load_agent(str(folder))


@pytest.mark.slow
def test_an_agent_takes_the_place_of_another_only_when_it_is_done(tmp_path, monkeypatch):
    """It trains on the CPU in float32, whatever else the machine has."""
    out = shutil.copytree(DATA, tmp_path / "agent")
    (out / "mine.txt").write_text("x")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    world = _play_world(load_tokenizer("nano"), 2, ("A",), 7)

    def stopped(*unused):
        yield from [world] * 10
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "transcripts", stopped)
    with monkeypatch.context() as with_gpu, pytest.raises(KeyboardInterrupt):
        with_gpu.setattr(torch.cuda, "is_available", lambda: True)
        pretrain(out, lab="params/labs/drawing.py")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert "unfinished" in json.loads((tmp_path / "agent.unfinished" / "pretraining.json").read_text())
    assert pretrain(out, lab="params/labs/drawing.py", minutes=1e-6, measured=1)["steps"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["agent"] and before.keys() == {*os.listdir(out)}
    assert json.loads((out / "pretraining.json").read_text())["lab"] == "params/labs/drawing.py"
    load_agent(str(out))


@pytest.mark.slow
def test_trained_further_on_other_families_it_is_an_agent_of_its_own(tmp_path):
    report = pretrain(tmp_path / "agent", minutes=0.4, per_world=32, measured=4, lab="params/labs/drawing.py")
    assert report["steps"] >= 2 and math.isfinite(report["loss"])
    (own, tokenizer), (shipped, its) = load_agent(str(tmp_path / "agent")), load_agent("nano")
    assert tokenizer.get_vocab() == its.get_vocab()
    assert any(not torch.equal(a, b) for a, b in zip(own.parameters(), shipped.parameters(), strict=True))


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--lab", "params/labs/drawing.py"], "say --out FOLDER"),
        (["--lab", "drawings.py", "--out", "other"], "there is no file 'drawings.py'"),
    ],
)
def test_its_command_says_what_is_missing(words, fault, capsys):
    with pytest.raises(SystemExit):
        main(words)
    assert fault in capsys.readouterr().err


def test_copying_is_said_twice_and_trained_once():
    _, tokenizer = load_agent("nano")
    ids, labels, mask = next(copy_batches(tokenizer, 1, size=3, count=4))
    for row, label, own in zip(ids, labels, mask, strict=True):
        trained = label != -100
        first, second = row[(own == 1) & ~trained], row[trained]
        assert sorted(tokenizer.decode(first).split("\n")) == sorted(tokenizer.decode(second).split("\n"))


@pytest.mark.slow
def test_a_few_steps_from_nothing_lower_the_loss(tmp_path):
    _, tokenizer = load_agent("nano")
    model = make_model(tokenizer, seed=0)
    optimizers = make_optimizers(model)
    rows = [([1, 2, 3, 4, 5, 6] * 2, [0] * 6 + [1] * 6)] * 4
    losses = []
    for _ in range(12):
        ids, labels, mask = collate(rows, tokenizer.pad_token_id)
        loss = model(ids, attention_mask=mask, labels=labels).loss
        loss.backward()
        for optimizer, rate in optimizers.items():
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0] and torch.isfinite(torch.tensor(losses)).all()


def test_the_same_seed_makes_the_same_world_and_tasks(tmp_path):
    found = []
    for name in ("a", "b"):
        world = Corpus(make_world(tmp_path / f"{name}.sqlite", 3))
        found.append([(t.prompt, t.answer) for t in draft_tasks(world, 20, random.Random(1))])
    assert found[0] == found[1]
