"""The training loop and what it needs at each step; knows no framework and no launcher."""
