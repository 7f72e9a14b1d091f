"""Built-in, published and own image data, and how the ranks share it."""
