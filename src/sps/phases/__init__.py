"""The RL phase, the IRL phase and memory: what a run does step by step."""
