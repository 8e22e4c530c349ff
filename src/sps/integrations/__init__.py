"""SPS inside other trainers: trl.py is a callback for TRL."""
