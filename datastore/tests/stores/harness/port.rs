//! Loopback ports that no other test gets.
//!
//! A port that was bound and released may soon be assigned to another test. Two tests would then
//! share one server, which ends with the first of them.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::ops::Range;

const RANGE: Range<u16> = 10_000..32_000;

/// A TCP port of 127.0.0.1 that no other [`Port`] of this machine has.
pub(crate) struct Port {
    pub(crate) number: u16,
    /// The UDP port of the same number, which reserves the number until this value is dropped.
    _reservation: UdpSocket,
}

impl Port {
    pub(crate) fn free() -> Self {
        let begin = RandomState::new().hash_one(()) % u64::from(RANGE.end - RANGE.start);
        let begin = RANGE.start + u16::try_from(begin).unwrap();
        let free = (begin..RANGE.end)
            .chain(RANGE.start..begin)
            .find_map(reserve);
        free.expect("a free port")
    }
}

fn reserve(number: u16) -> Option<Port> {
    let reservation = UdpSocket::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
    TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
    Some(Port {
        number,
        _reservation: reservation,
    })
}

#[test]
fn reserved_or_listening_port_is_not_reserved_again() {
    let port = Port::free();
    assert!(reserve(port.number).is_none());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    assert!(reserve(listener.local_addr().unwrap().port()).is_none());
}
