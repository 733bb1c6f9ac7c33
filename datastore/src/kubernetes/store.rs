//! [`Kubernetes`]: the API server as a [`Store`].
//!
//! The reads of a batch are sent in parallel over one connection. Writes are sent one after another. The API server has
//! no transactions, so each list of writes is ordered such that every state in between is valid (IPAM-221).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{join_all, try_join, try_join_all};
use hyper::Method;
use libcalico::ipam::Sighting;
use libcalico::kubernetes::{ApiGroup, Decoded, Query, Request, STRATEGIC_MERGE_PATCH, Transcoder, json_bytes};
use libcalico::store::{
    Answers, Freshness, Kind, Range, RawEntry, ReadBatch, Revision, Store, StoreError, Survey, Write, WriteError,
    WriteOp,
};
use serde_json::Value;

use super::client::ApiClient;
use super::config::KubernetesConfig;
use super::discovery::{self, Memory};
use super::failure::{Failure, Refusal};
use super::language::{Language, Spoken};
use super::pages;
use super::request::{ApiRequest, Cache};
use super::turns::WhenBusy;
use super::watch::{ApiSource, CalicoObjects, Clients};

/// Time limit for the API server's cache to reach a revision. After it, the read goes to the server's own storage; the
/// server itself would wait for 3 s. The cache may be far behind. The revision may also be that of another cluster, or
/// of this cluster before it was restored from a backup.
const CACHE_PATIENCE: Duration = Duration::from_secs(1);

/// An API server as a datastore.
#[derive(Debug)]
pub struct Kubernetes {
    client: Arc<ApiClient>,
    language: Language,
}

impl Kubernetes {
    /// Creates a client. Neither reads files nor sends a request. `memory` is the path of the file that caches the API
    /// group.
    pub fn new(config: &KubernetesConfig, memory: impl Into<PathBuf>) -> Self {
        Self::with_memory(config, ApiClient::new(config), Memory::new(Some(memory.into())))
    }

    /// Creates a client for a long-running process, which discovers the API group once and does not cache it in a file.
    pub fn lasting(config: &KubernetesConfig) -> Self {
        Self::with_memory(config, ApiClient::lasting(config), Memory::new(None))
    }

    fn with_memory(config: &KubernetesConfig, client: ApiClient, memory: Memory) -> Self {
        let client = Arc::new(client);
        Kubernetes { language: Language::new(config, memory, Arc::clone(&client)), client }
    }

    /// See [`Datastore::expect_first_answer_within`](crate::Datastore::expect_first_answer_within).
    pub(crate) fn expect_first_answer_within(&self, patience: Duration) {
        self.client.expect_first_answer_within(patience);
    }

    /// See [`Datastore::wait_while_busy`](crate::Datastore::wait_while_busy).
    pub(crate) fn wait_while_busy(&self, rule: WhenBusy) {
        self.client.wait_while_busy(rule);
    }

    /// See [`Datastore::was_busy`](crate::Datastore::was_busy).
    pub(crate) fn was_busy(&self) -> bool {
        self.client.was_busy()
    }

    pub(super) fn client(&self) -> &ApiClient {
        &self.client
    }

    /// Returns the number of requests sent so far.
    pub fn requests(&self) -> u64 {
        self.client.requests()
    }

    /// Returns the source of a watch of one kind.
    pub fn source<K: Kind>(self: &Arc<Self>, select: &K::Select) -> ApiSource<CalicoObjects<K>> {
        let client = Arc::clone(&self.client);
        let clients: Clients = Box::new(move |renewed| {
            let client = Arc::clone(&client);
            Box::pin(async move { client.kube(renewed).await.map_err(|error| error.to_string()) })
        });
        ApiSource::with_clients(clients, CalicoObjects::new(Arc::clone(self), select))
    }

    /// Returns the API group of Calico's custom resources.
    pub async fn group(&self) -> Result<ApiGroup, StoreError> {
        self.transcoder().await.map(|transcoder| transcoder.group())
    }

    /// Asks the API server for the group, regardless of the settings and of the group in use.
    pub async fn present_group(&self) -> Result<ApiGroup, StoreError> {
        self.language.ask().await
    }

    /// Returns the group in the settings.
    pub fn configured_group(&self) -> Option<ApiGroup> {
        self.language.configured()
    }

    /// See [`Datastore::has_moved`](crate::Datastore::has_moved).
    pub(crate) async fn has_moved(&self) -> Result<bool, StoreError> {
        self.language.has_moved().await
    }

    /// See [`Datastore::go_on_in_v3`](crate::Datastore::go_on_in_v3).
    pub(crate) async fn go_on_in_v3(&self) -> Result<(), StoreError> {
        self.language.go_on_in_v3().await
    }

    pub(super) async fn transcoder(&self) -> Result<Transcoder, StoreError> {
        self.language.confirmed().await.map(|spoken| spoken.transcoder)
    }

    /// Discards a cached API group after the API server was found to lack a kind. The next request discovers the group.
    pub(super) async fn doubt_group(&self) {
        self.language.forget().await;
    }

    /// Reads `ranges` in the group of `spoken`. Returns `None` if a cached group is wrong, or if the API server has
    /// none of its requested kinds. If only some of the kinds are missing, they count as empty, because older
    /// definitions have fewer kinds.
    async fn read_with(&self, spoken: &Spoken, ranges: &[Range]) -> Result<Option<Answers>, StoreError> {
        let transcoder = &spoken.transcoder;
        let queries: Vec<Query> = ranges.iter().map(|range| transcoder.query(range)).collect::<Result<_, _>>()?;
        let mut distinct: Vec<Asked<'_>> = Vec::new();
        for (index, (range, query)) in ranges.iter().zip(&queries).enumerate() {
            let revision_only = range.keys_only && !range.prefix;
            match distinct.iter_mut().find(|asked| asked.query == query && asked.revision_only == revision_only) {
                Some(asked) => {
                    if asked.freshness != range.freshness {
                        asked.freshness = Freshness::Latest;
                    }
                    asked.by.push(index);
                }
                None => {
                    distinct.push(Asked { query, freshness: range.freshness.clone(), revision_only, by: vec![index] })
                }
            }
        }
        // Decodes each response as it arrives, while others are still under way.
        let found = distinct.iter().map(async |asked| {
            let found = self.ask(asked).await?;
            let lacks_kind = matches!(found, Found::NoKind);
            Ok::<_, StoreError>((lacks_kind, asked.decode(transcoder, ranges, found.objects())))
        });
        let (found, is_right) = try_join(try_join_all(found), self.language.is_right(spoken)).await?;
        if !is_right {
            return Ok(None);
        }
        let mut of_group = found.iter().zip(&distinct).filter(|(_, asked)| is_of(transcoder.group(), asked.query));
        let lacks_all = of_group.clone().any(|((lacks_kind, _), _)| *lacks_kind)
            && of_group.all(|((lacks_kind, _), _)| *lacks_kind);
        if lacks_all && spoken.from_memory {
            return Ok(None);
        }
        let missing = found.iter().zip(&distinct).filter(|((lacks_kind, _), _)| *lacks_kind);
        try_join_all(missing.map(async |(_, asked)| self.expect_missing(asked.query).await)).await?;

        let mut answers = vec![Vec::new(); ranges.len()];
        let mut buried = Vec::new();
        for (index, decoded) in found.into_iter().flat_map(|(_, decoded)| decoded) {
            let range = &ranges[index];
            for Decoded { entry, tombstone } in decoded {
                match tombstone && !range.prefix {
                    true => buried.push((range, entry)),
                    false => answers[index].push(entry),
                }
            }
        }
        let burials = buried.iter().map(|(range, entry)| self.bury(transcoder, range, entry));
        join_all(burials).await.into_iter().collect::<Result<(), _>>()?;
        Ok(Some(Answers::new(answers)))
    }

    /// Verifies by discovery that a kind is missing. A 404 that does not name the requested object means that the API
    /// server lacks the kind, such as one of newer definitions or of KubeVirt, or that a proxy sent the 404.
    pub(super) async fn expect_missing(&self, query: &Query) -> Result<(), StoreError> {
        let (resource, path) = match query {
            Query::Nothing => return Ok(()),
            Query::Get(location) => (location.resource, location.url_path()),
            Query::List(list) => (list.resource, list.url_path()),
        };
        let failure = match discovery::lacks_kind(&self.client, resource).await {
            Ok(true) => return Ok(()),
            Ok(false) => Failure::Unreadable("404, and not of the API server, which has this kind".into()),
            Err(failure) => failure,
        };
        Err(self.explain(failure, &path, false).await)
    }

    pub(super) async fn explain(&self, failure: Failure, key: &str, writing: bool) -> StoreError {
        failure.explain(key, &self.client.server().await, writing)
    }

    /// Returns the objects of a query. The API server's cache serves reads that need not be the latest. That saves the
    /// round trip to its storage, which is a third of the work.
    async fn ask(&self, asked: &Asked<'_>) -> Result<Found, StoreError> {
        let Asked { query, freshness, .. } = asked;
        let (answer, path) = match query {
            Query::Nothing => return Ok(Found::Objects(Vec::new())),
            Query::Get(location) => {
                let path = location.url_path();
                let is_right =
                    |object: &Value| location.is_of(object) || asked.revision_only && location.is_metadata_of(object);
                let object = self.get(&path, asked).await.and_then(|object| match is_right(&object) {
                    true => Ok(vec![object]),
                    false => Err(Failure::Unreadable("the answer is not the object that was asked for".into())),
                });
                (object, path)
            }
            Query::List(list) => {
                (pages::all(&self.client, list, *freshness == Freshness::Cached).await, list.url_path())
            }
        };
        match answer {
            Ok(objects) => Ok(Found::Objects(objects)),
            Err(Failure::Refused(refusal)) if refusal.status.code == 404 => Ok(match is_absent(&refusal, query) {
                true => Found::Objects(Vec::new()),
                false => Found::NoKind,
            }),
            Err(failure) => Err(self.explain(failure, &path, false).await),
        }
    }

    async fn get(&self, path: &str, asked: &Asked<'_>) -> Result<Value, Failure> {
        let version = match &asked.freshness {
            Freshness::Latest => None,
            // Ignores a revision that is not a number. The API server would report it as an internal error.
            Freshness::Since(revision) => revision.resource_version().parse::<u64>().ok(),
            Freshness::Cached => Some(0),
        };
        let cache = version.map(|version| Cache { version, patience: CACHE_PATIENCE });
        let request = match asked.revision_only {
            true => ApiRequest::get_metadata(path),
            false => ApiRequest::get(path),
        };
        self.client.send(&request.or_cached(cache)).await
    }

    /// Completes a deletion that another process began, and treats the object as deleted (DS-72).
    async fn bury(&self, transcoder: &Transcoder, range: &Range, entry: &RawEntry) -> Result<(), StoreError> {
        let write = Write {
            kind: range.kind,
            path: entry.path.clone(),
            key: entry.path.clone(),
            op: WriteOp::Delete(Some(entry.revision.clone())),
        };
        match self.write_one(transcoder, &write).await {
            Err(error) if !error.is_race() => Err(error),
            _ => Ok(()),
        }
    }

    async fn write_one(&self, transcoder: &Transcoder, write: &Write) -> Result<Revision, StoreError> {
        let request = match transcoder.request(write)? {
            Request::Create { location, body } => ApiRequest::with_json(Method::POST, location.collection(), &body),
            Request::Replace { location, body } => ApiRequest::with_json(Method::PUT, location.url_path(), &body),
            Request::ReplaceStatus { location, body } => {
                ApiRequest::with_json(Method::PUT, format!("{}/status", location.url_path()), &body)
            }
            Request::Delete { location, preconditions } => match preconditions.body() {
                Some(body) => ApiRequest::with_json(Method::DELETE, location.url_path(), &body),
                None => ApiRequest { method: Method::DELETE, ..ApiRequest::get(location.url_path()) },
            },
            Request::PatchStatus { location, body } => {
                let target = format!("{}/status", location.url_path());
                ApiRequest {
                    body: Some((STRATEGIC_MERGE_PATCH, json_bytes(&body).into())),
                    method: Method::PATCH,
                    ..ApiRequest::get(target)
                }
            }
            Request::Nothing(revision) => return Ok(revision),
        };
        match self.client.send(&request).await {
            Ok(reply) => Ok(match &write.op {
                WriteOp::Delete(revision) => revision.clone().unwrap_or_else(|| Revision(String::new())),
                _ => transcoder.revision(write.kind, &reply),
            }),
            Err(failure) => Err(self.explain(failure, &write.key, true).await),
        }
    }
}

/// A query, and the ranges of a batch that it serves.
struct Asked<'q> {
    query: &'q Query,
    freshness: Freshness,
    /// True if only the metadata of an object is needed.
    revision_only: bool,
    by: Vec<usize>,
}

impl Asked<'_> {
    /// Decodes the objects for each range. A range is identified by its index in the batch.
    fn decode(&self, transcoder: &Transcoder, ranges: &[Range], objects: Vec<Value>) -> Vec<(usize, Vec<Decoded>)> {
        let read = |index: usize, objects: Vec<Value>| {
            let decoded = objects.into_iter().filter_map(|object| transcoder.decode(&ranges[index], object));
            (index, decoded.collect())
        };
        // Blocks and pods are large, so only objects shared with a later range are copied.
        let Some((last, others)) = self.by.split_last() else { return Vec::new() };
        let mut all: Vec<_> = others.iter().map(|index| read(*index, objects.clone())).collect();
        all.push(read(*last, objects));
        all
    }
}

/// The result of a query.
enum Found {
    Objects(Vec<Value>),
    /// The response says that the kind does not exist. A proxy may have sent it.
    NoKind,
}

/// Returns true if a 404 is the API server's response about the requested object.
fn is_absent(refusal: &Refusal, query: &Query) -> bool {
    let Query::Get(location) = query else { return false };
    refusal.status.is_not_found() && refusal.status.details.name == location.name
}

fn is_of(group: ApiGroup, query: &Query) -> bool {
    let resource = match query {
        Query::Nothing => return false,
        Query::Get(location) => location.resource,
        Query::List(list) => list.resource,
    };
    resource.api_version == group.api_version()
}

impl Found {
    fn objects(self) -> Vec<Value> {
        match self {
            Found::Objects(objects) => objects,
            Found::NoKind => Vec::new(),
        }
    }
}

impl Store for Kubernetes {
    async fn read(&self, batch: &ReadBatch) -> Result<Answers, StoreError> {
        let ranges = batch.ranges();
        if ranges.is_empty() {
            return Ok(Answers::new(Vec::new()));
        }
        loop {
            let spoken = self.language.spoken().await?;
            match self.read_with(&spoken, ranges).await? {
                Some(answers) => return Ok(answers),
                None => self.language.forget().await,
            }
        }
    }

    async fn survey(&self, survey: &Survey, tell: &mut (dyn FnMut(Sighting) + Send)) -> Result<(), StoreError> {
        self.survey_blocks(survey, tell).await
    }

    fn has_transactions(&self) -> bool {
        false
    }

    fn has_given_up(&self) -> bool {
        self.client.has_given_up()
    }

    async fn write(&self, writes: &[Write]) -> Result<Vec<Revision>, WriteError> {
        crate::check_distinct(writes)?;
        let refuse = |index: usize| move |cause: StoreError| WriteError { index, applied: index, cause };
        let mut revisions = Vec::with_capacity(writes.len());
        for (index, write) in writes.iter().enumerate() {
            // The group is not checked here. Every assignment of an address has read objects before, and reads check
            // the group. A handle that is created before the reads need not wait; at worst an unused handle stays in
            // v3.
            let spoken = self.language.spoken().await.map_err(refuse(index))?;
            revisions.push(self.write_one(&spoken.transcoder, write).await.map_err(refuse(index))?);
        }
        Ok(revisions)
    }
}

#[cfg(test)]
mod tests {
    use hyper::StatusCode;
    use libcalico::api::{IpPool, ObjectKey, ObjectSelect};

    use super::*;

    #[test]
    fn only_the_api_server_tells_that_the_object_is_absent() {
        let mut batch = ReadBatch::new();
        batch.get::<IpPool>(&ObjectKey::global("p"));
        batch.list::<IpPool>(&ObjectSelect::default());
        let [get, list] = batch.ranges() else { panic!() };
        let status = |name: &str| {
            format!(
                r#"{{"kind":"Status","reason":"NotFound","details":{{"name":"{name}","kind":"ippools"}},"code":404}}"#
            )
        };
        for (range, body, expected) in [
            (get, status("p"), true),
            (get, status("other"), false),
            (get, status(""), false),
            (get, "404 page not found".into(), false),
            (get, r#"{"code":404,"details":{"name":"p"}}"#.into(), false),
            (list, status("p"), false),
        ] {
            let refusal = Refusal::parse(StatusCode::NOT_FOUND, body.as_bytes(), None);
            let query = Transcoder::new(ApiGroup::V3).query(range).unwrap();
            assert_eq!(is_absent(&refusal, &query), expected, "{query:?} {body}");
        }
    }
}
