"""Faults that a careless hand could make, found in the source: one small change of one place each."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_COMPARISONS: Final[dict[type[ast.cmpop], str]] = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
_ARITHMETIC: Final[dict[type[ast.operator], str]] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "//",
    ast.FloorDiv: "*",
    ast.BitOr: "&",
    ast.BitAnd: "|",
}
_NAMES: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
_TALK: Final = ("_log.", "logging.", "warnings.", "console.", "print(")
"""What only tells: a fault in it changes no chat."""
_SQL_WORD: Final = re.compile(
    r"\b(AND|OR|ORDER|LIMIT|RETURNING|GROUP|UNION|FOR|BETWEEN|THEN|AS|LEFT|JOIN|WHERE)\b|[()\";]"
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One change of one place."""

    path: str
    """The file, from the root of the repository."""
    line: int
    start: int
    """Where the changed text begins, in bytes from the beginning of the file."""
    before: str
    after: str
    kind: str

    @property
    def name(self) -> str:
        """What the fault is called in the list of equivalents: it holds while the line does not change."""
        return f"{self.path}: {_flat(self.before)} -> {_flat(self.after)}"

    def planted_in(self, source: bytes) -> bytes:
        """Return the source with the fault in it."""
        end = self.start + len(self.before.encode())
        if source[self.start : end] != self.before.encode():
            raise ValueError(f"{self.path}:{self.line} has changed since the fault was found")
        return source[: self.start] + self.after.encode() + source[end:]


def faults_in(root: Path, path: str) -> list[Fault]:
    """Return every fault that can be planted in a file of Python or SQL, in the order of their places."""
    source = (root / path).read_bytes()
    if path.endswith(".sql"):
        return [
            Fault(path, source[:start].count(b"\n") + 1, start, term, "", "condition")
            for start, term in _sql_terms(source.decode("ascii"))
        ]
    found = _Finder(path, source)
    found.visit(ast.parse(source))
    return sorted(found.faults, key=lambda fault: (fault.start, fault.kind, fault.after))


class _Finder(ast.NodeVisitor):
    """Goes through a module and notes what could be done wrong in it."""

    def __init__(self, path: str, source: bytes) -> None:
        self.faults: list[Fault] = []
        self._path = path
        self._source = source
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def visit(self, node: ast.AST) -> None:
        """Visit what runs: no annotation, no docstring, nothing that only tells."""
        if isinstance(node, ast.expr) and self._text(node).startswith(_TALK):
            return
        super().visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Visit a function's defaults and body."""
        if any("overload" in self._text(decorator) for decorator in node.decorator_list) or node.name == "__repr__":
            return
        for default in (*node.args.defaults, *(known for known in node.args.kw_defaults if known is not None)):
            self.visit(default)
        for statement in node.body:
            self.visit(statement)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - ast's name

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Visit a class that does something: a protocol only promises."""
        if not any("Protocol" in self._text(base) for base in node.bases):
            for statement in node.body:
                self.visit(statement)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Visit the value, not the annotation."""
        if node.value is not None:
            self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        """Turn the condition round."""
        if "TYPE_CHECKING" not in self._text(node.test):
            self._turned(node.test)
            self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        """Turn the condition round, unless it is a plain `while True`."""
        if not isinstance(node.test, ast.Constant):
            self._turned(node.test)
            self.visit(node.test)
        for statement in (*node.body, *node.orelse):
            self.visit(statement)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """Turn the condition round."""
        self._turned(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        """Forget a condition."""
        for condition in node.ifs:
            self._change(condition, "True", "condition")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        """Compare otherwise."""
        if len(node.ops) == 1:
            operator = _COMPARISONS[type(node.ops[0])]
            changed = f"{self._text(node.left)} {operator} {self._text(node.comparators[0])}"
            self._change(node, f"({changed})", "comparison")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """Forget one of the conditions."""
        for forgotten in node.values:
            word = " and " if isinstance(node.op, ast.And) else " or "
            kept = [self._text(value) for value in node.values if value is not forgotten]
            self._change(node, f"({word.join(kept)})", "condition")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        """Forget a `not`."""
        if isinstance(node.op, ast.Not):
            self._change(node, f"bool({self._text(node.operand)})", "negation")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Calculate otherwise."""
        operator = _ARITHMETIC.get(type(node.op))
        if operator is not None:
            self._change(node, f"({self._text(node.left)} {operator} {self._text(node.right)})", "arithmetic")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Be off by one, turn a truth round, forget a condition of a statement of SQL."""
        if isinstance(node.value, bool):
            self._change(node, str(not node.value), "truth")
        elif isinstance(node.value, int):
            self._change(node, str(node.value + 1), "number")
        elif isinstance(node.value, str):
            self._sql(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Look at the whole of a composed text: before Python 3.12 its parts have no places of their own."""
        self._sql(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        """Forget a call that is made for what it does."""
        if isinstance(node.value, ast.Constant | ast.Yield | ast.YieldFrom):
            return
        if not self._text(node.value).removeprefix("await ").startswith(_TALK):
            self._change(node, "pass", "call forgotten")
            self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Forget to note something down."""
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self._change(node, "pass", "assignment forgotten")
        self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Forget to add something."""
        self._change(node, "pass", "assignment forgotten")
        self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Forget to refuse. What the error says is not looked at."""
        self._change(node, "pass", "refusal forgotten")

    def visit_Return(self, node: ast.Return) -> None:
        """Return nothing."""
        if node.value is not None and not isinstance(node.value, ast.Constant):
            self._change(node.value, "None", "nothing returned")
            self.visit(node.value)

    def visit_Break(self, node: ast.Break) -> None:
        """Go on instead of ending."""
        self._change(node, "continue", "loop")

    def visit_Continue(self, node: ast.Continue) -> None:
        """End instead of going on."""
        self._change(node, "break", "loop")

    def visit_Call(self, node: ast.Call) -> None:
        """Forget an optional argument; take the least for the most."""
        if isinstance(node.func, ast.Name) and node.func.id in _NAMES:
            self._change(node.func, _NAMES[node.func.id], "other function")
        for keyword in node.keywords:
            if keyword.arg is not None and len(node.args) + len(node.keywords) > 1:
                self._dropped(node, keyword)
        self.generic_visit(node)

    def _dropped(self, node: ast.Call, dropped: ast.keyword) -> None:
        kept = [self._text(argument) for argument in node.args]
        kept += [self._text(keyword) for keyword in node.keywords if keyword is not dropped]
        if not any(isinstance(argument, ast.GeneratorExp) for argument in node.args):
            self._change(node, f"{self._text(node.func)}({', '.join(kept)})", "argument forgotten")

    def _turned(self, condition: ast.expr) -> None:
        if not isinstance(condition, ast.Compare | ast.UnaryOp):
            self._change(condition, f"(not ({self._text(condition)}))", "negation")

    def _sql(self, node: ast.expr) -> None:
        text = self._text(node)
        if "WHERE" in text or "AND" in text:
            for start, term in _sql_terms(text):
                if text.isascii() and not set("{'") & set(term):
                    self._note(self._offset(node) + start, node.lineno, term, "", "condition")

    def _change(self, node: ast.AST, after: str, kind: str) -> None:
        before = self._text(node)
        if before and before != after:
            self._note(self._offset(node), node.lineno, before, after, kind)  # type: ignore[attr-defined]

    def _note(self, start: int, line: int, before: str, after: str, kind: str) -> None:
        self.faults.append(Fault(self._path, line, start, before, after, kind))

    def _offset(self, node: ast.AST) -> int:
        return self._lines[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined, no-any-return]

    def _text(self, node: ast.AST) -> str:
        if not hasattr(node, "end_lineno") or node.end_lineno is None:
            return ""
        end = self._lines[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        return self._source[self._offset(node) : end].decode()


def sources(root: Path, folders: tuple[str, ...]) -> Iterator[str]:
    """Yield the files of some folders that faults can be planted in, from the root of the repository."""
    for folder in folders:
        for file in sorted((root / folder).rglob("*")):
            inside = file.relative_to(root).as_posix()
            if file.suffix == ".py" or (file.suffix == ".sql" and "statements" in file.parts):
                yield inside


def _sql_terms(text: str) -> Iterator[tuple[int, str]]:
    """Yield where each condition after the first begins, `AND` included, and how it reads."""
    for start in re.finditer(r"\s+AND\b", text):
        depth, end = 0, len(text)
        for word in _SQL_WORD.finditer(text, start.end()):
            if depth == 0 and word.group() != "(":
                end = word.start()
                break
            depth += {"(": 1, ")": -1}.get(word.group(), 0)
        term = text[start.start() : end].rstrip()
        if depth == 0 and len(term) > len(start.group()) + 1:
            yield start.start(), term


def _flat(text: str) -> str:
    return " ".join(text.split()) or "nothing"
