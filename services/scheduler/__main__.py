"""`python -m services.scheduler`"""

from services.scheduler.main import main

if __name__ == "__main__":
    main()
