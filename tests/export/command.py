"""``onnxfold export`` in this process."""

from click.testing import CliRunner, Result

from onnxfold.cli import cli


def run(*arguments: object) -> Result:
    """Run the command."""
    return CliRunner().invoke(cli, ["export", *map(str, arguments)])
