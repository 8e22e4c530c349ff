"""The two phases of SPS, side by side: rl.py and irl.py."""
