"""``python -m macs``, as a launcher of several processes needs it."""

from macs.cli import main

main()
