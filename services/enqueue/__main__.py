"""`python -m services.enqueue`."""

from services.enqueue.main import main

if __name__ == "__main__":
    main()
