"""Communication between ranks: no other package sends features."""
