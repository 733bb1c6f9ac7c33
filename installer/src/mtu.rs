//! `/var/lib/calico/mtu`: what Felix would have written, on a node without it (INST-59). The plugins read it where their
//! configuration says no MTU.

use std::io::ErrorKind;

use libcalico::api::IpPoolSpec;
use libcalico::net::IpVersion;
use netconf::NetConf;

use crate::atomic_file::{self, AtomicFileError};
use crate::digest;
use crate::host_network::Interface;
use crate::layout::{Layout, Place};
use crate::state::State;

/// Its name in `/var/lib/calico`.
pub const NAME: &str = "mtu";

const MODE: u32 = 0o644;

/// What became of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MtuFile {
    /// It was not there or had another number of ours, and says it now.
    Written,
    /// It says so already.
    Same,
    /// Somebody else wrote it, as Felix does: it stays.
    Theirs,
}

/// Whether the plugins look for the file: their configuration says no MTU, or that the file must be there.
pub fn is_read(conf: &NetConf) -> bool {
    conf.interface.mtu == 0 || conf.interface.require_mtu_file
}

/// The MTU of pods with which every packet fits through every uplink, in the encapsulation that takes most. `None` without an
/// uplink.
pub fn of_pods<'a>(uplinks: &[Interface], pools: impl IntoIterator<Item = &'a IpPoolSpec>) -> Option<u32> {
    let lowest = uplinks.iter().map(|uplink| uplink.mtu).min()?;
    let overhead = pools.into_iter().map(overhead).max().unwrap_or(0);
    Some(lowest.saturating_sub(overhead))
}

/// What the encapsulation of a pool takes from each packet, in bytes. Pools say nothing of WireGuard, which only Felix sets
/// up, and then it writes the file as well.
pub fn overhead(pool: &IpPoolSpec) -> u32 {
    let is_on = |mode: &str| !mode.is_empty() && mode != "Never";
    let is_ipv6 = pool.range().is_ok_and(|range| range.version() == IpVersion::V6);
    match (pool.disabled, is_on(&pool.vxlan_mode), is_on(&pool.ipip_mode)) {
        (true, ..) | (_, false, false) => 0,
        (_, true, _) if is_ipv6 => 70,
        (_, true, _) => 50,
        (_, false, true) => 20,
    }
}

/// Writes `mtu` where there is no file, or one of ours with another number; notes it as installed first.
///
/// # Errors
/// `/var/lib/calico` cannot be read or written.
pub fn ensure(layout: &Layout, mtu: u32, state: &mut State) -> Result<MtuFile, AtomicFileError> {
    let path = layout.state_dir().join(NAME);
    let text = mtu.to_string();
    let wanted = digest::of_bytes(text.as_bytes());
    match digest::of_file(&path) {
        Ok(there) if there == wanted => return Ok(MtuFile::Same),
        Ok(there) if !state.is_ours(Place::State, NAME, &there) => return Ok(MtuFile::Theirs),
        Err(source) if source.kind() != ErrorKind::NotFound => {
            return Err(AtomicFileError { action: "read", path, source });
        }
        Ok(_) | Err(_) => {}
    }
    state.note(Place::State, NAME, Some(wanted), false);
    state.save(layout)?;
    atomic_file::replace(&path, text.as_bytes(), MODE)?;
    Ok(MtuFile::Written)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::host_network::testing::interface;

    fn pool(cidr: &str, vxlan: &str, ipip: &str) -> IpPoolSpec {
        IpPoolSpec { cidr: cidr.into(), vxlan_mode: vxlan.into(), ipip_mode: ipip.into(), ..IpPoolSpec::default() }
    }

    #[test]
    fn encapsulation_takes_what_upstream_counts() {
        for (cidr, vxlan, ipip, expected) in [
            ("10.0.0.0/16", "Never", "", 0),
            ("10.0.0.0/16", "Never", "Always", 20),
            ("10.0.0.0/16", "CrossSubnet", "Never", 50),
            ("fd00::/48", "Always", "", 70),
        ] {
            assert_eq!(overhead(&pool(cidr, vxlan, ipip)), expected, "{cidr} {vxlan} {ipip}");
        }
        assert_eq!(overhead(&IpPoolSpec { disabled: true, ..pool("10.0.0.0/16", "Always", "") }), 0);
    }

    #[test]
    fn the_narrowest_uplink_and_the_largest_overhead_count() {
        let uplinks = [interface("eth0", 9000), interface("eth1", 1500)];
        let pools = [pool("10.0.0.0/16", "Never", "Always"), pool("fd00::/48", "Always", "Never")];
        assert_eq!(of_pods(&uplinks, &pools), Some(1430));
        assert_eq!(of_pods(&uplinks[..1], &[]), Some(9000));
        assert_eq!(of_pods(&[], &pools), None);
    }

    #[test]
    fn the_file_is_read_where_the_configuration_asks_for_it() {
        let is_read = |more: &str| {
            let text = format!(r#"{{"name":"n","type":"calico"{more}}}"#);
            super::is_read(&NetConf::parse(text.as_bytes()).unwrap())
        };
        assert!(is_read("") && is_read(r#","mtu":0"#) && is_read(r#","mtu":1400,"require_mtu_file":true"#));
        assert!(!is_read(r#","mtu":1400"#));
    }

    #[test]
    fn a_file_of_ours_is_kept_right_and_anothers_stays() {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::below(root.path());
        let file = layout.state_dir().join(NAME);
        let mut state = State::default();
        assert_eq!(ensure(&layout, 1450, &mut state).unwrap(), MtuFile::Written);
        assert_eq!(fs::read(&file).unwrap(), b"1450");
        assert_eq!(State::load(&layout).unwrap(), state, "it is noted");
        assert_eq!(ensure(&layout, 1450, &mut state).unwrap(), MtuFile::Same);
        assert_eq!(ensure(&layout, 1430, &mut state).unwrap(), MtuFile::Written);
        assert_eq!(fs::read(&file).unwrap(), b"1430");

        fs::write(&file, "1380\n").unwrap();
        assert_eq!(ensure(&layout, 1450, &mut state).unwrap(), MtuFile::Theirs);
        assert_eq!(fs::read(&file).unwrap(), b"1380\n");
        fs::remove_file(&file).unwrap();
        assert_eq!(ensure(&layout, 1450, &mut State::default()).unwrap(), MtuFile::Written);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::below(root.path());
        fs::create_dir_all(layout.state_dir().join(NAME)).unwrap();
        let error = ensure(&layout, 1450, &mut State::default()).unwrap_err().to_string();
        assert!(error.contains("cannot read ") && error.contains("/var/lib/calico/mtu: "), "{error}");
    }
}
