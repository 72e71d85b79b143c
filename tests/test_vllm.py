"""vLLM for real, in this process and as servers: transformers' tokens, and clear ends when something dies."""

import os
import random
import signal
import subprocess
import threading
import time
from functools import partial
from importlib.util import find_spec

import httpx
import pytest
import torch
from engines import adapter_on, free_port, move, sampled

from agentkit import Lab, Recipe
from agentkit.policies import sync_guard as guard
from agentkit.policies.loading import load_agent
from agentkit.policies.serve import serve_command
from agentkit.policies.server import ServerPolicy
from agentkit.policies.transformers import TransformersPolicy
from agentkit.policies.vllm import VllmPolicy
from agentkit.rollouts import Limits, rollout
from agentkit.rollouts.policy import EngineError
from agentkit.runs import Run, read_jsonl
from agentkit.tools.environments import CorpusEnvironment
from agentkit.training.loop import GRPO

if find_spec("vllm") is None and not torch.__version__.endswith("+cpu"):
    told = "vLLM is not installed here; make setup-test installs it where torch is its CPU build"
    pytest.skip(told, allow_module_level=True)

pytestmark = pytest.mark.slow
LIMITS = Limits(max_turns=4, max_turn_tokens=40)
START_S = 400.0  # servers on a busy machine
RANK = 4


@pytest.fixture(scope="module", autouse=True)
def processes(tmp_path_factory):
    """Two servers, started at once, to come up during the first tests."""
    folder, found = tmp_path_factory.mktemp("served"), []
    keys = {"max_length": 2048, "max_lora_rank": RANK, "precision": "float32"}
    for number in range(2):
        port = free_port()
        command, environment = serve_command("nano", folder / str(number), port=port, **keys)
        log = (folder / f"{number}.log").open("wb")
        options = {"stdout": log, "stderr": subprocess.STDOUT, "start_new_session": True}
        child = subprocess.Popen(command, env=environment, **options)
        found.append((f"http://127.0.0.1:{port}", child, folder / f"{number}.log"))
    yield found
    for _, child, _ in found:
        kill(child)


def kill(child):
    """The server and its engine, at once and without a word."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


@pytest.fixture(scope="module")
def servers(processes):
    deadline = time.monotonic() + START_S
    for url, child, log in processes:
        while True:
            try:
                if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                    break
            except httpx.HTTPError:
                time.sleep(0.3)
            assert child.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
    return processes


@pytest.fixture(scope="module")
def agent():
    model, tokenizer = load_agent("nano")
    return adapter_on(model, 0.02, rank=RANK), tokenizer


@pytest.fixture(scope="module")
def engine(agent):
    before, torchs = (random.getstate(), os.environ.get("LD_PRELOAD")), torch.get_rng_state()
    with VllmPolicy(*agent, "vllm", max_length=2048) as policy:
        after = random.getstate(), os.environ.get("LD_PRELOAD")
        assert torch.equal(torchs, torch.get_rng_state()) and before == after, "it disturbs the process"
        yield policy
    assert not torch.distributed.is_initialized()


def play(policy, suite, corpus, count=6, **options):
    environment = partial(CorpusEnvironment, corpus)
    tasks = suite.split("train")[:count]
    return rollout(tasks, policy, environment=environment, limits=LIMITS, **{"temperature": 0.0} | options)


def assert_same(found, wanted):
    assert [t.completion_ids for t in found] == [t.completion_ids for t in wanted]
    for a, b in zip(found, wanted, strict=True):
        assert torch.allclose(torch.tensor(a.old_logprobs), torch.tensor(b.old_logprobs), atol=1e-4)


def ask(policy, count):
    """Turns of several trajectories at once."""
    ids = policy.tokenizer("Which of the two is larger, and by how much? " * 14)["input_ids"]
    return sampled(policy, [[40 + i, *ids] for i in range(count)], 12, 1.0)


# ---- in this process
def test_greedy_rollouts_are_those_of_transformers(engine, agent, suite, corpus):
    assert_same(play(engine, suite, corpus), play(TransformersPolicy(*agent), suite, corpus))


def test_updates_reach_the_engine_and_logprobs_are_the_trainers_at_the_temperature(engine, agent):
    for temperature, size in ((0.7, 0.03), (1.3, 0.02)):
        move(agent[0], size)
        assert guard.sync(engine, agent[0], temperature).largest < 1e-3


def test_a_request_samples_the_same_in_any_company(engine):
    alone = ask(engine, 1)
    assert [sample.ids for sample in ask(engine, 48)][:1] == [sample.ids for sample in alone]
    many = {tuple(sample.ids) for sample in ask(engine, 16)}
    assert len(many) > 8, "each request has a seed of its own"


def test_an_engine_that_dies_in_mid_batch_ends_the_rollout_with_one_message(engine, suite, corpus):
    """Last of the tests of an engine: it is gone afterwards."""
    runner, calls = engine._engine.engine_core.engine_core.model_executor, []
    execute = runner.execute_model

    def dies(*args, **kwargs):
        calls.append(1)
        if len(calls) > 5:
            raise RuntimeError("the device is gone")
        return execute(*args, **kwargs)

    stop = engine._stop
    engine._stop = lambda: (time.sleep(1), stop())  # the next test's engine comes before it has ended
    runner.execute_model = dies
    with pytest.raises(EngineError, match="stopped in mid-batch: .*the device is gone.*recorded nowhere"):
        play(engine, suite, corpus)
    assert VllmPolicy._group.locked()
    with pytest.raises(EngineError, match="stopped in mid-batch"):
        ask(engine, 1)


def test_training_on_vllm_writes_what_the_sync_found(suite, tmp_path):
    """After the last test its engine starts while that one's ends, whose process group it must not share."""
    values = {"steps": 2, "prompts_per_step": 2, "group_size": 2, "micro_batch": 4, "val_every": 2, "val_tasks": 2,
              "lora_r": 4, "engine": "vllm", "learning_rate": 0.02, "max_turns": 3, "max_turn_tokens": 32}  # fmt: skip
    recipe = Recipe.from_mapping(values)
    tasks = suite.split("train"), suite.split("validation")
    trainer = GRPO(Lab.open(recipe), *load_agent("nano"), *tasks, Run.create(tmp_path / "run"))
    trainer.train()
    rows = read_jsonl(trainer.run.file("train", "metrics.jsonl"))
    assert all(row["sync_gap"] < 1e-3 for row in rows[1:]) and len(rows) == 3
    assert trainer.policy._engine is None, "training gives the engine back"
    assert trainer.policy.in_flight == recipe.max_batch


# ---- servers
@pytest.fixture
def policy(servers, agent):
    with ServerPolicy([url for url, child, _ in servers if child.poll() is None], agent[1], "server") as made:
        yield made


def completions(url):
    """Requests that a server has finished."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:request_success_total"))


def test_servers_take_the_weights_and_give_the_tokens_of_transformers(policy, servers, agent, suite, corpus):
    before = [completions(url) for url, _, _ in servers]
    assert guard.sync(policy, agent[0], 0.7).largest < 1e-4
    assert_same(play(policy, suite, corpus), play(TransformersPolicy(*agent), suite, corpus))
    after = [completions(url) for url, _, _ in servers]
    assert after[0] > before[0] and after[1] > before[1], "both have work"


def test_one_of_two_servers_killed_in_mid_batch_and_then_the_other(policy, servers, agent, suite, corpus):
    guard.sync(policy, agent[0], 0.7)
    wanted = play(TransformersPolicy(*agent), suite, corpus, count=12, group_size=4)

    def kill_when_busy(index):
        while not policy._replicas[index].running:
            time.sleep(0.002)
        time.sleep(0.05)
        kill(servers[index][1])

    killer = threading.Thread(target=kill_when_busy, args=(0,))
    killer.start()
    with pytest.warns(UserWarning, match="failed: it does not answer.*it is asked again"):
        found = play(policy, suite, corpus, count=12, group_size=4)
    killer.join()
    assert_same(found, wanted)
    assert len({(t.task_id, t.sample) for t in found}) == 48

    killer = threading.Thread(target=kill_when_busy, args=(1,))
    killer.start()
    ends = pytest.raises(EngineError, match="does not serve any more.*recorded nowhere")
    with pytest.warns(UserWarning), ends:
        play(policy, suite, corpus, count=12, group_size=4)
    killer.join()
