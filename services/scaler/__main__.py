"""`python -m services.scaler`."""

from services.scaler.main import main

if __name__ == "__main__":
    main()
