"""``python -m autosched.cli``: the command line where the console script is not installed."""

from autosched.cli import main

if __name__ == "__main__":
    main()
