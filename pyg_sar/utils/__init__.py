"""Tools of all rooms: values of a thread, nested and plain values, private names of torch."""
