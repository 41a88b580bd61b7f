"""``python -m semspec.launch``: the SGLang servers that a run with ``engine=sglang`` wants."""

from semspec.cli.launch import main

if __name__ == "__main__":
    main()
