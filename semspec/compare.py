"""``python -m semspec.compare A B``: compare speed and quality of two runs."""

from semspec.cli.compare import main

if __name__ == "__main__":
    main()
