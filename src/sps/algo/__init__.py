"""The equations: plain functions of tensors and numbers. No configuration, no input or output."""
