"""``python -m semspec.calibrate``: measure the constants of ARC-Decode's bound, from texts to an artifact."""

from semspec.cli.calibrate import main

if __name__ == "__main__":
    main()
