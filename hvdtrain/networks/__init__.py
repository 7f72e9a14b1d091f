"""Networks as data: layers, shapes, initial weights and their form in ONNX, without any framework."""
