//! Dead interfaces: the host ends of pods' interfaces that no container uses any more.
//!
//! An interface outlives its container if something keeps the network namespace of its other end,
//! for example a mount that a program left behind. Several sources on the node and the datastore
//! tell whether an interface is in use. [`assess`] needs all of them: a source that says nothing
//! keeps the interface. [`Suspects`] confirms that an interface stays dead for a time, because an
//! ADD creates it before the container runs.

mod suspects;

use std::collections::BTreeSet;
use std::fmt;

use crate::ipam::Statement;

pub use self::suspects::{DeadLink, LOOK_INTERVAL, Suspects, UNNAMED_POD_CONFIRMATION};

/// The place of the other end of an interface pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// The network namespace of this end.
    SameNamespace,
    /// Another network namespace, by its ID in the namespace of this end.
    Namespace(i32),
    /// The kernel does not report the place.
    Unknown,
}

/// The evidence for the use of an interface that has an alias of this plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkEvidence {
    /// True if a process of the node is in the network namespace of the other end.
    pub process: Statement<bool>,
    /// True if a CNI plugin runs for the container for which the interface was created.
    pub call: Statement<bool>,
    /// True if a container runtime lists the sandbox for which the interface was created, in any
    /// state.
    pub sandbox: Statement<bool>,
    /// True if an endpoint in the datastore has the interface.
    pub endpoint: Statement<bool>,
}

/// The use of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkVerdict {
    /// The interface is in use.
    InUse(UseEvidence),
    /// Evidence is missing, for this reason. The interface counts as used.
    Unknown(String),
    /// No source knows a use.
    Dead,
}

/// The evidence by which an interface is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UseEvidence {
    /// A process is in the network namespace of the other end.
    Process,
    /// A CNI plugin runs for the container.
    Call,
    /// A container runtime lists the sandbox.
    Sandbox,
    /// An endpoint in the datastore has the interface.
    Endpoint,
}

impl Peer {
    /// Returns whether the other end is in one of the namespaces that contain a process.
    pub fn has_process(self, inhabited: &Statement<BTreeSet<i32>>) -> Statement<bool> {
        let id = match self {
            // The processes of the node are in the namespace of this end.
            Peer::SameNamespace => return Statement::Known(true),
            Peer::Unknown => {
                return Statement::Unknown("the kernel does not report its other end".into());
            }
            Peer::Namespace(id) => id,
        };
        match inhabited {
            Statement::Known(inhabited) => Statement::Known(inhabited.contains(&id)),
            Statement::Unknown(reason) => Statement::Unknown(reason.clone()),
        }
    }
}

/// Decides whether an interface is in use. One source that knows a use suffices; for
/// [`LinkVerdict::Dead`] each source has to deny a use.
pub fn assess(evidence: &LinkEvidence) -> LinkVerdict {
    let LinkEvidence {
        process,
        call,
        sandbox,
        endpoint,
    } = evidence;
    let sources = [
        (process, UseEvidence::Process),
        (call, UseEvidence::Call),
        (sandbox, UseEvidence::Sandbox),
        (endpoint, UseEvidence::Endpoint),
    ];
    if let Some((_, found)) = sources
        .into_iter()
        .find(|(source, _)| **source == Statement::Known(true))
    {
        return LinkVerdict::InUse(found);
    }
    let unknown = sources.into_iter().find_map(|(source, _)| match source {
        Statement::Unknown(reason) => Some(reason.clone()),
        Statement::Known(_) => None,
    });
    unknown.map_or(LinkVerdict::Dead, LinkVerdict::Unknown)
}

impl fmt::Display for UseEvidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            UseEvidence::Process => "a process is in the network namespace of its other end",
            UseEvidence::Call => "a CNI plugin runs for its container",
            UseEvidence::Sandbox => "the container runtime lists its sandbox",
            UseEvidence::Endpoint => "an endpoint has it",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const YES: Statement<bool> = Statement::Known(true);
    const NO: Statement<bool> = Statement::Known(false);

    fn silent(source: &str) -> Statement<bool> {
        Statement::Unknown(source.to_owned())
    }

    /// Takes the evidence in the order of the fields.
    fn verdict([process, call, sandbox, endpoint]: [Statement<bool>; 4]) -> LinkVerdict {
        assess(&LinkEvidence {
            process,
            call,
            sandbox,
            endpoint,
        })
    }

    #[test]
    fn interface_is_dead_only_if_each_source_denies_a_use() {
        assert_eq!(verdict([NO, NO, NO, NO]), LinkVerdict::Dead);
        let uses = [
            UseEvidence::Process,
            UseEvidence::Call,
            UseEvidence::Sandbox,
            UseEvidence::Endpoint,
        ];
        for (at, used) in uses.into_iter().enumerate() {
            let mut statements = [NO, NO, NO, NO];
            statements[at] = YES;
            assert_eq!(verdict(statements), LinkVerdict::InUse(used));
        }
        let found = verdict([silent("p"), silent("c"), silent("s"), YES]);
        assert_eq!(found, LinkVerdict::InUse(UseEvidence::Endpoint));
    }

    #[test]
    fn unknown_evidence_keeps_an_interface() {
        for source in 0..4 {
            let mut statements = [NO, NO, NO, NO];
            statements[source] = silent("why");
            assert_eq!(
                verdict(statements),
                LinkVerdict::Unknown("why".into()),
                "{source}"
            );
        }
        let found = verdict([NO, NO, silent("the runtime"), silent("etcd")]);
        assert_eq!(found, LinkVerdict::Unknown("the runtime".into()));
    }

    #[test]
    fn peer_has_a_process_only_in_an_inhabited_namespace() {
        let inhabited = Statement::Known(BTreeSet::from([3]));
        assert_eq!(Peer::Namespace(3).has_process(&inhabited), YES);
        assert_eq!(Peer::Namespace(4).has_process(&inhabited), NO);
        assert_eq!(
            Peer::SameNamespace.has_process(&Statement::Unknown("no rights".into())),
            YES
        );
        assert!(matches!(
            Peer::Unknown.has_process(&inhabited),
            Statement::Unknown(_)
        ));
        assert_eq!(
            Peer::Namespace(4).has_process(&Statement::Unknown("no rights".into())),
            silent("no rights")
        );
    }
}
