"""Shared by the command-line programs: options, errors, tables, and models of the user."""
