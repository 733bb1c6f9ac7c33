//! Runs the steps of a recording against our binaries and compares the results.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::cluster;
use super::compare::{Difference, differences};
use super::marks::{Bindings, Concrete, Places};
use super::recording::{Before, Recording, Step};
use super::wanted::Wanted;
use crate::kernel;
use crate::kubernetes::Client;
use crate::namespaces::{Host, NETNS_DIR};
use crate::plugin::{Outcome, Plugins};
use crate::store::Store;

const POD_PREFIX: &str = "gold-";

/// A host and a datastore on which a recording is replayed.
#[derive(Debug)]
pub struct Target<'a> {
    /// The host.
    pub host: &'a Host,
    /// The binaries under test.
    pub plugins: &'a Plugins,
    /// The datastore, empty.
    pub store: &'a Store,
    /// The client for the Pods of a recording, if it contains Pods.
    pub kubernetes: Option<&'a Client>,
}

/// Replays a recording.
///
/// # Errors
/// Returns an error that lists the differences that are not wanted, and the wanted ones that are
/// missing.
pub fn replay(recording: &Recording, target: &Target<'_>) -> Result<()> {
    let Target { store, .. } = target;
    let places = places(target);
    let mut expectation = Expectation::new(recording, &places);
    store.load(&serde_json::from_value(expectation.loaded.clone())?)?;
    expectation.keep(json!(store.dump()?))?;

    let mut wanted = Wanted::load(recording, store.name())?;
    let mut report = String::new();
    for (index, step) in recording.steps.iter().enumerate() {
        let (ours, outcome) = run(step, &places, target)
            .with_context(|| format!("step {index} of {}", recording.name))?;
        let found = expectation.differences(step, &ours);
        for difference in wanted.unexcused(index, found, &ours, &mut expectation.bindings) {
            report += &format!("step {index} ({}): {difference}\n", described(step));
            if difference.path == "/exit" {
                report += &format!(
                    "    stdout: {}\n    stderr: {}\n",
                    outcome.stdout, outcome.stderr
                );
            }
        }
    }
    for entry in wanted.unmet() {
        report += &format!("no difference met the wanted one: {entry:?}\n");
    }
    ensure!(
        report.is_empty(),
        "{} on {}: {}\n{report}",
        recording.name,
        store.name(),
        recording.what
    );
    Ok(())
}

pub(super) fn places(target: &Target<'_>) -> Places {
    Places {
        bin: target.plugins.dir().display().to_string(),
        tmp: target.host.dir("tmp").display().to_string(),
        lab: cluster::lab(target.host).display().to_string(),
    }
}

/// The expected results of a recording. The values of its marks are bound step by step.
#[derive(Debug, Clone)]
pub(super) struct Expectation {
    initial: Value,
    /// The content to load before the first step; afterwards, the content that the datastore made
    /// of it.
    pub(super) loaded: Value,
    pub(super) bindings: Bindings,
}

impl Expectation {
    pub(super) fn new(recording: &Recording, places: &Places) -> Expectation {
        let initial = json!(recording.initial);
        let loaded = Concrete::new(places).value(&initial);
        Expectation {
            initial,
            loaded,
            bindings: Bindings::new(places.clone()),
        }
    }

    /// Replaces `loaded` by the content of the datastore after the load: the datastore may have
    /// assigned UIDs, times and revisions. Fails if anything else differs.
    fn keep(&mut self, held: Value) -> Result<()> {
        let mut bindings = Bindings::new(Places::default()).at_any_time();
        let found = differences(&self.initial, &held, "", &mut bindings);
        ensure!(
            found.is_empty(),
            "the datastore holds something else than was loaded: {found:?}"
        );
        self.loaded = held;
        Ok(())
    }

    /// Returns the differences between `ours`, a whole step, and the recorded step.
    pub(super) fn differences(&mut self, step: &Step, ours: &Value) -> Vec<Difference> {
        let mut recorded = json!({ "exit": step.exit, "stdout": step.stdout, "after": step.after });
        let store = self
            .bindings
            .keep_loaded(&step.after.store, &self.initial, &self.loaded);
        recorded["after"]["store"] = store;
        differences(&recorded, ours, "", &mut self.bindings)
    }
}

/// Runs one step and returns its result in the form of a recorded one.
pub(super) fn run(step: &Step, places: &Places, target: &Target<'_>) -> Result<(Value, Outcome)> {
    let Target {
        host,
        plugins,
        store,
        ..
    } = target;
    if let Some(before) = &step.before {
        prepare(before, target)?;
    }
    make_namespace(step, host)?;
    let concrete = Concrete::new(places);
    let stdin = match store.reconfigured(&concrete.value(&step.stdin)) {
        Value::String(text) => text,
        conf => conf.to_string(),
    };
    let mut call = plugins
        .call(&step.prog)
        .args(step.argv.iter().cloned())
        .stdin(stdin);
    for (name, value) in &step.env {
        call = call.env(name, value);
    }
    let outcome = call.try_run()?;
    let after =
        json!({ "host": kernel::host()?, "pods": kernel::pods(host)?, "store": store.dump()? });
    Ok((
        json!({ "exit": outcome.exit, "stdout": outcome.answer(), "after": after }),
        outcome,
    ))
}

fn prepare(before: &Before, target: &Target<'_>) -> Result<()> {
    let kubernetes = || target.kubernetes.context("there is no Kubernetes here");
    match before {
        Before::DeleteNetns(name) => target.host.delete_pod(name),
        Before::CreatePod(pod) => cluster::create_pod(kubernetes()?, pod),
        Before::DeletePod(name) => cluster::delete_pod(kubernetes()?, name),
    }
}

/// Creates the network namespace of a pod before its ADD. Keeps one that a failed ADD used, so that
/// its leftovers show.
fn make_namespace(step: &Step, host: &Host) -> Result<()> {
    let adds = step
        .env
        .get("CNI_COMMAND")
        .is_some_and(|verb| verb == "ADD");
    let path = step.env.get("CNI_NETNS").map(Path::new);
    let name = path
        .and_then(|path| path.strip_prefix(NETNS_DIR).ok())
        .and_then(Path::to_str);
    if let Some(name) = name.filter(|name| adds && name.starts_with(POD_PREFIX)) {
        host.ensure_pod(name)?;
    }
    Ok(())
}

fn described(step: &Step) -> String {
    let of = |name: &str| step.env.get(name).map_or("", String::as_str);
    format!(
        "{} {} {}",
        step.prog,
        of("CNI_COMMAND"),
        of("CNI_CONTAINERID").get(..10).unwrap_or_default()
    )
}
