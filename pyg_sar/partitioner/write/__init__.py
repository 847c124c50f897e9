"""Parts as files of a partition folder."""
