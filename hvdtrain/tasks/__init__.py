"""What is trained: a network as data on images, or a task of the user's own."""
