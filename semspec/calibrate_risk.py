"""``python -m semspec.calibrate_risk``: what a rule takes the guarantee of an asked risk from."""

from semspec.cli.calibrate_risk import main

if __name__ == "__main__":
    main()
