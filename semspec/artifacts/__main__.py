"""``python -m semspec.artifacts``: list, show, verify and seal artifacts."""

from semspec.cli.artifacts import main

if __name__ == "__main__":
    main()
