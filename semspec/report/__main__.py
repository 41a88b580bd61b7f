"""``python -m semspec.report``: write one HTML file about a run or a sweep, finished or still running."""

from semspec.cli.report import main

if __name__ == "__main__":
    main()
