//! [`Language`]: the API group in which this process accesses the API server, and the check that the group is still the
//! right one (DS-22).

use std::sync::Arc;

use libcalico::kubernetes::{ApiGroup, Transcoder};
use libcalico::store::StoreError;
use tokio::sync::{Mutex, OnceCell};

use super::client::ApiClient;
use super::config::KubernetesConfig;
use super::discovery::{self, Memory};
use super::failure::Failure;
use super::migration;

/// The API group of an API server, determined on first use.
#[derive(Debug)]
pub(super) struct Language {
    client: Arc<ApiClient>,
    group: Option<ApiGroup>,
    memory: Memory,
    interface_prefix: Option<String>,
    spoken: Mutex<Option<Spoken>>,
}

/// The API group that this process uses, with the codec for it.
#[derive(Debug, Clone)]
pub(super) struct Spoken {
    pub(super) transcoder: Transcoder,
    /// True if an earlier process discovered the group, which may have changed since.
    pub(super) from_memory: bool,
    /// The result of the check that a cached v3 is still the right group, once a read has needed it.
    is_v3: Arc<OnceCell<bool>>,
}

impl Language {
    pub(super) fn new(config: &KubernetesConfig, memory: Memory, client: Arc<ApiClient>) -> Self {
        Language {
            client,
            group: config.group,
            memory,
            interface_prefix: config.interface_prefix.clone(),
            spoken: Mutex::default(),
        }
    }

    /// Returns the group without checking a cached one. Call [`is_right`](Self::is_right) together with the first
    /// request.
    pub(super) async fn spoken(&self) -> Result<Spoken, StoreError> {
        let mut slot = self.spoken.lock().await;
        match &*slot {
            Some(spoken) => Ok(spoken.clone()),
            None => Ok(slot.insert(self.discover().await?).clone()),
        }
    }

    /// Returns the group after checking it.
    pub(super) async fn confirmed(&self) -> Result<Spoken, StoreError> {
        loop {
            let spoken = self.spoken().await?;
            if self.is_right(&spoken).await? {
                return Ok(spoken);
            }
            self.forget().await;
        }
    }

    /// Returns true if the group is still the right one. Sends a request only for a cached v3, because the responses of
    /// other requests do not reveal that v3 is wrong.
    pub(super) async fn is_right(&self, spoken: &Spoken) -> Result<bool, StoreError> {
        if !spoken.from_memory || spoken.transcoder.group() != ApiGroup::V3 {
            return Ok(true);
        }
        let is_v3 = spoken.is_v3.get_or_try_init(|| discovery::is_v3(&self.client)).await;
        self.explained(is_v3.copied()).await
    }

    /// Asks the API server for the group, regardless of settings and cache.
    pub(super) async fn ask(&self) -> Result<ApiGroup, StoreError> {
        self.explained(discovery::ask(&self.client).await).await
    }

    /// Returns the group in the settings.
    pub(super) fn configured(&self) -> Option<ApiGroup> {
        self.group
    }

    /// Returns true if upstream's migration has opened v3 while this process uses v1, whose ClusterInformation it found
    /// locked or missing.
    pub(super) async fn has_moved(&self) -> Result<bool, StoreError> {
        match self.spoken().await?.transcoder.group() {
            ApiGroup::CrdV1 => self.explained(migration::is_open(&self.client).await).await,
            ApiGroup::V3 => Ok(false),
        }
    }

    /// Uses v3 from now on, and caches it for later processes.
    pub(super) async fn go_on_in_v3(&self) -> Result<(), StoreError> {
        let server = self.explained(self.client.url().await).await?;
        self.memory.keep(&server, ApiGroup::V3);
        *self.spoken.lock().await = Some(self.speak(ApiGroup::V3, false));
        Ok(())
    }

    async fn explained<T>(&self, outcome: Result<T, Failure>) -> Result<T, StoreError> {
        match outcome {
            Ok(value) => Ok(value),
            Err(failure) => Err(failure.explain("API groups", &self.client.server().await, false)),
        }
    }

    /// Determines the group from the settings, from the cache, or by discovery.
    async fn discover(&self) -> Result<Spoken, StoreError> {
        let (group, from_memory) = match self.group {
            Some(group) => (group, false),
            None => self.recall_or_ask().await?,
        };
        Ok(self.speak(group, from_memory))
    }

    fn speak(&self, group: ApiGroup, from_memory: bool) -> Spoken {
        let transcoder = Transcoder::new(group);
        let transcoder = match &self.interface_prefix {
            Some(prefix) => transcoder.with_interface_prefix(prefix),
            None => transcoder,
        };
        Spoken { transcoder, from_memory, is_v3: Arc::default() }
    }

    /// Returns the group, and true if it comes from the cache.
    async fn recall_or_ask(&self) -> Result<(ApiGroup, bool), StoreError> {
        let server = self.explained(self.client.url().await).await?;
        if let Some(group) = self.memory.recall(&server) {
            return Ok((group, true));
        }
        let group = self.ask().await?;
        self.memory.keep(&server, group);
        Ok((group, false))
    }

    /// Discards the group if it came from the cache, so that the next request discovers it. Of several concurrent
    /// requests, only the first has this effect.
    pub(super) async fn forget(&self) {
        let mut slot = self.spoken.lock().await;
        if slot.as_ref().is_some_and(|spoken| spoken.from_memory) {
            self.memory.forget();
            *slot = None;
        }
    }
}
