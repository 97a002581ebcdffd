"""``onnxfold export`` in this process."""

from click.testing import CliRunner, Result

from onnxfold.commands.export import export


def run(*arguments: object) -> Result:
    """Run the command."""
    return CliRunner().invoke(export, [str(a) for a in arguments], obj={"debug": False, "verbose": False})
