"""Several GPUs: who takes which, and notebooks that start with four in sight. No GPU is needed here."""

import pytest

from agentkit.records import RecipeError
from agentkit.runs import Recipe
from agentkit.runs.topology import choose, visible
from agentkit.training.launch import reason


def chosen(count, *args, **keys):
    return choose(Recipe.from_mapping(keys), count, *args)


def test_a_process_for_each_card_that_whole_groups_can_be_dealt_to():
    four = chosen(4)
    assert (four.kind, four.processes, four.cards, four.workers) == ("colocate", 4, ("0", "1", "2", "3"), 4)
    three = chosen(3)  # of eight groups
    assert (three.processes, three.workers) == (2, 3), "all three measure"
    assert chosen(4, processes=2).processes == 2 and chosen(4, gpus=2).workers == 2
    assert chosen(1).kind == chosen(0).kind == "here" and chosen(0, processes=2).kind == "colocate"
    assert "an engine of its own" in str(chosen(1, engine="vllm")) and chosen(0, engine="vllm").workers == 1
    assert chosen(1, True, engine="vllm").kind == "here", "cells have parts that no other process sees"
    one = chosen(4, processes=1)
    assert (one.kind, one.processes) == ("colocate", 1), "a process of its own, for this one sees four"
    alone = chosen(4, engine="unsloth")
    assert alone.cards == ("0",) and "Unsloth trains in one" in str(alone)


def test_cards_keep_the_names_that_cuda_was_given(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7,GPU-3f")
    assert visible(3) == chosen(3).cards == ("5", "7", "GPU-3f")
    assert "2 processes train on GPUs 5, 7: all cards roll out" in str(chosen(3, prompts_per_step=2))


@pytest.mark.parametrize(("count", "keys", "why"), [
    (2, {"gpus": 4}, "gpus is 4, and 2 can be seen"),
    (2, {"processes": 4}, "processes: 4 need a GPU each, and 2"),
    (4, {"engine": "unsloth", "processes": 4}, "engine 'unsloth', which trains in one process"),
    (4, {"gpus": "many"}, "gpus is 'many'"),
])  # fmt: skip
def test_what_cannot_be_is_refused_with_the_way_out(count, keys, why):
    with pytest.raises(RecipeError, match=why):
        chosen(count, **keys)


def test_the_process_that_was_killed_is_told_from_those_that_torchrun_ended():
    log = "E1122 api.py:986] failed (exitcode: {}) local_rank: {} (pid: 7) of binary: python\n"
    assert reason(1, log.format(-15, 0) + log.format(-9, 1)).startswith("process 1 was ended by SIGKILL")
    assert "torchrun, which watches the processes, was ended by SIGKILL" in reason(-9, "")


@pytest.mark.parametrize("error", [
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "agentkit.records.RunError: a fifth of the rewards failed",
])  # fmt: skip
def test_what_ended_a_process_is_told_and_not_what_the_others_say_of_it(error):
    log = [
        "[rank1]: Traceback (most recent call last):",
        f"[rank1]: {error}",
        "[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:3021",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "  error_file: <N/A>",
    ]
    assert reason(1, "\n".join(log)) == f"[rank1]: {error}"
    assert reason(1, "\n".join(log[3:])).endswith("error_file: <N/A>"), "nothing better"


SEEN = "import torch; torch.cuda.device_count = lambda: {}"  # run by every kernel before its first cell
