//! [`Plant`]: faults that are planted at a seam, so that it shows whether an invariant finds them.

/// A fault in the store, the network, the files or the clock of each node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Plant {
    /// None.
    #[default]
    Nothing,
    /// The datastore updates an object whatever its revision is.
    UncheckedUpdates,
    /// The datastore deletes an object whatever its revision is.
    UncheckedDeletes,
    /// A create replaces an object that exists.
    UncheckedCreates,
    /// Reads of the current state get an older one.
    StaleReads,
    /// A list lacks its last object.
    ShortLists,
    /// A transaction that fails keeps the writes before the one that failed.
    TornTransactions,
    /// A refused request is served.
    ServedRefusals,
    /// A lost answer counts as a refusal.
    DeniedOutcomes,
    /// A DEL removes an interface of any container.
    RemovalByName,
    /// The undo of an ADD removes the interface that has the name now.
    UndoByName,
    /// No interface exists before an ADD.
    UnseenInterfaces,
    /// No container has an interface.
    UnseenContainers,
    /// No container runs.
    UnseenProcesses,
    /// A removal reports success and removes nothing.
    OmittedRemovals,
    /// Two processes get the same lock.
    SharedLocks,
    /// A power failure empties the journal.
    LostJournals,
    /// The clock of a node stands still.
    StoppedClocks,
    /// Garbage collection looks up a pod, and finds none.
    AbsentOwners,
}

impl Plant {
    /// All faults.
    pub const ALL: [Plant; 18] = [
        Plant::UncheckedUpdates,
        Plant::UncheckedDeletes,
        Plant::UncheckedCreates,
        Plant::StaleReads,
        Plant::ShortLists,
        Plant::TornTransactions,
        Plant::ServedRefusals,
        Plant::DeniedOutcomes,
        Plant::RemovalByName,
        Plant::UndoByName,
        Plant::UnseenInterfaces,
        Plant::UnseenContainers,
        Plant::UnseenProcesses,
        Plant::OmittedRemovals,
        Plant::SharedLocks,
        Plant::LostJournals,
        Plant::StoppedClocks,
        Plant::AbsentOwners,
    ];

    /// Returns the fault with this name.
    pub fn named(name: &str) -> Option<Plant> {
        Plant::ALL
            .into_iter()
            .find(|plant| format!("{plant:?}") == name)
    }
}
