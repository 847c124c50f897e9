"""Dropout whose masks do not depend on which rank holds a node or an edge."""
