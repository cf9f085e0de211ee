"""`python -m halcyon.cli`: the same command where its script is not on the path."""

from halcyon.cli.main import main

if __name__ == "__main__":
    main()
