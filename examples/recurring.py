"""A recurring job: create it, watch it run, pause it, delete it."""

import time

from jobmesh import Client

NAME = "example-tick"
LABELS = {"example": "tick"}


def main() -> None:
    with Client() as client:
        made = client.schedules.create(
            NAME, "echo", {"report": "sales"}, every="2s", retries=5, labels=LABELS
        )
        print(f"{made.name}: {', '.join(made.rules)}, next at {made.next_time}")
        time.sleep(5)
        for job in client.list(labels=LABELS, limit=5):
            print(f"made {job.id} for {job.nominal_time}: {job.state}")
        client.schedules.pause(NAME, note="only an example")
        print("paused:", client.schedules.get(NAME).pause_note)
        client.schedules.delete(NAME)


if __name__ == "__main__":
    main()
