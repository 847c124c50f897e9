"""What programs of the command line have in common: their options, models and pictures."""
