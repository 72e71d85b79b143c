"""Policies: whatever continues a trajectory. One small protocol, several engines; torch is loaded only by its
engine.
"""

from agentkit.policies.scripted import Flaws, ScriptedPolicy
from agentkit.rollouts.policy import EngineError, Policy, Request, Sample

__all__ = ["EngineError", "Flaws", "Policy", "Request", "Sample", "ScriptedPolicy"]
