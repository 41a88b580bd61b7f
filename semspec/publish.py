"""``python -m semspec.publish``: upload an artifact's folder to the Hugging Face Hub in one commit."""

from semspec.cli.publish import main

if __name__ == "__main__":
    main()
