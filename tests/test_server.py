"""Servers that misbehave: each fault ends in a sample from another replica or one clear sentence."""

import asyncio
import json
import shutil
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from engines import adapter_on
from safetensors.torch import load_file
from says import EndsAt
from servers import serving
from survive import tiny_agent

from agentkit.nano import DATA
from agentkit.policies import loading, serve, server
from agentkit.policies.engine_weights import save_lora
from agentkit.policies.server import API_KEY, ServerPolicy
from agentkit.records import Task
from agentkit.rollouts.policy import EngineError, Request, seed_number


class Replica:
    """What a server replies: its models, and to requests what ``answer`` gives; by default the seed's digits."""

    def __init__(self):
        self.models, self.answer = {"data": [{"id": "m"}]}, self.right

    def __call__(self, body):
        return (200, self.models) if body is None else self.answer(body)

    @staticmethod
    def right(body):
        ids = [int(digit) + 10 for digit in str(body["seed"])[: body["max_tokens"]]]
        return 200, choice(ids, [-0.5] * len(ids), "length")


@pytest.fixture
def two():
    with serving(Replica()) as a, serving(Replica()) as b:
        yield a, b


def adapted():
    return adapter_on(tiny_agent()[0], 0.02, rank=4)


def choice(ids, logprobs, reason="stop"):
    one = {"token_ids": ids, "logprobs": {"token_logprobs": logprobs}, "finish_reason": reason}
    return {"choices": [one]}


def requests(count, turn=0, length=6):
    return [Request(Task("t", "", ""), i, turn, [1, 2, i], (0, i, turn), length, 0.7) for i in range(count)]


def play(policy, asked):
    async def together():
        return await asyncio.gather(*map(policy.sample, asked))

    return asyncio.run(together())


def wanted(asked):
    return [[int(digit) + 10 for digit in str(seed_number(r.seed))[: r.max_new_tokens]] for r in asked]


def test_requests_carry_tokens_seed_and_temperature_and_spread_over_the_replicas(two):
    def slow(body):
        time.sleep(0.05)
        return Replica.right(body)

    for replica in two:
        replica.reply.answer = slow
    with ServerPolicy([two[0].url, two[1].url + "/v1/"], EndsAt()) as policy:
        asked = requests(20)
        assert [sample.ids for sample in play(policy, asked)] == wanted(asked)
        assert [len(replica.bodies) for replica in two] == [10, 10]
    body = two[0].bodies[0]
    sent = {"model": "m", "prompt": [1, 2, body["prompt"][2]], "max_tokens": 6, "temperature": 0.7}
    assert body | sent | {"stop_token_ids": [5], "return_token_ids": True} == body


FAULTS = {
    "failure": lambda body: (503, b"overloaded"),
    "dead line": lambda body: (200, None),
    "shutting down": lambda body: (200, choice([1], [-1.0], "abort")),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_replica_that_fails_loses_its_requests_to_the_other_and_nothing_is_sampled_twice(two, fault):
    two[0].reply.answer = FAULTS[fault]
    with ServerPolicy([replica.url for replica in two], EndsAt()) as policy:
        asked = requests(12)
        with pytest.warns(UserWarning, match=f"the server {two[0].url} failed: .*; it is asked again"):
            assert [sample.ids for sample in play(policy, asked)] == wanted(asked)
        two[0].seen.clear()
        play(policy, requests(4, 1))
        assert not two[0].bodies, "while another works, that one is asked first"


def test_a_server_that_is_started_again_loses_no_turn_and_is_given_the_adapter(two, monkeypatch):
    monkeypatch.setattr(server, "PAUSE_S", 0.05)
    holding_adapters(two[0])
    right = two[0].reply.answer
    with ServerPolicy([two[0].url], EndsAt()) as policy:
        policy.sync(adapted())
        two[0].reply.answer = FAULTS["failure"]
        again = lambda: (two[0].reply.models["data"].pop(), setattr(two[0].reply, "answer", right))  # noqa: E731
        threading.Timer(0.5, again).start()
        with pytest.warns(UserWarning, match="status 503"):
            assert [sample.ids for sample in play(policy, requests(3))] == wanted(requests(3))


def test_a_server_that_stays_away_ends_the_run_by_name(two, monkeypatch):
    monkeypatch.setattr(server, "RETRY_S", 0.3)
    monkeypatch.setattr(server, "PAUSE_S", 0.05)
    two[0].reply.answer = FAULTS["failure"]
    named = f"{two[0].url} does not serve any more: .*503: overloaded.*run this again to go on"
    with ServerPolicy([two[0].url], EndsAt()) as policy, pytest.warns(UserWarning):
        for work in (lambda: play(policy, requests(4)), lambda: policy.sync(adapted())):
            with pytest.raises(EngineError, match=named):
                work()


REPLIES = {
    "no ids": {"choices": [{"text": "hi", "logprobs": {"token_logprobs": [-1.0]}, "finish_reason": "stop"}]},
    "fewer numbers": choice([1, 2], [-1.0]),
    "not a number": choice([1], [None]),
    "not finite": json.dumps(choice([1], [float("nan")])).encode(),
    "text as ids": choice(["1"], [-1.0]),
    "too many": choice([1] * 9, [-1.0] * 9),
    "no JSON": b"<html>",
}


@pytest.mark.parametrize("reply", REPLIES)
def test_a_reply_that_is_not_whole_is_never_a_sample(two, reply):
    two[0].reply.answer = lambda body: (200, REPLIES[reply])
    with ServerPolicy([two[0].url], EndsAt()) as policy, pytest.raises(EngineError, match="returned .*token"):
        play(policy, requests(1))


def test_servers_are_met_before_anything_is_sampled(two):
    says = r"http://127.0.0.1:9 in server_urls .*it does not answer.*agentkit serve"
    with pytest.raises(EngineError, match=says):
        ServerPolicy([two[0].url, "http://127.0.0.1:9"], EndsAt())
    two[1].reply.models = {"data": [{"id": "other"}]}
    with pytest.raises(EngineError, match=r"different models \(m, other\)"):
        ServerPolicy([replica.url for replica in two], EndsAt())
    for two[1].reply.models in ({"data": []}, b"hello"):
        with pytest.raises(EngineError, match="does not say which model it serves"):
            ServerPolicy([two[1].url], EndsAt())


def holding_adapters(replica):
    """Have it list, load and unload adapters, as vLLM does."""

    def takes(body):
        names = replica.reply.models["data"]
        if "lora_path" in body:
            names.append({"id": body["lora_name"]})
        elif "lora_name" in body:
            names.remove({"id": body["lora_name"]})
        elif {"id": body["model"]} not in names:
            return 404, b"unknown"
        else:
            return Replica.right(body)
        return 200, {"success": True}

    replica.reply.answer = takes


def test_two_trainings_on_one_server_keep_their_own_adapters(two):
    """Each is answered from the folder that it handed over itself, also when the other has ended."""
    holding_adapters(two[0])
    model, folders = adapted(), {}
    takes = two[0].reply.answer

    def noting(body):
        if "lora_path" in body:
            folders[body["lora_name"]] = Path(body["lora_path"]).parent
        return takes(body)

    def answered_from(policy):
        asked = requests(3)
        two[0].seen.clear()
        assert [sample.ids for sample in play(policy, asked)] == wanted(asked)
        return {folders[body["model"]] for body in two[0].bodies}

    two[0].reply.answer = noting
    with ServerPolicy([two[0].url], EndsAt()) as one:
        with ServerPolicy([two[0].url], EndsAt()) as other:
            for _ in range(3):
                one.sync(model)
                other.sync(model)
                assert (answered_from(one), answered_from(other)) == ({one._folder}, {other._folder})
        assert answered_from(one) == {one._folder}


def test_the_key_comes_from_the_environment_and_a_refused_one_is_told_without_showing_it(two, monkeypatch):
    monkeypatch.setenv(API_KEY, "secret-1234")
    two[0].reply.answer = lambda body: (401, b"no: secret-1234")
    with ServerPolicy([two[0].url], EndsAt()) as policy, pytest.raises(EngineError, match=API_KEY) as error:
        play(policy, requests(1))
    assert "secret" not in str(error.value) and two[0].seen[0][1]["Authorization"] == "Bearer secret-1234"


@pytest.mark.slow
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed here")
def test_a_server_puts_no_model_on_a_card_before_vllm_does(tmp_path, monkeypatch):
    """One that is to be spread over several may fit none of them. Where nothing is merged no weight is read."""
    save_lora(adapter_on(loading.load_agent("nano")[0], 0.02), tmp_path / "adapter")
    shutil.copytree(DATA, tmp_path / "bare", ignore=shutil.ignore_patterns("*.safetensors"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    command, _ = serve.serve_command(str(tmp_path / "bare"), tmp_path / "none", tensor_parallel=2)
    assert {f"--model={tmp_path / 'bare'}", "--dtype=bfloat16"} <= {*command}
    assert not (tmp_path / "none").exists()
    for place in ("peft_model", "utils.save_and_load"):
        monkeypatch.setattr(f"peft.{place}.infer_device", lambda: "cpu")
    options = {"merge": [tmp_path / "adapter"], "tensor_parallel": 2}
    command, _ = serve.serve_command("nano", tmp_path / "one", **options)
    assert f"--model={tmp_path / 'one'}" in command and (tmp_path / "one" / "tokenizer.json").exists()
    assert load_file(tmp_path / "one" / "model.safetensors").popitem()[1].dtype == torch.bfloat16
