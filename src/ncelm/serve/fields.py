"""The fields of requests: one description for validation, defaults and OpenAPI."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ncelm.errors import NcelmError


class RequestError(Exception):
    """A request that cannot be answered. `status` is its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def invalid(message: str) -> RequestError:
    """Return the error for a field with an invalid value."""
    return RequestError(422, message)


@dataclass(frozen=True)
class Field:
    """A field of a request."""

    name: str
    schema: dict[str, Any]  # JSON schema
    about: str
    default: Any = None
    required: bool = False

    def check(self, value: Any) -> Any:
        """Return a valid value; raise `RequestError` for others."""
        problem = _problem(value, self.schema)
        if problem:
            raise invalid(f"{self.name}: {problem}")
        return float(value) if self.schema.get("type") == "number" else value


def _problem(value: Any, schema: dict[str, Any]) -> str | None:
    """Return what is wrong with a value, or None."""
    if "anyOf" in schema:
        problems = [_problem(value, option) for option in schema["anyOf"]]
        return None if None in problems else f"give {' or '.join(_described(option) for option in schema['anyOf'])}"
    kind = schema["type"]
    valid = {
        "string": isinstance(value, str),
        "integer": type(value) is int,
        "number": type(value) in (int, float),
        "boolean": type(value) is bool,
        "array": isinstance(value, list),
    }[kind]
    if not valid:
        return f"give {_described(schema)}"
    if kind in ("integer", "number") and not (
        schema.get("minimum", value) <= value <= schema.get("maximum", value)
        and value > schema.get("exclusiveMinimum", value - 1)
    ):
        return f"give {_described(schema)}"
    if kind == "string" and "enum" in schema and value not in schema["enum"]:
        return f"give {_described(schema)}"
    if kind == "array":
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            return f"give {_described(schema)}"
        for number, item in enumerate(value):
            if problem := _problem(item, schema["items"]):
                return f"element {number}: {problem}"
    return None


def _described(schema: dict[str, Any]) -> str:
    """Return a schema in words."""
    kind = schema["type"]
    if kind == "array":
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        size = f" of {least} to {most}" if most is not None else ""
        return f"a list{size}"
    if "enum" in schema:
        return " or ".join(schema["enum"])
    name = {"string": "a string", "integer": "a whole number", "number": "a number", "boolean": "true or false"}[kind]
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum")
    if low is not None and high is not None:
        above = "above " if "exclusiveMinimum" in schema else "from "
        return f"{name} {above}{low} to {high}" if above == "from " else f"{name} above {low}, at most {high}"
    return f"{name} of at least {low}" if low is not None else name


def read_fields(fields: Sequence[Field], content: Any, ignore_others: bool = False) -> dict[str, Any]:
    """Return the values of all fields of a request, which was parsed from JSON."""
    if not isinstance(content, dict):
        raise invalid("the body is not a JSON object")
    known = {field.name: field for field in fields}
    for name in content:
        if name not in known and not ignore_others:
            raise invalid(f"there is no field {name[:60]!r}: the fields are {', '.join(known)}")
    values = {}
    for name, field in known.items():
        value = content.get(name)
        if value is None:
            if field.required:
                raise invalid(f"{name} is missing: {field.about}")
            values[name] = field.default
        else:
            values[name] = field.check(value)
    return values


def or_invalid(compute: Callable[[], Any]) -> Any:
    """Return a result. An error of the library, which names a parameter, is an error of the request."""
    try:
        return compute()
    except NcelmError as error:
        raise invalid(str(error)) from error


# -- OpenAPI ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Endpoint:
    """A path of the service."""

    path: str
    summary: str
    fields: tuple[Field, ...] = ()
    method: str = "POST"

    def description(self) -> dict[str, Any]:
        """Return the entry of an OpenAPI document."""
        operation: dict[str, Any] = {
            "summary": self.summary,
            "operationId": re.sub(r"\W+", "_", self.path).strip("_"),
            "responses": {
                "200": {"description": "The result."},
                "4XX": {"description": 'The request is wrong: {"error": {"message": …}}.'},
                "503": {"description": "The service is busy: repeat the request later."},
            },
        }
        if "{name}" in self.path:
            name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
            operation["parameters"] = [name]
        if self.fields:
            properties = {
                field.name: {**field.schema, "description": field.about}
                | ({} if field.default is None else {"default": field.default})
                for field in self.fields
            }
            schema: dict[str, Any] = {"type": "object", "properties": properties}
            if required := [field.name for field in self.fields if field.required]:
                schema["required"] = required
            operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
        return {self.method.lower(): operation}


def openapi(endpoints: Sequence[Endpoint], version: str) -> dict[str, Any]:
    """Return the OpenAPI document of the service."""
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {}).update(endpoint.description())
    return {"openapi": "3.1.0", "info": {"title": "ncelm", "version": version}, "paths": paths}
