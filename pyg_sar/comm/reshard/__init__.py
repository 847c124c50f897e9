"""Shards from other shards: derived and reversed edges."""
