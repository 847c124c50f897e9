"""Reports layers, operations between ranks and moved rows to the log and to profiles."""

from pyg_sar.monitor.live_bytes import LiveBytes
from pyg_sar.monitor.log import LogLevel, check_log, say, set_log, set_log_by_environment
from pyg_sar.monitor.meter import Counts, Meter, bytes_text, memory_size, parse_bytes
