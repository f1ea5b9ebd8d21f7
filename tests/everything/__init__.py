"""Everything a server offers besides tasks, in both eras: the same with tasks and without."""
