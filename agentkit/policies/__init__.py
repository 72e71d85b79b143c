"""Policies: whatever continues a trajectory. One small protocol, several engines; torch is loaded only by its
engine.
"""
