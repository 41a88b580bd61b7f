"""``python -m semspec.calibrate_stop``: make the calibration with which a stopper guarantees a requested risk."""

from semspec.cli.calibrate_stop import main

if __name__ == "__main__":
    main()
