"""The contracts between the training loop and the frameworks: NumPy arrays go to a learner, floats come back."""
