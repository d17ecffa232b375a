"""What the example gateway writes down: messages that are worked on, and notes."""

import json
import os
import uuid
from pathlib import Path

from session import Message


def write(path, value):
    """Writes a file whole, or not at all."""
    new = path.with_name(f"{path.name}.{os.getpid()}")  # another life may write, too
    with open(new, "w") as f:
        json.dump(value, f)
        f.flush()
        os.fsync(f.fileno())
    os.replace(new, path)


class Journal:
    def __init__(self, dir, gateway):
        self.gateway = gateway
        self.messages, self.notes = Path(dir, "messages"), Path(dir, "notes")
        self.messages.mkdir(parents=True, exist_ok=True)
        self.notes.mkdir(parents=True, exist_ok=True)

    # -- messages

    def enter(self, session, text):
        """Begins a message's turn. It is written down before, with the key that
        begins its turn once, and after, with the turn: nothing runs before that."""
        entry = {"id": uuid.uuid4().hex, "session": session.id, "text": text, "done": 0, "turn": ""}
        return self.begin(session, entry)

    def begin(self, session, entry):
        path = self.path(entry["id"])
        write(path, entry)
        try:
            turn = self.gateway.begin_message(session.id, entry["text"], entry["id"])
        except BaseException:
            path.unlink()
            raise
        write(path, dict(entry, turn=turn.id))
        return Message(entry["id"], session, entry["text"], turn)

    def done(self, m, n):
        write(self.path(m.id), {"id": m.id, "session": m.session.id, "text": m.text, "done": n, "turn": m.turn.id})

    def forget(self, m):
        self.path(m.id).unlink(missing_ok=True)

    def left(self):
        """What another life of the gateway worked on."""
        return [json.loads(p.read_text()) for p in sorted(self.messages.glob("*.json"))]

    def path(self, id):
        return self.messages / (id + ".json")

    # -- notes

    def note(self, session, seq, value):
        """Keeps a note for a session, once, however often it is told."""
        dir = self.notes / session
        dir.mkdir(exist_ok=True)
        write(dir / f"{seq}.json", value)

    def noted(self, session):
        return [json.loads(p.read_text()) for p in sorted((self.notes / session).glob("*.json"), key=lambda p: int(p.stem))]
