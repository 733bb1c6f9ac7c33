//! [`LateWrites`]: objects that a program has written in v1 after v3 was opened, and that v3
//! therefore lacks.
//!
//! The writer may be a program that does not observe the lock, or a call that began before the lock
//! and was interrupted (MB-5). A component refuses such writes where the API server supports that.

use std::collections::HashMap;
use std::time::Duration;

use libcalico::kubernetes::ApiGroup;
use libcalico::migration::{cluster_information, moved_kinds};
use serde_json::Value;
use tokio::time::Instant;

use super::copy::shown;
use super::listing;
use super::requests::{Problem, Requests};

/// The annotation of the ClusterInformation of v3 with a resourceVersion of v1: the copies of
/// blocks, affinities and handles show each change up to it.
const V1_REVISION: &str = "migration.projectcalico.org/v1-revision";
/// Pause between two looks at v1.
const INTERVAL: Duration = Duration::from_secs(60);
/// Greatest number of log lines of a process.
const MOST_LOGGED: usize = 100;

/// The objects that were written late, as far as this process has found them.
#[derive(Debug, Default)]
pub(super) struct LateWrites {
    /// The content of the annotation [`V1_REVISION`], once it was read.
    opened_at: Option<u64>,
    /// The resourceVersion of each object in the last look that found it.
    found: HashMap<String, u64>,
    next_look: Option<Instant>,
}

/// Records in the ClusterInformation that opens v3 which changes of v1 were copied: those up to
/// `revision`.
pub(super) fn record(information: &mut Value, revision: &str) {
    if !revision.is_empty() {
        information["metadata"]["annotations"][V1_REVISION] = revision.into();
    }
}

impl LateWrites {
    /// Lists the objects of address management in v1, at most once a minute, and logs those that
    /// were written since v3 was opened. Returns the number of such objects that this process has
    /// found.
    pub(super) async fn look(&mut self, requests: &Requests) -> Result<usize, Problem> {
        let now = Instant::now();
        if self.next_look.is_some_and(|next| now < next) {
            return Ok(self.found.len());
        }
        let Some(opened_at) = self.opened_at(requests).await? else {
            self.next_look = Some(now + INTERVAL);
            return Ok(self.found.len());
        };
        for kind in moved_kinds().into_iter().filter(|kind| kind.is_ipam) {
            let project = |object: &Value| {
                let metadata = &object["metadata"];
                let revision = number(&metadata["resourceVersion"])
                    .filter(|revision| *revision > opened_at)?;
                Some((
                    shown(
                        kind.v1.kind,
                        None,
                        metadata["name"].as_str().unwrap_or_default(),
                    ),
                    revision,
                ))
            };
            let (late, _) = listing::metadata(requests, &kind.v1, project).await?;
            late.into_iter()
                .for_each(|(object, revision)| self.report(object, revision));
        }
        self.next_look = Some(now + INTERVAL);
        Ok(self.found.len())
    }

    /// Returns `None` if the ClusterInformation does not say when v3 was opened, as after
    /// upstream's migration.
    async fn opened_at(&mut self, requests: &Requests) -> Result<Option<u64>, Problem> {
        if self.opened_at.is_none() {
            let information = requests.get(&cluster_information(ApiGroup::V3)).await?;
            let annotation = information
                .map(|information| number(&information["metadata"]["annotations"][V1_REVISION]));
            self.opened_at = annotation.flatten();
        }
        Ok(self.opened_at)
    }

    fn report(&mut self, object: String, revision: u64) {
        if self.found.get(&object) == Some(&revision) {
            return;
        }
        if self.found.len() < MOST_LOGGED {
            tracing::warn!(
                object,
                hint = "find missing addresses with `calico-ipam check`; allocate them with `calico-ipam adopt`",
                "migration: written in v1 after v3 opened"
            );
        }
        self.found.insert(object, revision);
    }
}

/// Returns a resourceVersion as a number. The resourceVersions of one kind rise with each write.
fn number(revision: &Value) -> Option<u64> {
    revision.as_str()?.parse().ok()
}
