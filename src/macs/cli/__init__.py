"""The command line, a file per command. What a command needs is imported when it runs, so help is instant."""

from macs.cli import bench, compare, degrade, demo, doctor, models, page, restore, train
from macs.cli.base import app, main

__all__ = ["app", "bench", "compare", "degrade", "demo", "doctor", "main", "models", "page", "restore", "train"]
