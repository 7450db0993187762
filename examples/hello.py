"""A function becomes a job.

In one terminal:    jobmesh worker --app hello
In another:         python hello.py
"""

from dataclasses import dataclass

from jobmesh import Client, Context, PermanentFailure, job


@dataclass
class Greeting:
    name: str
    times: int = 1


@job("greet", retries=3, timeout=30)
def greet(greeting: Greeting, ctx: Context) -> str:
    """Greets, politely or not at all."""
    if not greeting.name:
        raise PermanentFailure("nobody to greet")  # no retry can help
    for n in range(greeting.times):
        ctx.check_cancelled()
        ctx.progress(n + 1, greeting.times, "greeting")
    return " ".join(["hello"] * greeting.times + [greeting.name])


def main() -> None:
    with Client() as client:
        handle = client.enqueue(greet, Greeting("mesh", times=2), labels={"example": "hello"})
        print("submitted", handle.id)
        for event in handle.events():
            print(event.state)
        print("result:", handle.result(timeout=30))


if __name__ == "__main__":
    main()
