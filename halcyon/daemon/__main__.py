"""`python -m halcyon.daemon`."""

from halcyon.daemon.main import main

if __name__ == "__main__":
    main()
