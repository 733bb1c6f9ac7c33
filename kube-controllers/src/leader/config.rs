//! [`LeaderElectionConfig`], and the identity of this process.

use std::fs;
use std::time::Duration;

use node_process::process;
use uuid::Uuid;

/// File in which kubelet gives a pod its namespace.
const NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// The Lease, the candidate, and the rules of the election.
#[derive(Debug, Clone)]
pub struct LeaderElectionConfig {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Unique name of this process; see [`identity`].
    pub identity: String,
    /// Whether to wait for permission if the role does not allow writing the Lease. Otherwise, this
    /// process writes without the Lease once the refusals last, and does not check for other
    /// replicas.
    pub required: bool,
    /// Periods of the election.
    pub timing: Timing,
}

/// Periods of an election.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Time since the last change of the Lease after which other replicas may take it.
    pub lease: Duration,
    /// Time since the last renewal of the Lease for which the holder writes. Shorter than `lease`,
    /// so that the holder has stopped writing before another replica may take the Lease.
    pub renew_deadline: Duration,
    /// Delay between two renewals of the Lease by the replica that writes. After a failure, `retry`
    /// is the delay. The rest of `renew_deadline` after a delay is enough for one attempt without a
    /// response, and for another attempt.
    pub renew: Duration,
    /// Longest delay between two attempts to take the Lease, and between two attempts after a
    /// failure, unless this replica writes without a Lease.
    pub retry: Duration,
    /// Time limit of each attempt to take or renew the Lease, and interval at which a replica that
    /// writes without a Lease checks if the role allows one.
    pub check_interval: Duration,
    /// Longest time that a write may take that was begun while the process had the right to write.
    pub write: Duration,
}

impl Timing {
    /// Returns client-go's periods, except that renewals are less frequent, and the given time
    /// limit of writes.
    pub fn for_writes_of(write: Duration) -> Self {
        Timing {
            write,
            ..Timing::default()
        }
    }

    /// Returns the time that the creator of a Lease waits before it writes.
    pub(crate) fn first_write_delay(&self) -> Duration {
        self.lease + self.write
    }
}

impl Default for Timing {
    fn default() -> Self {
        Timing {
            lease: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            renew: Duration::from_secs(3),
            retry: Duration::from_secs(2),
            check_interval: Duration::from_secs(5),
            write: Duration::from_secs(10),
        }
    }
}

/// Returns a name of this process: the pod's name and a random part. The random part makes a
/// restarted container a different candidate, which does not mistake the Lease of its predecessor
/// for its own.
pub fn identity() -> String {
    format!("{}_{}", name_of_pod(), Uuid::new_v4())
}

/// Returns the name of this pod, or else of the host.
pub fn name_of_pod() -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").ok();
    first_non_empty([process::variables().get("POD_NAME"), host]).unwrap_or_default()
}

/// Returns the namespace of this pod, or `None` outside a pod.
pub fn namespace_of_pod() -> Option<String> {
    first_non_empty([
        process::variables().get("POD_NAMESPACE"),
        fs::read_to_string(NAMESPACE).ok(),
    ])
}

fn first_non_empty(names: [Option<String>; 2]) -> Option<String> {
    let mut texts = names
        .into_iter()
        .flatten()
        .map(|name| name.trim().to_owned());
    texts.find(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_namespace_sources_are_skipped() {
        for (variable, file, expected) in [
            (Some("a"), Some("b\n"), Some("a")),
            (None, Some("b\n"), Some("b")),
            (Some(" "), Some("b"), Some("b")),
            (Some(""), Some("\n"), None),
            (None, None, None),
        ] {
            let found = first_non_empty([variable, file].map(|said| said.map(str::to_owned)));
            assert_eq!(found.as_deref(), expected, "{variable:?} {file:?}");
        }
    }

    #[test]
    fn each_process_has_its_own_identity() {
        let (one, other) = (identity(), identity());
        assert_ne!(one, other);
        let host = fs::read_to_string("/proc/sys/kernel/hostname").expect("a host name");
        assert!(one.starts_with(&format!("{}_", host.trim())), "{one}");
        assert!(one.len() <= 253);
    }
}
