//! [`Language`]: the API group in which this process talks to the API server, and whether it still is the right one (DS-22).

use std::sync::Arc;

use libcalico::kubernetes::{ApiGroup, Transcoder};
use libcalico::store::StoreError;
use tokio::sync::{Mutex, OnceCell};

use super::client::ApiClient;
use super::config::KubernetesConfig;
use super::discovery::{self, Memory};
use super::failure::Failure;

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
    /// Whether there is no v1, once somebody had to know: then a v3 that is remembered is the right one still.
    lacks_v1: Arc<OnceCell<bool>>,
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
        match spoken.lacks_v1.get_or_try_init(|| discovery::lacks_v1(&self.client)).await {
            Ok(lacks_v1) => Ok(*lacks_v1),
            Err(failure) => Err(failure.explain("API groups", &self.client.server().await, false)),
        }
    }

    /// Configured, or asked for.
    pub(super) async fn ask(&self) -> Result<ApiGroup, StoreError> {
        match self.group {
            Some(group) => Ok(group),
            None => match discovery::ask(&self.client).await {
                Ok(group) => Ok(group),
                Err(failure) => Err(failure.explain("API groups", &self.client.server().await, false)),
            },
        }
    }

    /// Configured, remembered, or asked for.
    async fn discover(&self) -> Result<Spoken, StoreError> {
        let (group, from_memory) = match self.group {
            Some(group) => (group, false),
            None => self.recall_or_ask().await?,
        };
        let transcoder = Transcoder::new(group);
        let transcoder = match &self.interface_prefix {
            Some(prefix) => transcoder.with_interface_prefix(prefix),
            None => transcoder,
        };
        Ok(Spoken { transcoder, from_memory, lacks_v1: Arc::default() })
    }

    /// The group, and whether it is remembered.
    async fn recall_or_ask(&self) -> Result<(ApiGroup, bool), StoreError> {
        let place = self.client.server().await;
        let refuse = |failure: Failure| failure.explain("API groups", &place, false);
        let server = self.client.url().await.map_err(refuse)?;
        if let Some(group) = self.memory.recall(&server) {
            return Ok((group, true));
        }
        let group = self.ask().await?;
        self.memory.keep(&server, group);
        Ok((group, false))
    }

    /// Forgets the group if an earlier process found it out: the next request asks for it. Of several that were under way
    /// together the first does.
    pub(super) async fn forget(&self) {
        let mut slot = self.spoken.lock().await;
        if slot.as_ref().is_some_and(|spoken| spoken.from_memory) {
            self.memory.forget();
            *slot = None;
        }
    }
}
