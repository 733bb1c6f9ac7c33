//! [`ObjectStore`]: the objects of the API server in memory, and the rules by which requests change
//! them.

use std::collections::BTreeMap;

use libcalico::kubernetes::{Location, escaped};
use serde_json::{Value, json};

use super::discovery::{self, ServedKind};
use super::paths::{RequestPath, StoreKey};

/// Label of an APIService that the API server itself makes for a group of custom resources.
const AUTOMANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";
const API_SERVICES: &str = "apiregistration.k8s.io";
const DEFINITIONS: &str = "apiextensions.k8s.io";

/// HTTP status and body of a response.
pub(crate) type Reply = (u16, Value);

/// A rule of admission: the text with which an object is refused, or `None`.
type AdmissionRule = Box<dyn Fn(&Value) -> Option<String> + Send>;

#[derive(Default)]
pub(crate) struct ObjectStore {
    objects: BTreeMap<StoreKey, Value>,
    revision: u64,
    uids: u64,
    rules: Vec<AdmissionRule>,
}

/// Returns the reply of an API server that refuses a request.
pub(crate) fn failure(code: u16, reason: &str, message: &str) -> Reply {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
        "message": message,
    });
    (code, status)
}

impl ObjectStore {
    /// Stores an object as the API server would: with a new uid, unless it has one, and a new
    /// resourceVersion.
    pub(crate) fn put(&mut self, at: &Location, mut object: Value) -> Value {
        object["apiVersion"] = at.resource.api_version.into();
        object["kind"] = at.resource.kind.into();
        object["metadata"]["name"] = at.name.as_str().into();
        if let Some(namespace) = &at.namespace {
            object["metadata"]["namespace"] = namespace.as_str().into();
        }
        let key = StoreKey::of(at);
        let uid = self
            .objects
            .get(&key)
            .map(|old| old["metadata"]["uid"].clone());
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = uid.unwrap_or_else(|| self.next_uid());
        }
        self.store(key, object)
    }

    pub(crate) fn get(&self, at: &Location) -> Option<&Value> {
        self.objects.get(&StoreKey::of(at))
    }

    pub(crate) fn remove(&mut self, at: &Location) -> Option<Value> {
        self.objects.remove(&StoreKey::of(at))
    }

    /// Returns all objects, in the order of group, kind, namespace and name.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&StoreKey, &Value)> {
        self.objects.iter()
    }

    /// Returns the objects of a group with this plural.
    pub(crate) fn of_kind<'a>(
        &'a self,
        group: &'a str,
        plural: &'a str,
    ) -> impl Iterator<Item = &'a Value> {
        self.all()
            .filter(move |(key, _)| key.group == group && key.plural == plural)
            .map(|(_, object)| object)
    }

    /// Adds a rule of admission for all creations and replacements, dry runs included.
    pub(crate) fn refuse(&mut self, rule: impl Fn(&Value) -> Option<String> + Send + 'static) {
        self.rules.push(Box::new(rule));
    }

    /// Deletes each object whose owners are all missing, as the garbage collector of Kubernetes
    /// does. Returns the number of deleted objects.
    pub(crate) fn collect_garbage(&mut self) -> usize {
        let uids: Vec<Value> = self
            .objects
            .values()
            .map(|object| object["metadata"]["uid"].clone())
            .collect();
        let before = self.objects.len();
        self.objects.retain(
            |_, object| match object["metadata"]["ownerReferences"].as_array() {
                Some(owners) if !owners.is_empty() => {
                    owners.iter().any(|owner| uids.contains(&owner["uid"]))
                }
                _ => true,
            },
        );
        before - self.objects.len()
    }

    pub(super) fn kinds(&self) -> Vec<ServedKind> {
        let definitions = self.of_kind(DEFINITIONS, "customresourcedefinitions");
        discovery::built_in()
            .chain(definitions.flat_map(discovery::defined_by))
            .collect()
    }

    /// Returns true if another server answers for the group `projectcalico.org`. Here that server
    /// is never reachable.
    pub(super) fn is_aggregated(&self, group: &str) -> bool {
        let mut services = self.of_kind(API_SERVICES, "apiservices");
        services.any(|service| {
            service["spec"]["group"] == group && service["spec"]["service"].is_object()
        })
    }

    pub(super) fn kind_of(&self, path: &RequestPath) -> Option<ServedKind> {
        let definition = StoreKey {
            group: DEFINITIONS.into(),
            plural: "customresourcedefinitions".into(),
            namespace: String::new(),
            name: format!("{}.{}", path.plural, path.group),
        };
        let defined = self
            .objects
            .get(&definition)
            .map(discovery::defined_by)
            .unwrap_or_default();
        let is_named = |kind: &ServedKind| {
            kind.group == path.group && kind.version == path.version && kind.plural == path.plural
        };
        defined
            .into_iter()
            .chain(discovery::built_in())
            .find(is_named)
    }

    pub(super) fn read(&self, kind: &ServedKind, path: &RequestPath) -> Reply {
        match self.objects.get(&path.key()) {
            Some(object) => (200, in_version(object, kind)),
            None => missing(path),
        }
    }

    /// Returns a page of a list. Its token is the position of the next page.
    pub(super) fn list(&self, kind: &ServedKind, path: &RequestPath, metadata_only: bool) -> Reply {
        let number = |name: &str| {
            path.query
                .get(name)
                .and_then(|text| text.parse::<usize>().ok())
        };
        let (begin, limit) = (
            number("continue").unwrap_or_default(),
            number("limit").unwrap_or(usize::MAX),
        );
        let selector = path.query.get("fieldSelector");
        let is_listed = |key: &StoreKey| {
            let in_namespace = path.namespace.is_empty() || key.namespace == path.namespace;
            let is_selected = selector
                .is_none_or(|selector| *selector == format!("metadata.name%3D{}", key.name));
            key.group == path.group && key.plural == path.plural && in_namespace && is_selected
        };
        let listed: Vec<&Value> = self
            .all()
            .filter(|(key, _)| is_listed(key))
            .map(|(_, object)| object)
            .collect();
        let end = begin.saturating_add(limit).min(listed.len());
        let items: Vec<Value> = listed[begin.min(end)..end]
            .iter()
            .map(|object| {
                if metadata_only {
                    metadata_of(object)
                } else {
                    in_version(object, kind)
                }
            })
            .collect();
        let token = if end < listed.len() {
            end.to_string()
        } else {
            String::new()
        };
        let name = if metadata_only {
            "PartialObjectMetadataList".into()
        } else {
            format!("{}List", kind.kind)
        };
        let metadata = json!({ "resourceVersion": self.revision.to_string(), "continue": token });
        (
            200,
            json!({
                "apiVersion": path.api_version(), "kind": name, "metadata": metadata,
                "items": items,
            }),
        )
    }

    pub(super) fn create(
        &mut self,
        kind: &ServedKind,
        path: &RequestPath,
        mut body: Value,
    ) -> Reply {
        let name = body["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        if kind.is_custom && !is_valid_name(&name) {
            return failure(
                422,
                "Invalid",
                &format!("{} {name:?} is invalid: metadata.name", kind.kind),
            );
        }
        if !body["metadata"]["resourceVersion"].is_null() {
            return failure(
                400,
                "BadRequest",
                "resourceVersion should not be set on objects to be created",
            );
        }
        if let Some(refusal) = self.refusal(&body) {
            return refusal;
        }
        let key = StoreKey {
            name: escaped(&name),
            ..path.key()
        };
        if self.objects.contains_key(&key) {
            return failure(
                409,
                "AlreadyExists",
                &format!("{} {name:?} already exists", path.plural),
            );
        }
        if kind.has_status {
            body["status"] = Value::Null;
            without_nulls(&mut body);
        }
        if kind.namespaced {
            body["metadata"]["namespace"] = path.namespace.as_str().into();
        }
        if path.is_dry_run() {
            return (201, body);
        }
        body["metadata"]["uid"] = self.next_uid();
        body["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
        (201, self.store(key, body))
    }

    pub(super) fn replace(&mut self, kind: &ServedKind, path: &RequestPath, body: Value) -> Reply {
        let Some(old) = self.objects.get(&path.key()).cloned() else {
            return missing(path);
        };
        let is_stale = |field: &str| {
            let named = &body["metadata"][field];
            !named.is_null() && *named != old["metadata"][field]
        };
        if is_stale("resourceVersion") || is_stale("uid") {
            return failure(
                409,
                "Conflict",
                &format!("{} {:?} has been modified", path.plural, path.name),
            );
        }
        if let Some(refusal) = self.refusal(&body) {
            return refusal;
        }
        let mut new = if path.subresource == "status" {
            old.clone()
        } else {
            body.clone()
        };
        if path.subresource == "status" {
            new["status"] = body["status"].clone();
        } else if kind.has_status {
            new["status"] = old["status"].clone();
        }
        for field in [
            "uid",
            "creationTimestamp",
            "deletionTimestamp",
            "resourceVersion",
        ] {
            new["metadata"][field] = old["metadata"][field].clone();
        }
        without_nulls(&mut new);
        if new == old || path.is_dry_run() {
            return (200, in_version(&new, kind));
        }
        let is_finished = !new["metadata"]["deletionTimestamp"].is_null() && !has_finalizers(&new);
        if is_finished {
            self.drop_object(&path.key());
            return (200, in_version(&new, kind));
        }
        let stored = self.store(path.key(), new);
        (200, in_version(&stored, kind))
    }

    pub(super) fn delete(
        &mut self,
        kind: &ServedKind,
        path: &RequestPath,
        options: &Value,
    ) -> Reply {
        let Some(old) = self.objects.get(&path.key()).cloned() else {
            return missing(path);
        };
        let is_other = |field: &str| {
            let required = &options["preconditions"][field];
            !required.is_null() && *required != old["metadata"][field]
        };
        if is_other("uid") || is_other("resourceVersion") {
            return failure(
                409,
                "Conflict",
                &format!("Precondition failed for {} {:?}", path.plural, path.name),
            );
        }
        if has_finalizers(&old) {
            let mut marked = old;
            if marked["metadata"]["deletionTimestamp"].is_null() {
                marked["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z".into();
                marked = self.store(path.key(), marked);
            }
            return (200, in_version(&marked, kind));
        }
        self.drop_object(&path.key());
        (200, in_version(&old, kind))
    }

    /// Removes an object. A definition takes its objects with it, and the API server itself serves
    /// a group of custom resources whose APIService is deleted.
    fn drop_object(&mut self, key: &StoreKey) {
        let Some(gone) = self.objects.remove(key) else {
            return;
        };
        self.revision += 1;
        if key.group == DEFINITIONS {
            let defined = discovery::defined_by(&gone);
            self.objects.retain(|key, _| {
                !defined
                    .iter()
                    .any(|k| k.group == key.group && k.plural == key.plural)
            });
        }
        let group = gone["spec"]["group"].as_str().unwrap_or_default();
        if key.group == API_SERVICES
            && self
                .kinds()
                .iter()
                .any(|kind| kind.is_custom && kind.group == group)
        {
            let mut service = json!({
                "apiVersion": gone["apiVersion"], "kind": "APIService",
                "metadata": { "name": gone["metadata"]["name"] },
                "spec": { "group": gone["spec"]["group"], "version": gone["spec"]["version"] },
            });
            service["metadata"]["labels"][AUTOMANAGED] = "true".into();
            service["metadata"]["uid"] = self.next_uid();
            self.store(key.clone(), service);
        }
    }

    fn store(&mut self, key: StoreKey, mut object: Value) -> Value {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = self.revision.to_string().into();
        without_nulls(&mut object);
        self.objects.insert(key, object.clone());
        object
    }

    fn next_uid(&mut self) -> Value {
        self.uids += 1;
        format!("00000000-0000-4000-8000-{:012x}", self.uids).into()
    }

    fn refusal(&self, object: &Value) -> Option<Reply> {
        let text = self.rules.iter().find_map(|rule| rule(object))?;
        Some(failure(422, "Invalid", &text))
    }
}

fn missing(path: &RequestPath) -> Reply {
    failure(
        404,
        "NotFound",
        &format!("{} {:?} not found", path.plural, path.name),
    )
}

fn in_version(object: &Value, kind: &ServedKind) -> Value {
    let mut object = object.clone();
    let is_core = kind.group.is_empty();
    let version = if is_core {
        kind.version.clone()
    } else {
        format!("{}/{}", kind.group, kind.version)
    };
    object["apiVersion"] = version.into();
    object
}

fn metadata_of(object: &Value) -> Value {
    json!({
        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
        "metadata": object["metadata"],
    })
}

fn has_finalizers(object: &Value) -> bool {
    object["metadata"]["finalizers"]
        .as_array()
        .is_some_and(|finalizers| !finalizers.is_empty())
}

/// Returns true for the names that the API server accepts for custom resources.
fn is_valid_name(name: &str) -> bool {
    let is_valid = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.'
    };
    !name.is_empty() && name.bytes().all(is_valid)
}

/// Removes fields that are null, at the top level and in the metadata.
fn without_nulls(object: &mut Value) {
    if let Some(fields) = object.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    if let Some(fields) = object["metadata"].as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
}

#[cfg(test)]
mod tests {
    use libcalico::kubernetes::{ApiGroup, Preconditions};
    use libcalico::migration::cluster_information;

    use super::super::cluster::{MigratedCluster, at};
    use super::*;
    use crate::requests::{Created, Problem};

    fn tier(name: &str) -> (Location, Value) {
        let at = at(ApiGroup::V3, "Tier", "", name);
        (
            at.clone(),
            json!({
                "apiVersion": "projectcalico.org/v3", "kind": "Tier", "metadata": { "name": name },
            }),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn requests_have_the_outcomes_of_an_api_server() {
        let cluster = MigratedCluster::new();
        let requests = cluster.requests();
        let (at, mut body) = tier("a");
        assert!(matches!(
            requests.create(&at, &body, true).await,
            Ok(Created::New(_))
        ));
        assert_eq!(
            requests.get(&at).await,
            Ok(None),
            "a dry run stores nothing"
        );
        let Ok(Created::New(stored)) = requests.create(&at, &body, false).await else {
            panic!()
        };
        assert_eq!(requests.create(&at, &body, true).await, Ok(Created::Exists));
        body["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"].clone();
        body["spec"] = json!({ "order": 1 });
        body["metadata"]["finalizers"] = json!(["f"]);
        let written = requests.replace(&at, &body).await.unwrap();
        assert_eq!(
            requests.replace(&at, &body).await,
            Err(Problem::Lost),
            "the revision is old"
        );
        assert_eq!(
            requests.replace(&at, &written).await,
            Ok(written.clone()),
            "an equal object keeps its revision"
        );

        let conditions = |uid: &Value| Preconditions {
            uid: uid.as_str().map(str::to_owned),
            resource_version: None,
        };
        assert_eq!(
            requests.delete(&at, &conditions(&json!("other"))).await,
            Err(Problem::Lost)
        );
        requests
            .delete(&at, &conditions(&written["metadata"]["uid"]))
            .await
            .unwrap();
        let mut marked = requests
            .get(&at)
            .await
            .unwrap()
            .expect("the finalizer keeps it");
        marked["metadata"]["finalizers"] = json!([]);
        requests.replace(&at, &marked).await.unwrap();
        assert_eq!(requests.get(&at).await, Ok(None));
        requests
            .delete(&at, &Preconditions::default())
            .await
            .unwrap();

        let (upper, body) = tier("Upper");
        assert!(matches!(
            requests.create(&upper, &body, false).await,
            Ok(Created::Refused(_))
        ));
    }

    #[tokio::test(start_paused = true)]
    async fn list_has_pages_of_objects_or_metadata() {
        let cluster = MigratedCluster::new();
        cluster.server.with_store(|store| {
            for number in 0..600 {
                store.put(
                    &tier(&format!("t{number}")).0,
                    json!({ "spec": { "order": number } }),
                );
            }
        });
        let (requests, resource) = (cluster.requests(), tier("").0.resource);
        for metadata_only in [false, true] {
            let mut pages = Vec::new();
            let listed = requests
                .pages(&resource, metadata_only, async |page: Vec<Value>| {
                    assert_eq!(
                        page.iter().all(|tier| tier["spec"].is_null()),
                        metadata_only
                    );
                    pages.push(page.len());
                    Ok(())
                })
                .await;
            assert!(listed.is_ok(), "{listed:?}");
            assert_eq!(pages, [100; 6]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn garbage_is_an_object_whose_owners_are_missing() {
        let cluster = MigratedCluster::new();
        cluster.server.with_store(|store| {
            let owner = store.put(&tier("owner").0, json!({}))["metadata"]["uid"].clone();
            let owned = |uid: Value| json!({ "metadata": { "ownerReferences": [{ "uid": uid }] } });
            store.put(&tier("kept").0, owned(owner));
            store.put(&tier("garbage").0, owned("unknown".into()));
            assert_eq!(store.collect_garbage(), 1);
            assert!(
                store.get(&tier("kept").0).is_some() && store.get(&tier("garbage").0).is_none()
            );
        });
    }

    #[tokio::test(start_paused = true)]
    async fn deleted_definition_takes_its_objects_along() {
        let cluster = MigratedCluster::new();
        let requests = cluster.requests();
        let at = cluster_information(ApiGroup::CrdV1);
        assert!(requests.get(&at).await.unwrap().is_some());
        requests
            .delete(
                &super::super::cluster::definition(&at.resource),
                &Preconditions::default(),
            )
            .await
            .unwrap();
        assert_eq!(requests.get(&at).await, Ok(None));
        let count = |store: &mut ObjectStore| {
            store
                .of_kind("crd.projectcalico.org", "clusterinformations")
                .count()
        };
        assert_eq!(cluster.server.with_store(count), 0);
    }
}
