"""``python -m semspec.pull``: an artifact from the Hugging Face Hub, checked, every byte of it."""

from semspec.cli.pull import main

if __name__ == "__main__":
    main()
