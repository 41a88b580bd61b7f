"""``python -m semspec.calibrate_risk``: make the calibration with which a rule guarantees a requested risk."""

from semspec.cli.calibrate_risk import main

if __name__ == "__main__":
    main()
