//! [`Query`]: the request that reads a range. [`ContinueTokens`]: the end of a list that is read
//! page by page.

use std::collections::HashSet;

use super::error::CodecError;
use super::ipam::handle_name;
use super::kind::StoredKind;
use super::resource::{ApiGroup, Location, Resource};
use super::{affinity, ipam, pod, profile, service};
use crate::api::{ObjectKey, WorkloadEndpoint};
use crate::ipam::{BlockAffinity, Handle};
use crate::names::EndpointIdentifiers;
use crate::store::{Kind, Range};

/// The beginning of the paths of v3 kinds.
const OBJECTS: &str = "/calico/resources/v3/projectcalico.org/";

/// The orchestrator of endpoints that belong to pods.
const KUBERNETES: &str = "k8s";

/// A read request to the API server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Query {
    /// No request, because no object can exist in the range.
    Nothing,
    /// A read of a single object, which may be missing.
    Get(Location),
    /// A list of objects.
    List(List),
}

/// A list request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct List {
    /// The resource.
    pub resource: Resource,
    /// The namespace; `None` for all, and for cluster-scoped resources.
    pub namespace: Option<String>,
    /// The `labelSelector`, not yet escaped for the URL.
    pub label_selector: Option<String>,
    /// The `fieldSelector`, not yet escaped.
    pub field_selector: Option<String>,
    /// Whether to read the metadata only: the list may be requested as `PartialObjectMetadataList`.
    pub metadata_only: bool,
}

impl List {
    /// Returns the URL path, without parameters.
    pub fn url_path(&self) -> String {
        self.resource.collection(self.namespace.as_deref())
    }
}

/// Returns the request for a range of `kind`.
pub(super) fn query(group: ApiGroup, kind: StoredKind, range: &Range) -> Result<Query, CodecError> {
    if !range.is_prefix {
        return match locate(group, kind, &range.path) {
            Some(location) => Ok(Query::Get(location)),
            // Profiles of networks and endpoints of containers do not exist on an API server.
            None if matches!(kind, StoredKind::Profile | StoredKind::Endpoint) => {
                Ok(Query::Nothing)
            }
            None => Err(invalid_path(range)),
        };
    }
    let list = List {
        resource: kind.resource(group),
        namespace: None,
        label_selector: None,
        field_selector: None,
        // For most other kinds, the name does not determine the path.
        metadata_only: range.keys_only && matches!(kind, StoredKind::Block | StoredKind::Object(_)),
    };
    match kind {
        StoredKind::Affinity => {
            let label_selector =
                affinity::selector(&range.path).ok_or_else(|| invalid_path(range))?;
            Ok(Query::List(List {
                label_selector,
                ..list
            }))
        }
        StoredKind::Config => Ok(Query::Get(config(group, kind))),
        StoredKind::Object(object) if object.namespaced => {
            let rest = path_below(&range.path, object.plural).ok_or_else(|| invalid_path(range))?;
            Ok(Query::List(List {
                namespace: namespace_of(rest),
                ..list
            }))
        }
        StoredKind::Endpoint => Ok(endpoints(range, list)),
        StoredKind::Pod => {
            let rest = range
                .path
                .strip_prefix("/kubernetes/pods/")
                .ok_or_else(|| invalid_path(range))?;
            Ok(Query::List(List {
                namespace: namespace_of(rest),
                ..list
            }))
        }
        StoredKind::Service => {
            let rest = range
                .path
                .strip_prefix(service::SERVICES)
                .ok_or_else(|| invalid_path(range))?;
            Ok(Query::List(List {
                namespace: namespace_of(rest),
                ..list
            }))
        }
        StoredKind::PodOnNode => {
            let node = pod::node_of_prefix(&range.path).ok_or_else(|| invalid_path(range))?;
            Ok(Query::List(List {
                field_selector: Some(format!("spec.nodeName={node}")),
                ..list
            }))
        }
        StoredKind::Profile => Err(CodecError::Unsupported {
            operation: "List",
            object: range.kind.into(),
            reason: "profiles are derived from namespaces and service accounts; get each profile \
                     by name",
        }),
        _ => Ok(Query::List(list)),
    }
}

/// Returns the request for endpoints below a prefix. The CNI plugin's user may not list pods, so a
/// prefix that identifies a single pod becomes a get (DS-83).
fn endpoints(range: &Range, list: List) -> Query {
    let rest = path_below(&range.path, "workloadendpoints");
    let Some((namespace, name)) = rest.and_then(|rest| rest.split_once('/')) else {
        return Query::List(list);
    };
    let ids = EndpointIdentifiers::parse(name).unwrap_or_default();
    if !ids.orchestrator.is_empty() && ids.orchestrator != KUBERNETES {
        return Query::Nothing;
    }
    let names_one_pod =
        !ids.pod.is_empty() && (!ids.endpoint.is_empty() || ends_with_separator(name));
    if names_one_pod {
        return Query::Get(Location::namespaced(list.resource, namespace, ids.pod));
    }
    Query::List(List {
        namespace: Some(namespace.into()),
        ..list
    })
}

/// Returns true if the name ends with a separator. A separator is one dash, and a dash within a
/// part is doubled, so after a separator the number of dashes at the end is odd.
fn ends_with_separator(name: &str) -> bool {
    name.bytes().rev().take_while(|b| *b == b'-').count() % 2 == 1
}

fn namespace_of(rest: &str) -> Option<String> {
    rest.split_once('/')
        .map(|(namespace, _)| namespace.to_owned())
}

/// Returns the location of the object at a path, if the kind can have it.
pub(super) fn locate(group: ApiGroup, kind: StoredKind, path: &str) -> Option<Location> {
    let resource = kind.resource(group);
    let global = |name: String| Location::global(resource, name);
    let located = |ObjectKey { namespace, name }: ObjectKey| {
        Some(Location {
            resource,
            namespace,
            name,
        })
    };
    match kind {
        StoredKind::Block => ipam::block_name_of_path(path).map(global),
        StoredKind::Affinity => {
            BlockAffinity::parse_path(path).map(|key| global(affinity::affinity_name(&key)))
        }
        StoredKind::Handle => Handle::parse_path(path).map(|id| global(handle_name(&id))),
        StoredKind::Config => Some(config(group, kind)),
        StoredKind::Object(object) if object.namespaced => located(
            ObjectKey::parse_namespaced(path_below(path, object.plural)?)
                .filter(|key| !key.name.contains('/'))?,
        ),
        StoredKind::Object(object) => name_below(path, object.plural).map(global),
        StoredKind::Node => name_below(path, "nodes").map(global),
        StoredKind::Profile => profile::locate(&name_below(path, "profiles")?),
        StoredKind::Endpoint => {
            let key = WorkloadEndpoint::parse_path(path)?;
            let ids = EndpointIdentifiers::parse(&key.name).ok()?;
            let is_pods = ids.orchestrator == KUBERNETES && !ids.pod.is_empty();
            is_pods
                .then(|| Location::namespaced(resource, key.namespace.unwrap_or_default(), ids.pod))
        }
        // A single pod is read by its name, not by its node.
        StoredKind::PodOnNode => None,
        StoredKind::Pod => located(super::Pod::parse_path(path)?),
        StoredKind::Service => located(super::Service::parse_path(path)?),
        StoredKind::VirtualMachine => located(super::VirtualMachine::parse_path(path)?),
        StoredKind::VirtualMachineInstance => {
            located(super::VirtualMachineInstance::parse_path(path)?)
        }
        StoredKind::Namespace => super::Namespace::parse_path(path).map(|key| global(key.name)),
    }
}

fn config(group: ApiGroup, kind: StoredKind) -> Location {
    Location::global(kind.resource(group), "default")
}

fn path_below<'p>(path: &'p str, plural: &str) -> Option<&'p str> {
    path.strip_prefix(OBJECTS)?
        .strip_prefix(plural)?
        .strip_prefix('/')
}

fn name_below(path: &str, plural: &str) -> Option<String> {
    let name = path_below(path, plural)?;
    (!name.is_empty() && !name.contains('/')).then(|| name.to_owned())
}

/// Returns the path of the object with the name `name`, for some of the kinds whose names determine
/// it.
pub(super) fn path_of_name(
    kind: StoredKind,
    namespace: Option<&str>,
    name: &str,
) -> Option<String> {
    match kind {
        StoredKind::Block => ipam::block_path_of_name(name),
        StoredKind::Object(v3) if v3.namespaced => {
            Some(format!("{OBJECTS}{}/{}/{name}", v3.plural, namespace?))
        }
        StoredKind::Object(object) => Some(format!("{OBJECTS}{}/{name}", object.plural)),
        StoredKind::Node => Some(format!("{OBJECTS}nodes/{name}")),
        StoredKind::Namespace => Some(super::Namespace::path(&ObjectKey::global(name))),
        _ => None,
    }
}

fn invalid_path(range: &Range) -> CodecError {
    CodecError::Path {
        kind: range.kind.into(),
        path: range.path.clone(),
    }
}

/// The tokens that a server has returned with the pages of one list. A server that returns a token
/// twice would make the list endless.
#[derive(Debug, Default)]
pub struct ContinueTokens {
    seen: HashSet<String>,
}

/// A page whose token is that of an earlier page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the list has no end: a page names an earlier page as the next one")]
pub struct RepeatedToken;

impl ContinueTokens {
    /// Records `metadata.continue` of a page. Returns the token of the next page, or `None` after
    /// the last page.
    ///
    /// # Errors
    /// Returns an error if an earlier page of the list had the same token.
    pub fn record(&mut self, token: Option<String>) -> Result<Option<String>, RepeatedToken> {
        let Some(token) = token.filter(|token| !token.is_empty()) else {
            return Ok(None);
        };
        if self.seen.insert(token.clone()) {
            Ok(Some(token))
        } else {
            Err(RepeatedToken)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_of_an_earlier_page_is_an_error_and_no_token_is_the_end() {
        let mut tokens = ContinueTokens::default();
        let mut record = |token: &str| tokens.record(Some(token.to_owned()));
        for token in ["a", "b", "c"] {
            assert_eq!(record(token), Ok(Some(token.to_owned())));
        }
        for token in ["a", "b", "c"] {
            assert_eq!(record(token), Err(RepeatedToken));
        }
        assert_eq!(record(""), Ok(None));
        assert_eq!(tokens.record(None), Ok(None));
    }
}
