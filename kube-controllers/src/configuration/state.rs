//! [`ConfigurationState`]: the state of the configuration according to the watch, and the next
//! write.

use std::time::Duration;

use datastore::watch::WatchEvent;
use libcalico::api::{
    KubeControllersConfiguration, KubeControllersConfigurationSpec,
    KubeControllersConfigurationStatus, ObjectKey,
};
use libcalico::store::Entry;
use tokio::time::{Instant, sleep_until};

/// Name of the only object that has an effect.
pub(super) const NAME: &str = "default";
/// Time to wait before a deleted object is created again. Tools that replace an object delete it
/// and create it again.
const RECREATE_DELAY: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct ConfigurationState {
    /// The object, if it exists and is readable.
    pub(super) entry: Option<Entry<KubeControllersConfiguration>>,
    /// The last settings of the object, which stay in force after its deletion.
    pub(super) last_spec: Option<KubeControllersConfigurationSpec>,
    /// The time since which the object has been missing or unreadable, if it was readable before.
    missing_since: Option<Instant>,
    /// True if the object came in a [`WatchEvent::Upsert`] since the start of the latest list.
    is_named: bool,
    /// True after the first complete list. An object that is not known then is missing or
    /// unreadable.
    is_listed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StateChange {
    Nothing,
    Create,
    /// No write yet: the object was deleted and may return, or is unreadable.
    Wait,
    WriteStatus,
}

impl ConfigurationState {
    /// Applies an event. Objects with other names are ignored.
    pub(super) fn apply(
        &mut self,
        event: WatchEvent<Entry<KubeControllersConfiguration>, ObjectKey>,
    ) {
        match event {
            WatchEvent::ListStart => self.is_named = false,
            WatchEvent::Upsert(entry) if entry.key.name == NAME => {
                self.last_spec = Some(entry.value.spec.clone());
                self.entry = Some(entry);
                (self.is_named, self.missing_since) = (true, None);
            }
            WatchEvent::Delete(key) if key.name == NAME => self.remove(),
            WatchEvent::Upsert(_) | WatchEvent::Delete(_) => {}
            WatchEvent::ListEnd => {
                self.is_listed = true;
                if !self.is_named {
                    self.remove();
                }
            }
        }
    }

    fn remove(&mut self) {
        self.entry = None;
        if self.last_spec.is_some() {
            self.missing_since.get_or_insert_with(Instant::now);
        }
    }

    /// Returns the next write toward the desired state: the object exists and has `status`.
    pub(super) fn next_write(
        &self,
        status: Option<&KubeControllersConfigurationStatus>,
    ) -> StateChange {
        match (&self.entry, status) {
            (None, _)
                if self
                    .missing_since
                    .is_some_and(|since| since.elapsed() < RECREATE_DELAY) =>
            {
                StateChange::Wait
            }
            (None, _) if self.is_listed => StateChange::Create,
            (Some(entry), Some(status)) if !has_status(&entry.value, status) => {
                StateChange::WriteStatus
            }
            _ => StateChange::Nothing,
        }
    }
}

/// Returns true if the stored status has the content of `status`, apart from order and defaults
/// that the API server added.
fn has_status(
    object: &KubeControllersConfiguration,
    status: &KubeControllersConfigurationStatus,
) -> bool {
    let stored = object
        .status
        .clone()
        .map(serde_json::from_value::<KubeControllersConfigurationStatus>);
    stored.is_some_and(|stored| stored.is_ok_and(|stored| stored == *status))
}

const FIRST_DELAY: Duration = Duration::from_secs(1);
/// Longest delay between writes that have no effect, for example because another program writes a
/// different state.
const MAX_DELAY: Duration = Duration::from_secs(60);

/// The delays between writes. They double, up to [`MAX_DELAY`], until there is no write left to do.
#[derive(Debug)]
pub(super) struct StatusBackoff {
    pause: Duration,
    not_before: Option<Instant>,
    /// True if a write is pending: from the first call of [`StatusBackoff::may_write`] until
    /// [`StatusBackoff::reset`].
    is_pending: bool,
}

impl Default for StatusBackoff {
    fn default() -> Self {
        StatusBackoff {
            pause: FIRST_DELAY,
            not_before: None,
            is_pending: false,
        }
    }
}

impl StatusBackoff {
    /// Records that there is no write left to do, so that the delays start again at
    /// [`FIRST_DELAY`].
    pub(super) fn reset(&mut self) {
        self.pause = FIRST_DELAY;
        self.is_pending = false;
    }

    /// Returns true if a write may happen now, and then starts the delay before the next write.
    pub(super) fn may_write(&mut self) -> bool {
        let now = Instant::now();
        self.is_pending = true;
        if self.not_before.is_some_and(|deadline| deadline > now) {
            return false;
        }
        self.not_before = Some(now + self.pause);
        self.pause = (self.pause * 2).min(MAX_DELAY);
        true
    }

    /// Waits until the pending write may happen. Never returns if no write is pending.
    pub(super) async fn due(&self) {
        match self.not_before {
            Some(deadline) if self.is_pending => sleep_until(deadline).await,
            _ => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use libcalico::api::KubeControllersConfigurationSpec;
    use libcalico::store::Revision;
    use serde_json::json;
    use tokio::time::{advance, timeout};

    use super::*;

    fn named(name: &str) -> Entry<KubeControllersConfiguration> {
        let value =
            KubeControllersConfiguration::new(name, KubeControllersConfigurationSpec::default());
        Entry {
            key: value.key(),
            value,
            revision: Revision("1".into()),
        }
    }

    fn status() -> KubeControllersConfigurationStatus {
        let running_config = Some(KubeControllersConfigurationSpec::default());
        KubeControllersConfigurationStatus {
            running_config,
            ..KubeControllersConfigurationStatus::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn configuration_is_missing_only_after_a_complete_list_without_the_object() {
        let mut state = ConfigurationState::default();
        assert_eq!(state.next_write(None), StateChange::Nothing);
        state.apply(WatchEvent::ListStart);
        state.apply(WatchEvent::Upsert(named("other")));
        assert_eq!(state.next_write(None), StateChange::Nothing);
        state.apply(WatchEvent::ListEnd);
        assert_eq!(state.next_write(None), StateChange::Create);

        state.apply(WatchEvent::Upsert(named(NAME)));
        assert_eq!(state.next_write(Some(&status())), StateChange::WriteStatus);
        // A restarted watch keeps the state until its list is complete.
        state.apply(WatchEvent::ListStart);
        assert!(state.entry.is_some());
        state.apply(WatchEvent::ListEnd);
        assert_eq!(state.next_write(None), StateChange::Wait);
    }

    #[tokio::test(start_paused = true)]
    async fn deleted_configuration_is_recreated_after_a_minute() {
        let mut state = ConfigurationState::default();
        state.apply(WatchEvent::ListStart);
        state.apply(WatchEvent::Upsert(named(NAME)));
        state.apply(WatchEvent::ListEnd);
        state.apply(WatchEvent::Delete(named("other").key));
        assert!(state.entry.is_some());
        state.apply(WatchEvent::Delete(named(NAME).key));
        assert_eq!(state.next_write(None), StateChange::Wait);
        // Each complete list repeats that the object is missing, and does not restart the minute.
        for _ in 0..59 {
            advance(Duration::from_secs(1)).await;
            state.apply(WatchEvent::ListStart);
            state.apply(WatchEvent::ListEnd);
            assert_eq!(state.next_write(None), StateChange::Wait);
        }
        advance(Duration::from_secs(1)).await;
        assert_eq!(state.next_write(None), StateChange::Create);

        state.apply(WatchEvent::Upsert(named(NAME)));
        state.apply(WatchEvent::Delete(named(NAME).key));
        assert_eq!(
            state.next_write(None),
            StateChange::Wait,
            "it was there again"
        );
    }

    #[test]
    fn unchanged_status_is_not_rewritten() {
        let mut entry = named(NAME);
        for (stored, expected) in [
            (None, StateChange::WriteStatus),
            (Some(json!({})), StateChange::WriteStatus),
            (Some(json!({"runningConfig": 5})), StateChange::WriteStatus),
            (
                Some(serde_json::to_value(status()).unwrap()),
                StateChange::Nothing,
            ),
            (
                Some(json!({"environmentVars": {}, "runningConfig": {"controllers": {}}})),
                StateChange::Nothing,
            ),
        ] {
            entry.value.status = stored.clone();
            let mut state = ConfigurationState::default();
            state.apply(WatchEvent::Upsert(entry.clone()));
            assert_eq!(state.next_write(Some(&status())), expected, "{stored:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn first_status_write_is_immediate_and_later_writes_are_spaced_out() {
        let (mut backoff, begin) = (StatusBackoff::default(), Instant::now());
        let mut written = Vec::new();
        for _ in 0..9 {
            while !backoff.may_write() {
                backoff.due().await;
            }
            written.push(begin.elapsed().as_secs());
        }
        assert_eq!(written, [0, 1, 3, 7, 15, 31, 63, 123, 183]);
    }

    #[tokio::test(start_paused = true)]
    async fn effective_status_write_resets_the_backoff_to_a_second() {
        let mut backoff = StatusBackoff::default();
        for _ in 0..5 {
            while !backoff.may_write() {
                backoff.due().await;
            }
        }
        backoff.reset();
        assert!(
            timeout(MAX_DELAY * 2, backoff.due()).await.is_err(),
            "nothing is wanted"
        );
        assert!(backoff.may_write());
        assert!(!backoff.may_write());
        timeout(FIRST_DELAY * 2, backoff.due())
            .await
            .expect("within a second");
    }
}
