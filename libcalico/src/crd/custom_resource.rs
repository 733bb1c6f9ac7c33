//! [`CustomResource`]: a kind in an API group, and its CustomResourceDefinition.

use schemars::JsonSchema;
use serde_json::{Value, json};

use super::structural::structural;
use crate::kubernetes::ApiGroup;

/// The definition of a kind with a single version, which is served and stored (DS-53).
pub(super) struct CustomResource {
    group: ApiGroup,
    kind: &'static str,
    pub(super) definition: Value,
}

impl CustomResource {
    /// Creates the definition of a kind whose `spec` is `S`. Only v3 requires `metadata` and `spec`
    /// (DS-54).
    pub(super) fn new<S: JsonSchema>(
        group: ApiGroup,
        kind: &'static str,
        plural: &str,
        about: &str,
    ) -> Self {
        let (group_name, version) = group.api_version().split_once('/').unwrap_or_default();
        let mut spec = structural::<S>();
        spec["description"] = format!("The fields of this {kind}.").into();
        let mut schema = json!({
            "type": "object",
            "description": about,
            "properties": {
                "apiVersion": {
                    "type": "string", "description": "API group and version of this object.",
                },
                "kind": { "type": "string", "description": "Kind of this object." },
                "metadata": { "type": "object" },
                "spec": spec,
            },
        });
        if group == ApiGroup::V3 {
            schema["required"] = json!(["metadata", "spec"]);
        }
        let schema = json!({ "openAPIV3Schema": schema });
        let singular = kind.to_lowercase();
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("{plural}.{group_name}") },
            "spec": {
                "group": group_name,
                "names": {
                    "kind": kind, "listKind": format!("{kind}List"), "plural": plural,
                    "singular": singular,
                },
                // An installed definition from before structural schemas may have `true`.
                "preserveUnknownFields": false,
                "scope": "Cluster",
                "versions": [{
                    "name": version, "served": true, "storage": true, "schema": schema,
                }],
            },
        });
        CustomResource {
            group,
            kind,
            definition,
        }
    }

    /// Adds short names for kubectl in v3. Upstream has none in v1.
    pub(super) fn short_names(mut self, names: &[&str]) -> Self {
        if self.group == ApiGroup::V3 {
            self.definition["spec"]["names"]["shortNames"] = json!(names);
        }
        self
    }

    /// Adds a column of `kubectl get` in v3. Upstream has none in v1.
    pub(super) fn column(mut self, name: &str, kind: &str, path: &str, about: &str) -> Self {
        if self.group == ApiGroup::V3 {
            let column =
                json!({ "name": name, "type": kind, "jsonPath": path, "description": about });
            push(&mut self.version()["additionalPrinterColumns"], column);
        }
        self
    }

    pub(super) fn namespaced(mut self) -> Self {
        self.definition["spec"]["scope"] = "Namespaced".into();
        self
    }

    /// Adds a field for field selectors in v3. Upstream has none in v1.
    pub(super) fn selectable(mut self, path: &str) -> Self {
        if self.group == ApiGroup::V3 {
            push(
                &mut self.version()["selectableFields"],
                json!({ "jsonPath": path }),
            );
        }
        self
    }

    /// Adds a CEL rule that each object must satisfy.
    pub(super) fn rule(mut self, cel: &str, message: &str) -> Self {
        push(
            &mut self.schema()["x-kubernetes-validations"],
            rule(cel, message),
        );
        self
    }

    /// Adds constraints to `spec` that its type cannot express.
    pub(super) fn spec(mut self, more: impl FnOnce(&mut Field<'_>)) -> Self {
        more(&mut Field::new(&mut self.schema()["properties"]["spec"]));
        self
    }

    /// Adds a status subresource with the schema of `S`. `more` adds constraints that the type
    /// cannot express.
    pub(super) fn status<S: JsonSchema>(
        mut self,
        about: &str,
        more: impl FnOnce(&mut Field<'_>),
    ) -> Self {
        let mut status = structural::<S>();
        status["description"] = about.into();
        more(&mut Field::new(&mut status));
        self.schema()["properties"]["status"] = status;
        self.version()["subresources"] = json!({ "status": {} });
        self
    }

    pub(super) fn conditions(self) -> Self {
        let about = format!("Status that controllers report for this {}.", self.kind);
        self.status::<Conditions>(&about, |status| {
            status
                .at("conditions")
                .each()
                .at("observedGeneration")
                .set("format", "int64");
        })
    }

    fn version(&mut self) -> &mut Value {
        &mut self.definition["spec"]["versions"][0]
    }

    fn schema(&mut self) -> &mut Value {
        &mut self.version()["schema"]["openAPIV3Schema"]
    }
}

/// `status` that consists of conditions.
#[derive(JsonSchema)]
pub struct Conditions {
    /// Findings of controllers, at most one of each type.
    pub conditions: Option<Vec<Condition>>,
}

/// The syntax of the type of a condition.
const TYPE_PATTERN: &str = concat!(
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?",
    r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
);

/// A condition, with the limits that Kubernetes defines for all conditions.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
pub struct Condition {
    /// Type of the condition, such as Allocatable or Ready.
    #[schemars(rename = "type", length(max = 316), regex(pattern = TYPE_PATTERN))]
    pub kind: String,
    /// Status of the condition.
    #[schemars(extend("enum" = ["True", "False", "Unknown"]))]
    pub status: String,
    /// Reason in one word, for programs.
    #[schemars(
        length(min = 1, max = 1024),
        regex(pattern = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")
    )]
    pub reason: String,
    /// Reason as text, for people; may be empty.
    #[schemars(length(max = 32768))]
    pub message: String,
    /// Time of the last change.
    #[schemars(extend("format" = "date-time"))]
    pub last_transition_time: String,
    /// Generation of the object to which the condition applies.
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
}

/// The schema of a field.
pub(super) struct Field<'s> {
    schema: &'s mut Value,
}

impl<'s> Field<'s> {
    pub(super) fn new(schema: &'s mut Value) -> Self {
        Field { schema }
    }

    /// Returns the schema of the field `name`.
    ///
    /// # Panics
    /// If the type has no such field.
    pub(super) fn at(&mut self, name: &str) -> Field<'_> {
        let field = self.schema["properties"].get_mut(name);
        Field::new(field.unwrap_or_else(|| panic!("the type has no field {name}")))
    }

    /// Returns the schema of each item of this list, or of each value of this map.
    pub(super) fn each(&mut self) -> Field<'_> {
        let key = if self.schema.get("items").is_some() {
            "items"
        } else {
            "additionalProperties"
        };
        Field::new(&mut self.schema[key])
    }

    /// Makes the API server reject an object without these fields, unless they have defaults.
    pub(super) fn required(&mut self, names: &[&str]) -> &mut Self {
        self.set("required", names)
    }

    /// Sets the value that the API server stores if the field is missing in its object.
    pub(super) fn default(&mut self, value: impl Into<Value>) -> &mut Self {
        self.set("default", value.into())
    }

    /// Adds a CEL rule that the value must satisfy.
    pub(super) fn rule(&mut self, cel: &str, message: &str) -> &mut Self {
        push(
            &mut self.schema["x-kubernetes-validations"],
            rule(cel, message),
        );
        self
    }

    pub(super) fn set(&mut self, keyword: &str, value: impl serde::Serialize) -> &mut Self {
        self.schema[keyword] = json!(value);
        self
    }
}

fn rule(cel: &str, message: &str) -> Value {
    json!({ "rule": cel, "message": message, "reason": "FieldValueInvalid" })
}

/// Appends an item to a list that may be missing.
fn push(list: &mut Value, item: Value) {
    match list {
        Value::Array(items) => items.push(item),
        _ => *list = Value::Array(vec![item]),
    }
}
