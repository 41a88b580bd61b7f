"""``python -m semspec.serve``: answer requests of OpenAI's clients with a pair of models."""

from semspec.cli.serve import main

if __name__ == "__main__":
    main()
