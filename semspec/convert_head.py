"""``python -m semspec.convert_head``: convert a drafting head published by others to an artifact."""

from semspec.cli.convert_head import main

if __name__ == "__main__":
    main()
