"""Results that are not computed or sent again."""
