"""The version of the distribution, as it is installed."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("timerd-client")
except PackageNotFoundError:  # run from a checkout
    VERSION = "0"
