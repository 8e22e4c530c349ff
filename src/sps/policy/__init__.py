"""The policy: loading, log-probabilities, one optimizer step, how far it moved, checkpoints."""
