"""``python -m semspec.launch``: print or start the SGLang servers for a run with ``engine=sglang``."""

from semspec.cli.launch import main

if __name__ == "__main__":
    main()
