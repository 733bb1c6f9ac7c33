//! [`ApiGroupResolver`]: the API group in which this process accesses the API server (DS-22).

use std::sync::Arc;

use libcalico::kubernetes::{ApiGroup, Codec};
use libcalico::store::StoreError;
use tokio::sync::{Mutex, OnceCell};

use super::client::ApiClient;
use super::discovery::{self, GroupCache};
use super::error::RequestError;
use super::migration;
use crate::config::KubernetesConfig;

/// The API group of an API server, determined on first use.
#[derive(Debug)]
pub(super) struct ApiGroupResolver {
    client: Arc<ApiClient>,
    /// The group in the settings; `None` if it has to be discovered.
    pub(super) group: Option<ApiGroup>,
    cache: GroupCache,
    interface_prefix: Option<String>,
    resolved: Mutex<Option<ResolvedGroup>>,
}

#[derive(Debug, Clone)]
pub(super) struct ResolvedGroup {
    pub(super) codec: Codec,
    /// True if an earlier process cached the group. Another group may be right by now.
    pub(super) from_cache: bool,
    /// The result of the check that a cached v3 is still the right group, if the check has been
    /// made.
    is_v3: Arc<OnceCell<bool>>,
}

impl ApiGroupResolver {
    pub(super) fn new(
        config: &KubernetesConfig,
        cache: GroupCache,
        client: Arc<ApiClient>,
    ) -> Self {
        let (group, interface_prefix) = (config.group, config.interface_prefix.clone());
        ApiGroupResolver {
            client,
            group,
            cache,
            interface_prefix,
            resolved: Mutex::default(),
        }
    }

    /// Returns the group without checking a cached one. Call [`verify`](Self::verify) together with
    /// the first request.
    pub(super) async fn resolve(&self) -> Result<ResolvedGroup, StoreError> {
        let mut slot = self.resolved.lock().await;
        match &*slot {
            Some(resolved) => Ok(resolved.clone()),
            None => Ok(slot.insert(self.determine().await?).clone()),
        }
    }

    /// Returns the group after checking it, or determines it again if the cached group is wrong.
    pub(super) async fn resolve_verified(&self) -> Result<ResolvedGroup, StoreError> {
        loop {
            let resolved = self.resolve().await?;
            if self.verify(&resolved).await? {
                return Ok(resolved);
            }
            self.discard_cached().await;
        }
    }

    /// Returns false if the group is a cached v3 that is no longer right. A cached v1 is not
    /// checked, because other responses reveal a wrong v1.
    pub(super) async fn verify(&self, resolved: &ResolvedGroup) -> Result<bool, StoreError> {
        if !resolved.from_cache || resolved.codec.group() != ApiGroup::V3 {
            return Ok(true);
        }
        let is_v3 = resolved
            .is_v3
            .get_or_try_init(|| discovery::is_v3(&self.client))
            .await;
        self.to_store_error(is_v3.copied()).await
    }

    /// Asks the API server for the group, regardless of settings and cache.
    pub(super) async fn discover(&self) -> Result<ApiGroup, StoreError> {
        self.to_store_error(discovery::discover_group(&self.client).await)
            .await
    }

    /// Returns true if a migration has opened v3 while this process uses v1. Call this after
    /// finding the ClusterInformation of v1 locked or missing.
    pub(super) async fn has_migrated_to_v3(&self) -> Result<bool, StoreError> {
        match self.resolve().await?.codec.group() {
            ApiGroup::CrdV1 => {
                self.to_store_error(migration::is_v3_open(&self.client).await)
                    .await
            }
            ApiGroup::V3 => Ok(false),
        }
    }

    /// Returns true if kube-controllers has locked v1 for a migration to v3, which this process
    /// uses.
    pub(super) async fn has_marked_v1(&self) -> Result<bool, StoreError> {
        match self.resolve().await?.codec.group() {
            ApiGroup::CrdV1 => Ok(false),
            ApiGroup::V3 => {
                self.to_store_error(migration::is_v1_marked(&self.client).await)
                    .await
            }
        }
    }

    pub(super) async fn switch_to_v3(&self) -> Result<(), StoreError> {
        let server = self.to_store_error(self.client.url().await).await?;
        self.cache.store(&server, ApiGroup::V3);
        *self.resolved.lock().await = Some(self.resolved_group(ApiGroup::V3, false));
        Ok(())
    }

    async fn to_store_error<T>(&self, outcome: Result<T, RequestError>) -> Result<T, StoreError> {
        match outcome {
            Ok(value) => Ok(value),
            Err(failure) => Err(self
                .client
                .to_store_error(failure, "API groups", false)
                .await),
        }
    }

    async fn determine(&self) -> Result<ResolvedGroup, StoreError> {
        if let Some(group) = self.group {
            return Ok(self.resolved_group(group, false));
        }
        let server = self.to_store_error(self.client.url().await).await?;
        if let Some(group) = self.cache.load(&server) {
            return Ok(self.resolved_group(group, true));
        }
        let group = self.discover().await?;
        self.cache.store(&server, group);
        Ok(self.resolved_group(group, false))
    }

    fn resolved_group(&self, group: ApiGroup, from_cache: bool) -> ResolvedGroup {
        let mut codec = Codec::new(group);
        if let Some(prefix) = &self.interface_prefix {
            codec = codec.with_interface_prefix(prefix);
        }
        ResolvedGroup {
            codec,
            from_cache,
            is_v3: Arc::default(),
        }
    }

    pub(super) async fn discard_cached(&self) {
        let mut slot = self.resolved.lock().await;
        if slot.as_ref().is_some_and(|resolved| resolved.from_cache) {
            self.cache.invalidate();
            *slot = None;
        }
    }
}
