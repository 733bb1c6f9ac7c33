use std::io;

use netlink_packet_core::{NLM_F_ACK_TLVS, NLM_F_CAPPED, NetlinkHeader, NlasIterator};
use nix::errno::Errno;

/// The text attribute of an extended acknowledgement.
const NLMSGERR_ATTR_MSG: u16 = 1;

/// The length of a netlink message header in bytes.
const HEADER_LEN: usize = 16;

/// A failed exchange with the kernel.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// The kernel rejected a request.
    #[error(
        "{step}: {}{}", .errno.desc(),
        .detail.as_ref().map(|text| format!(" ({text})")).unwrap_or_default()
    )]
    Refused {
        /// The request, as a step of the operation.
        step: String,
        /// The error number of the kernel.
        errno: Errno,
        /// The explanation of the kernel, if it gave one (NETLINK_EXT_ACK).
        detail: Option<String>,
    },
    /// The socket failed.
    #[error("{action} netlink socket: {source}")]
    Socket {
        /// The operation on the socket.
        action: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// The answer violates the protocol.
    #[error("{step}: malformed answer from the kernel: {reason}")]
    Malformed {
        /// The request.
        step: String,
        /// The violation.
        reason: String,
    },
    /// The table changed during every attempt to dump it.
    #[error("{0}: the kernel's table kept changing during the read")]
    DumpInterrupted(String),
}

impl NetlinkError {
    /// Returns the error number if the kernel rejected a request.
    pub fn errno(&self) -> Option<Errno> {
        let NetlinkError::Refused { errno, .. } = self else {
            return None;
        };
        Some(*errno)
    }
}

/// Returns the text of an extended acknowledgement. `payload` is the part of an NLMSG_ERROR message
/// after the error code.
pub(super) fn extended_ack_text(header: &NetlinkHeader, payload: &[u8]) -> Option<String> {
    if header.flags & NLM_F_ACK_TLVS == 0 {
        return None;
    }
    let request_len = match header.flags & NLM_F_CAPPED {
        0 => u32::from_ne_bytes(payload.get(..4)?.try_into().ok()?)
            .try_into()
            .ok()?,
        _ => HEADER_LEN,
    };
    let attributes = payload.get(request_len..)?;
    NlasIterator::new(attributes)
        .map_while(Result::ok)
        .find(|attribute| attribute.kind() == NLMSGERR_ATTR_MSG)
        .map(|attribute| {
            String::from_utf8_lossy(attribute.value())
                .trim_end_matches('\0')
                .to_owned()
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acknowledgement(flags: u16, request_len: usize) -> (NetlinkHeader, Vec<u8>) {
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        let mut payload = vec![0; request_len];
        payload[..4].copy_from_slice(&(request_len as u32).to_ne_bytes());
        // Attribute 3 (a policy) comes first and is skipped.
        payload.extend([8, 0, 3, 0, 1, 2, 3, 4]);
        payload.extend([11, 0, 1, 0]);
        payload.extend(b"no way\0\0");
        (header, payload)
    }

    #[test]
    fn ack_text_is_found_after_capped_and_uncapped_requests() {
        let (header, payload) = acknowledgement(NLM_F_ACK_TLVS | NLM_F_CAPPED, HEADER_LEN);
        assert_eq!(
            extended_ack_text(&header, &payload).as_deref(),
            Some("no way")
        );
        let (header, payload) = acknowledgement(NLM_F_ACK_TLVS, 48);
        assert_eq!(
            extended_ack_text(&header, &payload).as_deref(),
            Some("no way")
        );
    }

    #[test]
    fn truncated_ack_or_ack_without_attributes_has_no_text() {
        let (header, payload) = acknowledgement(0, HEADER_LEN);
        assert_eq!(extended_ack_text(&header, &payload), None);
        let (header, payload) = acknowledgement(NLM_F_ACK_TLVS | NLM_F_CAPPED, HEADER_LEN);
        for length in 0..payload.len() - 8 {
            assert_eq!(
                extended_ack_text(&header, &payload[..length]),
                None,
                "{length}"
            );
        }
    }

    #[test]
    fn netlink_error_prints_step_reason_and_detail() {
        let error = NetlinkError::Refused {
            step: "create veth pair eth0/cali1".into(),
            errno: Errno::EEXIST,
            detail: Some("no way".into()),
        };
        assert_eq!(
            error.to_string(),
            "create veth pair eth0/cali1: File exists (no way)"
        );
    }
}
