"""The engine that samples from the trainer's own model."""
