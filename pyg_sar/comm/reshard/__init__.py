"""Shards made from other shards: derived and reversed edges."""
