"""Policies: whatever continues a trajectory. One small protocol, several engines; torch is loaded only by its engine."""

from agentkit.policies.base import EngineError, Policy, Request, Sample
from agentkit.policies.scripted import Flaws, ScriptedPolicy

__all__ = ["EngineError", "Flaws", "Policy", "Request", "Sample", "ScriptedPolicy"]
