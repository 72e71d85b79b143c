"""Public data sets as suites: rows from the hub or a local file, and GAIA, each a family with tools that fit
it.

Leaves out their distribution: nothing is shipped.
"""

from functools import partial

from agentkit.tasks.families import tcr
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
    """Families by the data set's name; tasks come from a file or the hub, but for GRPO-TCR's rehearsal."""
    passages = Family(environment=partial(PassagesEnvironment, top_k))
    code = Family(environment=CodeEnvironment, relabel=relabel_code)
    return {
        "gsm8k": Family(environment=CalculatorEnvironment),
        "hotpotqa": passages,
        "2wikimultihopqa": passages,
        "triviaqa": passages,
        "mbpp": code,
        "humaneval": code,
        **{
            name: Family(tcr.DRAFTS.get(name), InterpreterEnvironment, relabel_code, tcr.MEASURES)
            for name in (*AGENTRL, "open_agentrl")
        },
        "GAIA": Family(environment=GaiaEnvironment),
    }
