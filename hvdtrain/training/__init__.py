"""The training loop and what it needs at each step, independent of frameworks and launchers."""
