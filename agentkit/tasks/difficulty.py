"""How hard a task is, by what the scripted expert needs for it.

Leaves out how often a policy solves it (pass_rates).
"""


def difficulty(calls: int) -> str:
    """easy 1-2, medium 3-4, hard 5 or more tool calls of the scripted expert."""
    return "easy" if calls <= 2 else "medium" if calls <= 4 else "hard"
