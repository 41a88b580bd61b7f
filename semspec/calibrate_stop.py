"""``python -m semspec.calibrate_stop``: what a stopper takes the guarantee of an asked risk from."""

from semspec.cli.calibrate_stop import main

if __name__ == "__main__":
    main()
