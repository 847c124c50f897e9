"""Reports layers, operations between ranks and moved rows to the log and to profiles."""
