# The part of google-re2 that the broker uses.

class Options:
    max_mem: int
    log_errors: bool
    never_capture: bool

class error(Exception): ...  # noqa: N801 - its name

class _Regexp:
    programsize: int
    def fullmatch(self, text: str) -> object | None: ...

def compile(pattern: str, options: Options | None = None) -> _Regexp: ...  # noqa: A001 - its name
