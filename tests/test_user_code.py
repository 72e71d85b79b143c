"""A user's code may be async or call asyncio.run, in a script and in a kernel; what raises is told."""

import asyncio
import random

import pytest

from agentkit import Family, StopReason, Suite, Task, Trajectory, rollout, tool, verifiers
from agentkit.policies.scripted import Flaws, ScriptedPolicy
from agentkit.rewards import score

PRICES = {"apple": 3, "bread": 14, "candle": 26, "drum": 489, "egg": 2, "fork": 17, "globe": 145, "honey": 32}


async def slowly(value):
    await asyncio.sleep(0)  # an HTTP request, say
    return value


def calling_run(answer, gold):
    return asyncio.run(slowly(float(answer == gold)))


async def asynchronous(answer, gold):
    return await slowly(float(answer == gold))


def giving_one(answer, gold):
    return slowly(float(answer == gold))


STYLES = {"calling_run": calling_run, "asynchronous": asynchronous, "giving_one": giving_one}


def in_a_kernel(work):
    """Call it where an event loop runs in this thread, as a notebook's cells are."""

    async def cell():
        return work()

    return asyncio.run(cell())


PLACES = {"script": lambda work: work(), "kernel": in_a_kernel}


@pytest.fixture(autouse=True)
def _kinds():
    verifiers.register(STYLES)
    yield
    for kind in STYLES:
        verifiers.KINDS.pop(kind)


class Shop:
    def __init__(self):
        self.found = asyncio.run(slowly(0))

    async def reset(self, **row) -> None:
        await slowly(None)

    @tool()
    async def search(self, query: str) -> str:
        """Search facts.

        Args:
            query: What to look up.
        """
        self.found += 1
        return await slowly(f"[1] The {query} is {PRICES[query.split()[-1]]}.")

    def get_reward(self) -> float:
        return asyncio.run(slowly(self.found / 4))


class Stall(Shop):
    def __init__(self):
        self.found = 0


async def rented() -> Shop:
    """As where a container is started for each trajectory."""
    return await slowly(Stall())


def drafting(kind: str):
    def draft(corpus, rng: random.Random) -> Task:
        item, value = rng.choice(list(PRICES.items()))
        step = {"tool": "search", "arguments": {"query": f"price of {item}"}, "expect": str(value)}
        prompt = f"What is the price of {item}, asked at {rng.randrange(10**6)}?"
        plan = {"plan": [step], "entities": [f"{item} {prompt}"]}
        return Task("", prompt, str(value), {"kind": kind}, tools=("search",), meta=plan)

    return draft


async def patience(task, trajectory):
    return await slowly(0.5)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("kind", "make"), [*((kind, Shop) for kind in STYLES), ("asynchronous", rented)])
def test_async_user_code_gives_the_same_in_a_script_and_in_a_kernel(tokenizer, kind, make, place):
    families = {"shop": Family(drafting(kind), environment=make)}

    def work():
        tasks = list(Suite.build({"families": ["shop"], "n_tasks": 20}, families=families))
        t = rollout(tasks[:1], ScriptedPolicy(tokenizer, Flaws()), environment=make)[0]
        return t, score(tasks[0], t, {"patience": (patience, 2.0)})

    t, scored = PLACES[place](work)
    assert (t.success, [*t.components.values()], t.why) == (1.0, [0.25], "")
    assert (scored.reward, scored.components["patience"]) == (1.0, 0.5)


def test_an_asynchronous_client_lives_from_one_verdict_to_the_next():
    """Its connections belong to one event loop: a new one for each verdict would close them."""
    loops = set()

    async def kept(answer, gold):
        loops.add(asyncio.get_running_loop())
        return 1.0

    verifiers.register({"kept": kept})
    assert [verifiers.check("kept", "a", "a").value for _ in range(3)] == [1.0] * 3
    verifiers.KINDS.pop("kept")
    assert len(loops) == 1 and not loops.pop().is_closed()


@pytest.mark.parametrize("place", PLACES)
def test_async_user_code_that_raises_says_so(place):
    async def broken(answer, gold):
        raise KeyError("the judge's key")

    verifiers.register({"broken": broken})
    verdict = PLACES[place](lambda: verifiers.check("broken", "a", "a"))
    verifiers.KINDS.pop("broken")
    assert verdict.value is None and 'KeyError: "the judge\'s key"' in verdict.why

    async def failing(task, trajectory):
        raise RuntimeError("no answer from the judge")

    nothing = dict.fromkeys(("prompt_ids", "completion_ids", "action_mask", "old_logprobs", "turns"), ())
    t = Trajectory("t", "p", 0, 0, **nothing, stop_reason=StopReason.ANSWER, success=1.0)
    with pytest.warns(UserWarning, match="'failing' failed .*RuntimeError: no answer from the judge"):
        scored = PLACES[place](lambda: score(Task("t", "q", "a"), t, {"failing": (failing, 1.0)}))
    assert scored.reward is None
