"""``python -m semspec.pull``: download an artifact from the Hugging Face Hub, checking every byte."""

from semspec.cli.pull import main

if __name__ == "__main__":
    main()
