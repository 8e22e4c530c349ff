"""The rollout store and the evaluation store: append-only Parquet that any tool can read."""
