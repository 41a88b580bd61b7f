"""``python -m semspec.certify``: is a server's output distributed as the model's?"""

from semspec.cli.certify import main

if __name__ == "__main__":
    main()
