"""`python -m services.worker`."""

from services.worker.main import main

if __name__ == "__main__":
    main()
