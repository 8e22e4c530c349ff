"""The life of a run: claim a folder, resume, evaluate, save, describe in a model card."""
