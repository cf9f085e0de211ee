"""Messages and codecs of every socket: daemon ↔ worker frames, CLI ↔ daemon replies, the HTTP API's bodies."""
