"""Write commands.md, the reference of the command line, from the help of each command.

Run: python docs/commands.py
"""

from pathlib import Path

from typer.testing import CliRunner

from macs.cli import app

COMMANDS = (
    "restore", "degrade", "compare", "doctor", "app", "demo", "bench", "train",
    "models list", "models show", "models verify", "models convert",
)  # fmt: skip
WIDTH = 118
PAGE = Path(__file__).with_name("commands.md")


def reference(text: str) -> str:
    """The page with the words before its first command kept, and all commands anew."""
    parts = [text.split("\n## ")[0].rstrip()]
    for command in COMMANDS:
        options = {"prog_name": "macs", "terminal_width": WIDTH, "max_content_width": WIDTH}
        help_text = CliRunner().invoke(app, [*command.split(), "--help"], **options).output.strip()
        parts.append(f"## macs {command}\n\n```\n{help_text}\n```")
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(reference(PAGE.read_text()))
