"""Arrays on disk, read and sorted in passes."""
