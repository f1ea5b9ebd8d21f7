"""What tests, benchmarks and examples share. Importable without pytest, but for `fixtures`.

- `processes`: start, run, end and kill processes; nothing is left behind. `forking`: the same, from one that has
  imported the SDK already. `ports`: free ones, and sockets that take connections before a server is up.
- `serving`: a server in a process of its own, at an address that outlasts it, and what that process does to serve.
  `http`: a server in this process, and raw JSON-RPC to any. `stdio`: the same over pipes. `auth`: servers that want
  tokens.
- `rpc`: messages of both eras and their answers, checked by `schema`. `older`: a whole client of 2025-11-25.
  `official`: the SDK's client as one more wire.
- `databases`: a real Postgres, a real Valkey. `backends`: a fresh database of any kind. `fixtures`: those all tests
  of a process share. `postgres_store`, `stored`, `cipher`: looks behind a store.
- `server`, `lowlevel`: furnished servers; `furnished` is one in a process of its own.
- `installing`: what others have made, from their registries, and where Node is.
- `places`: where temporary files are.
- `soaking`, `thoroughness`: how long tests with random input go on.
"""
