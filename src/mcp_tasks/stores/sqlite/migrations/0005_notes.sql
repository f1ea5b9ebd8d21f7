-- Small values that a server keeps beside its tasks. They may be secret, so they are encoded like parts of a task.
CREATE TABLE notes (
    namespace TEXT NOT NULL,
    name      TEXT NOT NULL,
    value     BLOB NOT NULL,
    PRIMARY KEY (namespace, name)
);
