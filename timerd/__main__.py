"""`python -m timerd`, and the `timerd` command."""

from timerd.cli.app import app


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
