"""A chat room is an actor: it handles one message at a time, so no guest posts to a room that is closing.

Two processes run the rooms, and one is killed in the middle of the conversation. Every line that a guest has
posted is in the room once, in the order of that guest, and was passed on to every reader once:
a line, the room's new state and the copies to its readers are one transaction.

    python examples/chat_room.py              two workers and three guests, on a database in a file
    python examples/chat_room.py --url postgresql://localhost/app
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import uuid
from pathlib import Path

import holdfast.queue
from holdfast import actors

GUESTS = ("ann", "ben", "cleo")
LINES = 8


class Room:
    def __init__(self) -> None:
        self.members: list[str] = []
        self.lines: list[list[str]] = []
        self.is_closed = False

    def join(self, guest: str) -> int:
        if guest not in self.members:
            self.members.append(guest)
        return len(self.members)

    def post(self, guest: str, text: str) -> int:
        """The number of the line."""
        if self.is_closed or guest not in self.members:
            raise actors.Rejected(f"{guest} is not in an open room")
        self.lines.append([guest, text])
        room = actors.context().key
        for reader in self.members:
            actors.context().tell("inbox", f"{room}/{reader}", "deliver", guest=guest, text=text)
        return len(self.lines)

    def close(self) -> list[list[str]]:
        self.is_closed = True
        return self.lines


class Inbox:
    def __init__(self) -> None:
        self.unread: list[list[str]] = []

    def deliver(self, guest: str, text: str) -> None:
        self.unread.append([guest, text])

    def read(self) -> list[list[str]]:
        unread, self.unread = self.unread, []
        return unread


def new_system(queue: holdfast.queue.Queue) -> actors.System:
    system = actors.System(None, queue, lease=1)
    system.actor("room", backoff=0.1)(Room)
    system.actor("inbox", backoff=0.1)(Inbox)
    return system


def main() -> int:
    options = parse_arguments()
    if options.work:
        with holdfast.queue.connect(options.url, namespace=options.work) as queue:
            new_system(queue).run()
        return 0
    with tempfile.TemporaryDirectory(prefix="holdfast-example-") as folder:
        return show(options.url or f"sqlite:///{Path(folder) / 'chat.db'}")


def talk(system: actors.System, room: str, guest: str) -> None:
    for number in range(LINES):
        # The id makes it safe to send it again, as one does when an answer got lost.
        for _ in range(2):
            system.ask("room", room, "post", guest=guest, text=f"{guest} {number}", id=f"{guest}-{number}")


def show(url: str) -> int:
    namespace = f"chat-{uuid.uuid4().hex[:8]}"
    command = [sys.executable, __file__, "--url", url, "--work", namespace]
    with holdfast.queue.connect(url, namespace=namespace) as queue:
        system, room = new_system(queue), "lobby"
        workers = [subprocess.Popen(command) for _ in range(2)]
        try:
            for guest in GUESTS:
                system.ask("room", room, "join", guest=guest)
            guests = [threading.Thread(target=talk, args=(system, room, guest)) for guest in GUESTS]
            for each in guests:
                each.start()
            system.ask("room", room, "post", guest="ann", text="now", id="now")
            workers[0].kill()
            print("one of two workers was killed; the guests talk on")
            for each in guests:
                each.join()
            lines = system.ask("room", room, "close")
            inboxes = [system.ask("inbox", f"{room}/{guest}", "read") for guest in GUESTS]
            try:
                system.ask("room", room, "post", guest="ben", text="too late")
            except actors.Rejected as error:
                print(f"refused: {error}")
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    print(
        f"the room has {len(lines)} lines; the readers got {' + '.join(str(len(each)) for each in inboxes)}"
    )
    return 0 if is_whole(lines) and all(inbox == lines for inbox in inboxes) else 1


def is_whole(lines: list[list[str]]) -> bool:
    """Each line once, and those of each guest in order."""
    return all(
        [text for by, text in lines if by == guest and text != "now"]
        == [f"{guest} {number}" for number in range(LINES)]
        for guest in GUESTS
    )


def parse_arguments() -> argparse.Namespace:
    description, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--url", help="the database of the queue (default: a file of its own)")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
