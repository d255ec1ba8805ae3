"""The checks behind test_architecture.py: each takes the root of a source tree and returns its complaints.

They read the sources alone (nothing is imported), so a test can hand them a tree with a planted fault.
"""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from attrs import field, frozen

PACKAGE = "fencepost"
FACE = ""  # the part of the modules that lie directly in the package
READERS = ("benchmarks", "docs", "tests", "tools")  # who else may be the one that uses a definition

FUNCTION_LINES_MAX = 40

# What a core may not do: wait, look at the clock, roll dice, touch a file, talk to others, find code by name.
OUTSIDE_WORLD = frozenset(
    """
    anyio asyncio concurrent datetime fcntl glob http importlib logging mmap multiprocessing os pathlib queue
    random sched secrets select selectors shutil signal socket ssl subprocess tempfile threading time trio
    urllib uuid
    """.split()  # noqa: SIM905 a wall of quotes would hide the words
)
VALUES = frozenset({"random.Random"})  # with a seed it is a value like any other
# Makes a function for each class from its annotations, as attrs and namedtuple do; its source comes from
# nowhere else.
COMPILERS = frozenset({"protocol/fork.py", "protocol/codec.py"})
# Loads the compiled part of a library, once, when it is imported.
LOADERS = frozenset({"protocol/checksum.py"})
OUTSIDE_CALLS = frozenset({"breakpoint", "eval", "exec", "input", "open", "print", "__import__"})

# Decorators that leave a function to be called by name; any other is taken to hand it to somebody.
PLAIN_DECORATORS = frozenset(
    {"asynccontextmanager", "cache", "contextmanager", "lru_cache", "overload", "wraps"}
)
HOOK = "pytest_"  # pytest calls functions with such names
BANNED_PARTS = frozenset({"helper", "helpers", "manager", "maybe", "util", "utils"})
BANNED_MARKS = re.compile(r"\b(TODO|FIXME|XXX)\b")
IMPORT_PATH = re.compile(
    rf"{PACKAGE}[\w.]*:(\w+)"
)  # how the command line names a function before it is imported
BARE_EXEMPTION = re.compile(r"(noqa|type: ?ignore|pyright: ?ignore)(: ?[A-Z0-9, ]+|\[[^\]]*\])?\W*$")
# What both begin with: a file without it has no such comment, and to find comments is slow.
SUSPECT = re.compile(rf"{BANNED_MARKS.pattern}|noqa|ignore")


@frozen
class Module:
    """One source file: its dotted name, its place, its text and its syntax tree."""

    name: str
    path: Path = field(kw_only=True)
    text: str = field(kw_only=True)
    tree: ast.Module = field(kw_only=True)

    @property
    def place(self) -> str:
        """The file inside the package, as `broker/server.py`."""
        inside = self.name.split(".")[1:]
        return "/".join(
            [*inside, "__init__.py"] if self.path.name == "__init__.py" else [*inside[:-1], self.path.name]
        )

    @property
    def part(self) -> str:
        """The package inside `fencepost` that it belongs to, or FACE."""
        return self.place.split("/")[0] if "/" in self.place else FACE


def package_modules(root: Path) -> list[Module]:
    """Every module of the package under `root`, by its real path."""
    return [read_module(path, root=root) for path in sorted((root / PACKAGE).rglob("*.py"))]


def read_module(path: Path, *, root: Path) -> Module:
    """Parses one file; SyntaxError when it is not Python."""
    parts = list(path.relative_to(root).with_suffix("").parts)
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    text = path.read_text(encoding="utf-8")
    return Module(name, path=path, text=text, tree=parsed(text, str(path)))


@cache
def parsed(text: str, filename: str) -> ast.Module:
    """The syntax tree of a file; every check reads the same files, and none changes their trees."""
    return ast.parse(text, filename=filename)


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Every node of a tree, which is walked once for all checks."""
    return tuple(ast.walk(tree))


def imports(module: Module) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of each import, wherever it stands: in functions, under TYPE_CHECKING, relative."""
    for node in nodes(module.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                here = (
                    module.name.split(".")
                    if module.path.name == "__init__.py"
                    else module.name.split(".")[:-1]
                )
                above = here[: len(here) - node.level + 1]
                source = ".".join([*above, source] if source else above)
            yield from ((node.lineno, f"{source}.{alias.name}") for alias in node.names)


def target(dotted: str, names: Iterable[str]) -> str | None:
    """The module of `names` that an import leads to: `fencepost.broker` for `fencepost.broker.WORD`."""
    while dotted:
        if dotted in names:
            return dotted
        dotted = dotted.rpartition(".")[0]
    return None


def forbidden_arrows(root: Path, arrows: Mapping[str, frozenset[str]]) -> list[str]:
    """Imports from one part to another that `arrows` does not allow, and parts that it does not know."""
    modules = {module.name: module for module in package_modules(root)}
    complaints: list[str] = []
    for module in modules.values():
        allowed = arrows.get(module.part)
        if allowed is None:
            complaints.append(f"{module.place}: the part {module.part} is not in the table of arrows")
            continue
        for line, dotted in imports(module):
            found = target(dotted, modules)
            part = module.part if found is None else modules[found].part
            if part not in allowed | {module.part}:
                complaints.append(f"{module.place}:{line} imports {found}: no arrow to {part or 'the face'}")
    return complaints


def outside_world_in_cores(root: Path, cores: frozenset[str], shells: frozenset[str]) -> list[str]:
    """Imports and calls by which a core would wait, see a clock, draw a number, touch a file, use a shell."""
    modules = {module.name: module for module in package_modules(root)}
    complaints: list[str] = []
    for module in modules.values():
        if module.part not in cores or module.place in shells:
            continue
        for line, dotted in imports(module):
            found = target(dotted, modules)
            first = dotted.split(".")[0]
            may_load = first == "importlib" and module.place in LOADERS
            outside = first in OUTSIDE_WORLD and dotted not in VALUES and not may_load
            if outside or (found and modules[found].place in shells):
                complaints.append(f"{module.place}:{line} imports {dotted}: a core takes and returns values")
        for node in nodes(module.tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in OUTSIDE_CALLS
                and not (node.func.id == "exec" and module.place in COMPILERS)
            ):
                complaints.append(
                    f"{module.place}:{node.lineno} calls {node.func.id}(): a core touches nothing"
                )
    return complaints


def not_by_the_owner(root: Path, owners: Mapping[str, str]) -> list[str]:
    """Imports of functions that only one module may use, so that there is one way to do a thing."""
    return [
        f"{module.place}:{line} imports {dotted}: use {owners[dotted]}"
        for module in package_modules(root)
        for line, dotted in imports(module)
        if module.place != owners.get(dotted, module.place)
    ]


def too_long(root: Path) -> list[str]:
    """Functions over the limit; docstrings do not count. A file is as long as its idea."""
    complaints: list[str] = []
    for module in package_modules(root):
        functions = [n for n in nodes(module.tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
        complaints += [
            f"{module.place}:{function.lineno} {function.name} has {body_lines(function)} lines"
            for function in functions
            if body_lines(function) > FUNCTION_LINES_MAX
        ]
    return complaints


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines from the first statement after the docstring to the last."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or body[-1].lineno) - body[0].lineno + 1 if body else 0


def dead_modules(root: Path) -> list[str]:
    """Modules that no other module imports and no string names, as an entry point or `python -m` does."""
    modules = package_modules(root)
    names = {module.name for module in modules}
    used = set(names_in_text(root, names))
    for module in [*modules, *reader_modules(root)]:
        reached = {target(dotted, names) for _, dotted in imports(module)}
        spelled = {text.split(":")[0] for text in strings(module.tree)}
        used |= {name for name in reached | spelled if name and name != module.name}
    # A package is no module to judge: it lives as long as something in it does.
    return [
        f"{module.place} is imported by nobody"
        for module in modules
        if module.name not in used and module.path.name not in ("__init__.py", "__main__.py")
    ]


def dead_definitions(root: Path) -> list[str]:
    """Public functions, classes and constants at the top of a module that nothing but themselves uses."""
    modules = package_modules(root)
    everywhere = Counter(name for module in [*modules, *reader_modules(root)] for name in uses(module.tree))
    known = documented(root) | entry_points(root)
    return [
        f"{module.place}:{node.lineno} {name} is used nowhere"
        for module in modules
        for name, node in definitions(module.tree)
        if not name.startswith(HOOK) and name not in known and everywhere[name] == Counter(uses(node))[name]
    ]


def definitions(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """(name, statement) of each public definition at the top of a module that no decorator registers."""
    for node in tree.body:
        names: list[str] = []
        if isinstance(node, ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = [node.name] if all(is_plain(decorator) for decorator in node.decorator_list) else []
        elif isinstance(node, ast.Assign):
            names = [name.id for name in node.targets if isinstance(name, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names = [node.target.id]
        yield from ((name, node) for name in names if not name.startswith("_"))


def is_plain(decorator: ast.expr) -> bool:
    """Whether a decorator only wraps its function, rather than registering it as a command or a fixture."""
    function = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(function).rpartition(".")[2] in PLAIN_DECORATORS


def uses(tree: ast.AST) -> Iterator[str]:
    """Every name that a piece of code reads, imports, or writes as "package.module:name"; a definition or an
    assignment is not a use.
    """
    for node in nodes(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name):
                yield name
            case ast.ImportFrom(names=aliases):
                yield from (alias.name for alias in aliases)
            case ast.Constant(value=str(text)) if named := IMPORT_PATH.fullmatch(text):
                yield named[1]
            case _:
                pass


def overloaded_names(root: Path) -> list[str]:
    """Classes of the same name in several modules: a reader who has met one would take it for the other."""
    owners: dict[str, list[str]] = {}
    for module in package_modules(root):
        names = {node.name for node in nodes(module.tree) if isinstance(node, ast.ClassDef)}
        for name in names:
            owners.setdefault(name, []).append(module.place)
    return [
        f"{name} is a class in {' and in '.join(places)}: give one of them another name"
        for name, places in sorted(owners.items())
        if len(places) > 1
    ]


def banned_words(root: Path) -> list[str]:
    """Names that say nothing, marks of unfinished work, and exemptions from a check without a reason."""
    complaints: list[str] = []
    for module in package_modules(root):
        complaints += [f"{module.place}: the name of the file says nothing"] * says_nothing(module.path.stem)
        complaints += [
            f"{module.place}:{line} {name}: the name says nothing"
            for line, name in defined_names(module.tree)
            if says_nothing(name)
        ]
    for module in [*package_modules(root), *reader_modules(root)]:
        for line, comment in comments(module.text) if SUSPECT.search(module.text) else ():
            if BANNED_MARKS.search(comment):
                complaints.append(f"{module.path.relative_to(root)}:{line} unfinished: {comment}")
            if BARE_EXEMPTION.search(comment):
                complaints.append(
                    f"{module.path.relative_to(root)}:{line} an exemption without a reason: {comment}"
                )
    return complaints


def says_nothing(name: str) -> bool:
    """Whether one of the words that a name is made of is banned, in snake_case and in CamelCase."""
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
    return any(part.lower() in BANNED_PARTS for part in parts)


def defined_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, name) of every class, function, parameter and variable that a module makes."""
    for node in nodes(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                yield node.lineno, name
            case _:
                pass


def comments(text: str) -> Iterator[tuple[int, str]]:
    """(line, text) of every comment; what strings hold is not a comment."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def strings(tree: ast.AST) -> Iterator[str]:
    """Every string constant of a module."""
    for node in nodes(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def reader_modules(root: Path) -> list[Module]:
    """The Python files beside the package that may use it."""
    return [
        read_module(path, root=root) for folder in READERS for path in sorted((root / folder).rglob("*.py"))
    ]


def documented(root: Path) -> frozenset[str]:
    """The words that README.md and docs/ show as code."""
    pages = [path for path in [root / "README.md", *(root / "docs").rglob("*.md")] if path.exists()]
    prose = "\n".join(path.read_text(encoding="utf-8") for path in pages)
    code = re.findall(r"```.*?```|`[^`\n]+`", prose, re.DOTALL)
    return frozenset(word for piece in code for word in re.findall(r"\w+", piece))


def names_in_text(root: Path, names: Iterable[str]) -> set[str]:
    """Modules that pyproject.toml or the Makefile start by name."""
    return {name for name in names if re.search(rf"\b{re.escape(name)}\b(?!\.)", start_files(root))}


def entry_points(root: Path) -> frozenset[str]:
    """The functions that pyproject.toml names as `module:function`."""
    return frozenset(re.findall(rf'"{PACKAGE}[\w.]*:(\w+)"', start_files(root)))


def start_files(root: Path) -> str:
    """What starts modules by name from outside Python."""
    files = (root / "pyproject.toml", root / "Makefile")
    return "\n".join(path.read_text(encoding="utf-8") for path in files if path.exists())
