"""What all programs of the command line have in common: ``command_line``, ``pictures``."""
