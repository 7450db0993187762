"""A file of any size goes in, a file comes out: `python files.py FILE`.

The client uploads the file in chunks, the worker's handler gets it as a path, writes its own file,
and the client downloads that. Nothing on the way holds it in memory.
"""

import sys
from pathlib import Path

from jobmesh import Client


def main() -> None:
    source = Path(sys.argv[1] if len(sys.argv) > 1 else __file__)
    target = Path(source.name + ".words.csv")
    with Client() as client:
        handle = client.enqueue("wordcount", source)
        handle.wait(timeout=300)
        kind = handle.download(target)
    print(f"wrote {target} ({kind}, {target.stat().st_size} bytes)")


if __name__ == "__main__":
    main()
