"""One hypothesis profile for all tests: no deadlines, since tests share their cores with others."""

from hypothesis import settings

settings.register_profile("tangram", deadline=None)
settings.load_profile("tangram")
