"""GRPO trains sampled tokens only, on real TRL, with the small agent."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from labs import lab_with
from safetensors.torch import load_file
from survive import SMALL as SURVIVE
from survive import Silent, evenness, tasks, tiny_agent
from trl.chat_template_utils import gemma4_template

from agentkit.evaluation import summarize
from agentkit.lab import Lab
from agentkit.policies.loading import load_agent
from agentkit.recipe import Recipe
from agentkit.records import RecipeError
from agentkit.runs import Run, read_jsonl
from agentkit.training import prefix, sft
from agentkit.training.grpo import AgentGRPOTrainer, train
from agentkit.training.sft import cold_start, demonstrations, sft_dataset

SMALL = {"steps": 2, "prompts_per_step": 2, "group_size": 4, "micro_batch": 4, "val_every": 1, "val_tasks": 3, "lora_r": 4,
         "temperature": 1.0, "learning_rate": 1e-3, "beta": 0.02, "max_turns": 4, "max_turn_tokens": 48}  # fmt: skip


def trainer(suite, path, **changes) -> AgentGRPOTrainer:
    recipe = Recipe.from_mapping(SMALL | changes)
    tasks = suite.split("train"), suite.split("validation")
    return AgentGRPOTrainer(Lab.open(recipe), *load_agent("nano"), *tasks, Run.create(path))


@pytest.fixture(scope="module")
def scored(suite, tmp_path_factory):
    """A trainer and one batch as TRL hands it to the loss."""
    made = trainer(suite, tmp_path_factory.mktemp("grpo") / "run", steps=1)
    rows = [made.train_dataset[i // 4] for i in range(8)]
    made.model.train()
    batch = made._generate_and_score_completions([dict(row) for row in rows])
    return made, batch


def loss_and_gradient(made, batch):
    made.model.zero_grad()
    made.current_gradient_accumulation_steps = 1
    loss = made._compute_loss(made.model, batch)
    loss.backward()
    return loss.item(), torch.cat([p.grad.flatten() for p in made.model.parameters() if p.grad is not None])


def with_signal(made, batch):
    """The batch with advantages that are not zero, whatever the rewards were, and adapters away from zero."""
    batch = dict(batch)
    batch["advantages"] = torch.linspace(-1, 1, len(batch["advantages"]))
    torch.manual_seed(0)
    for name, parameter in made.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    return batch


def test_observation_targets_change_neither_loss_nor_gradient(scored, monkeypatch):
    """Targets, not inputs: the scored token ids at observation positions are replaced, the context stays."""
    made, batch = scored
    batch = with_signal(made, batch)
    observed = (batch["tool_mask"] == 0) & (batch["completion_mask"] == 1)
    assert observed.any()
    loss, gradient = loss_and_gradient(made, batch)
    original = made._get_per_token_logps_and_entropies

    def other_targets(model, ids, mask, keep, **options):
        logprobs, entropies, aux = original(model, ids, mask, keep, **options)
        changed = ids.clone()
        changed[:, -keep:][observed] = 7
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        out = model(input_ids=ids, attention_mask=mask, position_ids=positions, logits_to_keep=keep + 1)
        distribution = torch.log_softmax(out.logits[:, :-1].float() / made.temperature, dim=-1)
        replaced = distribution.gather(2, changed[:, -keep:, None]).squeeze(2)
        assert not torch.allclose(replaced[observed], logprobs[observed])
        return replaced, entropies, aux

    monkeypatch.setattr(made, "_get_per_token_logps_and_entropies", other_targets)
    loss_2, gradient_2 = loss_and_gradient(made, batch)
    assert loss_2 == pytest.approx(loss, abs=1e-7)
    assert torch.allclose(gradient, gradient_2, atol=1e-7)


def test_without_the_mask_the_gradient_would_differ(scored):
    made, batch = scored
    batch = with_signal(made, batch)
    _, gradient = loss_and_gradient(made, batch)
    _, unmasked = loss_and_gradient(made, batch | {"tool_mask": torch.ones_like(batch["tool_mask"])})
    assert not torch.allclose(gradient, unmasked, atol=1e-6)


def test_the_batch_carries_the_trajectories_as_sampled(scored):
    made, batch = scored
    assert len(made.step.trajectories) == 8
    assert [t.task_id for t in made.step.trajectories] == [
        made.train_dataset[i // 4]["task_id"] for i in range(8)
    ]
    for i, t in enumerate(made.step.trajectories):
        length = len(t.completion_ids)
        assert batch["completion_ids"][i, :length].tolist() == list(t.completion_ids)
        assert batch["tool_mask"][i, :length].tolist() == list(t.action_mask)
        assert t.advantage == pytest.approx(batch["advantages"][i].item())
    stored = made.run.trajectories(1)
    assert [t.completion_ids for t in stored] == [t.completion_ids for t in made.step.trajectories]


def test_what_a_task_or_a_completion_says_is_nothing_to_trl(tmp_path):
    """Half a character in a prompt, and a call that the parser of a model's own template does not survive."""
    model, tokenizer = tiny_agent()
    tokenizer.response_template = gemma4_template
    ids = tokenizer('<|tool_call>call:f{"a":' + "[" * 1200, add_special_tokens=False)["input_ids"]
    lab = lab_with(Recipe.from_mapping(SURVIVE), Silent, {"evenness": (evenness, 1.0)})
    odd, run = [replace(task, prompt="Say \ud83d") for task in tasks()], Run.create(tmp_path / "run")
    made = AgentGRPOTrainer(lab, model, tokenizer, odd, tasks(2, "validation"), run)
    given = {"prompt_ids": [[1]], "completion_ids": [ids], "logprobs": [[0.0] * len(ids)]}
    made.rollout_func = lambda prompts, trainer: dict(given)
    assert made._generate([made.train_dataset[0]["prompt"]])[1] == [ids]


def test_sampled_and_recomputed_logprobs_agree_on_the_batch(scored):
    """The ratio of the first update is one: what sampling recorded is what the trainer computes."""
    made, batch = scored
    for name, parameter in made.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.zeros_(parameter)
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    with torch.no_grad():
        found, _, _ = made._get_per_token_logps_and_entropies(
            made.model, ids, mask, batch["completion_ids"].shape[1]
        )
    own = (batch["completion_mask"] * batch["tool_mask"]).bool()
    assert torch.allclose(found[own], batch["old_per_token_logps"][own], atol=1e-4)


def test_shared_prefixes_change_neither_loss_nor_gradient_and_repeat_to_the_bit(scored, monkeypatch):
    made, batch = scored
    assert made.unshared is None
    batch = with_signal(made, batch)
    loss, gradient = loss_and_gradient(made, batch)
    again, gradient_again = loss_and_gradient(made, batch)
    assert again == loss and torch.equal(gradient, gradient_again)
    monkeypatch.setattr(made, "_score", prefix.plain_logprobs)
    plain, expected = loss_and_gradient(made, batch)
    assert loss == pytest.approx(plain, rel=1e-5, abs=1e-6)
    assert (gradient - expected).norm() < 1e-5 * expected.norm()


def test_engine_mismatch_is_weighed_on_sampled_tokens(scored):
    """An engine that saw half the trainer's probability everywhere: each ratio is 2, and C = 1.5 caps it."""
    made, batch = scored
    output = with_signal(made, batch)
    own = (output["completion_mask"] * output["tool_mask"]).bool()
    made.correct_mismatch(output, output["old_per_token_logps"], "token_truncate", 2.0)
    trained = output["old_per_token_logps"]
    sampled = (trained - 0.6931472) * own
    again = with_signal(made, batch)
    told = made.correct_mismatch(again, sampled, "token_truncate", 1.5)
    assert told == pytest.approx({"mismatch_weight": 1.5, "effective_samples": 1.0}, rel=1e-5)
    assert made.compare_engine(again, sampled, 1e-4).mean == pytest.approx(0.6931472, rel=1e-5)
    expected = torch.linspace(-1, 1, len(own))[:, None] * torch.where(own, 1.5, 1.0)
    assert torch.allclose(again["advantages"], expected) and torch.equal(
        again["old_per_token_logps"], trained
    )


def test_rewards_are_the_additive_reward_of_the_plan(scored):
    made, _ = scored
    for t in made.step.trajectories:
        results = [r.ok for turn in t.turns for r in turn.results]
        expected = t.success + 0.1 * sum(results) / max(len(results), 1) - 0.02 * len(t.turns) * t.success
        assert t.reward == pytest.approx(expected)


def test_a_short_run_writes_everything_and_keeps_the_best_adapter(suite, tmp_path):
    made = trainer(suite, tmp_path / "run")
    result = train(made)
    rows = read_jsonl(made.run.file("train", "metrics.jsonl"))
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert {"reward", "reward/correctness", "success", "kl", "entropy", "grad_norm", "clip_fraction", "dead_groups",
            "turns", "tool_failure_rate", "val_success", "val_ci_low"} <= rows[-1].keys()  # fmt: skip
    assert made.run.steps == [1, 2] and len(made.run.trajectories(2)) == 8
    assert result["best_val_success"] == max(row["val_success"] for row in rows)
    assert made.run.file("adapter", "adapter_model.safetensors").exists()
    model, _ = load_agent("nano", merge=[made.run.file("adapter")])
    assert not hasattr(model, "peft_config")


@pytest.mark.parametrize("long", ["train-2", "validation-0"])
def test_a_prompt_that_is_too_long_is_told_of_before_the_first_step(tmp_path, long):
    model, tokenizer = tiny_agent()
    model.config.max_position_embeddings = 700
    train, validation = (
        [replace(task, prompt="Say it. " * 400) if task.id == long else task for task in tasks(3, split)]
        for split in ("train", "validation")
    )
    run = Run.create(tmp_path / "run")
    lab = lab_with(Recipe.from_mapping(SURVIVE), Silent, {"evenness": (evenness, 1.0)})
    says = rf"task {long} has \d+ tokens, and the engine reads 700 .*max_prompt_tokens"
    with pytest.raises(RecipeError, match=says):
        AgentGRPOTrainer(lab, model, tokenizer, train, validation, run)


def test_two_runs_with_one_seed_are_the_same(suite, tmp_path):
    found = []
    for name in ("a", "b"):
        made = trainer(suite, tmp_path / name)
        train(made)
        found.append([t.completion_ids for step in (1, 2) for t in made.run.trajectories(step)])
    assert found[0] == found[1]


def test_num_iterations_reuses_a_batch_and_moves_the_ratio(suite, tmp_path):
    made = trainer(suite, tmp_path / "run", num_iterations=2, learning_rate=0.02, val_tasks=1)
    train(made)
    assert made.run.steps == [1], "two optimiser steps on one batch of rollouts"


def test_old_logprobs_that_trl_has_computed_are_not_computed_again(suite, tmp_path, monkeypatch):
    """TRL does for several updates on one batch: with the mask, temperature and passes of our own."""
    made = trainer(suite, tmp_path / "run", steps=1, num_iterations=2, beta=0.0, mismatch="token_truncate")
    made.model.train()
    rows = [dict(made.train_dataset[i // 4]) for i in range(8)]
    passes, score = [], made._score
    monkeypatch.setattr(made, "_score", lambda *given: passes.append(given[0]) or score(*given))
    monkeypatch.setattr(made, "compare_engine", lambda *given: None)
    output = made._generate_and_score_completions(rows)
    assert len(passes) == 2, "micro-batches of 4"
    again = made._batch_logprobs(output, (output["completion_mask"] * output["tool_mask"]).bool())
    assert torch.equal(output["old_per_token_logps"], again)


def test_the_cold_start_trains_assistant_tokens_only(suite, tmp_path):
    recipe = Recipe.from_mapping(
        {"sft": True, "sft_transcripts": 1, "sft_learning_rate": 1e-3, "sft_batch": 8, "lora_r": 4}
    )
    model, tokenizer = load_agent("nano")
    found = demonstrations(Lab.open(recipe), suite.split("train")[:24], tokenizer)
    assert summarize(found)["success"] == 1.0
    row = sft_dataset(found)[0]
    text = tokenizer.decode([i for i, m in zip(row["input_ids"], row["assistant_masks"], strict=True) if m])
    assert "tool_response" not in text and "Answer:" in text and "im_start" not in text
    before = copy.deepcopy(model.state_dict())
    log = cold_start(model, tokenizer, found, recipe, tmp_path / "sft")
    assert [path.name for path in tmp_path.iterdir()] == ["sft"], "and nothing else"
    assert len(log) == 3 and all(row["loss"] < 5 for row in log)
    merged, _ = load_agent("nano", merge=[tmp_path / "sft"])
    assert any(not torch.equal(before[name], value) for name, value in merged.state_dict().items())


def test_a_cold_start_learns_the_same_whether_it_shares_prefixes_and_in_however_many_passes(
    suite, tmp_path, monkeypatch
):
    calls, whole, found, ways = [], prefix.shared_logprobs, None, []
    monkeypatch.setattr(prefix, "shared_logprobs", lambda *a, **k: calls.append(1) or whole(*a, **k))
    for wanted, rows in ((True, 8), (False, 8), (True, 2)):
        monkeypatch.setattr(sft, "MICRO_BATCH", rows)
        keys = {"sft_batch": 8, "lora_r": 4, "sft": True, "share_prefixes": wanted}
        recipe = Recipe.from_mapping(keys)
        model, tokenizer = load_agent("nano")
        found = found or demonstrations(Lab.open(recipe), suite.split("train")[:24], tokenizer)
        out = tmp_path / f"{wanted}-{rows}"
        log = cold_start(model, tokenizer, found, recipe, out)
        ways.append(([row["loss"] for row in log], load_file(out / "adapter_model.safetensors")))
    assert len(log) == 6 and len(calls) == (1 + 6) + (1 + 4 * 6), "the second way shares nothing"
    whole, ours = ways[0]
    for losses, theirs in ways[1:]:
        assert whole == pytest.approx(losses, rel=1e-4)
        assert all(torch.allclose(ours[name], theirs[name], atol=1e-4) for name in theirs)


class Judging(Silent):
    """An environment from elsewhere that owns its reward, as in TRL's environment_factory."""

    made = 0

    def __init__(self):
        Judging.made += 1
        self.number = Judging.made

    def get_reward(self) -> float:
        return float("nan") if self.number % 8 == 1 else float(self.number % 3)


def test_an_environments_own_reward_is_trained_on_beside_the_others(tmp_path):
    recipe = Recipe.from_mapping(SURVIVE | {"steps": 1})
    model, tokenizer = tiny_agent()
    lab = lab_with(recipe, {"tiny": Judging, "other": Silent}, {"evenness": (evenness, 2.0)})
    with pytest.warns(UserWarning, match="'Judging' failed .*Judging.get_reward failed: "):
        made = AgentGRPOTrainer(lab, model, tokenizer, tasks(4), [], Run.create(tmp_path / "run"))
        train(made)
    stored = made.run.trajectories(1)
    for t in stored:
        own = t.components["Judging"]
        assert t.reward == (None if own is None else pytest.approx(2 * t.components["evenness"] + own))
    assert {t.components["Judging"] for t in stored} >= {None, 1.0, 2.0}
    assert {"reward/Judging", "weighted/evenness"} <= set(made.run.metrics.columns)
