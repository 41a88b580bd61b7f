"""``python -m semspec.build_datastore``: build a corpus that drafters copy from, from texts to an artifact."""

from semspec.cli.build_datastore import main

if __name__ == "__main__":
    main()
