//! [`Definitions`]: the CustomResourceDefinitions of both groups (MIG-57, MIG-58).

use std::collections::BTreeSet;

use libcalico::kubernetes::{ApiGroup, Resource};
use libcalico::migration::{MovedKind, cluster_information, definition_name, moved_kinds};
use serde_json::Value;

use super::super::listing;
use super::super::requests::{Problem, Requests};
use super::Checked;

/// Definitions of custom resources.
pub(in crate::migration) const DEFINITIONS: Resource = Resource {
    api_version: "apiextensions.k8s.io/v1",
    kind: "CustomResourceDefinition",
    plural: "customresourcedefinitions",
    namespaced: false,
};

/// Upstream's texts.
const PRE_GA: &str = "cluster serves the pre-GA DatastoreMigration API (v1beta1); apply the v1 CRD before starting a \
                      migration";
const NO_V1: &str = "no v1 CRDs (crd.projectcalico.org) found - nothing to migrate";
const NO_V3: &str = "v3 CRDs (projectcalico.org) not installed — apply them before starting migration";

/// The names of the definitions that the API server has.
pub(super) struct Definitions {
    names: BTreeSet<String>,
}

impl Definitions {
    pub(super) async fn read(requests: &Requests) -> Result<Self, Problem> {
        let name = |object: &Value| object["metadata"]["name"].as_str().map(str::to_owned);
        let (names, _) = listing::metadata(requests, &DEFINITIONS, name).await?;
        Ok(Definitions { names: names.into_iter().collect() })
    }

    fn has(&self, resource: &Resource) -> bool {
        self.names.contains(&definition_name(resource))
    }

    /// Returns the reason why no migration may begin. A migration that has a finalizer has begun.
    pub(super) fn reason_to_end(&self, context: &Checked<'_>) -> Option<&'static str> {
        let suffix = format!(".{}", ApiGroup::CrdV1.name());
        if context.control.is_pre_ga() && !context.marks.finalizer {
            Some(PRE_GA)
        } else if self.names.iter().any(|name| name.ends_with(&suffix)) {
            None
        } else {
            Some(NO_V1)
        }
    }

    /// Returns the reason to wait if v3 does not define a kind of which v1 has objects.
    pub(super) async fn missing_in_v3(&self, requests: &Requests) -> Result<Option<String>, Problem> {
        let information = cluster_information(ApiGroup::V3).resource;
        let mut missing = Vec::new();
        if !self.has(&information) {
            missing.push(information.plural.to_owned());
        }
        for MovedKind { v1, v3, .. } in moved_kinds() {
            if self.has(&v3) || !self.has(&v1) {
                continue;
            }
            let count = listing::metadata(requests, &v1, |_| Some(())).await?.0.len();
            if count > 0 {
                missing.push(format!("{} ({count} objects)", v3.plural));
            }
        }
        let named = missing.join(", ");
        Ok((!missing.is_empty()).then(|| format!("{NO_V3}: {named}")))
    }
}
