"""The estimate of trajectories a second: against a simulated engine whose rate is known, on a real run, and where
there is nothing to replay.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import selectors
import warnings
from dataclasses import replace

import pytest
import yaml
from survive import make_trainer

from agentkit.cli import main
from agentkit.records import RunError, StopReason, ToolResult, Trajectory, Turn
from agentkit.runs import Recipe, Run, append_jsonl, read_trajectories, throughput, write_trajectories
from agentkit.runs.topology import choose
from agentkit.training.grpo import train

RECIPE = {"prompts_per_step": 8, "group_size": 4, "micro_batch": 4, "max_batch": 16}
ALONE, ROW = 0.02, 0.003  # seconds of a pass, and of each row in it


class Clock(asyncio.SelectorEventLoop):
    """An event loop whose sleeps take no time: its clock jumps to whatever comes next."""

    def __init__(self):
        super().__init__(selectors.SelectSelector())
        self.now, wait = 0.0, self._selector.select

        def jump(timeout=None):
            self.now += timeout or 0.0
            return wait(0)

        self._selector.select = jump

    def time(self):
        return self.now


class Engine:
    """Samples a token of every turn that is asked for, pass by pass."""

    def __init__(self):
        self.left: dict[asyncio.Future, int] = {}

    async def sample(self, tokens: int) -> float:
        loop, done = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()
        start = loop.time()
        self.left[done] = tokens
        if len(self.left) == 1:
            self.passes = asyncio.ensure_future(self._pass())
        await done
        return loop.time() - start

    async def _pass(self):
        while self.left:
            rows = list(self.left)
            await asyncio.sleep(ALONE + ROW * len(rows))
            for done in rows:
                self.left[done] -= 1
                if not self.left[done]:
                    del self.left[done]
                    done.set_result(None)


def sampled(plans: list[list[int]], latency: float, slots: int) -> tuple[float, list[Trajectory]]:
    """One process' seconds and its trajectories; a plan is the tokens of each turn, all but the last with a call."""

    async def one(number: int, plan: list[int], free: asyncio.Semaphore, engine: Engine) -> Trajectory:
        turns, at = [], 0
        async with free:
            for tokens in plan:
                took, results = await engine.sample(tokens), ()
                if len(turns) + 1 < len(plan):
                    await asyncio.sleep(latency)
                    results = (ToolResult("search", {}, "", True, latency),)
                turns.append(Turn("", (at, at + tokens), results, took))
                at += tokens
        ids, zeros = (1,) * at, (0.0,) * at
        return Trajectory(
            f"t{number // 4}",
            "grpo",
            number % 4,
            1,
            (1,),
            ids,
            ids,
            zeros,
            tuple(turns),
            StopReason.ANSWER,
            step=1,
        )

    async def all_of_them():
        free, engine = asyncio.Semaphore(slots), Engine()
        return await asyncio.gather(*(one(i, plan, free, engine) for i, plan in enumerate(plans)))

    with asyncio.Runner(loop_factory=Clock) as runner:
        made = runner.run(all_of_them())
        return runner.get_loop().time(), made


def known(plans, processes, latency, slots=16):
    """What a step takes: the longest of the processes, and 1.5 s of scoring and updating."""
    share = len(plans) // processes
    parts = [sampled(plans[i : i + share], latency, slots) for i in range(0, len(plans), share)]
    return max(seconds for seconds, _ in parts), [t for _, part in parts for t in part]


def simulated_run(path, plans, processes, latency, slots=16):
    seconds, made = known(plans, processes, latency, slots)
    run = Run.create(path)
    run.update(recipe=RECIPE | {"processes": processes, "max_batch": slots})
    write_trajectories(run.file("train", "trajectories", "step_00001.parquet"), made)
    row = {"step": 1, "rollout_seconds": seconds, "update_seconds": 2.0, "val_seconds": 99.0}
    append_jsonl(run.file("train", "metrics.jsonl"), row)
    return run


def plans_of(seed):
    draw = random.Random(seed)
    return [[draw.randint(5, 60) for _ in range(draw.randint(1, 6))] for _ in range(32)]


@pytest.mark.parametrize(("processes", "latency", "slots"), [(1, 0.02, 16), (2, 0.3, 8), (1, 0.001, 64)])
def test_what_is_replayed_is_what_a_simulated_engine_takes(tmp_path, processes, latency, slots):
    """Within 4 % for 1 to 8 processes and latencies of 0 to 1 s, known pass by pass, and exact where measured."""
    plans = plans_of(7)
    made = throughput.estimate(simulated_run(tmp_path / "a", plans, processes, latency, slots))
    assert len(made) == 4 * 5 and list(made[made.measured].processes) == [processes]
    for row in made.itertuples():
        wait = latency if math.isnan(row.latency_ms) else row.latency_ms / 1000
        truth = known(plans, row.processes, wait, slots)[0] + 2.0 * processes / row.processes
        assert row.seconds == pytest.approx(truth, rel=1e-9 if row.measured else 0.04), row
        assert row.trajectories_per_second == pytest.approx(32 / row.seconds)


def test_processes_that_trained_are_counted_and_a_colocated_run_is_no_split(tmp_path):
    """Of three cards two trained; the sentence that colocates them speaks of a split."""
    run = simulated_run(tmp_path / "a", plans_of(7), 2, 0.02)
    stage = {"topology": str(choose(Recipe(), 3)), "devices": 3, "ranks": {"train": [{}, {}]}}
    run.update(stages={"03_grpo": stage})
    assert "split" in stage["topology"]
    made = throughput.estimate(run)
    assert list(made[made.measured].processes) == [2]
    run.update(stages={"03_grpo": stage | {"ranks": [], "devices": 4}})
    assert list((made := throughput.estimate(run))[made.measured].processes) == [4]


def test_an_assumed_latency_is_what_it_says_where_calls_ran_together():
    calls = (ToolResult("a", {}, "", True, 1.0),) * 2  # beside each other: one second
    one = Trajectory(
        "t", "grpo", 0, 1, (1,), (1,), (1,), (0.0,), (Turn("", (0, 1), calls, 0.0),), StopReason.ANSWER
    )
    batch = throughput.Batch([one], 1.0, 1, 4)
    assert batch.scale == 0.5 and batch.seconds(1) == pytest.approx(1.0)
    assert batch.seconds(1, 500) - batch.seconds(1, 0) == pytest.approx(1.0), "one after the other"


def test_times_that_are_no_seconds_are_one_sentence(tmp_path):
    run = simulated_run(tmp_path / "a", plans_of(1), 1, 0.0)
    path = run.file("train", "trajectories", "step_00001.parquet")
    long = [
        replace(t, turns=tuple(replace(turn, seconds=1e308) for turn in t.turns))
        for t in read_trajectories(path)
    ]
    write_trajectories(path, long)
    with warnings.catch_warnings(), pytest.raises(RunError, match="times that are no seconds"):
        warnings.simplefilter("ignore")  # of the overflow
        throughput.estimate(run)


def test_the_engines_two_costs_are_found_again():
    seconds, made = sampled(plans_of(3), 0.1, 16)
    batch = throughput.Batch(made, seconds, 1, 16)
    assert batch.engine == pytest.approx((ALONE, ROW), rel=0.05)


def test_cached_and_malformed_calls_wait_for_no_tool():
    results = (ToolResult("a", {}, "", True, 0.5), ToolResult("a", {}, "", True, 0.01, cached=True),
               ToolResult("", {}, "", False))  # fmt: skip
    turns = (Turn("", (0, 4), results, 1.0), Turn("", (4, 6), (), 0.5))
    one = Trajectory("t", "grpo", 0, 1, (1,), (1,) * 6, (1,) * 6, (0.0,) * 6, turns, StopReason.ANSWER)
    batch = throughput.Batch([one], 2.01, 1, 4)
    assert batch.seconds(1, 1000) - batch.seconds(1, 0) == pytest.approx(1.0)
    assert batch.seconds(1) - batch.seconds(1, 0) == pytest.approx(0.51)


def test_the_command_shows_the_table_of_a_real_run(tmp_path, capsys):
    trainer = make_trainer(tmp_path / "run", steps=4)
    train(trainer)
    run, recipe = trainer.run, tmp_path / "r.yaml"
    run.update(recipe=trainer.lab.recipe.everything())
    recipe.write_text(yaml.safe_dump({"model": "nano"}))
    command = ["cost", str(recipe), "--run", str(run.path)]
    assert main([*command, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["throughput"]
    steps = run.metrics.set_index("step").loc[2:4]
    (measured,) = [row for row in rows if row["measured"]]
    took = steps["rollout_seconds"].mean() + steps["update_seconds"].mean()
    assert measured["processes"] == 1 and measured["latency_ms"] is None
    assert measured["seconds"] == pytest.approx(took)
    assert all(row["seconds"] > 0 and row["trajectories_per_second"] > 0 for row in rows)
    assert main(command) == 0
    told = capsys.readouterr().out
    assert "tools as measured" in told and "1000 ms" in told and told.count("/s, ") == len(rows)
    assert f"{measured['trajectories_per_second']:.3g}/s" in told and throughput.ASSUMED in told


@pytest.mark.parametrize(
    ("keys", "metrics", "says"),
    [
        ({}, {"rollout_seconds": None, "update_seconds": 2.0}, "no step with its rollouts"),
        ({}, {}, "no step with its rollouts"),
        ({"engine": "server", "server_urls": "http://a:1"}, {"rollout_seconds": 3.0}, "servers sampled"),
    ],
)
def test_a_run_that_cannot_be_replayed_is_one_sentence(tmp_path, keys, metrics, says):
    run = Run.create(tmp_path / "a")
    run.update(recipe=RECIPE | keys)
    write_trajectories(
        run.file("train", "trajectories", "step_00001.parquet"), sampled(plans_of(1), 0.0, 16)[1]
    )
    append_jsonl(run.file("train", "metrics.jsonl"), {"step": 1} | metrics)
    with pytest.raises(RunError, match=says):
        throughput.estimate(run)


def test_rollouts_without_a_turn_or_damaged_do_not_end_the_command(tmp_path, capsys):
    run, recipe = simulated_run(tmp_path / "a", plans_of(1), 1, 0.0), tmp_path / "r.yaml"
    recipe.write_text(yaml.safe_dump({"model": "nano"}))
    path = run.file("train", "trajectories", "step_00001.parquet")
    for content in ("none", "damaged"):
        if content == "none":
            _, made = sampled([[]] * 32, 0.0, 16)
            write_trajectories(path, made)
        else:
            path.write_bytes(b"PAR1")
        assert main(["cost", str(recipe), "--run", str(run.path)]) == 0
        told = capsys.readouterr().out
        assert "Actual / predicted" in told and "tools as measured" not in told
        why = "no step with its rollouts" if content == "none" else "step_00001.parquet"
        assert why in told
        assert main(["cost", str(recipe), "--run", str(run.path), "--json"]) == 0
        reckoned = json.loads(capsys.readouterr().out)
        assert reckoned["throughput"] == [] and why in reckoned["throughput_says"]
