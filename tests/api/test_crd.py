"""The CustomResourceDefinition that is generated from the models."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from pydantic import Field, StringConstraints

from ridgeline.api import crd
from ridgeline.api.crd import UnsupportedSchemaError, structural_schema
from ridgeline.api.fleet import Engine, FleetSpec, FleetStatus, InferenceFleet, Model, Rule, Topology

COMMITTED = Path(__file__).resolve().parents[2] / "helm" / "ridgeline" / "crds" / "inferencefleets.yaml"

Short = Annotated[str, StringConstraints(max_length=8)]


def version() -> dict[str, Any]:
    versions: list[dict[str, Any]] = crd.manifest()["spec"]["versions"]
    assert len(versions) == 1
    return versions[0]


def schema_of(*path: str) -> dict[str, Any]:
    """The schema of a field of the fleet, such as ("spec", "engine", "args")."""
    node: dict[str, Any] = version()["schema"]["openAPIV3Schema"]
    for name in path:
        node = node["properties"][name]
    return node


def leaves(schema: dict[str, Any], path: str = "") -> list[tuple[str, dict[str, Any]]]:
    """Every schema node below a schema, with its path."""
    found = [(path, schema)]
    for name, child in schema.get("properties", {}).items():
        found += leaves(child, f"{path}.{name}")
    if "items" in schema:
        found += leaves(schema["items"], f"{path}[]")
    return found


def test_the_committed_file_is_what_the_models_say() -> None:
    assert COMMITTED.read_text() == crd.render(), (
        "run `python -m ridgeline.api.crd > helm/ridgeline/crds/inferencefleets.yaml`"
    )


def test_the_rendered_file_is_plain_yaml_without_anchors() -> None:
    text = crd.render()
    assert yaml.safe_load(text) == crd.manifest()
    assert "&id" not in text
    assert "*id" not in text


def test_the_printer_columns_are_those_of_the_design() -> None:
    columns = version()["additionalPrinterColumns"]
    names = [column["name"].upper() for column in columns if column.get("priority", 0) == 0]
    assert names == ["MODEL", "MODE", "MIXED", "PREFILL", "DECODE", "READY", "REASON", "AGE"]
    assert [column["name"].upper() for column in columns if column.get("priority", 0) > 0] == ["NEEDED"], "with -o wide"


def test_short_names_scale_and_status_are_there() -> None:
    assert crd.manifest()["spec"]["names"]["shortNames"] == ["fleet", "fleets"]
    assert version()["subresources"] == {
        "status": {},
        "scale": {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    }


@pytest.mark.parametrize("path", ["topology", "objectives", "rules", "transition", "router"])
def test_a_nested_object_defaults_to_an_empty_one_so_that_its_own_defaults_apply(path: str) -> None:
    assert schema_of("spec", path)["default"] == {}


def test_defaults_of_values_are_written_and_empty_ones_are_not() -> None:
    assert schema_of("spec", "topology", "policy")["default"] == "Recommend"
    assert schema_of("spec", "objectives", "percentile")["default"] == 95
    assert "default" not in schema_of("spec", "engine", "args")
    assert "default" not in schema_of("spec", "model", "revision")


def test_only_what_has_no_default_is_required() -> None:
    assert schema_of("spec")["required"] == ["model", "hardware", "engine"]
    assert "required" not in schema_of("spec", "topology")


def test_nothing_in_status_has_a_default() -> None:
    assert [path for path, node in leaves(schema_of("status")) if "default" in node] == []


def test_lists_of_objects_merge_by_key_and_lists_of_text_are_replaced_whole() -> None:
    environment = schema_of("spec", "engine", "env")
    assert (environment["x-kubernetes-list-type"], environment["x-kubernetes-list-map-keys"]) == ("map", ["name"])
    conditions = schema_of("status", "conditions")
    assert (conditions["x-kubernetes-list-type"], conditions["x-kubernetes-list-map-keys"]) == ("map", ["type"])
    assert schema_of("spec", "engine", "args")["x-kubernetes-list-type"] == "atomic"


def test_a_pod_template_is_kept_as_the_user_wrote_it() -> None:
    template = schema_of("spec", "engine", "podTemplate")
    assert template["type"] == "object"
    assert template["x-kubernetes-preserve-unknown-fields"] is True


def test_fields_keep_the_name_of_the_api_where_python_has_another() -> None:
    assert "from" in schema_of("status", "transition")["properties"]
    assert "origin" not in schema_of("status", "transition")["properties"]


def test_there_are_no_floats_and_no_booleans() -> None:
    kinds = {node["type"] for _, node in leaves(schema_of())}
    assert kinds == {"object", "array", "string", "integer"}


def test_every_field_of_spec_and_status_is_described() -> None:
    bare = [
        path for part in ("spec", "status") for path, node in leaves(schema_of(part)) if not node.get("description")
    ]
    assert [path for path in bare if not path.endswith("[]")] == []


@pytest.mark.parametrize(
    ("cls", "path"),
    [(FleetSpec, ("spec",)), (Topology, ("spec", "topology")), (Engine, ("spec", "engine")), (InferenceFleet, ())],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_the_rules_of_a_class_stand_at_its_object(cls: type[Model], path: tuple[str, ...]) -> None:
    written = [(rule["rule"], rule["message"]) for rule in schema_of(*path)["x-kubernetes-validations"]]
    assert written == [(rule.rule, rule.message) for rule in cls.RULES]


def test_a_field_without_docs_is_described_by_its_class_and_one_with_docs_by_its_own() -> None:
    assert schema_of("spec", "topology", "policy")["description"].startswith("Recommend only tells")
    assert schema_of("spec", "router")["description"] == "The router in front of the engines."


# ---------------------------------------------------------------- types that cannot be said


class Colour(StrEnum):
    """A colour."""

    RED = "Red"


class Inner(Model):
    """An inner object."""

    size: Annotated[int, Field(ge=0)] = 1
    """How large."""


class OneLiteral(Model):
    """Says so."""

    colour: Literal["Red"] = "Red"
    """The colour."""
    other: Colour | None = None


class WithUnion(Model):
    """Says so."""

    size: int | str = 1
    """The size."""


class WithFloat(Model):
    """Says so."""

    size: Annotated[float, Field(ge=0)] = 1.0
    """The size."""


class WithSet(Model):
    """Says so."""

    names: set[Short]
    """The names."""


class WithMap(Model):
    """Says so."""

    names: dict[str, Short]
    """The names."""


class WithExclusiveBound(Model):
    """Says so."""

    size: Annotated[int, Field(gt=0)] = 1
    """The size."""


class WithoutMaximumLength(Model):
    """Says so."""

    name: str = ""
    """The name."""


class WithoutMinimum(Model):
    """Says so."""

    size: int = 0
    """The size."""


class WithUnboundedList(Model):
    """Says so."""

    names: list[Short]
    """The names."""


class WithListOfUnkeyed(Model):
    """Says so."""

    inner: Annotated[list[Inner], Field(max_length=3)]
    """The inner objects."""


class WithoutDocs(Model):
    """Says so."""

    name: Short = ""


class WithOtherDefault(Model):
    """Says so."""

    inner: Inner = Inner(size=3)


class WithFactory(Model):
    """Says so."""

    inner: Inner = Field(default_factory=Inner)


class Recursive(Model):
    """Says so."""

    inner: Recursive | None = None


@pytest.mark.parametrize(
    ("cls", "complaint"),
    [
        pytest.param(WithUnion, "union has no place", id="union"),
        pytest.param(WithFloat, "float has no place", id="float"),
        pytest.param(WithSet, "set has no place", id="set"),
        pytest.param(WithMap, "use a list with keys", id="map"),
        pytest.param(WithExclusiveBound, "use ge and le", id="exclusive-bound"),
        pytest.param(WithoutMaximumLength, "without a maximum length", id="unbounded-text"),
        pytest.param(WithoutMinimum, "without a minimum", id="unbounded-integer"),
        pytest.param(WithUnboundedList, "without a maximum size", id="unbounded-list"),
        pytest.param(WithListOfUnkeyed, "without LIST_KEYS", id="unkeyed-list"),
        pytest.param(WithoutDocs, "has no description", id="undescribed"),
        pytest.param(WithOtherDefault, "must be that of its class", id="default-of-another-kind"),
        pytest.param(WithFactory, "must be a constant", id="default-factory"),
        pytest.param(Recursive, "cannot be recursive", id="recursion"),
    ],
)
def test_a_model_that_the_api_server_would_refuse_or_could_not_bound_is_refused_here(
    cls: type[Model], complaint: str
) -> None:
    with pytest.raises(UnsupportedSchemaError, match=complaint):
        structural_schema(cls)


def test_a_single_literal_and_an_optional_enum_become_enums() -> None:
    properties = structural_schema(OneLiteral)["properties"]
    assert properties["colour"] == {"description": "The colour.", "type": "string", "enum": ["Red"], "default": "Red"}
    assert properties["other"] == {"description": "A colour.", "type": "string", "enum": ["Red"]}


def test_integers_say_their_width() -> None:
    assert schema_of("spec", "replicas")["format"] == "int32"
    assert schema_of("status", "transition", "kvBytesAtSwitch")["format"] == "int64"


def test_a_rule_may_name_the_field_it_is_about() -> None:
    class Ruled(Model):
        """Says so."""

        RULES = (Rule(rule="self.size > 1", message="must", field_path=".size"), Rule(rule="true", message="never"))
        size: Annotated[int, Field(ge=0)] = 2
        """How large."""

    assert crd.validations(Ruled) == [
        {"rule": "self.size > 1", "message": "must", "fieldPath": ".size"},
        {"rule": "true", "message": "never"},
    ]


def test_the_status_model_writes_only_fields_that_the_schema_has() -> None:
    def names(cls: type[Model]) -> set[str]:
        return {field.alias or name for name, field in cls.model_fields.items()}

    assert names(FleetStatus) == set(schema_of("status")["properties"])
    assert names(FleetSpec) == set(schema_of("spec")["properties"])
