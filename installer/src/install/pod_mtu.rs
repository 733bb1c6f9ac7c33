//! Writes the MTU file during an installation, and later if the MTU was unknown then.

use std::time::Duration;

use netconf::NetConf;

use super::installation::Installation;
use crate::atomic_file::AtomicFileError;
use crate::conflist::Conflist;
use crate::host_network::{self, NetworkError};
use crate::layout::CALICO;
use crate::mtu::{self, MtuFile, UnknownMtu};
use crate::node_conf::{self, NodeConfError};
use crate::service_account::ServiceAccount;
use crate::state::State;

/// The error if the MTU file is not written.
#[derive(Debug, thiserror::Error)]
#[error("/var/lib/calico/mtu is not written: {cause}; {way_out}")]
pub(super) struct MtuNotWritten {
    cause: Cause,
    way_out: &'static str,
}

/// The cause of the error.
#[derive(Debug, thiserror::Error)]
enum Cause {
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error(transparent)]
    Unknown(#[from] UnknownMtu),
    #[error(transparent)]
    Pools(#[from] NodeConfError),
    #[error(transparent)]
    File(#[from] AtomicFileError),
}

impl Installation<'_> {
    /// Writes the MTU of pods if the configuration refers to the MTU file and the file is missing (INST-59). The
    /// overhead depends on the pools' encapsulation, so without a response of the datastore, or without a pool, the
    /// file is not written.
    pub(super) fn write_mtu(
        &self,
        conflist: &Conflist,
        deadline: Duration,
        state: &mut State,
    ) -> Result<(), MtuNotWritten> {
        let layout = self.layout;
        let Some(conf) = conflist.calicos.as_ref().filter(|conf| conf.plugin_type == CALICO && mtu::is_read(conf))
        else {
            return Ok(());
        };
        if !layout.keeps_state() {
            // Beside upstream's calico-node, which mounts the directory, Felix writes the file.
            let directory = layout.state_dir();
            tracing::info!("{} is not mounted here: its file mtu is left to calico-node", directory.display());
            return Ok(());
        }
        self.write_known_mtu(conf, deadline, state)
            .map_err(|cause| MtuNotWritten { cause, way_out: way_out(self.account) })
    }

    fn write_known_mtu(&self, conf: &NetConf, deadline: Duration, state: &mut State) -> Result<(), Cause> {
        let lowest = mtu::lowest_uplink_mtu(&host_network::uplinks(self.network)?)?;
        let mtu = mtu::pod_mtu(lowest, &node_conf::pools(conf, deadline)?)?;
        match mtu::ensure(self.layout, mtu, state)? {
            MtuFile::Written => tracing::info!("wrote /var/lib/calico/mtu: pods have {mtu}"),
            MtuFile::Same | MtuFile::Theirs => {}
        }
        Ok(())
    }
}

fn way_out(account: Option<&ServiceAccount>) -> &'static str {
    match account {
        Some(_) => "set CNI_MTU, or let calico-node write it; the agent looks again each minute",
        None => "set CNI_MTU, let calico-node write it, or run this again when that has changed",
    }
}
