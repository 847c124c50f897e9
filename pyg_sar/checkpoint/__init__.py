"""Training runs and their results on disk, written atomically, read without running code."""
