"""Runs in the terminal: tables, charts and the screen of `watch`, as lines that fit its width."""
