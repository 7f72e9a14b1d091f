"""Programming styles for comparison and teaching: MXNet's Module and NDArray, Keras' fit, DataParallel, and by hand."""
