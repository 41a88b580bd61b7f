"""``python -m semspec.audit``: measure how far accepted tokens really moved the target's next step."""

from semspec.cli.audit import main

if __name__ == "__main__":
    main()
