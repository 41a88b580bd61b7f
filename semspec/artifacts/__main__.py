"""``python -m semspec.artifacts``: what is there, what it says, and whether it is as published."""

from semspec.cli.artifacts import main

if __name__ == "__main__":
    main()
