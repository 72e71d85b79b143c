"""Rollouts: the agent loop, the text and the calls of a turn, the tokens and their mask, and what the loop
asks of a policy.

Leaves out the engines behind that protocol (policies) and what a trajectory is worth (verifiers, rewards).
"""

from agentkit.rollouts.fork import fork
from agentkit.rollouts.loop import Limits, arollout, prompt_lengths, rollout

__all__ = ["Limits", "arollout", "fork", "prompt_lengths", "rollout"]
