"""`python -m services.worker.executor`: started by the worker's pool only."""

import sys

from services.worker.executor.child import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
