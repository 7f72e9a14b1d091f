"""PyTorch, MXNet and TensorFlow: one folder each, with the same file names; no other folder imports a framework.

network.py builds a framework's network from its description, optimizer.py its optimizer; learner.py trains what
objective.py makes of a network or task, with one of the classes in strategies.py; export.py writes trained networks in
the framework's own format, and trained.py returns trained models as objects of it. registry.py lists all strategies.
styles/ holds other programming styles, for comparison and teaching.
"""
