//! KubeControllersConfiguration: creates the object if it is missing, follows its changes, and updates its status.

mod known;
mod pace;
#[cfg(test)]
mod tests;
mod unreadable;

use std::sync::{Arc, Mutex, PoisonError};

use datastore::Datastore;
use datastore::watch::WatchEvent;
use libcalico::api::{KubeControllersConfiguration, KubeControllersConfigurationSpec, ObjectKey, ObjectSelect};
use libcalico::store::{Entry, Store, StoreError};
use time::OffsetDateTime;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use crate::context::Mode;
use crate::runtime::Leadership;
use crate::settings::{Environment, Merged, Settings, default_configuration, merge};
use crate::startup::{Clients, insist};
use crate::status::{Component, Status};
use known::{Known, Step};
use pace::Pace;
use unreadable::Unreadable;

/// Name of the only object that has an effect.
const NAME: &str = "default";

/// The KubeControllersConfiguration that this process follows.
pub(crate) struct Configuration {
    calico: Arc<Datastore>,
    environment: Environment,
    mode: Mode,
    /// The right to write the status: this replica is the leader.
    elected: Leadership,
    /// The right to write the object: also, the datastore is not locked.
    leadership: Leadership,
    unreadable: Unreadable,
    /// The settings that were read at the start, until [`Configuration::follow`] takes them.
    found: Mutex<Option<KubeControllersConfigurationSpec>>,
}

type Events = mpsc::UnboundedReceiver<WatchEvent<Entry<KubeControllersConfiguration>, ObjectKey>>;

impl Configuration {
    /// Creates the configuration. A replica that is not the leader follows the object and writes nothing. The leader of
    /// a locked datastore (`elected` without `leadership`) writes only the status.
    pub(crate) fn new(
        clients: &Clients,
        environment: Environment,
        elected: Leadership,
        leadership: Leadership,
    ) -> Self {
        let Clients { kubernetes, calico, mode } = clients.clone();
        let unreadable = Unreadable::new(kubernetes, mode);
        Configuration { calico, environment, mode, elected, leadership, unreadable, found: Mutex::default() }
    }

    /// Waits for the first settings; returns `None` if `stop` is canceled before. An unreadable configuration is
    /// retried: with the default settings, controllers would delete objects that the configuration asks for. The log,
    /// the probes and an Event report the problem.
    pub(crate) async fn first(&self, status: &Status, stop: &CancellationToken) -> Option<Settings> {
        let attempt = async || {
            let read = self.read().await;
            match &read {
                Ok(_) => {}
                Err(error @ StoreError::Corrupt { .. }) => {
                    let reason = format!("no controller runs until it is corrected or deleted: {error}");
                    status.not_ready(Component::Configuration, &*reason);
                    self.unreadable.tell(&reason).await;
                }
                Err(error) => {
                    status
                        .not_ready(Component::Configuration, format!("no controller runs until it was read: {error}"));
                }
            }
            read
        };
        let settings = insist("read KubeControllersConfiguration", stop, attempt).await;
        status.forget(Component::Configuration);
        settings
    }

    /// Returns the first settings: those of the object, or the defaults if the object is missing.
    async fn read(&self) -> Result<Settings, StoreError> {
        let spec = match self.calico.get::<KubeControllersConfiguration>(&ObjectKey::global(NAME)).await {
            Ok(entry) => {
                *self.found.lock().unwrap_or_else(PoisonError::into_inner) = Some(entry.value.spec.clone());
                entry.value.spec
            }
            Err(StoreError::NotFound { .. }) => default_configuration(),
            Err(error) => return Err(error),
        };
        let merged = merge(&self.environment, &spec, self.mode);
        self.tell(&merged).await;
        Ok(merged.settings)
    }

    /// Follows the object until `stop`, and publishes the effective settings in `settings` whenever they change.
    pub(crate) async fn follow(self, settings: watch::Sender<Arc<Settings>>, stop: CancellationToken) {
        let Some((mut events, _watching)) = self.watch() else { return };
        let (mut known, mut pace) = (Known::default(), Pace::default());
        known.begin(self.found.lock().unwrap_or_else(PoisonError::into_inner).take());
        let mut told: Option<(Vec<String>, Vec<String>)> = None;
        loop {
            let merged = known.entry().map(|entry| merge(&self.environment, &entry.value.spec, self.mode));
            if let Some(merged) = &merged {
                settings.send_if_modified(|current| {
                    let changed = **current != merged.settings;
                    if changed {
                        *current = Arc::new(merged.settings.clone());
                    }
                    changed
                });
                // The messages of the first merge were reported when the object was read.
                let says = (merged.notes.clone(), merged.problems.clone());
                let is_new = told.as_ref().is_some_and(|told| *told != says);
                told = Some(says);
                if is_new {
                    self.tell(merged).await;
                }
            }
            let step = known.step(merged.as_ref().map(|merged| &merged.status));
            let mut right = if step == Step::Create { self.leadership.clone() } else { self.elected.clone() };
            match step {
                Step::Nothing => pace.settled(),
                step if right.holds() && pace.may_write() => {
                    // Stops at its next await if the right to write is lost.
                    _ = right.while_held(self.write(step, &known, merged.as_ref())).await;
                }
                _ => {}
            }
            let may_write = right.holds();
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Some(event) = events.recv() => known.follow(event),
                () = pace.due(), if may_write => {}
                () = right.gained(), if !may_write => {}
            }
        }
    }

    /// Returns the events of a watch, which runs until the returned handle is dropped. The watch has a task of its own,
    /// because canceling it in the middle of a request would lose its position.
    fn watch(&self) -> Option<(Events, AbortOnDropHandle<()>)> {
        let select = ObjectSelect { name_prefix: NAME.into(), ..ObjectSelect::default() };
        let mut watch = self.calico.watch::<KubeControllersConfiguration>(&select)?;
        let (sender, events) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move { while sender.send(watch.next().await).is_ok() {} });
        Some((events, AbortOnDropHandle::new(task)))
    }

    /// Performs the step. A conflict with another writer is not an error: the next event shows the result.
    async fn write(&self, step: Step, known: &Known, merged: Option<&Merged>) {
        let outcome = match (step, known.entry(), merged) {
            (Step::WriteStatus, Some(entry), Some(merged)) => {
                let mut value = entry.value.clone();
                value.status = serde_json::to_value(&merged.status).ok();
                self.calico.update_status(&entry.key, &value, &entry.revision).await.map(|_| ())
            }
            (Step::Create, ..) => self.create(known.last()).await,
            (Step::Wait, ..) => return self.complain_if_unreadable().await,
            _ => return,
        };
        match outcome {
            Ok(()) => {}
            Err(StoreError::AlreadyExists { .. }) => self.complain_if_unreadable().await,
            Err(error) if error.is_race() => {}
            Err(error) => tracing::warn!("cannot write KubeControllersConfiguration({NAME}): {error}"),
        }
    }

    /// Logs the parts of the configuration that cannot be followed. An Event also reports the objects that stay as they
    /// are.
    async fn tell(&self, Merged { notes, problems, .. }: &Merged) {
        for note in notes {
            tracing::warn!("KubeControllersConfiguration({NAME}): {note}");
        }
        match &problems[..] {
            [] => self.unreadable.mended(),
            problems => self.unreadable.tell(&format!("{} until that is corrected", problems.join("; "))).await,
        }
    }

    /// Reports an unreadable object. A watch omits unreadable objects, so the object looks as if it were missing.
    async fn complain_if_unreadable(&self) {
        let found = self.calico.get::<KubeControllersConfiguration>(&ObjectKey::global(NAME)).await;
        if let Err(error @ StoreError::Corrupt { .. }) = found {
            self.unreadable.tell(&format!("what was in force stays so: {error}")).await;
        }
    }

    /// Creates the object, with its last settings if it existed before.
    async fn create(&self, last: Option<&KubeControllersConfigurationSpec>) -> Result<(), StoreError> {
        let spec = last.cloned().unwrap_or_else(default_configuration);
        let mut object = KubeControllersConfiguration::new(NAME, spec);
        object.metadata.stamp(Uuid::new_v4(), OffsetDateTime::now_utc());
        let status = merge(&self.environment, &object.spec, self.mode).status;
        object.status = serde_json::to_value(&status).ok();
        self.calico.create(&object.key(), &object).await?;
        let settings = if last.is_some() { "settings that it had before it was deleted" } else { "default settings" };
        tracing::info!("made KubeControllersConfiguration({NAME}) with the {settings}");
        Ok(())
    }
}
