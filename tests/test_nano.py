"""The agent that ships: small, made from made-up worlds, and able to use its tools on real facts."""

import json
import random
import shutil
from functools import partial

import pytest
from pretrain import batches, make_world, transcripts

from agentkit.nano import DATA
from agentkit.policies.loading import load_agent
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
    with pytest.raises(
        FileNotFoundError, match="is a LoRA adapter, and a model is wanted: fold it into its base"
    ):
        load_agent(str(tmp_path))


def test_a_damaged_model_is_a_sentence(tmp_path):
    folder = shutil.copytree(DATA, tmp_path / "agent")
    (folder / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(FileNotFoundError, match="cannot load the model .*/agent'"):
        load_agent(str(folder))
