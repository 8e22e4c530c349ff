"""The policy: loading it, its log-probabilities, one optimizer step, how far it moved, checkpoints."""
