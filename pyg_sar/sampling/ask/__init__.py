"""What ranks ask each other while they sample."""
