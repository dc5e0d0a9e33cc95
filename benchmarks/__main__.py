"""`python -m benchmarks NAME`: measure one of NAMES, or all;
and `python -m benchmarks model`, which adds figures up to what a rate takes, or nodes bear.

What measures needs what tests need; the model is arithmetic, and does on a plain install.
"""

import sys


def main() -> None:
    if sys.argv[1:2] == ["model"]:
        from benchmarks import model

        model.main(sys.argv[2:])
    else:
        from benchmarks import measuring

        measuring.main()


if __name__ == "__main__":
    main()
