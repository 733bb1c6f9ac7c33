//! Finds the interfaces of ended containers on this node, and removes them.
//!
//! ```text
//! kernel: links, namespaces of processes ─┐ only for links without a process:
//! processes: CNI calls ───────────────────┤
//! container runtimes: sandboxes ──────────┼▶ assess (pure) ─▶ Suspects (pure) ─▶ removal
//! datastore: endpoints ───────────────────┘
//! ```
//!
//! On a node whose interfaces are all in use, a look asks the kernel alone.

mod look;
mod repair;

pub use self::look::{AssessedLink, Sources};
pub use self::repair::{Repair, RepairOutcome, dead_links, remove, repair_once};
