"""``python -m semspec.train_probe``: train a semantic-probability probe, from data to an artifact."""

from semspec.cli.train_probe import main

if __name__ == "__main__":
    main()
