"""Sharing prefixes changes nothing but the time: trees by law, numbers and gradients as the plain way."""

import re

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model

from agentkit.training import prefix as shared_prefix
from agentkit.training.prefix import build_tree, plain_logprobs, prepare, shared_logprobs

SHAPE = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}  # fmt: skip


def qwen3(**changes):
    torch.manual_seed(1)
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**(SHAPE | changes)))


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=9))
def test_trees_hold_every_prefix_once_and_paths_are_the_rows(rows):
    tree = build_tree(rows)
    assert len(tree.ids) == len({tuple(row[: n + 1]) for row in rows for n in range(len(row))})
    starts = [sum(tree.pieces[:n]) for n in range(len(tree.pieces))]
    ends = [start + size for start, size in zip(starts, tree.pieces, strict=True)]
    for row, path in zip(rows, tree.nodes, strict=True):
        assert tree.ids[path].tolist() == row and tree.positions[path].tolist() == list(range(len(row)))
    walked = [[n for piece in path for n in range(starts[piece], ends[piece])] for path in tree.paths]
    assert sum(tree.runs) == sum(tree.pieces) == len(tree.ids)
    first = 0
    for run, path in zip(tree.runs, walked, strict=True):
        assert path in [nodes.tolist() for nodes in tree.nodes] and path[-run:] == list(
            range(first, first + run)
        )
        first += run


@pytest.fixture(scope="module")
def batch():
    """Two groups of four: shared turns, a repeated row, one that begins another, tool tokens, padding."""
    torch.manual_seed(0)
    draw = lambda n: torch.randint(2, 61, (n,)).tolist()  # noqa: E731
    prompts = [row for row in (draw(12), draw(7)) for _ in range(4)]
    turn, other = draw(6), draw(9)
    completions = [turn + draw(5), turn + draw(8), draw(3), turn + draw(1)]
    completions += [other, other, other[:4], other[:4] + draw(7)]
    left, right = 14, max(map(len, completions)) + 2
    both = [*zip(prompts, completions, strict=True)]
    ids = [[0] * (left - len(p)) + p + c + [0] * (right - len(c)) for p, c in both]
    mask = [[0] * (left - len(p)) + [1] * len(p + c) + [0] * (right - len(c)) for p, c in both]
    ids, mask = torch.tensor(ids), torch.tensor(mask)
    scored = mask[:, -right:].bool() & (torch.arange(right) % 4 != 2)
    scored[3] = False  # a row of which nothing is wanted
    return ids, mask, scored


def found(score, model, batch, temperature=0.7, **options):
    """Log-probabilities, entropies and the gradient of a weighted sum."""
    model.zero_grad()
    logprobs, entropies = score(model, *batch, temperature, entropy=True, **options)
    weights = torch.cos(torch.arange(logprobs.numel())).reshape(logprobs.shape)
    (logprobs * weights).sum().backward()
    gradients = [p.grad.flatten() for p in model.parameters() if p.requires_grad and p.grad is not None]
    return logprobs.detach(), entropies, torch.cat(gradients)


def assert_same(ours, plain, error):
    for mine, theirs in zip(ours, plain, strict=True):
        assert mine.shape == theirs.shape
        assert (mine - theirs).norm() <= error * theirs.norm()


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_sharing_equals_the_plain_way_with_and_without_checkpointing(lora, batch):
    """In double precision, but for logits, norms and rotary angles, which are float32."""
    model = qwen3()
    if lora:
        model = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.2)
    model = model.double().train()
    plain = found(plain_logprobs, model, batch)
    assert prepare(model) is None and model.training
    ours = found(shared_logprobs, model, batch)
    assert_same(ours, plain, 1e-6)
    assert not ours[0][~batch[2]].any() and not ours[1][~batch[2]].any()
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable()
    assert_same(found(shared_logprobs, model, batch), plain, 1e-6)


def window():
    return transformers.MistralForCausalLM(transformers.MistralConfig(**SHAPE, sliding_window=8))


def capped():
    return transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**SHAPE, final_logit_softcapping=0.1))


@pytest.mark.parametrize("make", [window, capped, qwen3])
def test_the_output_layer_apart_gives_the_plain_way_and_few_logits_at_a_time(make, batch, monkeypatch):
    model, rows = make(), []
    assert shared_prefix.splits(model)
    plain, way = found(plain_logprobs, model, batch), (plain_logprobs, {"split": True})
    if make is qwen3:
        assert prepare(model) is None
        way = shared_logprobs, {}
    monkeypatch.setattr(shared_prefix, "CHUNK_ELEMENTS", {"cpu": 61 * 7})
    model.lm_head.register_forward_pre_hook(lambda _, inputs: rows.append(inputs[0].numel() // 32))
    assert_same(found(way[0], model, batch, **way[1]), plain, 1e-5)
    assert max(rows) == 7, "no more logits at a time, however many are scored"


def test_each_distinct_token_is_computed_once(batch):
    model = qwen3()
    assert prepare(model) is None
    seen = []
    model.model.layers[0].mlp.register_forward_hook(
        lambda module, inputs, output: seen.append(output.shape[:2].numel())
    )
    shared_logprobs(model, *batch, 1.0)
    rows, _ = shared_prefix._used(*batch)
    assert seen == [len({tuple(row[: n + 1]) for row in rows for n in range(len(row))})]
    assert seen[0] < batch[1].sum() / 2


def scaled():
    """A model whose logits are not its output layer's: only a comparison can tell."""
    model = qwen3()
    plain = model.forward

    def halved(*args, **kwargs):
        out = plain(*args, **kwargs)
        out.logits = out.logits / 2
        return out

    model.forward = halved
    return model


def eager():
    model = qwen3()
    model.set_attn_implementation("eager")
    return model


MAMBA = {"vocab_size": 61, "hidden_size": 32, "state_size": 4, "num_hidden_layers": 1, "pad_token_id": 0}


def recurrent():
    return transformers.MambaForCausalLM(transformers.MambaConfig(**MAMBA))


WHY = {window: "sliding_attention", recurrent: ".", scaled: "off by .* nats"}
WHY |= {eager: "its attention is 'eager'"}


@pytest.mark.parametrize("make", WHY)
def test_a_model_that_cannot_share_says_why_and_stays_as_it_was(make):
    model, why = make(), WHY[make]
    before = model.config._attn_implementation
    assert re.search(why, prepare(model) or "")
    assert model.config._attn_implementation == before
