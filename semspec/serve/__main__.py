"""``python -m semspec.serve``: serve a target and its draft over OpenAI's API."""

from semspec.cli.serve import main

if __name__ == "__main__":
    main()
