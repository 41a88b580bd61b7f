"""``python -m semspec.compare A B``: is B faster, is its quality another, or do the data not tell?"""

from semspec.cli.compare import main

if __name__ == "__main__":
    main()
