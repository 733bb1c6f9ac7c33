//! KubeControllersConfiguration, live: made where it is missing, followed, and its status kept (KC-132).

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

/// The name of the one that counts.
const NAME: &str = "default";

/// The configuration of this process.
pub(crate) struct Configuration {
    calico: Arc<Datastore>,
    environment: Environment,
    mode: Mode,
    /// The right to write the status.
    elected: Leadership,
    /// The right to write the object.
    leadership: Leadership,
    unreadable: Unreadable,
    /// The settings that were read to begin with.
    found: Mutex<Option<KubeControllersConfigurationSpec>>,
}

type Events = mpsc::UnboundedReceiver<WatchEvent<Entry<KubeControllersConfiguration>, ObjectKey>>;

impl Configuration {
    /// Of this datastore, under this environment. A replica that does not lead follows it and writes nothing; one that was
    /// `elected` and has not the right of `leadership`, as the datastore is locked, writes the status alone.
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

    /// Waits for settings to begin with; `None` when told to stop before. A configuration that cannot be read is waited for:
    /// on the default settings controllers would delete what the configuration asks for. Log, probes and an Event say so.
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

    /// What is in force to begin with. Without an object that is the default.
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

    /// Follows it until `stop`, and tells `settings` what is in force whenever that changes.
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
                // The notes of the first merge were told when it was read.
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
                    // Goes no further than its next await when the right to write ends.
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

    /// The events of a watch that runs as long as what is returned is kept: a watch loses its place when it is cut off.
    fn watch(&self) -> Option<(Events, AbortOnDropHandle<()>)> {
        let select = ObjectSelect { name_prefix: NAME.into(), ..ObjectSelect::default() };
        let mut watch = self.calico.watch::<KubeControllersConfiguration>(&select)?;
        let (sender, events) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move { while sender.send(watch.next().await).is_ok() {} });
        Some((events, AbortOnDropHandle::new(task)))
    }

    /// That someone else was faster shows with the next event.
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

    /// Logs what of the configuration could not be followed. An Event besides tells that something stays as it is.
    async fn tell(&self, Merged { notes, problems, .. }: &Merged) {
        for note in notes {
            tracing::warn!("KubeControllersConfiguration({NAME}): {note}");
        }
        match &problems[..] {
            [] => self.unreadable.mended(),
            problems => self.unreadable.tell(&format!("{} until that is corrected", problems.join("; "))).await,
        }
    }

    /// Watches leave out what cannot be read, so that it looks as if it were missing.
    async fn complain_if_unreadable(&self) {
        let found = self.calico.get::<KubeControllersConfiguration>(&ObjectKey::global(NAME)).await;
        if let Err(error @ StoreError::Corrupt { .. }) = found {
            self.unreadable.tell(&format!("what was in force stays so: {error}")).await;
        }
    }

    /// Makes the object, with the settings that it had before it went.
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
