//! The checked-in list of intended differences from upstream, each with its reason.
//!
//! Any other difference fails the test. Some data must not differ, such as addresses:
//! [`Wanted::load`] rejects entries about them.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

use super::compare::Difference;
use super::marks::Bindings;
use super::recording::{self, Recording};

/// Members of a result with addresses, routes and interfaces.
const RESULT_MEMBERS: [&str; 5] = ["ips", "routes", "interfaces", "ip4", "ip6"];

/// Key prefixes of blocks, handles, affinities and endpoints, in etcd and in Kubernetes, escaped
/// for a JSON pointer.
const STORE_PREFIXES: [&str; 6] = [
    "~1calico~1ipam~1v2~1",
    "~1calico~1resources~1v3~1projectcalico.org~1workloadendpoints~1",
    "ipamblocks~1",
    "ipamhandles~1",
    "blockaffinities~1",
    "pods~1",
];

/// An intended difference.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Name of the recording.
    pub scenario: String,
    /// Index of the step, from 0.
    pub step: usize,
    /// JSON pointer into `{"exit", "stdout", "after": {"host", "pods", "store"}}`.
    pub path: String,
    /// Our value, which may contain marks; omitted if we have none.
    #[serde(default, deserialize_with = "present")]
    pub ours: Option<Value>,
    /// The reason for the difference.
    pub reason: String,
    /// The only datastores with this difference (`etcd`, `local`, `kdd1`, `kdd3`); omitted for all.
    #[serde(default)]
    pub datastores: Vec<String>,
}

/// Distinguishes `null` from an omitted value.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// The entries of one scenario on one datastore, each with a flag that is set once a difference
/// matches it.
#[derive(Debug)]
pub struct Wanted {
    entries: Vec<(Entry, bool)>,
}

impl Wanted {
    /// Reads the entries of `tests/golden/wanted-differences.json` for a recording replayed on
    /// `datastore`.
    pub fn load(recording: &Recording, datastore: &str) -> Result<Wanted> {
        Wanted::of(read()?, recording, datastore)
    }

    /// Selects those of `entries` that apply to a recording replayed on `datastore`, and rejects
    /// invalid ones.
    pub fn of(entries: Vec<Entry>, recording: &Recording, datastore: &str) -> Result<Wanted> {
        let mine = |entry: &Entry| {
            let here = entry.datastores.is_empty()
                || entry.datastores.iter().any(|only| only == datastore);
            here && entry.scenario == recording.name
        };
        let entries: Vec<_> = entries
            .into_iter()
            .filter(mine)
            .map(|entry| (entry, false))
            .collect();
        for (entry, _) in &entries {
            check(entry, recording).with_context(|| format!("wanted difference {entry:?}"))?;
        }
        Ok(Wanted { entries })
    }

    /// Returns the differences of a step that no entry covers. `ours` is the whole step.
    pub fn unexcused(
        &mut self,
        step: usize,
        found: Vec<Difference>,
        ours: &Value,
        bindings: &mut Bindings,
    ) -> Vec<Difference> {
        let mut covered = Vec::new();
        for (entry, met) in self
            .entries
            .iter_mut()
            .filter(|(entry, _)| entry.step == step)
        {
            let as_wanted = match (&entry.ours, ours.pointer(&entry.path)) {
                (Some(wanted), Some(ours)) => {
                    super::compare::differences(wanted, ours, &entry.path, bindings).is_empty()
                }
                (wanted, ours) => wanted.is_none() && ours.is_none(),
            };
            if as_wanted && found.iter().any(|d| covers(&entry.path, &d.path)) {
                *met = true;
                covered.push(entry.path.clone());
            }
        }
        found
            .into_iter()
            .filter(|d| !covered.iter().any(|path| covers(path, &d.path)))
            .collect()
    }

    /// Returns the entries that no difference matched: they are out of date.
    pub fn unmet(&self) -> Vec<&Entry> {
        self.entries
            .iter()
            .filter(|(_, met)| !met)
            .map(|(entry, _)| entry)
            .collect()
    }
}

/// Reads all entries.
pub fn read() -> Result<Vec<Entry>> {
    let path = recording::directory().join("wanted-differences.json");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}

/// Returns true if a difference is at `path` or below.
fn covers(path: &str, difference: &str) -> bool {
    difference
        .strip_prefix(path)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn check(entry: &Entry, recording: &Recording) -> Result<()> {
    ensure!(!entry.reason.trim().is_empty(), "it has no reason");
    let step = recording
        .steps
        .get(entry.step)
        .context("the recording has no such step")?;
    if entry.path == "/exit" {
        return Ok(());
    }
    if let Some(member) = entry.path.strip_prefix("/stdout") {
        let name = member
            .trim_start_matches('/')
            .split('/')
            .next()
            .unwrap_or_default();
        let carries = |value: &Value| {
            RESULT_MEMBERS
                .iter()
                .any(|member| value.get(member).is_some())
        };
        let whole_result =
            name.is_empty() && (carries(&step.stdout) || entry.ours.as_ref().is_some_and(carries));
        ensure!(
            !whole_result && !RESULT_MEMBERS.contains(&name),
            "addresses and routes must be as recorded"
        );
        return Ok(());
    }
    let key = entry
        .path
        .strip_prefix("/after/store/")
        .context("kernel state must be as recorded")?;
    let is_ours = STORE_PREFIXES
        .iter()
        .any(|prefix| key.starts_with(prefix) || prefix.starts_with(key));
    ensure!(
        !is_ours,
        "blocks, handles, affinities and endpoints must be as recorded"
    );
    Ok(())
}
