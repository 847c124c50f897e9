"""A rank that fails, is lost or is silent ends the others with a reason."""
