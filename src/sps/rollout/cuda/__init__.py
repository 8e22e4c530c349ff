"""The native engine on a GPU: one captured graph a step."""
