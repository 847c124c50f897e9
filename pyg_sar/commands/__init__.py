"""What programs of the command line have in common: their options, and models of the user."""
