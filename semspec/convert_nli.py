"""``python -m semspec.convert_nli``: a copy with safetensors of a pickled entailment model."""

from semspec.cli.convert_nli import main

if __name__ == "__main__":
    main()
