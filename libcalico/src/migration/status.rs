//! [`MigrationStatus`]: the status of the object that controls a migration.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::api::{parse_time, seconds_in_utc};

/// The progress of a migration. It only reports the progress: the marks of objects decide about the
/// next step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Phase {
    /// The migration is to be checked, or waits for the cluster; nothing is locked yet.
    #[default]
    Pending,
    /// Objects are copied; both groups are locked.
    Migrating,
    /// Objects in v3 differ from those in v1.
    WaitingForConflictResolution,
    /// The objects are in v3; programs are to switch to v3.
    Converged,
    /// All programs use v3.
    Complete,
    /// The migration cannot begin.
    Failed,
}

/// `status` of the object that controls a migration (MIG-51).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct MigrationStatus {
    /// Phase of the migration.
    #[serde(deserialize_with = "known_phase")]
    pub phase: Phase,
    /// Present step, or the reason for a wait.
    #[cfg_attr(feature = "schema", schemars(length(max = MAX_MESSAGE)))]
    #[serde(
        skip_serializing_if = "String::is_empty",
        serialize_with = "cut_message"
    )]
    pub message: String,
    /// Time at which v1 was locked.
    #[cfg_attr(
        feature = "schema", schemars(with = "Option<String>", extend("format" = "date-time"))
    )]
    #[serde(skip_serializing_if = "Option::is_none", with = "seconds")]
    pub datastore_locked_at: Option<OffsetDateTime>,
    /// Time at which copying began.
    #[cfg_attr(
        feature = "schema", schemars(with = "Option<String>", extend("format" = "date-time"))
    )]
    #[serde(skip_serializing_if = "Option::is_none", with = "seconds")]
    pub started_at: Option<OffsetDateTime>,
    /// Time at which the migration was complete.
    #[cfg_attr(
        feature = "schema", schemars(with = "Option<String>", extend("format" = "date-time"))
    )]
    #[serde(skip_serializing_if = "Option::is_none", with = "seconds")]
    pub completed_at: Option<OffsetDateTime>,
    /// Numbers of objects.
    pub progress: Progress,
    /// Conflicts, and whether pods are blocked.
    #[cfg_attr(feature = "schema", schemars(length(max = 64)))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Value>,
}

/// The numbers of objects that the present pass has copied and compared.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Progress {
    /// Number of kinds.
    pub total_types: u32,
    /// Number of kinds that are done.
    pub completed_types: u32,
    /// Both numbers as text, for kubectl.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub type_progress: String,
    /// Kind that is being copied.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub current_type: String,
    /// Number of objects that were read.
    pub total: u32,
    /// Number of objects that were created or replaced.
    pub migrated: u32,
    /// Number of objects that v3 had already.
    pub skipped: u32,
    /// Number of objects that v3 has with another content.
    pub conflicts: u32,
    /// Numbers for each kind.
    #[cfg_attr(feature = "schema", schemars(length(max = 128)))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub type_details: Vec<KindProgress>,
}

/// The numbers of objects of a kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct KindProgress {
    /// Kind in v3.
    pub kind: String,
    /// Number of objects that were created or replaced.
    pub migrated: u32,
    /// Number of objects that v3 had already.
    pub skipped: u32,
    /// Number of objects that v3 has with another content.
    pub conflicts: u32,
}

/// The greatest length of a message, in characters. The API server refuses a status with a longer
/// one.
const MAX_MESSAGE: usize = 1024;
/// The greatest number of conditions that name a conflict each (MIG-67).
const MAX_CONFLICTS: usize = 32;
/// The greatest length of the message of a condition, in characters.
const MAX_CONDITION: usize = 32_768;

impl Progress {
    /// Creates the progress of a pass over `total_types` kinds.
    pub fn of(total_types: u32) -> Self {
        let mut progress = Progress {
            total_types,
            ..Progress::default()
        };
        progress.complete(0);
        progress
    }

    /// Sets the number of kinds that are done.
    pub fn complete(&mut self, completed_types: u32) {
        self.completed_types = completed_types;
        self.type_progress = format!("{completed_types} / {}", self.total_types);
    }

    /// Adds the numbers of a kind. The API server refuses a status that contains a kind twice.
    pub fn add(&mut self, kind: KindProgress) {
        let KindProgress {
            migrated,
            skipped,
            conflicts,
            ..
        } = kind;
        self.total += migrated + skipped + conflicts;
        self.migrated += migrated;
        self.skipped += skipped;
        self.conflicts += conflicts;
        self.type_details.push(kind);
    }
}

/// Returns a condition.
pub fn condition(
    kind: &str,
    is_true: bool,
    reason: &str,
    message: &str,
    now: OffsetDateTime,
) -> Value {
    json!({
        "type": kind,
        "status": if is_true { "True" } else { "False" },
        "reason": reason,
        "message": cut(message, MAX_CONDITION),
        "lastTransitionTime": seconds_in_utc(now),
    })
}

/// Returns upstream's conditions for conflicts (MIG-67). `named` contains at least the first
/// objects as `Kind/namespace/name`; `total` is the number of all.
pub fn conflict_conditions<'n>(
    named: impl IntoIterator<Item = &'n str>,
    total: usize,
    now: OffsetDateTime,
) -> Vec<Value> {
    let conflict = |name: &str| {
        let message = format!("{name}: v3 resource exists with different spec");
        condition("Conflict", true, "ResourceMismatch", &message, now)
    };
    let mut conditions: Vec<Value> = named
        .into_iter()
        .take(MAX_CONFLICTS)
        .map(conflict)
        .collect();
    let omitted = match total.saturating_sub(conditions.len()) {
        0 => return conditions,
        1 => "1 more conflict not shown".to_owned(),
        more => format!("{more} more conflicts not shown"),
    };
    conditions.push(condition(
        "Conflict",
        true,
        "ConflictsOmitted",
        &omitted,
        now,
    ));
    conditions
}

/// Returns the beginning of a text, with a mark if the end is missing.
fn cut(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        None => text.to_owned(),
        Some(_) => text.chars().take(limit - 1).chain(['…']).collect(),
    }
}

fn cut_message<S: Serializer>(message: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&cut(message, MAX_MESSAGE))
}

/// Reads a missing phase, an empty one, and one that this build does not know, as the first phase.
fn known_phase<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Phase, D::Error> {
    let stored = Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(stored).unwrap_or_default())
}

/// Times in whole seconds. A text that is not a time is read as a missing one.
mod seconds {
    use super::{
        Deserialize, Deserializer, OffsetDateTime, Serialize, Serializer, parse_time,
        seconds_in_utc,
    };

    pub(super) fn serialize<S: Serializer>(
        time: &Option<OffsetDateTime>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        time.map(seconds_in_utc).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<OffsetDateTime>, D::Error> {
        Ok(Option::<String>::deserialize(deserializer)?
            .as_deref()
            .and_then(parse_time))
    }
}

#[cfg(test)]
mod tests;
