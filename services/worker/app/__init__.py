"""What a worker does, in terms of its ports."""
