//! Routing netlink, blocking and pipelined.

use nix::errno::Errno;
use std::io;

/// Why an exchange with the kernel failed.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// The kernel refused a request.
    #[error("{step}: {}{}", .errno.desc(), .detail.as_ref().map(|text| format!(" ({text})")).unwrap_or_default())]
    Refused {
        /// The request, as a step of the work.
        step: String,
        /// Its reason.
        errno: Errno,
        /// Its explanation, when it gave one (NETLINK_EXT_ACK).
        detail: Option<String>,
    },
    /// The socket failed.
    #[error("{action} netlink socket: {source}")]
    Socket {
        /// What was done to it.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The answer is not what the protocol allows.
    #[error("{step}: malformed answer from the kernel: {reason}")]
    Malformed {
        /// The request.
        step: String,
        /// What is wrong.
        reason: String,
    },
    /// A dump changed while it was read, each time it was tried.
    #[error("{step}: the kernel's table kept changing while it was read")]
    DumpInterrupted {
        /// The request.
        step: String,
    },
}
