"""``python -m semspec.report``: write a run or a sweep as one HTML file, also while it still runs."""

from semspec.cli.report import main

if __name__ == "__main__":
    main()
