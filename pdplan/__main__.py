"""``python -m pdplan``: the command line where the script is not on the path."""

from pdplan.cli.app import main

if __name__ == "__main__":
    main()
