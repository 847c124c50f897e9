"""What need not be computed or sent again."""
