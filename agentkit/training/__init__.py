"""Training: the SFT cold start and GRPO on agent trajectories."""
