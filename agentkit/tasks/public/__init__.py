"""Public data sets as suites: rows from the hub or a local file, and GAIA, each with the tools that fit it.

Leaves out their distribution: nothing is shipped.
"""

from collections.abc import Callable

from agentkit.tools.environments import (
    CalculatorEnvironment,
    CodeEnvironment,
    PassagesEnvironment,
    WorkbenchEnvironment,
)

ENVIRONMENTS: dict[str, Callable[[], object]] = {  # by family, which is the data set's name
    "gsm8k": CalculatorEnvironment,
    "mbpp": CodeEnvironment,
    "humaneval": CodeEnvironment,
    "open_agentrl": CodeEnvironment,
    "hotpotqa": PassagesEnvironment,
    "2wikimultihopqa": PassagesEnvironment,
    "GAIA": WorkbenchEnvironment,
}
