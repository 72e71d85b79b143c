"""From scored trajectories to numbers that can be defended: success with intervals, paired tests, the
comparison table.

The task is the unit of evidence: samples of one task are averaged first, and every interval and test is over
tasks. A policy trained with several seeds is a mapping from seed to trajectories; seeds are then a second
random effect beside the tasks.
Leaves out: the formulas (statistics), sampling and scoring (rollouts, verifiers), behaviour and failures
(behaviour, failures), figures (plots) and showing trajectories (widgets).
"""

from agentkit.evaluation.comparison import Comparison, compare, compare_by
from agentkit.evaluation.summary import SOLVED, Samples, flatten, solved_tasks, summarize, task_success

__all__ = [
    "SOLVED",
    "Comparison",
    "Samples",
    "compare",
    "compare_by",
    "flatten",
    "solved_tasks",
    "summarize",
    "task_success",
]
