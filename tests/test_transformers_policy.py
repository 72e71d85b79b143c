"""The transformers policy: slots hold the right keys and values, whoever joins, leaves and comes back."""

import asyncio
import math
import os
import random
import time

import pytest
import torch
import transformers
from says import EndsAt

from agentkit.policies.loading import without_dropout
from agentkit.policies.slot_cache import SlotCache, memory_of, token_bytes
from agentkit.policies.transformers import TransformersPolicy
from agentkit.records import Task
from agentkit.rollouts.policy import EngineError, Request

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
         "vocab_size": 97}  # fmt: skip
TASK = Task("t", "", "", "exact", "A")


def tiny(kind=transformers.Qwen3ForCausalLM, config=transformers.Qwen3Config, **more):
    torch.manual_seed(1)
    return kind(config(**SIZES, **{"num_key_value_heads": 2, "head_dim": 8} | more)).eval()


def plain(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, -1]


def forgetful():
    """A model that does not hand on what its forward pass is called with besides."""
    model = tiny()
    forward = model.forward
    model.forward = lambda *args, attend=None, **kwargs: forward(*args, **kwargs)
    return model


def latent():
    """A model that makes keys and values anew from what the cache holds (multi-head latent attention)."""
    sizes = dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "head_dim"), 4)
    sizes |= {"q_lora_rank": 8, "kv_lora_rank": 8, "n_group": 1, "topk_group": 1, "n_routed_experts": 4}
    sizes |= {"num_experts_per_tok": 2, "moe_intermediate_size": 16, "num_key_value_heads": 4}
    return tiny(transformers.DeepseekV3ForCausalLM, transformers.DeepseekV3Config, **sizes)


@pytest.mark.parametrize("width", [1, 7])
@pytest.mark.parametrize("make", [tiny, forgetful, latent])
def test_logits_over_slots_equal_a_plain_forward_whatever_is_copied(make, width):
    model, rng = make(), random.Random(2)
    cache, held = SlotCache(model), {}
    for _ in range(30):
        if held and rng.random() < 0.3:  # others begin as one does
            source = rng.choice(list(held))
            targets = rng.sample(range(9), 2)
            rows = [held[source], *(held.get(target, []) for target in targets)]
            start = len(os.path.commonprefix(rows))
            cache.copy([source, source], targets, start, len(held[source]))  # what they have in common stays
            held |= dict.fromkeys(targets, held[source])
        slots = rng.sample(range(9), rng.randint(1, 7))
        new = [[rng.randrange(97) for _ in range(rng.randint(1, width))] for _ in slots]
        before = [held.get(slot, []) for slot in slots]
        logits = cache.forward(model, new, slots, [len(b) for b in before])
        for row, slot, tokens, old in zip(logits, slots, new, before, strict=True):
            held[slot] = old + tokens
            assert torch.allclose(row, plain(model, held[slot]), atol=1e-5)


def play(policy, count, seed=0, delay=lambda number, turn: 0.0, at_once=None):
    """Trajectories of random observations, all at once or so many: what each sampled by turn."""

    async def one(number, places):
        rng, ids, turns = random.Random(f"{seed}-{number}"), [number % 3 + 10, 20, 30], []
        async with places:
            policy.begin(number)
            try:
                for turn in range(rng.randint(1, 5)):
                    request = Request(TASK, number, turn, list(ids), (seed, number, turn), 9, 1.0)
                    found = await policy.sample(request)
                    turns.append((list(ids), found))
                    ids += found.ids + [rng.randrange(97) for _ in range(rng.randint(1, 12))]
                    await asyncio.sleep(delay(number, turn))
            finally:
                policy.end(number)
        return turns

    async def together():
        places = asyncio.Semaphore(at_once or count)
        return await asyncio.gather(*(one(number, places) for number in range(count)))

    return asyncio.run(together())


def assert_same(found, want):
    """The same tokens; their log-probabilities up to the rounding of different batches."""
    for one, other in zip(found, want, strict=True):
        assert [sample.ids for _, sample in one] == [sample.ids for _, sample in other]
        for (_, sample), (_, expected) in zip(one, other, strict=True):
            assert sample.logprobs == pytest.approx(expected.logprobs, abs=1e-5)


def test_turns_of_trajectories_that_join_and_leave_carry_right_logprobs():
    model, rng = tiny(), random.Random(4)
    found = play(TransformersPolicy(model, EndsAt()), 24, delay=lambda *_: rng.random() * 0.02)
    assert any(sample.ids[-1] == 5 for turns in found for _, sample in turns)
    for turns in found:
        for ids, sample in turns:
            with torch.no_grad():
                logits = model(torch.tensor([ids + sample.ids])).logits[0, len(ids) - 1 : -1]
            expected = torch.log_softmax(logits.float(), -1)[range(len(sample.ids)), sample.ids]
            assert torch.allclose(torch.tensor(sample.logprobs), expected, atol=1e-4)
            assert len(sample.ids) == 9 or sample.ids[-1] == 5


@pytest.mark.parametrize("max_batch", [4, 64])
def test_deterministic_batches_do_not_depend_on_timing(max_batch):
    model, rng, found = tiny(), random.Random(6), []
    for slow in (0.0, 0.02, 0.02, 0.02):
        policy = TransformersPolicy(model, EndsAt(), max_batch=max_batch, deterministic=True)
        found.append(play(policy, 12, delay=lambda *_, s=slow: rng.random() * s, at_once=max_batch))
    assert found == [found[0]] * 4, "log-probabilities to the last bit"


def test_numbers_that_are_not_finite_stop_the_rollout_and_leave_no_trace():
    model = tiny().train()
    policy, weight = TransformersPolicy(model, EndsAt()), model.model.embed_tokens.weight.data[20].clone()
    model.model.embed_tokens.weight.data[20] = torch.nan
    with pytest.raises(EngineError, match="not finite"):
        play(policy, 4)
    model.model.embed_tokens.weight.data[20] = weight
    found = play(policy, 4)
    policy._thread.submit(lambda: None).result()
    assert model.training, "it is left in its mode"
    assert_same(found, play(TransformersPolicy(model, EndsAt()), 4))


def test_a_rollout_cancelled_in_mid_batch_leaves_nothing_to_the_next():
    model = tiny()
    policy, forward = TransformersPolicy(model, EndsAt()), model.forward

    def slow(*args, **kwargs):
        time.sleep(0.02)
        return forward(*args, **kwargs)

    async def impatient():
        request = Request(TASK, 1, 0, [10, 20, 30], (0,), 200, 1.0)
        others = [Request(TASK, n, 0, [10, 20, n], (n,), 200, 1.0) for n in range(2, 9)]
        await asyncio.wait_for(asyncio.gather(*(policy.sample(r) for r in [request, *others])), 0.1)

    model.forward = slow
    with pytest.raises(TimeoutError):
        asyncio.run(impatient())
    assert policy._thread.submit(lambda: policy._steps).result() < 100, "it decodes on for nobody"
    model.forward = forward
    assert_same(play(policy, 12), play(TransformersPolicy(model, EndsAt()), 12))


def test_memory_goes_with_the_last_trajectory_and_with_the_weights():
    policy = TransformersPolicy(tiny(), EndsAt(), max_batch=8)
    layer, held = policy._cache.layers[0], []
    play(policy, 20, delay=lambda *_: held.append(layer.keys.shape[0]) or 0.0)
    assert max(held) == 8
    assert policy._thread.submit(lambda: layer.keys).result() is None, "the last one's end gives back all"
    model = policy.model

    async def across_weights():
        policy.begin(1)
        first = await policy.sample(Request(TASK, 1, 0, [10, 20, 30], (0,), 4, 1.0))
        with torch.no_grad():
            model.lm_head.weight.mul_(1.5)
            model.model.embed_tokens.weight.mul_(0.5)
        policy.sync(model)
        ids = [10, 20, 30, *first.ids, 7]
        return ids, await policy.sample(Request(TASK, 1, 1, ids, (1,), 1, 1.0))

    ids, found = asyncio.run(across_weights())
    expected = torch.log_softmax(plain(model, ids), -1)[found.ids[0]]
    assert abs(found.logprobs[0] - float(expected)) < 1e-5


def test_deterministic_batches_wait_for_trajectories_that_begin_late():
    """As on a busy machine: each trajectory's thread is held up for longer than an idle engine gathers."""
    model = tiny()
    expected = play(TransformersPolicy(model, EndsAt(), deterministic=True), 6)

    class Held(TransformersPolicy):
        def begin(self, trajectory):
            time.sleep(0.02)
            super().begin(trajectory)

    assert play(Held(model, EndsAt(), deterministic=True), 6) == expected


def bounded(model, tokens, **options):
    """A policy whose keys and values may take so many tokens' memory."""
    share = tokens * token_bytes(model.config, model.dtype) / memory_of(model.device)
    return TransformersPolicy(model, EndsAt(), memory_share=share * (1 + 1e-9), **options)


@pytest.mark.parametrize(("tokens", "deterministic"), [(110, False), (300, True)])
def test_a_bound_on_memory_leaves_fewer_slots_and_the_same_samples(tokens, deterministic):
    """Without a bound these 10 trajectories take some 10 x 50 tokens."""
    model = tiny()
    want, policy, seen = play(TransformersPolicy(model, EndsAt()), 10), bounded(model, tokens), []
    policy.deterministic = deterministic
    cache, forward = policy._cache, policy._cache.forward

    def measured(*asked):
        logits = forward(*asked)
        taken = sum(store.nbytes for layer in cache.layers for store in (layer.keys, layer.values))
        assert taken == math.prod(cache.shape) * token_bytes(model.config, model.dtype)
        seen.append(cache.shape)
        return logits

    cache.forward = measured
    assert_same(play(policy, 10), want)
    assert max(slots * length for slots, length in seen) <= policy._cache.room == tokens
    assert min(slots for slots, _ in seen) < 10, "the longer they get, the fewer there are"


def test_one_trajectory_that_memory_does_not_hold_is_told_so():
    with pytest.raises(EngineError, match="engine_memory leaves room for 20. Raise it, lower max_tokens"):
        play(bounded(tiny(), 20), 3)


def test_a_model_with_dropout_computes_in_training_what_it_computes_in_sampling():
    """Granite's attention drops a tenth of what it attends to, by a number and no module."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    small = transformers.GraniteConfig(**sizes, num_key_value_heads=1, vocab_size=50, attention_dropout=0.5)
    model, ids = transformers.AutoModelForCausalLM.from_config(small).train(), torch.arange(20)[None]
    assert not torch.equal(model(ids).logits, model(ids).logits)
    assert torch.equal(without_dropout(model)(ids).logits, model.eval()(ids).logits)
