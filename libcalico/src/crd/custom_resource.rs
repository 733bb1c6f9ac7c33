//! [`CustomResource`]: a kind in an API group, and its CustomResourceDefinition.

use schemars::JsonSchema;
use serde_json::{Value, json};

use super::condition::Conditions;
use super::field::{Field, rule};
use super::structural::structural;
use crate::kubernetes::ApiGroup;

/// A kind with a single version, which is served and stored (DS-53).
pub(super) struct CustomResource {
    group: ApiGroup,
    kind: &'static str,
    plural: &'static str,
    about: &'static str,
    short_names: Vec<&'static str>,
    columns: Vec<Value>,
    selectable: Vec<Value>,
    namespaced: bool,
    rules: Vec<Value>,
    spec: Value,
    status: Option<Value>,
}

impl CustomResource {
    /// Creates a kind whose `spec` is `S`. `kubectl explain` shows `about`.
    pub(super) fn new<S: JsonSchema>(
        group: ApiGroup,
        kind: &'static str,
        plural: &'static str,
        about: &'static str,
    ) -> Self {
        let mut spec = structural::<S>();
        spec["description"] = format!("The fields of this {kind}.").into();
        let (short_names, columns, selectable, rules) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        CustomResource {
            group,
            kind,
            plural,
            about,
            short_names,
            columns,
            selectable,
            namespaced: false,
            rules,
            spec,
            status: None,
        }
    }

    /// Adds short names for kubectl. Upstream's v1 group has none.
    pub(super) fn short_names(mut self, names: &[&'static str]) -> Self {
        if self.group == ApiGroup::V3 {
            self.short_names.extend(names);
        }
        self
    }

    /// Adds a column of `kubectl get`. Upstream's v1 group has only Kubernetes' default columns.
    pub(super) fn column(mut self, name: &str, kind: &str, path: &str, about: &str) -> Self {
        if self.group == ApiGroup::V3 {
            self.columns.push(json!({ "name": name, "type": kind, "jsonPath": path, "description": about }));
        }
        self
    }

    /// Makes the kind namespaced.
    pub(super) fn namespaced(mut self) -> Self {
        self.namespaced = true;
        self
    }

    /// Adds a field that can be used in field selectors. Upstream's v1 group has none.
    pub(super) fn selectable(mut self, path: &str) -> Self {
        if self.group == ApiGroup::V3 {
            self.selectable.push(json!({ "jsonPath": path }));
        }
        self
    }

    /// Adds a CEL rule that each object must satisfy.
    pub(super) fn rule(mut self, cel: &str, message: &str) -> Self {
        self.rules.push(rule(cel, message));
        self
    }

    /// Adds constraints to `spec` that its type cannot express.
    pub(super) fn spec(mut self, more: impl FnOnce(&mut Field<'_>)) -> Self {
        more(&mut Field::new(&mut self.spec));
        self
    }

    /// Adds a status subresource `S`. `more` adds constraints that the type cannot express.
    pub(super) fn status<S: JsonSchema>(mut self, about: &str, more: impl FnOnce(&mut Field<'_>)) -> Self {
        let mut status = structural::<S>();
        status["description"] = about.into();
        more(&mut Field::new(&mut status));
        self.status = Some(status);
        self
    }

    /// Adds a status with conditions.
    pub(super) fn conditions(self) -> Self {
        let about = format!("What controllers found out about this {}.", self.kind);
        self.status::<Conditions>(&about, |status| {
            status.at("conditions").each().at("observedGeneration").set("format", "int64");
        })
    }

    /// Returns the CustomResourceDefinition.
    pub(super) fn definition(self) -> Value {
        let (group, version) = self.group.api_version().split_once('/').unwrap_or_default();
        let mut names = json!({
            "kind": self.kind,
            "listKind": format!("{}List", self.kind),
            "plural": self.plural,
            "singular": self.kind.to_lowercase(),
        });
        if !self.short_names.is_empty() {
            names["shortNames"] = self.short_names.clone().into();
        }
        let mut served = json!({
            "name": version,
            "served": true,
            "storage": true,
            "schema": { "openAPIV3Schema": self.schema() },
        });
        if self.status.is_some() {
            served["subresources"] = json!({ "status": {} });
        }
        if !self.columns.is_empty() {
            served["additionalPrinterColumns"] = self.columns.into();
        }
        if !self.selectable.is_empty() {
            served["selectableFields"] = self.selectable.into();
        }
        json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("{}.{group}", self.plural) },
            "spec": {
                "group": group,
                "names": names,
                // A definition from before structural schemas may exist with `true`.
                "preserveUnknownFields": false,
                "scope": if self.namespaced { "Namespaced" } else { "Cluster" },
                "versions": [served],
            },
        })
    }

    /// Returns the schema of a whole object. Only v3 requires `metadata` and `spec` (DS-54).
    fn schema(&self) -> Value {
        let mut schema = json!({
            "type": "object",
            "description": self.about,
            "properties": {
                "apiVersion": { "type": "string", "description": "API group and version of this object." },
                "kind": { "type": "string", "description": "Kind of this object." },
                "metadata": { "type": "object" },
                "spec": self.spec,
            },
        });
        if let Some(status) = &self.status {
            schema["properties"]["status"] = status.clone();
        }
        if self.group == ApiGroup::V3 {
            schema["required"] = json!(["metadata", "spec"]);
        }
        if !self.rules.is_empty() {
            schema["x-kubernetes-validations"] = self.rules.clone().into();
        }
        schema
    }
}
