"""Public data sets as suites: rows from the hub or a local file, and GAIA, each a family with tools that fit
it.

Leaves out their distribution: nothing is shipped.
"""

from functools import partial

from agentkit.tasks.family import Family
from agentkit.tasks.public.gaia import GaiaEnvironment
from agentkit.tasks.public.rows import AGENTRL
from agentkit.tasks.relabel import relabel_code
from agentkit.tools.environments import (
    CalculatorEnvironment,
    CodeEnvironment,
    InterpreterEnvironment,
    PassagesEnvironment,
)


def public_families(top_k: int = 3) -> dict[str, Family]:
    """Families by the data set's name; their tasks come from a file or the hub."""
    passages = Family(environment=partial(PassagesEnvironment, top_k))
    code = Family(environment=CodeEnvironment, relabel=relabel_code)
    interpreter = Family(environment=InterpreterEnvironment, relabel=relabel_code)
    return {
        "gsm8k": Family(environment=CalculatorEnvironment),
        "hotpotqa": passages,
        "2wikimultihopqa": passages,
        "triviaqa": passages,
        "mbpp": code,
        "humaneval": code,
        **dict.fromkeys((*AGENTRL, "open_agentrl"), interpreter),
        "GAIA": Family(environment=GaiaEnvironment),
    }
