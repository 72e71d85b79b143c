"""A training of a model with a hub's name asks nobody: not at checkpoints, not at validations, not at its end."""

import socket

import huggingface_hub.constants
import pytest
from peft import get_peft_model
from survive import make_trainer, tiny_agent

from agentkit.policies.engine_weights import save_lora
from agentkit.recipe import Recipe
from agentkit.records import RecipeError
from agentkit.training import memory
from agentkit.training.adapters import lora, save_adapter
from agentkit.training.sft import fine_tune

NAME = "someone/a-model-of-theirs"


@pytest.fixture
def asked(monkeypatch):
    """Every connection or name that was asked for; none is made."""
    found = []

    def refuse(*arguments, **unused):
        found.append(arguments[:2])
        raise OSError("no network here")

    for environment in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(environment, raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return found


def from_a_hub():
    model, tokenizer = tiny_agent()
    model.name_or_path = model.config._name_or_path = NAME
    return model, tokenizer


def test_training_and_its_checkpoints_ask_nobody(tmp_path, asked):
    agent = from_a_hub()
    trainer = make_trainer(tmp_path / "run", agent=agent, steps=2, save_every=1, val_every=1)
    trainer.train()
    run = tmp_path / "run"
    assert NAME in (run / "adapter" / "adapter_config.json").read_text()
    assert list((run / "train" / "checkpoints").glob("checkpoint-*"))
    assert not asked, asked[:3]


def test_planning_memory_asks_nobody(asked):
    with pytest.raises(RecipeError, match="is not on this machine"):
        memory.plan(Recipe(model=NAME))
    assert not asked, asked[:3]


def test_the_cold_start_and_handing_an_adapter_over_ask_nobody(tmp_path, asked):
    model, tokenizer = from_a_hub()
    trainer = make_trainer(tmp_path / "run", agent=from_a_hub(), steps=1)
    trainer.train()
    demonstrations = trainer.run.trajectories(1)
    fine_tune(model, tokenizer, demonstrations, Recipe(lora_r=2, sft_batch=4), tmp_path / "sft")
    again = from_a_hub()[0]
    adapted = get_peft_model(again, lora(Recipe(lora_r=2), again))
    save_lora(adapted, tmp_path / "handed")
    save_adapter(adapted, tokenizer, tmp_path / "saved")
    assert not asked, asked[:3]
    with pytest.warns(UserWarning, match="Could not find a config file|offline|no network"):
        adapted.save_pretrained(tmp_path / "plain")
    assert asked, "PEFT's own way does ask: this test can fail"
