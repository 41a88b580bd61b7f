"""``python -m semspec.train_probe``: a semantic-probability probe, from data to file."""

from semspec.cli.train_probe import main

if __name__ == "__main__":
    main()
