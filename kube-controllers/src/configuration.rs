//! KubeControllersConfiguration: creates the object if it is missing, follows its changes, and
//! updates its status.

mod state;
#[cfg(test)]
mod tests;

use std::mem;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use datastore::Datastore;
use datastore::watch::WatchEvent;
use libcalico::api::{
    KubeControllersConfiguration, KubeControllersConfigurationSpec, ObjectKey, ObjectSelect,
};
use libcalico::kubernetes::ApiGroup;
use libcalico::store::{Entry, Store, StoreError};
use serde_json::{Value, json};
use time::OffsetDateTime;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use crate::context::Clients;
use crate::events::{self, EventType};
use crate::leader::Leadership;
use crate::settings::{Environment, Merged, Mode, Settings, default_configuration, merge};
use crate::startup::retry_until_ok;
use crate::status::{Component, Status};
use state::{ConfigurationState, NAME, StateChange, StatusBackoff};

const REASON: &str = "UnreadableConfiguration";

pub(crate) struct Configuration {
    calico: Arc<Datastore>,
    environment: Environment,
    mode: Mode,
    /// The right to write the status: this replica is the leader.
    elected: Leadership,
    /// The right to create the object: this replica is the leader, and the datastore is not locked.
    leadership: Leadership,
    reporter: ProblemReporter,
    /// The settings of the object at the start, until [`Configuration::follow`] takes them. `None`
    /// if the object was missing.
    first_spec: Mutex<Option<KubeControllersConfigurationSpec>>,
    /// The notes and problems of the last [`Configuration::report`]. `None` if the object has been
    /// unreadable since.
    reported: Mutex<Option<(Vec<String>, Vec<String>)>>,
}

type ConfigurationEvents =
    mpsc::UnboundedReceiver<WatchEvent<Entry<KubeControllersConfiguration>, ObjectKey>>;

impl Configuration {
    /// Creates the follower of the object; sends no request.
    pub(crate) fn new(
        clients: Clients,
        environment: Environment,
        elected: Leadership,
        leadership: Leadership,
    ) -> Self {
        let Clients {
            kubernetes,
            calico,
            mode,
        } = clients;
        let reporter = ProblemReporter::new(kubernetes, mode);
        let (first_spec, reported) = (Mutex::default(), Mutex::default());
        Configuration {
            calico,
            environment,
            mode,
            elected,
            leadership,
            reporter,
            first_spec,
            reported,
        }
    }

    /// Returns the first settings, or `None` if `stop` is canceled before the object has been read.
    /// A failed read is retried, because with the default settings controllers could delete objects
    /// that the configuration asks for.
    pub(crate) async fn read_first(
        &self,
        status: &Status,
        stop: &CancellationToken,
    ) -> Option<Settings> {
        let attempt = async || {
            let read = self.read().await;
            match &read {
                Ok(_) => {}
                Err(error @ StoreError::Corrupt { .. }) => {
                    let reason = format!(
                        "no controller runs until the object is corrected or deleted: {error}"
                    );
                    status.not_ready(Component::Configuration, &*reason);
                    self.reporter.report(&reason).await;
                }
                Err(error) => {
                    let reason =
                        format!("no controller runs until the object has been read: {error}");
                    status.not_ready(Component::Configuration, reason);
                }
            }
            read
        };
        let settings = retry_until_ok("read KubeControllersConfiguration", stop, attempt).await;
        status.remove(Component::Configuration);
        settings
    }

    /// Returns the first settings: those of the object, or the defaults if the object is missing,
    /// merged with the environment.
    async fn read(&self) -> Result<Settings, StoreError> {
        let spec = match self
            .calico
            .get::<KubeControllersConfiguration>(&ObjectKey::global(NAME))
            .await
        {
            Ok(entry) => {
                *self
                    .first_spec
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner) = Some(entry.value.spec.clone());
                entry.value.spec
            }
            Err(StoreError::NotFound { .. }) => default_configuration(),
            Err(error) => return Err(error),
        };
        let merged = merge(&self.environment, &spec, self.mode);
        self.report(&merged).await;
        Ok(merged.settings)
    }

    /// Follows the object until `stop`, publishes the effective settings in `settings` whenever
    /// they change, creates the object and writes its status.
    pub(crate) async fn follow(
        self,
        settings: watch::Sender<Arc<Settings>>,
        stop: CancellationToken,
    ) {
        let Some((events, _watching)) = self.watch() else {
            return;
        };
        self.follow_events(events, settings, stop).await;
    }

    async fn follow_events(
        self,
        mut events: ConfigurationEvents,
        settings: watch::Sender<Arc<Settings>>,
        stop: CancellationToken,
    ) {
        let (mut state, mut backoff) = (ConfigurationState::default(), StatusBackoff::default());
        state.last_spec = self
            .first_spec
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        loop {
            let merged = state
                .entry
                .as_ref()
                .map(|entry| merge(&self.environment, &entry.value.spec, self.mode));
            if let Some(merged) = &merged {
                if **settings.borrow() != merged.settings {
                    settings.send_replace(Arc::new(merged.settings.clone()));
                }
                self.report(merged).await;
            }
            let change = state.next_write(merged.as_ref().map(|merged| &merged.status));
            let mut right = if change == StateChange::Create {
                self.leadership.clone()
            } else {
                self.elected.clone()
            };
            match change {
                StateChange::Nothing => backoff.reset(),
                change if right.holds() && backoff.may_write() => {
                    // The write stops at its next await if the right to write is lost.
                    _ = right
                        .while_held(self.write(change, &state, merged.as_ref()))
                        .await;
                }
                _ => {}
            }
            let may_write = right.holds();
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Some(event) = events.recv() => state.apply(event),
                () = backoff.due(), if may_write => {}
                () = right.gained(), if !may_write => {}
            }
        }
    }

    /// Returns the events of a watch, which runs until the returned handle is dropped, or `None`
    /// for the embedded datastore. The watch has a task of its own, because a watch that is
    /// canceled in the middle of a request loses its position.
    fn watch(&self) -> Option<(ConfigurationEvents, AbortOnDropHandle<()>)> {
        let select = ObjectSelect {
            name_prefix: NAME.into(),
            ..ObjectSelect::default()
        };
        let mut watch = self.calico.watch::<KubeControllersConfiguration>(&select)?;
        let (sender, events) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move { while sender.send(watch.next().await).is_ok() {} });
        Some((events, AbortOnDropHandle::new(task)))
    }

    /// Writes the status or creates the object, as `change` says, and logs a failure. A conflict
    /// with another writer is not a failure. Reports an unreadable object.
    async fn write(
        &self,
        change: StateChange,
        state: &ConfigurationState,
        merged: Option<&Merged>,
    ) {
        let outcome = match (change, &state.entry, merged) {
            (StateChange::WriteStatus, Some(entry), Some(merged)) => {
                let mut value = entry.value.clone();
                value.status = serde_json::to_value(&merged.status).ok();
                self.calico
                    .update_status(&entry.key, &value, &entry.revision)
                    .await
                    .map(|_| ())
            }
            (StateChange::Create, ..) => self.create(state.last_spec.as_ref()).await,
            (StateChange::Wait, ..) => return self.report_if_unreadable().await,
            _ => return,
        };
        match outcome {
            Ok(()) => {}
            Err(StoreError::AlreadyExists { .. }) => self.report_if_unreadable().await,
            Err(error) if error.is_race() => {}
            Err(error) => tracing::warn!(
                "cannot create KubeControllersConfiguration({NAME}) or write its status, trying again later: {error}"
            ),
        }
    }

    /// Logs `notes`, and passes `problems` to the `ProblemReporter`, unless the last report had the
    /// same ones.
    async fn report(
        &self,
        Merged {
            notes, problems, ..
        }: &Merged,
    ) {
        let messages = Some((notes.clone(), problems.clone()));
        let before = mem::replace(
            &mut *self.reported.lock().unwrap_or_else(PoisonError::into_inner),
            messages.clone(),
        );
        if before == messages {
            return;
        }
        for note in notes {
            tracing::warn!("KubeControllersConfiguration({NAME}): {note}");
        }
        if problems.is_empty() {
            return self.reporter.clear();
        }
        self.reporter
            .report(&format!(
                "{} until the configuration is corrected",
                problems.join("; ")
            ))
            .await;
    }

    /// Reports the object if it is unreadable. A watch omits unreadable objects, so the object
    /// looks as if it were missing.
    async fn report_if_unreadable(&self) {
        let read = self
            .calico
            .get::<KubeControllersConfiguration>(&ObjectKey::global(NAME))
            .await;
        if let Err(error @ StoreError::Corrupt { .. }) = read {
            // When the object is readable again, its problems replace this one, even if they are
            // the earlier ones.
            *self.reported.lock().unwrap_or_else(PoisonError::into_inner) = None;
            self.reporter
                .report(&format!("the settings in force stay in force: {error}"))
                .await;
        }
    }

    /// Creates the object with the settings `last` of the deleted object; `None` stands for the
    /// default settings.
    async fn create(
        &self,
        last: Option<&KubeControllersConfigurationSpec>,
    ) -> Result<(), StoreError> {
        let spec = last.cloned().unwrap_or_else(default_configuration);
        let mut object = KubeControllersConfiguration::new(NAME, spec);
        object
            .metadata
            .stamp(Uuid::new_v4(), OffsetDateTime::now_utc());
        let status = merge(&self.environment, &object.spec, self.mode).status;
        object.status = serde_json::to_value(&status).ok();
        self.calico.create(&object.key(), &object).await?;
        let settings = if last.is_some() {
            "settings of the deleted object"
        } else {
            "default settings"
        };
        tracing::info!("created KubeControllersConfiguration({NAME}) with the {settings}");
        Ok(())
    }
}

/// Reports a problem to the log and as an Event, but not if the last report was the same.
struct ProblemReporter {
    kubernetes: kube::Client,
    object: Value,
    reported: Mutex<String>,
}

impl ProblemReporter {
    fn new(kubernetes: kube::Client, mode: Mode) -> Self {
        let group = match mode {
            Mode::Etcd => ApiGroup::V3,
            Mode::Kubernetes(group) => group,
        };
        let object = json!({
            "apiVersion": group.api_version(), "kind": "KubeControllersConfiguration", "name": NAME,
        });
        ProblemReporter {
            kubernetes,
            object,
            reported: Mutex::default(),
        }
    }

    /// Clears the last problem, so that it is reported if it occurs again.
    fn clear(&self) {
        self.reported
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }

    /// Logs the problem and creates an Event about the object, unless the last report was the same.
    /// Every replica does so, because each one reads the object and may find another problem.
    async fn report(&self, reason: &str) {
        let before = mem::replace(
            &mut *self.reported.lock().unwrap_or_else(PoisonError::into_inner),
            reason.into(),
        );
        if before == reason {
            return;
        }
        tracing::error!("KubeControllersConfiguration({NAME}): {reason}");
        let event = events::event(
            &self.object,
            EventType::Warning,
            REASON,
            reason,
            SystemTime::now(),
        );
        if let Err(error) = events::post(&self.kubernetes, event).await {
            tracing::warn!(
                "cannot create an Event about KubeControllersConfiguration({NAME}): {error}"
            );
        }
    }
}
