"""What all rooms stand on: values of threads, nested and plain values, names torch must have."""
