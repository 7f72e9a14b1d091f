"""PyTorch, MXNet and TensorFlow: one folder each, with the same file names; no other folder imports a framework.

network.py builds a framework's network from its description, optimizer.py its optimizer; learner.py trains, with one of
the classes in strategies.py; export.py writes trained networks in the framework's own format. Other programming styles
of a framework have their own files (manual, module, ndarray, keras_fit), and the folder's registry.py lists all
strategies.
"""
