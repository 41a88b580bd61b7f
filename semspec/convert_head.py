"""``python -m semspec.convert_head``: an artifact from a drafting head as others publish it."""

from semspec.cli.convert_head import main

if __name__ == "__main__":
    main()
