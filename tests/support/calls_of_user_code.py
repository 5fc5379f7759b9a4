"""Where the engine calls user code: read from its source, by what type hints say of names, parameters and fields.

What is user code follows from the declarations: everything callable in what `Engine` and `tool` are given. What guards
it follows from `user_code.py`: the block of a `guarded`, and what is handed to a function there that takes code. From
these two, guards are worked out outwards: a function is guarded if nobody refers to it outside a guard, and a parameter
is a guard of what is handed in if the function uses it in guards only.
"""

from __future__ import annotations

import ast
import collections.abc
import dataclasses
import importlib
import inspect
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pydantic

from turnwise.engine import user_code
from turnwise.engine.checkpoints.checkpoints import Checkpoints
from turnwise.engine.clock import Timer
from turnwise.engine.tools import argument_types
from turnwise.persistence.files.protocol import FileStore
from turnwise.persistence.protocol import ChatStore

GUARDS = {"turnwise.engine.user_code", "turnwise.engine.guarded_store"}
"""The modules that are guards themselves."""
WRAPPED = {ChatStore, FileStore, Timer}
"""What the engine uses through a wrapper of the same type; that it raises nothing has tests of its own."""
OURS = {Checkpoints}
"""Classes that a service makes, but whose code is all ours."""

_IMPORTED_LATE = {"Adapter": argument_types.Adapter}

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Loop = ast.For | ast.AsyncFor | ast.comprehension
Types = frozenset[Any]
"""The classes and callables that a type hint mentions, at any depth."""
NOTHING: Types = frozenset()
ANSWER = "what user code returned"
"""Stands among types for what may run more of it: an awaitable, an iterator, a context."""


@dataclass
class UserCode:
    """What others write, by its type."""

    callables: set[Any] = field(default_factory=set)
    objects: set[type] = field(default_factory=set)

    @classmethod
    def declared(cls, *doors: Callable[..., Any]) -> UserCode:
        """Return what can be handed in through the parameters of `doors`."""
        found = cls()
        for door in doors:
            hints = typing.get_type_hints(door)
            for name in set(inspect.signature(door).parameters) - {"self"}:
                found._take(hints[name])
        return found

    def runs(self, types: Types) -> bool:
        """Return whether calling a value of such a type runs user code: the user's, or what is handed such."""
        user = self.callables | self.objects
        handed = (each for known in types if not isinstance(known, type | str) for each in typing.get_args(known)[:-1])
        return bool(types & user) or any(mentioned(hint) & user for hint in _flat(handed))

    def has_method(self, types: Types, name: str) -> bool:
        """Return whether a value of such a type is an object of the user's, with a method of that name."""
        return any(callable(inspect.getattr_static(known, name, None)) for known in types & self.objects)

    def _take(self, hint: Any) -> None:
        for known in mentioned(hint) - self.callables - self.objects - WRAPPED - OURS:
            if not isinstance(known, type):
                self.callables.add(known)
                self._take(typing.get_args(known)[-1])
            elif known is pydantic.TypeAdapter:  # types check and spell values by code of their own
                self.objects.add(known)
            elif known.__module__.startswith("turnwise."):
                self._take_class(known)

    def _take_class(self, known: type) -> None:
        if issubclass(known, BaseException | msgspec.Struct | str):
            return
        if dataclasses.is_dataclass(known):
            for hint in typing.get_type_hints(known, localns=_IMPORTED_LATE).values():
                self._take(hint)
        else:
            self.objects.add(known)
            for name, method in inspect.getmembers(known, inspect.isfunction):
                if not name.startswith("_"):
                    self._take(typing.get_type_hints(method).get("return"))


def mentioned(hint: Any) -> Types:
    """Return the classes and callables in a hint."""
    origin = typing.get_origin(hint)
    if origin is collections.abc.Callable:
        return frozenset({hint})
    if origin is not None:
        own = {origin} if isinstance(origin, type) else set()
        return frozenset(own).union(*map(mentioned, typing.get_args(hint)))
    return frozenset({hint}) if isinstance(hint, type) else NOTHING


def _flat(hints: Iterable[Any]) -> Iterator[Any]:
    for hint in hints:
        yield from hint if isinstance(hint, list) else [hint]


class Module:
    """A module's source, beside what it is when it runs."""

    def __init__(self, name: str, source: str, names: dict[str, Any]) -> None:
        self.name = name
        self.names = names
        self.tree = ast.parse(source)
        self.above = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def functions_around(self, node: ast.AST) -> Iterator[Function]:
        """Yield the functions that a node stands in, from the inside out."""
        while (above := self.above.get(node)) is not None:
            if isinstance(above, Function) and not (isinstance(node, ast.arguments) or node in _decorators(above)):
                yield above
            node = above

    def statement_of(self, node: ast.AST) -> ast.AST:
        """Return the assignment, the loop or the context that gives a target its value."""
        while isinstance(node, ast.expr):
            node = self.above[node]
        return node

    def class_of(self, function: Function) -> type | None:
        """Return the class that a function is a method of."""
        above = self.above.get(function)
        found = self.names.get(above.name) if isinstance(above, ast.ClassDef) else None
        return found if isinstance(found, type) else None


def modules_of(package: str) -> list[Module]:
    """Return all modules of a package."""
    root = Path(importlib.import_module(package).__path__[0])
    found = []
    for file in sorted(root.rglob("*.py")):
        name = ".".join([package, *file.relative_to(root).with_suffix("").parts]).removesuffix(".__init__")
        found.append(Module(name, file.read_text(encoding="utf-8"), vars(importlib.import_module(name))))
    return found


def _decorators(function: Function) -> Sequence[ast.expr]:
    return () if isinstance(function, ast.Lambda) else function.decorator_list


class Source:
    """Modules, read together: what a type hint in one says of a value in another."""

    def __init__(self, modules: Sequence[Module], user: UserCode) -> None:
        self.modules = modules
        self.user = user
        self._in_work: set[ast.AST] = set()
        self._types: dict[ast.AST, Types] = {}
        self._bound: dict[Function, dict[str, list[ast.AST]]] = {}
        self._home = {node: module for module in modules for node in ast.walk(module.tree)}
        self._functions = {
            (module.name, function.name if class_ is None else f"{class_.__qualname__}.{function.name}"): function
            for function, module in self._home.items()
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
            for class_ in [module.class_of(function)]
            if class_ is not None or isinstance(module.above[function], ast.Module)
        }
        self._assigned: dict[str, list[tuple[type | None, ast.AST]]] = {}
        for node, module in self._home.items():
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
                method = [*module.functions_around(node)][-1]
                self._assigned.setdefault(node.attr, []).append((module.class_of(method), module.statement_of(node)))
        self._loads: dict[str, list[ast.Attribute | ast.Name]] = {}
        for node in self._home:
            if isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
                self._loads.setdefault(node.attr if isinstance(node, ast.Attribute) else node.id, []).append(node)
        self._guarded: set[Any] = set()
        self._work_out_guards()

    def unguarded(self) -> list[str]:
        """Return where user code is called, awaited or gone through outside every guard, as `module:line: code`."""
        return [
            f"{module.name}:{node.lineno}: {ast.unparse(node)}"
            for module in self.modules
            if module.name not in GUARDS
            for node in ast.walk(module.tree)
            if isinstance(node, ast.expr) and self._runs_user_code(node) and not self._is_in_guard(node)
        ]

    def called(self) -> Types:
        """Return what of the user's code is called anywhere, by its type."""
        calls = (node for node in self._home if isinstance(node, ast.Call) and self._calls_user_code(node))
        callees = (call.func for call in calls)
        types = (
            self._types_of(callee.value if isinstance(callee, ast.Attribute) else callee) | self._types_of(callee)
            for callee in callees
        )
        return NOTHING.union(*types) & (self.user.callables | self.user.objects)

    # What runs user code

    def _runs_user_code(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Call):
            return self._calls_user_code(node)
        above = self._home[node].above.get(node)
        goes_on = (
            isinstance(above, ast.Await | ast.YieldFrom)
            or (isinstance(above, Loop) and node is above.iter)
            or isinstance(above, ast.withitem)
        )
        return goes_on and ANSWER in self._types_of(node)

    def _calls_user_code(self, call: ast.Call) -> bool:
        if self.user.runs(self._types_of(call.func)):
            return not isinstance(call.func, ast.Attribute) or not self._methods(call.func)
        return isinstance(call.func, ast.Attribute) and self.user.has_method(
            self._types_of(call.func.value), call.func.attr
        )

    # What is guarded

    def _work_out_guards(self) -> None:
        functions = [node for node in self._home if isinstance(node, Function)]
        references = {function: self._references(function) for function in functions}
        parameters: dict[Any, list[ast.expr]] = {
            (function, given.arg): [
                use
                for use in ast.walk(function)
                if isinstance(use, ast.Name) and use.id == given.arg and isinstance(use.ctx, ast.Load)
            ]
            for function in functions
            for given in _parameters(function)
        }
        waiting: dict[Any, list[ast.expr]] = {**references, **parameters}
        while found := {known for known, uses in waiting.items() if uses and all(map(self._is_guarded_use, uses))}:
            self._guarded |= found
            waiting = {known: uses for known, uses in waiting.items() if known not in found}

    def _references(self, function: Function) -> list[ast.expr]:
        """Return where a function is referred to, but for itself."""
        if isinstance(function, ast.Lambda):
            return [function]
        home = self._home[function]
        class_ = home.class_of(function)
        around = next(home.functions_around(function), None)
        found: list[ast.expr] = []
        for node in self._loads.get(function.name, ()):
            module = self._home[node]
            if class_ is not None:
                types = self._types_of(node.value) if isinstance(node, ast.Attribute) else {"of another scope"}
                same = not types or bool(types & {*class_.__mro__})
            elif around is not None:
                same = isinstance(node, ast.Name) and around in module.functions_around(node)
            else:
                same = _run_time_value(node, module) is home.names.get(function.name)
            if same and function not in module.functions_around(node):
                found.append(node)
        return found

    def _is_guarded_use(self, node: ast.expr) -> bool:
        above = self._home[node].above[node]
        if isinstance(above, ast.keyword):
            above = self._home[node].above[above]
        if isinstance(above, ast.Call) and node is not above.func:
            return self._guards_argument(above, node)
        return isinstance(above, ast.Compare) or (isinstance(above, ast.Call) and self._is_in_guard(above))

    def _is_in_guard(self, node: ast.AST) -> bool:
        above = self._home[node].above
        while (outer := above.get(node)) is not None:
            if isinstance(outer, ast.With | ast.AsyncWith) and node in outer.body:
                if any(self._is_guard(item.context_expr) for item in outer.items):
                    return True
            elif isinstance(outer, Function):
                return outer in self._guarded
            node = outer
        return False

    def _is_guard(self, context: ast.expr) -> bool:
        if not isinstance(context, ast.Call):
            return False
        callee = self._callee(context)
        if callee is user_code.guarded:
            return True
        function = self._source_of(callee)
        return function is not None and any(
            isinstance(node, ast.Yield) and self._is_in_guard(node) for node in ast.walk(function)
        )

    def _guards_argument(self, call: ast.Call, argument: ast.expr) -> bool:
        """Return whether what is handed in there is called by a guard only."""
        callee = self._callee(call)
        taken = callee.__init__ if isinstance(callee, type) else callee  # type: ignore[misc]
        if not inspect.isfunction(taken):
            return False
        names = [name for name in inspect.signature(taken).parameters if name != "self"]
        keyword = next((given.arg for given in call.keywords if given.value is argument), None)
        name = keyword or next((name for name, given in zip(names, call.args, strict=False) if given is argument), None)
        if taken.__module__ == user_code.__name__:
            hint = typing.get_type_hints(taken).get(name or "")
            return typing.get_origin(hint) is collections.abc.Callable
        return (self._source_of(taken), name) in self._guarded

    def _callee(self, call: ast.Call) -> Any:
        """Return what is called: a class or a function, if it is one that can be told."""
        if isinstance(call.func, ast.Attribute):
            return next(iter(self._methods(call.func)), None)
        if isinstance(call.func, ast.Name) and not self._bindings_of(call.func):
            found = self._home[call].names.get(call.func.id)
            return found if inspect.isfunction(found) or isinstance(found, type) else None
        return None

    def _source_of(self, function: Any) -> Function | None:
        if not inspect.isfunction(function):
            return None
        function = inspect.unwrap(function)
        return self._functions.get((function.__module__, function.__qualname__))

    # What type hints say of a value

    def _types_of(self, node: ast.expr) -> Types:
        if node in self._in_work:
            return NOTHING
        if node not in self._types:
            self._in_work.add(node)
            found = self._worked_out(node)
            self._in_work.discard(node)
            self._types[node] = found
        return self._types[node]

    def _worked_out(self, node: ast.expr) -> Types:
        match node:
            case ast.Name():
                return NOTHING.union(*map(self._types_bound, self._bindings_of(node)))
            case ast.Attribute():
                return NOTHING.union(*(self._types_of_field(known, node.attr) for known in self._types_of(node.value)))
            case ast.Call():
                return self._types_of_call(node)
            case ast.Lambda() | ast.Compare():
                return NOTHING
            case ast.IfExp():
                inner = [node.body, node.orelse]
            case ast.Subscript():
                inner = [node.value]
            case _:
                inner = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        return NOTHING.union(*map(self._types_of, inner))

    def _types_of_call(self, call: ast.Call) -> Types:
        methods = self._methods(call.func) if isinstance(call.func, ast.Attribute) else [self._callee(call)]
        known = [method for method in methods if method is not None and _is_ours(method)]
        found = NOTHING.union(*map(_given_by, known))
        if self._calls_user_code(call):
            answers = [_given_by(each) for each in self._types_of(call.func) & self.user.callables]
            return found.union({ANSWER}, *answers)
        if known:
            return found
        inner = [*call.args, *([call.func.value] if isinstance(call.func, ast.Attribute) else [])]
        return NOTHING.union(*map(self._types_of, inner))

    def _methods(self, callee: ast.Attribute) -> list[Any]:
        known = [each for each in self._types_of(callee.value) if isinstance(each, type) and _is_ours(each)]
        found = [getattr(each, callee.attr, None) for each in known]
        return [method for method in found if inspect.isfunction(method) or inspect.ismethod(method)]

    def _types_of_field(self, known: Any, name: str) -> Types:
        if not isinstance(known, type) or not _is_ours(known):
            return NOTHING
        static = inspect.getattr_static(known, name, None)
        if isinstance(static, property):
            return _given_by(static.fget)
        for class_ in known.__mro__:
            hint = inspect.get_annotations(class_).get(name)
            if hint is not None:
                return _read(hint, vars(sys.modules[class_.__module__]))
        return NOTHING.union(*map(self._types_bound, self._assigned_to_self(known, name)))

    def _assigned_to_self(self, class_: type, name: str) -> Iterator[ast.AST]:
        for of, node in self._assigned.get(name, ()):
            if of in class_.__mro__:
                yield node

    def _bindings_of(self, name: ast.Name) -> list[ast.AST]:
        """Return what gives a local name its value: parameters, assignments, loops, contexts, functions."""
        for function in self._home[name].functions_around(name):
            if function not in self._bound:
                self._bound[function] = _bindings(function)
            if name.id in self._bound[function]:
                return self._bound[function][name.id]
        return []

    def _types_bound(self, node: ast.AST) -> Types:
        """Return what a parameter, an assignment, a loop or a context gives to a name."""
        module = self._home[node]
        match node:
            case ast.arg(annotation=None):
                around = next(module.functions_around(node), None) or module.above[module.above[node]]
                class_ = module.class_of(around) if isinstance(around, Function) else None
                return frozenset({class_}) if class_ is not None and node.arg in ("self", "cls") else NOTHING
            case ast.arg(annotation=ast.expr() as hint) | ast.AnnAssign(annotation=hint):
                value = getattr(node, "value", None)
                hinted = _read(ast.unparse(hint), module.names)
                user = {ANSWER, *self.user.callables, *self.user.objects}
                return hinted if value is None else hinted | (self._types_of(value) & user)
            case ast.Assign() | ast.NamedExpr():
                return self._types_of(node.value)
            case ast.For() | ast.AsyncFor() | ast.comprehension():
                return self._types_of(node.iter) - {ANSWER}
            case ast.withitem():
                return self._types_of(node.context_expr)
        return NOTHING


def _given_by(function: Any) -> Types:
    """Return the types of what a function, a class or a callable type gives back."""
    if isinstance(function, type):
        return frozenset({function})
    if typing.get_origin(function) is collections.abc.Callable:
        return mentioned(typing.get_args(function)[-1])
    function = inspect.unwrap(getattr(function, "__func__", function))
    return _read(function.__annotations__.get("return"), function.__globals__)


def _read(annotation: Any, names: dict[str, Any]) -> Types:
    """Return what an annotation mentions; nothing, if it names what is imported for type checkers only."""
    if not isinstance(annotation, str):
        return mentioned(annotation)
    try:
        return mentioned(eval(annotation, names))  # noqa: S307 - our own source
    except NameError:
        return NOTHING


def _is_ours(known: Any) -> bool:
    return str(known.__module__).startswith("turnwise.")


def _run_time_value(node: ast.Name | ast.Attribute, module: Module) -> Any:
    """Return what a name of a module is when it runs: its own, an imported one, or one of an imported module."""
    if isinstance(node, ast.Name):
        return module.names.get(node.id)
    place = module.names.get(node.value.id) if isinstance(node.value, ast.Name) else None
    return getattr(place, node.attr, None) if inspect.ismodule(place) else None


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _parameters(function: Function) -> list[ast.arg]:
    given = function.args
    return [*given.posonlyargs, *given.args, *given.kwonlyargs]


def _bindings(function: Function) -> dict[str, list[ast.AST]]:
    found: dict[str, list[ast.AST]] = {}
    for parameter in [*_parameters(function), function.args.vararg, function.args.kwarg]:
        if parameter is not None:
            found.setdefault(parameter.arg, []).append(parameter)
    for node in ast.walk(function):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node is not function:
            found.setdefault(node.name, []).append(node)
        for target in _targets(node):
            for inner in ast.walk(target):
                if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                    found.setdefault(inner.id, []).append(node)
    return found


def _targets(node: ast.AST) -> Sequence[ast.expr]:
    match node:
        case ast.Assign():
            return node.targets
        case ast.AnnAssign() | ast.NamedExpr() | ast.For() | ast.AsyncFor() | ast.comprehension():
            return [node.target]
        case ast.withitem(optional_vars=ast.expr() as target):
            return [target]
    return []
