"""Public data sets as suites: rows from the hub or a local file, and GAIA, each with the tools that fit it.

Leaves out their distribution: nothing is shipped.
"""

from agentkit.tasks.families.relabel import relabel_code
from agentkit.tasks.family import Family
from agentkit.tools.environments import (
    CalculatorEnvironment,
    CodeEnvironment,
    CorpusEnvironment,
    PassagesEnvironment,
    WorkbenchEnvironment,
)

_CODE = Family(environment=CodeEnvironment, relabel=relabel_code)
FAMILIES = {  # by the data set's name, which is its tasks' family
    "gsm8k": Family(environment=CalculatorEnvironment),
    "hotpotqa": Family(environment=PassagesEnvironment),
    "2wikimultihopqa": Family(environment=PassagesEnvironment),
    "triviaqa": Family(environment=CorpusEnvironment),
    "mbpp": _CODE,
    "humaneval": _CODE,
    "open_agentrl": _CODE,
    "GAIA": Family(environment=WorkbenchEnvironment),
}
