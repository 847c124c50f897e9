"""What all rooms stand on: values of a thread, nested values, and what torch and PyG must have."""
