//! Writes `/var/lib/calico/mtu`, which Felix writes too, if the file is missing or has another
//! number of ours (INST-59). The plugins take the MTU from the file if their configuration sets
//! none, and an ADD fails without the file if the configuration requires it.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use libcalico::api::IpPoolSpec;
use libcalico::failure::{Failure, OrFail};
use libcalico::net::IpVersion;
use netconf::NetConf;

use crate::digest;
use crate::layout::{CALICO, DirectoryRole, Layout};
use crate::node_conf;
use crate::state::State;
use dataplane::host_network::{self, HostNetwork, Interface};
use os::atomic_file::{self, AtomicFileError};

/// The file name in `/var/lib/calico`.
pub const NAME: &str = "mtu";

const MODE: u32 = 0o644;

/// The result of writing the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MtuFile {
    /// The file was missing or contained another number of ours, and was written.
    Written,
    /// The file contains the number already.
    UpToDate,
    /// The file contains another number and was written by another program, such as Felix. The file
    /// stays.
    Foreign,
}

/// Returns true if the plugins read the file.
pub fn is_file_used(conf: &NetConf) -> bool {
    conf.interface.mtu == 0 || conf.interface.require_mtu_file
}

/// Returns the largest MTU that fits through every uplink.
pub fn lowest_uplink_mtu(uplinks: &[Interface]) -> Result<u32, Failure> {
    uplinks
        .iter()
        .map(|uplink| uplink.mtu)
        .min()
        .ok_or_else(|| Failure::new("no interface has a default route"))
}

/// Returns the MTU of pods: `lowest`, the lowest MTU of an uplink, minus the largest overhead of an
/// enabled pool. Without a pool, a number might be too large once a pool with encapsulation exists,
/// and pods would keep it.
pub fn pod_mtu(lowest: u32, pools: &[IpPoolSpec]) -> Result<u32, Failure> {
    let enabled = pools.iter().filter(|pool| !pool.disabled);
    let overhead = enabled.map(overhead).max().ok_or_else(|| {
        Failure::new("there is no enabled IPPool yet, so the overhead of encapsulation is unknown")
    })?;
    Ok(lowest.saturating_sub(overhead))
}

/// Returns the number of bytes that the encapsulation of an enabled pool adds to a packet; 0 for a
/// disabled pool. WireGuard is not part of a pool: only Felix sets it up, and Felix then writes the
/// MTU file as well.
pub fn overhead(pool: &IpPoolSpec) -> u32 {
    let is_on = |mode: &str| !mode.is_empty() && mode != "Never";
    let is_ipv6 = pool
        .range()
        .is_ok_and(|range| range.version() == IpVersion::V6);
    match (
        pool.disabled,
        is_on(&pool.vxlan_mode),
        is_on(&pool.ipip_mode),
    ) {
        (true, ..) | (_, false, false) => 0,
        (_, true, _) if is_ipv6 => 70,
        (_, true, _) => 50,
        (_, false, true) => 20,
    }
}

/// Writes the MTU of pods if the plugin with the configuration `conf` reads the file,
/// `/var/lib/calico` is persistent, and the file is missing or contains another number of ours. The
/// overhead depends on the pools' encapsulation, so without a response of the datastore within
/// `deadline`, or without an enabled pool, the file is not written.
///
/// # Errors
/// Returns an error with the remedy, which depends on `is_pod`, if the MTU is unknown or the file
/// cannot be written.
pub fn write(
    conf: Option<&NetConf>,
    layout: &Layout,
    network: &dyn HostNetwork,
    is_pod: bool,
    deadline: Duration,
    state: &mut State,
) -> Result<(), Failure> {
    let Some(conf) = conf.filter(|conf| conf.plugin_type == CALICO && is_file_used(conf)) else {
        return Ok(());
    };
    if !layout.has_persistent_state() {
        // Upstream's manifests mount the directory into calico-node only, whose Felix writes the
        // file.
        let directory = layout.state_dir();
        let directory = directory.display();
        tracing::info!(
            %directory,
            hint = "calico-node must write the MTU file",
            "not writing the MTU file: its directory is not mounted"
        );
        return Ok(());
    }
    let mut write_computed = || -> Result<(), Failure> {
        let lowest = lowest_uplink_mtu(&host_network::uplinks(network)?)?;
        let mtu = pod_mtu(lowest, &node_conf::pools(conf, deadline)?)?;
        if ensure(layout, mtu, state)? == MtuFile::Written {
            tracing::info!("wrote /var/lib/calico/mtu: the MTU of pods is {mtu}");
        }
        Ok(())
    };
    let remedy = remedy(conf.interface.require_mtu_file, is_pod);
    let written = write_computed().or_fail("/var/lib/calico/mtu is not written");
    written.map_err(|failure| failure.way_out(remedy))
}

/// Returns the remedy for a missing file. A configured MTU alone does not replace the file if the
/// configuration requires it (`is_required`).
fn remedy(is_required: bool, is_pod: bool) -> String {
    let setting = if is_required {
        "set CNI_MTU and REQUIRE_MTU_FILE=false"
    } else {
        "set CNI_MTU"
    };
    if is_pod {
        format!(
            "{setting}, or start calico-node, which writes the file; the agent tries again each \
             minute"
        )
    } else {
        format!(
            "{setting}, start calico-node, which writes the file, or remove the cause and run the \
             installer again"
        )
    }
}

/// Writes `mtu` if the file is missing or contains another number of ours. The record is saved
/// first, with the digest of the replaced file. A run that is killed at any moment therefore leaves
/// a file that is recorded as ours.
///
/// If Felix rewrites a file of ours with the same number, the file still counts as ours: the two
/// cannot be distinguished.
///
/// # Errors
/// Returns an error if `/var/lib/calico` cannot be read or written.
pub fn ensure(layout: &Layout, mtu: u32, state: &mut State) -> Result<MtuFile, AtomicFileError> {
    ensure_with(layout, mtu, state, |path, text| {
        atomic_file::replace(path, text, MODE).map(drop)
    })
}

fn ensure_with(
    layout: &Layout,
    mtu: u32,
    state: &mut State,
    put: impl FnOnce(&Path, &[u8]) -> Result<(), AtomicFileError>,
) -> Result<MtuFile, AtomicFileError> {
    let path = layout.state_dir().join(NAME);
    let text = mtu.to_string();
    let wanted = digest::of_bytes(text.as_bytes());
    let present = match digest::of_file(&path) {
        Ok(present) => Some(present),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(source) => {
            return Err(AtomicFileError {
                action: "read",
                path,
                source,
            });
        }
    };
    let is_ours = present
        .as_ref()
        .is_none_or(|present| state.is_ours(DirectoryRole::State, NAME, present));
    let change = match (is_ours, present.as_ref() == Some(&wanted)) {
        (false, true) => return Ok(MtuFile::UpToDate),
        (false, false) => return Ok(MtuFile::Foreign),
        (true, true) => MtuFile::UpToDate,
        (true, false) => {
            state.record_replacement(
                DirectoryRole::State,
                NAME,
                wanted.clone(),
                present.as_deref(),
            );
            state.save(layout)?;
            put(&path, text.as_bytes())?;
            MtuFile::Written
        }
    };
    // The file is in place, so the digest of the replaced file no longer counts as ours. An
    // installation saves this.
    state.record(DirectoryRole::State, NAME, Some(wanted), false);
    Ok(change)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use dataplane::host_network::testing::interface;

    fn pool(cidr: &str, vxlan: &str, ipip: &str) -> IpPoolSpec {
        IpPoolSpec {
            cidr: cidr.into(),
            vxlan_mode: vxlan.into(),
            ipip_mode: ipip.into(),
            ..IpPoolSpec::default()
        }
    }

    #[test]
    fn encapsulation_overhead_matches_upstreams() {
        for (cidr, vxlan, ipip, expected) in [
            ("10.0.0.0/16", "Never", "", 0),
            ("10.0.0.0/16", "Never", "Always", 20),
            ("10.0.0.0/16", "CrossSubnet", "Never", 50),
            ("fd00::/48", "Always", "", 70),
        ] {
            assert_eq!(
                overhead(&pool(cidr, vxlan, ipip)),
                expected,
                "{cidr} {vxlan} {ipip}"
            );
        }
        assert_eq!(
            overhead(&IpPoolSpec {
                disabled: true,
                ..pool("10.0.0.0/16", "Always", "")
            }),
            0
        );
    }

    #[test]
    fn pod_mtu_is_the_lowest_uplink_mtu_minus_the_largest_overhead() {
        let uplinks = [interface("eth0", 9000), interface("eth1", 1500)];
        let pools = [
            pool("10.0.0.0/16", "Never", "Always"),
            pool("fd00::/48", "Always", "Never"),
        ];
        assert_eq!(
            pod_mtu(lowest_uplink_mtu(&uplinks).unwrap(), &pools),
            Ok(1430)
        );
        assert_eq!(
            pod_mtu(9000, &[pool("10.0.0.0/16", "Never", "Never")]),
            Ok(9000)
        );
        assert!(lowest_uplink_mtu(&[]).is_err());
    }

    #[test]
    fn pod_mtu_is_unknown_without_an_enabled_pool() {
        assert!(pod_mtu(9000, &[]).is_err());
        let disabled = IpPoolSpec {
            disabled: true,
            ..pool("10.0.0.0/16", "Always", "")
        };
        assert!(pod_mtu(9000, &[disabled]).is_err());
    }

    #[test]
    fn mtu_file_is_read_unless_the_configuration_has_an_mtu() {
        let is_file_used = |more: &str| {
            let text = format!(r#"{{"name":"n","type":"calico"{more}}}"#);
            super::is_file_used(&NetConf::parse(text.as_bytes()).unwrap())
        };
        assert!(
            is_file_used("")
                && is_file_used(r#","mtu":0"#)
                && is_file_used(r#","mtu":1400,"require_mtu_file":true"#)
        );
        assert!(!is_file_used(r#","mtu":1400"#));
    }

    #[test]
    fn remedy_for_a_required_mtu_file_ends_the_requirement() {
        for is_pod in [true, false] {
            assert!(remedy(true, is_pod).starts_with("set CNI_MTU and REQUIRE_MTU_FILE=false, "));
            assert!(!remedy(false, is_pod).contains("REQUIRE"));
        }
    }

    #[test]
    fn own_mtu_file_is_updated_and_a_foreign_file_preserved() {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::below(root.path());
        let file = layout.state_dir().join(NAME);
        let mut state = State::default();
        assert_eq!(ensure(&layout, 1450, &mut state).unwrap(), MtuFile::Written);
        assert_eq!(fs::read(&file).unwrap(), b"1450");
        assert_eq!(State::load(&layout).unwrap(), state, "it is noted");
        assert_eq!(
            ensure(&layout, 1450, &mut state).unwrap(),
            MtuFile::UpToDate
        );
        assert_eq!(ensure(&layout, 1430, &mut state).unwrap(), MtuFile::Written);
        assert_eq!(fs::read(&file).unwrap(), b"1430");

        fs::write(&file, "1380\n").unwrap();
        assert_eq!(ensure(&layout, 1450, &mut state).unwrap(), MtuFile::Foreign);
        assert_eq!(fs::read(&file).unwrap(), b"1380\n");
        fs::remove_file(&file).unwrap();
        assert_eq!(
            ensure(&layout, 1450, &mut State::default()).unwrap(),
            MtuFile::Written
        );
    }

    /// A run may be killed after it saved the record, before or after it wrote the file.
    #[test]
    fn mtu_file_of_a_killed_run_is_still_recognized() {
        for (present, recorded) in [("1450", "1430"), ("1430", "1430")] {
            for wanted in [1430, 1450, 1400] {
                let root = tempfile::tempdir().unwrap();
                let layout = Layout::below(root.path());
                ensure(&layout, 1450, &mut State::default()).unwrap();
                let mut state = State::load(&layout).unwrap();
                let digest = |text: &str| digest::of_bytes(text.as_bytes());
                state.record_replacement(
                    DirectoryRole::State,
                    NAME,
                    digest(recorded),
                    Some(&digest("1450")),
                );
                let file = layout.state_dir().join(NAME);
                fs::write(&file, present).unwrap();

                let expected = if present == wanted.to_string() {
                    MtuFile::UpToDate
                } else {
                    MtuFile::Written
                };
                assert_eq!(
                    ensure(&layout, wanted, &mut state).unwrap(),
                    expected,
                    "{present} {wanted}"
                );
                assert_eq!(fs::read_to_string(&file).unwrap(), wanted.to_string());
                assert_eq!(state.get(DirectoryRole::State, NAME).unwrap().former, None);
                assert!(
                    state.is_ours(DirectoryRole::State, NAME, &digest(&wanted.to_string())),
                    "{present} {wanted}"
                );
            }
        }
    }

    #[test]
    fn both_digests_are_recorded_during_the_mtu_file_replacement() {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::below(root.path());
        let mut state = State::default();
        ensure(&layout, 1450, &mut state).unwrap();
        let is_recorded = |number: &str| {
            let recorded = State::load(&layout).unwrap();
            recorded.is_ours(
                DirectoryRole::State,
                NAME,
                &digest::of_bytes(number.as_bytes()),
            )
        };
        let put = |path: &Path, text: &[u8]| {
            assert!(is_recorded("1450") && is_recorded("1430"));
            atomic_file::replace(path, text, MODE).map(drop)
        };
        assert_eq!(
            ensure_with(&layout, 1430, &mut state, put).unwrap(),
            MtuFile::Written
        );
        state.save(&layout).unwrap();
        assert!(
            !is_recorded("1450") && is_recorded("1430"),
            "what Felix writes from now on is its own"
        );
    }

    #[test]
    fn existing_equal_mtu_file_is_not_recorded_as_installed() {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::below(root.path());
        fs::create_dir_all(layout.state_dir()).unwrap();
        fs::write(layout.state_dir().join(NAME), "1450").unwrap();
        let mut state = State::default();
        assert_eq!(
            ensure(&layout, 1450, &mut state).unwrap(),
            MtuFile::UpToDate
        );
        assert_eq!(state, State::default());
    }

    #[test]
    fn unreadable_mtu_file_is_reported_with_its_path() {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::below(root.path());
        fs::create_dir_all(layout.state_dir().join(NAME)).unwrap();
        let error = ensure(&layout, 1450, &mut State::default())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("cannot read ") && error.contains("/var/lib/calico/mtu: "),
            "{error}"
        );
    }
}
