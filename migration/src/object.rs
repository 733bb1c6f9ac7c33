//! [`Control`]: the object that controls the migration, and its status.

use std::mem;

use libcalico::kubernetes::{Location, Resource};
use libcalico::migration::{
    DATASTORE_MIGRATIONS, DRY_RUN, FINALIZER, MIGRATION_NAME, MigrationStatus, Phase,
    SAVED_API_SERVICE,
};
use node_process::logging::printable;
use serde_json::{Value, json};

use super::metrics::MigrationMetrics;
use super::requests::{Problem, Requests};

/// The resource of the controlling object on an API server with an older definition (MIG-50).
pub(super) const PRE_GA: Resource = Resource {
    api_version: "migration.projectcalico.org/v1beta1",
    ..DATASTORE_MIGRATIONS
};

/// Number of attempts at a write, while other programs change the object. A person or a tool for
/// deployments may annotate the object each second.
const TRIES: u32 = 5;

/// The controlling object, as this process has read or written it last.
#[derive(Debug, Clone)]
pub(super) struct Control {
    at: Location,
    value: Value,
    pub(super) status: MigrationStatus,
    /// The metrics that show each status.
    metrics: Option<MigrationMetrics>,
}

/// A part of the object that a request writes.
#[derive(Debug, Clone, Copy)]
enum Part {
    Metadata,
    Status,
}

impl Control {
    /// Reads the object. Returns `None` if it is missing.
    pub(super) async fn read(
        requests: &Requests,
        resource: Resource,
    ) -> Result<Option<Self>, Problem> {
        let at = Location::global(resource, MIGRATION_NAME);
        Ok(requests.get(&at).await?.map(|value| Control::of(at, value)))
    }

    pub(super) fn of(at: Location, value: Value) -> Self {
        // An unreadable status counts as empty: the marks of other objects decide, and the next
        // status replaces it.
        let status = serde_json::from_value(value["status"].clone()).unwrap_or_default();
        Control {
            at,
            value,
            status,
            metrics: None,
        }
    }

    /// Returns the same object, whose status is shown in `metrics` from now on.
    pub(super) fn shown_in(mut self, metrics: &MigrationMetrics) -> Self {
        metrics.show(&self.status);
        self.metrics = Some(metrics.clone());
        self
    }

    pub(super) fn metrics(&self) -> Option<&MigrationMetrics> {
        self.metrics.as_ref()
    }

    pub(super) fn uid(&self) -> &str {
        self.value["metadata"]["uid"].as_str().unwrap_or_default()
    }

    /// Returns true if the API server serves only the older version of the definition.
    pub(super) fn is_pre_ga(&self) -> bool {
        self.at.resource == PRE_GA
    }

    pub(super) fn is_being_deleted(&self) -> bool {
        !self.value["metadata"]["deletionTimestamp"].is_null()
    }

    pub(super) fn annotation(&self, key: &str) -> Option<&str> {
        self.value["metadata"]["annotations"][key].as_str()
    }

    /// Returns the text of a dry run that has not been made yet.
    pub(super) fn requested_dry_run(&self) -> Option<&str> {
        self.annotation(DRY_RUN)
            .filter(|text| !self.has_made_dry_run(text))
    }

    fn has_made_dry_run(&self, text: &str) -> bool {
        self.condition("DryRun")
            .is_some_and(|condition| condition["message"] == text)
    }

    pub(super) fn condition(&self, kind: &str) -> Option<&Value> {
        self.status
            .conditions
            .iter()
            .find(|condition| condition["type"] == kind)
    }

    pub(super) fn has_finalizer(&self) -> bool {
        self.finalizers().any(|finalizer| finalizer == FINALIZER)
    }

    /// Returns the APIService that the migration has removed and not restored yet.
    pub(super) fn saved_api_service(&self) -> Option<Value> {
        serde_json::from_str(self.annotation(SAVED_API_SERVICE)?).ok()
    }

    fn finalizers(&self) -> impl Iterator<Item = &str> {
        self.value["metadata"]["finalizers"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
    }

    /// Adds the finalizer, unless the object has it.
    pub(super) async fn add_finalizer(&mut self, requests: &Requests) -> Result<(), Problem> {
        self.write_finalizers(requests, |all| {
            if !all.iter().any(|finalizer| finalizer == FINALIZER) {
                all.push(FINALIZER.into());
            }
        })
        .await
    }

    /// Removes the finalizer, so that the API server removes the deleted object.
    pub(super) async fn remove_finalizer(&mut self, requests: &Requests) -> Result<(), Problem> {
        self.write_finalizers(requests, |all| {
            all.retain(|finalizer| finalizer != FINALIZER)
        })
        .await
    }

    async fn write_finalizers(
        &mut self,
        requests: &Requests,
        change: impl Fn(&mut Vec<Value>),
    ) -> Result<(), Problem> {
        self.write(requests, Part::Metadata, |object| {
            let mut all = object["metadata"]["finalizers"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            change(&mut all);
            object["metadata"]["finalizers"] = all.into();
        })
        .await
    }

    /// Stores the removed APIService in the object, or with `None` removes it from there.
    pub(super) async fn save_api_service(
        &mut self,
        requests: &Requests,
        service: Option<&Value>,
    ) -> Result<(), Problem> {
        let text = service.map_or(Value::Null, |service| service.to_string().into());
        self.write(requests, Part::Metadata, |object| {
            let annotations = &mut object["metadata"]["annotations"];
            annotations[SAVED_API_SERVICE] = text.clone();
            if let Some(annotations) = annotations.as_object_mut() {
                annotations.retain(|_, value| !value.is_null());
            }
        })
        .await
    }

    /// Makes a change, also if other programs change the rest of the object meanwhile. Sends no
    /// request if the object has the change already.
    ///
    /// # Errors
    /// [`Problem::Lost`] if a user has deleted the object meanwhile, and [`Problem::Transient`] if
    /// other programs change the object before each attempt.
    async fn write(
        &mut self,
        requests: &Requests,
        part: Part,
        change: impl Fn(&mut Value),
    ) -> Result<(), Problem> {
        for _ in 0..TRIES {
            let mut body = self.value.clone();
            change(&mut body);
            if body == self.value {
                return Ok(());
            }
            let written = match part {
                Part::Metadata => requests.replace(&self.at, &body).await,
                Part::Status => requests.replace_status(&self.at, &body).await,
            };
            match written {
                Err(Problem::Lost) => self.read_again(requests).await?,
                written => {
                    self.value = written?;
                    return Ok(());
                }
            }
        }
        let Location { resource, name, .. } = &self.at;
        Err(Problem::Transient(format!(
            "other programs change {} {name} all the time",
            resource.kind
        )))
    }

    /// Reads the same object again. The status stays that of this process, which alone writes it.
    ///
    /// # Errors
    /// [`Problem::Lost`] if a user has deleted the object meanwhile.
    pub(super) async fn read_again(&mut self, requests: &Requests) -> Result<(), Problem> {
        let found = requests
            .get(&self.at)
            .await?
            .map(|value| Control::of(self.at.clone(), value));
        let is_same = |found: &Control| {
            found.uid() == self.uid() && found.is_being_deleted() == self.is_being_deleted()
        };
        self.value = found.filter(is_same).ok_or(Problem::Lost)?.value;
        Ok(())
    }

    /// Changes the status, and logs a new phase or message. Sends no request if nothing has
    /// changed.
    ///
    /// # Errors
    /// As [`Control::write`].
    pub(super) async fn write_status(
        &mut self,
        requests: &Requests,
        change: impl FnOnce(&mut MigrationStatus),
    ) -> Result<(), Problem> {
        let mut status = self.status.clone();
        change(&mut status);
        // The text may be another program's.
        status.message = printable::line(&status.message).into_owned();
        let stored = json!(status);
        if stored == self.value["status"] {
            return Ok(());
        }
        if status.phase != self.status.phase || status.message != self.status.message {
            tracing::info!(
                object = MIGRATION_NAME, cause = %status.message, "migration: {:?}", status.phase,
            );
        }
        self.write(requests, Part::Status, |object| {
            object["status"] = stored.clone()
        })
        .await?;
        self.status = status;
        if let Some(metrics) = &self.metrics {
            metrics.show(&self.status);
        }
        Ok(())
    }

    /// Sets phase and message.
    pub(super) async fn report(
        &mut self,
        requests: &Requests,
        phase: Phase,
        message: &str,
    ) -> Result<(), Problem> {
        self.write_status(requests, |status| {
            status.phase = phase;
            message.clone_into(&mut status.message);
        })
        .await
    }
}

/// Replaces the conditions about conflicts. A condition with the same content keeps its time.
pub(super) fn set_conflicts(status: &mut MigrationStatus, conflicts: Vec<Value>) {
    let is_about_conflicts = |condition: &Value| {
        condition["type"] == "Conflict" || condition["type"] == "ConflictsOmitted"
    };
    let (before, others): (Vec<Value>, Vec<Value>) = mem::take(&mut status.conditions)
        .into_iter()
        .partition(is_about_conflicts);
    let dated = |new: Value| {
        before
            .iter()
            .find(|old| is_same(old, &new))
            .cloned()
            .unwrap_or(new)
    };
    status.conditions = others
        .into_iter()
        .chain(conflicts.into_iter().map(dated))
        .collect();
}

/// Returns true if two conditions differ in their times only.
fn is_same(one: &Value, other: &Value) -> bool {
    ["type", "status", "reason", "message"]
        .iter()
        .all(|field| one[*field] == other[*field])
}

/// Replaces the condition of the same type, or adds the condition. A condition with the same
/// content keeps its time.
pub(super) fn set_condition(status: &mut MigrationStatus, condition: Value) {
    match status
        .conditions
        .iter_mut()
        .find(|old| old["type"] == condition["type"])
    {
        Some(old) if is_same(old, &condition) => {}
        Some(old) => *old = condition,
        None => status.conditions.push(condition),
    }
}

/// Removes annotations of an object. The API server stores no empty map of annotations.
pub(super) fn remove_annotations(object: &mut Value, keys: &[&str]) {
    let Some(annotations) = object
        .pointer_mut("/metadata/annotations")
        .and_then(Value::as_object_mut)
    else {
        return;
    };
    annotations.retain(|key, _| !keys.contains(&key.as_str()));
    if annotations.is_empty()
        && let Some(metadata) = object["metadata"].as_object_mut()
    {
        metadata.remove("annotations");
    }
}

#[cfg(test)]
mod tests {
    use hyper::Method;

    use super::*;
    use crate::testing::{MigratedCluster, ReceivedRequest, failure, object};

    fn control(value: Value) -> Control {
        Control::of(
            Location::global(DATASTORE_MIGRATIONS, MIGRATION_NAME),
            value,
        )
    }

    #[test]
    fn dry_run_is_requested_once_for_each_text() {
        let annotated = |condition: Value| {
            let annotations = json!({ DRY_RUN: "second" });
            let metadata = json!({ "annotations": annotations });
            control(json!({ "metadata": metadata, "status": { "conditions": [condition] } }))
        };
        let made =
            |text: &str| annotated(json!({ "type": "DryRun", "status": "True", "message": text }));
        assert_eq!(made("first").requested_dry_run(), Some("second"));
        assert_eq!(made("second").requested_dry_run(), None);
        assert_eq!(control(json!({})).requested_dry_run(), None);
    }

    #[test]
    fn condition_with_the_same_content_keeps_its_time() {
        let at = |time: &str, reason: &str| {
            let (kind, status) = ("PodsBlocked", "True");
            json!({
                "type": kind, "status": status, "reason": reason, "message": "m",
                "lastTransitionTime": time,
            })
        };
        let mut status = MigrationStatus::default();
        set_condition(&mut status, at("1", "A"));
        set_condition(&mut status, at("2", "A"));
        assert_eq!(status.conditions, [at("1", "A")]);
        set_condition(&mut status, at("3", "B"));
        assert_eq!(status.conditions, [at("3", "B")]);

        let conflict = |time: &str, message: &str| {
            let kind = "Conflict";
            json!({
                "type": kind, "status": "True", "message": message, "lastTransitionTime": time,
            })
        };
        set_conflicts(&mut status, vec![conflict("4", "a"), conflict("4", "b")]);
        set_conflicts(&mut status, vec![conflict("5", "b"), conflict("5", "c")]);
        assert_eq!(
            status.conditions,
            [at("3", "B"), conflict("4", "b"), conflict("5", "c")]
        );
    }

    #[test]
    fn unreadable_status_counts_as_empty() {
        let control = control(json!({ "status": { "phase": 7, "conditions": "none" } }));
        assert_eq!(control.status, MigrationStatus::default());
    }

    /// Changes an annotation of the object, in the way of another program.
    fn annotate(cluster: &MigratedCluster, text: &str) {
        cluster.server.with_store(|store| {
            let mut found = store.get(&object()).unwrap().clone();
            found["metadata"]["annotations"]["a"] = text.into();
            store.put(&object(), found);
        });
    }

    async fn started() -> (MigratedCluster, Requests, Control) {
        let cluster = MigratedCluster::new();
        cluster.start();
        let requests = cluster.requests();
        let control = Control::read(&requests, DATASTORE_MIGRATIONS)
            .await
            .unwrap()
            .unwrap();
        (cluster, requests, control)
    }

    #[tokio::test(start_paused = true)]
    async fn object_changed_by_another_program_is_written_with_the_change() {
        let (cluster, requests, mut control) = started().await;
        annotate(&cluster, "first");
        control
            .report(&requests, Phase::Pending, "m")
            .await
            .unwrap();
        annotate(&cluster, "second");
        control.add_finalizer(&requests).await.unwrap();
        annotate(&cluster, "third");
        control
            .save_api_service(&requests, Some(&json!({ "kind": "APIService" })))
            .await
            .unwrap();
        let found = cluster.server.object(&object()).unwrap();
        assert_eq!(found["metadata"]["annotations"]["a"], "third");
        assert_eq!(
            (&found["metadata"]["finalizers"], cluster.message().as_str()),
            (&json!([FINALIZER]), "m")
        );
        assert!(control.has_finalizer() && control.saved_api_service().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn object_changed_before_each_attempt_is_not_written() {
        let (cluster, requests, mut control) = started().await;
        cluster.server.fail(|request: &ReceivedRequest| {
            (request.method == Method::PUT)
                .then(|| failure(409, "Conflict", "the object has been modified"))
        });
        cluster.server.take_log();
        let written = control.report(&requests, Phase::Pending, "m").await;
        assert!(matches!(written, Err(Problem::Transient(_))), "{written:?}");
        assert_eq!(
            cluster
                .server
                .take_log()
                .iter()
                .filter(|line| line.starts_with("PUT"))
                .count(),
            5
        );
        assert_eq!(control.status, MigrationStatus::default());
    }

    #[tokio::test(start_paused = true)]
    async fn deleted_or_replaced_object_is_not_written() {
        for (is_kept, is_replaced) in [(true, false), (false, false), (false, true)] {
            let (cluster, requests, mut control) = started().await;
            if is_kept {
                control.add_finalizer(&requests).await.unwrap();
            }
            cluster.delete().await;
            if is_replaced {
                cluster.start();
            }
            let before = cluster.server.object(&object());
            assert_eq!(
                control.report(&requests, Phase::Pending, "m").await,
                Err(Problem::Lost)
            );
            assert_eq!(cluster.server.object(&object()), before);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn message_is_printable() {
        let (cluster, requests, mut control) = started().await;
        control
            .report(&requests, Phase::Pending, "a\u{1b}[2Jb\nc\u{202e}")
            .await
            .unwrap();
        assert_eq!(cluster.message(), "a\\u001b[2Jb\\nc\\u202e");
    }
}
