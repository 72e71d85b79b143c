"""A lab file: as many easy as medium as hard tasks, drawn from the shipped families A and B.

A shipped suite holds few hard tasks; an ablation of difficulty needs each kind in training and in the test.
"""

from agentkit import Family
from agentkit.tasks import shipped_families
from agentkit.tasks.family import difficulty
from agentkit.tools.corpus import Corpus

TRIES = 60  # hard tasks are one in five of family A
_shipped = shipped_families(Corpus())


def draft(corpus, rng):
    level = rng.choice(("easy", "medium", "hard"))
    family = _shipped["A" if level == "hard" else rng.choice("AB")]
    drafts = (family.draft(corpus, rng) for _ in range(TRIES))
    return next((task for task in drafts if task and difficulty(len(task.meta["plan"])) == level), None)


families = {"balanced": Family(draft, environment=_shipped["A"].environment)}
