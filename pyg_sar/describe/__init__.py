"""Looks into partition folders: what they hold, what they cost, whether they are as written."""
