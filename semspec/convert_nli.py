"""``python -m semspec.convert_nli``: copy a pickled entailment model to safetensors."""

from semspec.cli.convert_nli import main

if __name__ == "__main__":
    main()
