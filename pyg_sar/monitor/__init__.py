"""What happens between ranks and in layers, told to the log and to profiles."""

from pyg_sar.monitor.log import LogLevel, check_log, say, set_log, set_log_by_environment
from pyg_sar.monitor.ranges import Ranges
from pyg_sar.monitor.units import bytes_text

__all__ = [
    'LogLevel',
    'Ranges',
    'bytes_text',
    'check_log',
    'say',
    'set_log',
    'set_log_by_environment',
]
