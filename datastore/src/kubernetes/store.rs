//! [`Kubernetes`]: the API server as a [`Store`].
//!
//! Writes are sent one after another. The API server has no transactions, so callers must order a
//! list of writes such that every state in between is valid (IPAM-221).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{join_all, try_join, try_join_all};
use hyper::Method;
use libcalico::ipam::ListedBlock;
use libcalico::kubernetes::{
    ApiGroup, Codec, Query, Request, Resource, STRATEGIC_MERGE_PATCH, decode_listed_block,
    json_bytes,
};
use libcalico::store::{
    Answers, EndpointForm, ProfileOrigin, Range, ReadBatch, Revision, Sharing, Store, StoreError,
    Survey, Write, WriteError, WriteModel, WriteOp,
};

use super::api_group::{ApiGroupResolver, ResolvedGroup};
use super::client::ApiClient;
use super::discovery::{self, GroupCache};
use super::error::RequestError;
use super::pages;
use super::query::{DistinctQuery, is_in_group, verify_missing};
use super::request::ApiRequest;
use super::turns::BusyRule;
use crate::config::KubernetesConfig;
use crate::pairs::check_distinct;

/// An API server as a datastore.
#[derive(Debug)]
pub struct Kubernetes {
    pub(super) client: Arc<ApiClient>,
    pub(super) group_resolver: ApiGroupResolver,
}

impl Kubernetes {
    /// Creates a client. Sends no request. The file `cache` caches the API group.
    pub fn new(config: &KubernetesConfig, cache: impl Into<PathBuf>) -> Self {
        Self::with_cache(
            config,
            ApiClient::new(config),
            GroupCache::new(Some(cache.into())),
        )
    }

    /// Creates a client that discovers the API group and caches it in no file. Sends no request.
    pub fn uncached(config: &KubernetesConfig) -> Self {
        Self::with_cache(config, ApiClient::new(config), GroupCache::new(None))
    }

    /// Creates a client for a long-running process, which caches no API group in a file.
    pub fn long_running(config: &KubernetesConfig) -> Self {
        Self::with_cache(
            config,
            ApiClient::long_running(config),
            GroupCache::new(None),
        )
    }

    fn with_cache(config: &KubernetesConfig, client: ApiClient, cache: GroupCache) -> Self {
        let client = Arc::new(client);
        Kubernetes {
            group_resolver: ApiGroupResolver::new(config, cache, Arc::clone(&client)),
            client,
        }
    }

    pub(crate) fn expect_first_answer_within(&self, patience: Duration) {
        self.client.deadline.expect_first_answer_within(patience);
    }

    pub(crate) fn wait_while_busy(&self, rule: BusyRule) {
        self.client.turns.set_rule(rule);
    }

    pub(crate) fn was_busy(&self) -> bool {
        self.client.turns.was_busy()
    }

    /// Returns the number of requests sent so far, without those of a [`source`](Self::source).
    pub fn requests(&self) -> u64 {
        self.client.requests()
    }

    /// Returns the API group in which this process reads and writes Calico's objects.
    pub async fn group(&self) -> Result<ApiGroup, StoreError> {
        self.codec().await.map(|codec| codec.group())
    }

    /// Asks the API server for the API group of Calico's objects, regardless of the group in use.
    pub async fn discover_group(&self) -> Result<ApiGroup, StoreError> {
        self.group_resolver.discover().await
    }

    /// Returns those of `kinds` that the API server does not serve in the API group of this
    /// process.
    pub async fn unserved_kinds(
        &self,
        kinds: &[&'static str],
    ) -> Result<Vec<&'static str>, StoreError> {
        let codec = self.codec().await?;
        let group = codec.group().api_version();
        let of_group = |kind: &str| {
            codec
                .resource(kind)
                .filter(|resource| resource.api_version == group)
        };
        let plurals: Vec<&str> = kinds
            .iter()
            .filter_map(|kind| Some(of_group(kind)?.plural))
            .collect();
        let unlisted = match discovery::unlisted_plurals(&self.client, group, &plurals).await {
            Ok(unlisted) => unlisted,
            Err(failure) => return Err(self.client.to_store_error(failure, group, false).await),
        };
        let is_unserved = |kind: &str| match codec.resource(kind) {
            Some(resource) => resource.api_version == group && unlisted.contains(&resource.plural),
            None => true,
        };
        Ok(kinds
            .iter()
            .copied()
            .filter(|kind| is_unserved(kind))
            .collect())
    }

    /// Returns the API group in the settings, or `None` if the group has to be discovered.
    pub fn configured_group(&self) -> Option<ApiGroup> {
        self.group_resolver.group
    }

    pub(crate) async fn has_migrated_to_v3(&self) -> Result<bool, StoreError> {
        self.group_resolver.has_migrated_to_v3().await
    }

    pub(crate) async fn has_marked_v1(&self) -> Result<bool, StoreError> {
        self.group_resolver.has_marked_v1().await
    }

    pub(crate) async fn switch_to_v3(&self) -> Result<(), StoreError> {
        self.group_resolver.switch_to_v3().await
    }

    pub(super) async fn codec(&self) -> Result<Codec, StoreError> {
        self.group_resolver
            .resolve_verified()
            .await
            .map(|resolved| resolved.codec)
    }

    /// Reads `ranges` in the group of `resolved`. Returns `None` if that group comes from the cache
    /// and is wrong. A missing kind counts as empty, because older definitions have fewer kinds.
    async fn read_with(
        &self,
        resolved: &ResolvedGroup,
        ranges: &[Range],
    ) -> Result<Option<Answers>, StoreError> {
        let codec = &resolved.codec;
        let queries: Vec<Query> = ranges
            .iter()
            .map(|range| codec.query(range))
            .collect::<Result<_, _>>()?;
        let distinct = DistinctQuery::collect(ranges, &queries);
        // Decodes each response when it has arrived, while others may still be under way.
        let reads = distinct.iter().map(async |query| {
            Ok::<_, StoreError>(match query.send(&self.client).await? {
                Some(objects) => (false, query.decode(codec, ranges, objects)),
                None => (true, Vec::new()),
            })
        });
        let (results, is_group_valid) =
            try_join(try_join_all(reads), self.group_resolver.verify(resolved)).await?;
        if !is_group_valid {
            return Ok(None);
        }
        let mut in_group = results
            .iter()
            .zip(&distinct)
            .filter(|(_, query)| is_in_group(codec.group(), query.query));
        let has_queries = in_group.clone().next().is_some();
        if resolved.from_cache && has_queries && in_group.all(|((lacks_kind, _), _)| *lacks_kind) {
            return Ok(None);
        }
        let missing = results
            .iter()
            .zip(&distinct)
            .filter(|((lacks_kind, _), _)| *lacks_kind);
        try_join_all(
            missing.map(async |(_, distinct)| verify_missing(&self.client, distinct.query).await),
        )
        .await?;

        let mut answers = vec![Vec::new(); ranges.len()];
        let mut completions = Vec::new();
        for (index, decoded) in results.into_iter().flat_map(|(_, decoded)| decoded) {
            let (entries, writes) = Codec::answer(&ranges[index], decoded);
            answers[index] = entries;
            completions.extend(writes);
        }
        let deletions = completions
            .iter()
            .map(|write| self.complete_deletion(codec, write));
        join_all(deletions)
            .await
            .into_iter()
            .collect::<Result<(), _>>()?;
        Ok(Some(Answers::new(answers)))
    }

    /// Completes a deletion that another process began (DS-72). A lost race is success.
    async fn complete_deletion(&self, codec: &Codec, write: &Write) -> Result<(), StoreError> {
        match self.write_one(codec, write).await {
            Err(error) if !error.is_race() => Err(error),
            _ => Ok(()),
        }
    }

    async fn write_one(&self, codec: &Codec, write: &Write) -> Result<Revision, StoreError> {
        let request = match build_write(codec.request(write)?) {
            Ok(request) => request,
            Err(revision) => return Ok(revision),
        };
        match self.client.send(&request).await {
            Ok(response) => Ok(match &write.op {
                WriteOp::Delete(revision) => {
                    revision.clone().unwrap_or_else(|| Revision(String::new()))
                }
                _ => codec.revision(write.kind, &response),
            }),
            Err(failure) => Err(self
                .write_error(failure, write, codec.resource(write.kind))
                .await),
        }
    }

    /// Converts the failure of a write. The API server has no `Status` for a kind that it does not
    /// serve, as another program has none, so discovery distinguishes them. Neither has executed
    /// the write.
    async fn write_error(
        &self,
        failure: RequestError,
        write: &Write,
        resource: Option<Resource>,
    ) -> StoreError {
        let (failure, may_have_executed) = match (failure, resource) {
            (RequestError::Refused(refusal), Some(resource)) if refusal.is_unknown_path() => {
                match discovery::lacks_kind(&self.client, resource).await {
                    Ok(true) => (discovery::not_installed(resource), false),
                    Ok(false) => (RequestError::Refused(refusal), true),
                    Err(of_discovery) => (of_discovery, false),
                }
            }
            (failure, _) => (failure, true),
        };
        self.client
            .to_store_error(failure, &write.key, may_have_executed)
            .await
    }
}

impl Store for Kubernetes {
    async fn read(&self, batch: &ReadBatch) -> Result<Answers, StoreError> {
        let ranges = batch.ranges();
        if ranges.is_empty() {
            return Ok(Answers::new(Vec::new()));
        }
        loop {
            let resolved = self.group_resolver.resolve().await?;
            match self.read_with(&resolved, ranges).await? {
                Some(answers) => return Ok(answers),
                None => self.group_resolver.discard_cached().await,
            }
        }
    }

    async fn survey(
        &self,
        survey: &Survey,
        on_block: &mut (dyn FnMut(ListedBlock) + Send),
    ) -> Result<(), StoreError> {
        // The API server cannot select the address family, so one list has the blocks of both
        // families.
        let Some(range) = survey.ranges().into_iter().next() else {
            return Ok(());
        };
        let query = self.codec().await?.query(&range)?;
        let Query::List(list) = &query else {
            return Ok(());
        };
        let is_selected = |block: &ListedBlock| survey.families.contains(&block.cidr().version());
        let mut on_item = |object: &[u8]| {
            decode_listed_block(object)?
                .filter(is_selected)
                .into_iter()
                .for_each(&mut *on_block);
            Ok(())
        };
        match pages::for_each_object(&self.client, list, &mut on_item).await {
            Ok(()) => Ok(()),
            Err(RequestError::Refused(e)) if e.status.code == 404 => {
                verify_missing(&self.client, &query).await
            }
            Err(failure) => Err(self
                .client
                .to_store_error(failure, &list.url_path(), false)
                .await),
        }
    }

    fn write_model(&self) -> WriteModel {
        WriteModel::PerObject
    }

    fn endpoint_form(&self) -> EndpointForm {
        EndpointForm::PodAnnotations
    }

    fn profile_origin(&self) -> ProfileOrigin {
        ProfileOrigin::Derived
    }

    fn sharing(&self) -> Sharing {
        Sharing::Cluster
    }

    fn has_given_up(&self) -> bool {
        self.client.turns.has_expired()
    }

    async fn write(&self, writes: &[Write]) -> Result<Vec<Revision>, WriteError> {
        check_distinct(writes)?;
        let refuse = |index: usize| {
            move |cause: StoreError| WriteError {
                index,
                applied: index,
                cause,
            }
        };
        let mut revisions = Vec::with_capacity(writes.len());
        for (index, write) in writes.iter().enumerate() {
            // The group is not checked here, because each assignment of an address follows reads
            // that check it.
            let resolved = self.group_resolver.resolve().await.map_err(refuse(index))?;
            revisions.push(
                self.write_one(&resolved.codec, write)
                    .await
                    .map_err(refuse(index))?,
            );
        }
        Ok(revisions)
    }
}

/// Returns the request that carries out a write, or the object's revision as `Err` if the write
/// changes nothing.
fn build_write(request: Request) -> Result<ApiRequest, Revision> {
    Ok(match request {
        Request::Create { location, body } => {
            ApiRequest::with_json(Method::POST, location.collection(), &body)
        }
        Request::Replace { location, body } => {
            ApiRequest::with_json(Method::PUT, location.url_path(), &body)
        }
        Request::ReplaceStatus { location, body } => ApiRequest::with_json(
            Method::PUT,
            format!("{}/status", location.url_path()),
            &body,
        ),
        Request::Delete {
            location,
            preconditions,
        } => match preconditions.body() {
            Some(body) => ApiRequest::with_json(Method::DELETE, location.url_path(), &body),
            None => ApiRequest {
                method: Method::DELETE,
                ..ApiRequest::get(location.url_path())
            },
        },
        Request::PatchStatus { location, body } => ApiRequest {
            body: Some((STRATEGIC_MERGE_PATCH, json_bytes(&body).into())),
            method: Method::PATCH,
            ..ApiRequest::get(format!("{}/status", location.url_path()))
        },
        Request::Nothing(revision) => return Err(revision),
    })
}
