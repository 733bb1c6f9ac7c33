//! [`Language`]: the API group in which this process talks to the API server, and whether it still is the right one
//! (DS-22).

use std::sync::Arc;

use libcalico::kubernetes::{ApiGroup, Transcoder};
use libcalico::store::StoreError;
use tokio::sync::{Mutex, OnceCell};

use super::client::ApiClient;
use super::config::KubernetesConfig;
use super::discovery::{self, Memory};
use super::failure::Failure;
use super::migration;

/// How to talk to an API server, found out when it is needed first.
#[derive(Debug)]
pub(super) struct Language {
    client: Arc<ApiClient>,
    group: Option<ApiGroup>,
    memory: Memory,
    interface_prefix: Option<String>,
    spoken: Mutex<Option<Spoken>>,
}

/// How to talk to this API server.
#[derive(Debug, Clone)]
pub(super) struct Spoken {
    pub(super) transcoder: Transcoder,
    /// An earlier process found the group out: it may have changed since.
    pub(super) from_memory: bool,
    /// Whether a v3 that is remembered is the right group still, once a read had to know.
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

    /// By what is known; [`is_right`](Self::is_right) is to be asked beside the first use.
    pub(super) async fn spoken(&self) -> Result<Spoken, StoreError> {
        let mut slot = self.spoken.lock().await;
        match &*slot {
            Some(spoken) => Ok(spoken.clone()),
            None => Ok(slot.insert(self.discover().await?).clone()),
        }
    }

    /// The same, once it is sure.
    pub(super) async fn confirmed(&self) -> Result<Spoken, StoreError> {
        loop {
            let spoken = self.spoken().await?;
            if self.is_right(&spoken).await? {
                return Ok(spoken);
            }
            self.forget().await;
        }
    }

    /// Whether the group still is the one by the rule of DS-22. Asks in the one case where the answers do not tell.
    pub(super) async fn is_right(&self, spoken: &Spoken) -> Result<bool, StoreError> {
        if !spoken.from_memory || spoken.transcoder.group() != ApiGroup::V3 {
            return Ok(true);
        }
        let is_v3 = spoken.is_v3.get_or_try_init(|| discovery::is_v3(&self.client)).await;
        self.explained(is_v3.copied()).await
    }

    /// The group by the API server's present word, whatever is configured or remembered.
    pub(super) async fn ask(&self) -> Result<ApiGroup, StoreError> {
        self.explained(discovery::ask(&self.client).await).await
    }

    /// The group that the settings name.
    pub(super) fn configured(&self) -> Option<ApiGroup> {
        self.group
    }

    /// Returns whether upstream's migration has opened v3 while this process talks in v1, which it found locked or
    /// empty.
    pub(super) async fn has_moved(&self) -> Result<bool, StoreError> {
        match self.spoken().await?.transcoder.group() {
            ApiGroup::CrdV1 => self.explained(migration::is_open(&self.client).await).await,
            ApiGroup::V3 => Ok(false),
        }
    }

    /// Talks in v3 from now on, and remembers that.
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

    /// Configured, remembered, or asked for.
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

    /// The group, and whether it is remembered.
    async fn recall_or_ask(&self) -> Result<(ApiGroup, bool), StoreError> {
        let server = self.explained(self.client.url().await).await?;
        if let Some(group) = self.memory.recall(&server) {
            return Ok((group, true));
        }
        let group = self.ask().await?;
        self.memory.keep(&server, group);
        Ok((group, false))
    }

    /// Forgets the group if an earlier process found it out: the next request asks for it. Of several that were under
    /// way together the first does.
    pub(super) async fn forget(&self) {
        let mut slot = self.spoken.lock().await;
        if slot.as_ref().is_some_and(|spoken| spoken.from_memory) {
            self.memory.forget();
            *slot = None;
        }
    }
}
