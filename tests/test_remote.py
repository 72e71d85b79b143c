"""Tools on real servers, an MCP server's over stdio and HTTP and an OpenEnv server's, which may go away."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from engines import free_port
from says import Says
from survive import SMALL

from agentkit import Lab, Suite, Task, ToolCall, rollout
from agentkit.recipe import Recipe, RecipeError
from agentkit.records import ServerAway, StopReason, TrainingError
from agentkit.rollouts.call_formats import format_call
from agentkit.runs import SPLITS, Run, read_jsonl, write_tasks
from agentkit.tools import remote
from agentkit.tools.cache import ToolCache
from agentkit.tools.runtime import reset, run_blocking, run_call, tool_schemas, tools_of
from agentkit.training.jobs import train
from agentkit.training.launch import Work

SERVERS = str(Path(__file__).with_name("remote_servers.py"))
COMMAND = ["python", SERVERS, "stdio"]
LIMITS = {"timeout_s": 5.0, "retry_s": 1.0}


class Started:
    """A server that a test starts, and starts again where it was killed."""

    def __init__(self, kind: str, path: str):
        self.kind, self.port = kind, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.path, self.process = path, None
        self.start()

    def start(self) -> None:
        words = [sys.executable, SERVERS, self.kind, str(self.port)]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(240):
            time.sleep(0.25)
            try:
                httpx.get(self.url + self.path)
                return
            except httpx.TransportError:
                pass
        pytest.fail(f"the {self.kind} server does not start")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def http():
    server = Started("http", "/mcp")
    yield server
    server.kill()


@pytest.fixture(scope="module")
def openenv():
    server = Started("openenv", "/health")
    yield server
    server.kill()


def asked(environment, name, cache=None, **arguments):
    result = asyncio.run(run_call(ToolCall(name, arguments), environment, cache=cache))
    return result.ok, result.observation


def test_tools_of_an_mcp_server_are_tools_and_its_process_is_shared_and_started_again(tokenizer):
    make = remote.mcp(COMMAND, pure=["price"], timeout_s=1.0, retry_s=60.0)
    with pytest.warns(UserWarning, match="its tool 'get_reward' is left out"):
        one, other = make(), make()
    assert list(tools_of(one)) == ["count", "die", "hostile", "price", "search", "slow"]
    assert not hasattr(one, "get_reward"), "no server pays its own rewards"
    schemas = {each["function"]["name"]: each["function"]["parameters"] for each in tool_schemas(one)}
    assert schemas["price"]["required"] == ["item"]
    assert [*schemas["price"]["properties"]] == ["item", "pieces"]
    assert asked(one, "price", item="tea", pieces=2) == (True, "The price is 14.")
    assert asked(one, "price", item="x")[1] == "Error: Error executing tool price: there is no x; try tea."
    assert "item\n  Field required" in asked(one, "price")[1]
    assert asked(one, "slow") == (False, "Error: Request 'tools/call' timed out.")
    first, second = (json.loads(asked(each, "count")[1]) for each in (one, other))
    assert (first["process"], second["count"]) == (second["process"], first["count"] + 1)
    cache = ToolCache()
    for _ in range(3):
        asked(one, "price", cache, item="jam"), asked(one, "count", cache)
    assert cache.hits.total() == 2, "price alone is pure"
    assert json.loads(asked(one, "count")[1])["count"] == 6
    os.kill(first["process"], signal.SIGKILL)
    assert json.loads(asked(one, "count")[1])["count"] == 1, "the call is made again, of a new process"


def test_what_a_server_writes_steers_nothing(tokenizer):
    policy = Says(tokenizer, format_call("hostile", {}), "Answer: 3")
    (done,) = rollout([Task("t", "What?", "3", "numeric")], policy, environment=remote.mcp(COMMAND, **LIMITS))
    (result,) = done.turns[0].results
    assert result.ok and len(result.observation) < 3_000 and "cut" in result.observation
    said = tokenizer.decode(done.completion_ids)
    assert done.success == 1.0 and said.count("<|im_start|>assistant") == 1, "which the chat template begins"
    before = tokenizer.decode(done.prompt_ids).split("of an item")[0]
    assert "|im_end|>" in before[-40:].replace("| ", "|") and "<|im_end|>" not in before[-40:]


def test_a_stateful_server_has_a_session_a_trajectory_which_ends_with_it():
    make = remote.mcp(COMMAND, stateful=True, **LIMITS)
    one, other = make(), make()
    for each in (one, other):
        run_blocking(reset(each, Task("t", "What?", "3")))
    counted = [json.loads(asked(each, "count")[1]) for each in (one, one, other)]
    assert [each["count"] for each in counted] == [1, 2, 1]
    with pytest.raises(ServerAway, match="the MCP server python .* is away"):
        asked(other, "die")
    del one
    for _ in range(100):
        if not Path(f"/proc/{counted[0]['process']}").exists():
            return
        time.sleep(0.1)
    pytest.fail("the server process of a trajectory that is over goes on")


@pytest.mark.parametrize("made", [
    lambda: remote.mcp("http://127.0.0.1:9/mcp"), lambda: remote.mcp(["python", "-c", "1"]),
    lambda: remote.mcp(["no-such-command"]), lambda: remote.openenv("http://127.0.0.1:9"),
])  # fmt: skip
def test_a_server_that_is_away_is_one_sentence_at_once(made):
    start = time.monotonic()
    says = r"^the (MCP|OpenEnv) server .+ is away \(.+\): start it, then run this again$"
    with pytest.raises(ServerAway, match=says):
        made()()
    assert time.monotonic() - start < 30


def test_a_server_killed_in_mid_rollout_leaves_later_trajectories_without_a_score(http, tokenizer):
    """The first calls end it; they are made again, in vain; what needs no call is scored, and 0 is no score."""
    make = remote.mcp(http.url + "/mcp", timeout_s=5.0, retry_s=1.0)
    tasks = [Task(f"t{i}", f"What {i}?", "3", "numeric") for i in range(4)]
    price, dies = format_call("price", {"item": "tea"}), format_call("die", {})

    def play(*calls, **options):
        return rollout(tasks, Says(tokenizer, *calls, "Answer: 3"), environment=make, **options)

    assert [t.success for t in play(price)] == [1.0] * 4
    lost = play(price, dies, step=1)
    assert {(t.success, t.stop_reason) for t in lost} == {(None, StopReason.ERROR)}
    assert all(t.why.startswith(f"the MCP server {http.url}/mcp is away") for t in lost)
    assert any(t.turns[0].results for t in lost), "what was done before is kept"
    assert [t.success for t in play()] == [1.0] * 4
    start = time.monotonic()
    assert [t.success for t in play(price, step=2)] == [None] * 4
    assert time.monotonic() - start < 10, "waited for once"
    http.kill(), http.start()
    assert [t.success for t in play(price)] == [1.0] * 4


def test_an_openenv_environment_is_one_tool_with_a_session_a_trajectory(openenv, tokenizer):
    make = remote.openenv(openenv.url, **LIMITS)
    given = [(f"Raise it {start}.", {"reset": {"start": start}}) for start in (3, 90)]
    tasks = [Task(words, words, "3", "numeric", meta=meta) for words, meta in given]
    step = format_call("step", {"query": "20"})
    low, high = rollout(tasks, Says(tokenizer, step, step, "Answer: 3"), environment=make)
    assert "Raise it 3.The number is 3." in tokenizer.decode(low.prompt_ids).replace("\n", "")
    seen = [[turn.results[0].observation for turn in t.turns[:2]] for t in (low, high)]
    assert seen[0] == ["The number is 23.", "The number is 43."]
    assert seen[1] == ["The number is 110.", "Error: the environment has ended: answer now."]
    assert (low.components, high.components) == ({"OpenEnv": 2.0}, {"OpenEnv": 1.0})
    environment = make()
    run_blocking(reset(environment, tasks[0]))
    says = "Error: Server error: the amount must not be negative"
    assert asked(environment, "step", query="-1")[1].startswith(says)
    with pytest.raises(ServerAway, match="the OpenEnv server .* is away"):
        asked(environment, "step", query="999")  # which ends the server
    openenv.kill(), openenv.start()
    with pytest.raises(ServerAway):
        asked(environment, "step", query="1")  # its state is lost, whatever runs there now


LAB = """
from agentkit import Family, Task
from agentkit.tools import remote


def draft(corpus, rng):
    return Task("", "What?", "3")


families = {"shop": Family(draft, environment=ENVIRONMENT)}
rewards = {"calls": (lambda task, t: float(sum(len(turn.results) for turn in t.turns)), 1.0)}
"""


def prepared(folder: Path, environment: str, suite: Suite, **changes) -> tuple[Run, Lab]:
    """Questions that the small agent answers by calls of search, of a family with these tools."""
    run = Run.create(folder / "run")
    of_split = [
        [replace(t, family="shop") for t in suite.split(name) if t.family == "A"][:5] for name in SPLITS
    ]
    write_tasks(run.file("tasks.jsonl"), [task for tasks in of_split for task in tasks])
    (folder / "mine.py").write_text(LAB.replace("ENVIRONMENT", environment))
    values = SMALL | {
        "model": "nano", "lab": str(folder / "mine.py"), "reward": "none", "prompts_per_step": 2, "group_size": 4,
        "micro_batch": 4, "steps": 2, "max_turns": 3, "max_turn_tokens": 48, "max_tokens": 400, "temperature": 1.0,
    }  # fmt: skip
    return run, Lab.open(Recipe.from_mapping(values | changes))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mcp", "openenv"])
def test_a_family_on_a_server_trains_in_two_processes(kind, openenv, suite, tmp_path):
    made = {"mcp": f"remote.mcp({COMMAND!r})", "openenv": f"remote.openenv({openenv.url!r}, name='search')"}
    run, lab = prepared(tmp_path, made[kind], suite, processes=2)
    assert Work(lab, run).train()["steps"] == 2
    rows = read_jsonl(run.file("train", "metrics.jsonl"))
    assert [row["step"] for row in rows] == [0, 1, 2]
    found = [t for step in (1, 2) for t in run.trajectories(step)]
    assert len(found) == 16 and all(t.reward is not None for t in found)
    results = [r for t in found for turn in t.turns for r in turn.results if r.name == "search"]
    assert sum(r.ok for r in results) > 8, "the server's own answers"


@pytest.mark.slow
def test_a_training_whose_server_goes_away_stops_names_it_and_goes_on_once_it_is_back(http, suite, tmp_path):
    made = f"remote.mcp({http.url + '/mcp'!r}, retry_s=1.0)"
    run, lab = prepared(tmp_path, made, suite, steps=3, save_every=1, val_every=9)

    def tell(row: dict) -> None:
        if row["step"] == 1:
            http.kill()

    says = f"have no reward, more than 20%: the MCP server {http.url}/mcp is away"
    with pytest.raises(TrainingError, match=says):
        train(lab, run, tell)
    with pytest.raises(RecipeError, match="the MCP server .* is away"):
        Lab.open(lab.recipe)
    http.start()
    assert train(lab, run, print)["steps"] == 3
    assert [row["step"] for row in read_jsonl(run.file("train", "metrics.jsonl"))] == [0, 1, 2, 3]
