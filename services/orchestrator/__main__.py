"""`python -m services.orchestrator`."""

from services.orchestrator.main import main

if __name__ == "__main__":
    main()
