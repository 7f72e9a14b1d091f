"""The training loop and what belongs to it; knows no framework and no launcher."""
