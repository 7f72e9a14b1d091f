"""Networks as data: layers, shapes and initial weights, without any framework."""
