//! [`KernelModel`]: a model of the interfaces, routes and network namespaces of a node, for
//! simulations of many nodes in one process.
//!
//! The model implements [`PodNetwork`](crate::PodNetwork) with the decisions of the kernel's
//! implementation. The suite `kernel_model` compares the two.
//!
//! The model has no kernel settings, neighbors, routes with a metric or a gateway, IPv6 link-local
//! addresses, addresses of the host itself, and no netkit. Time does not pass: a call that would
//! wait for a lock of another call fails instead, or continues without the lock, as it does after
//! the longest wait.

mod access;
mod actors;
mod pod_network;
mod state;
mod tables;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use nix::errno::Errno;

use super::NetlinkError;
pub use actors::ForeignPair;
pub use pod_network::ModelRemoval;
pub use state::{HostLinkState, LinkState, PeerState};
use tables::{NetnsId, Tables};

/// The names of the steps by which calls change the model. The kernel takes each of them as a
/// whole.
pub mod steps {
    /// Creates both ends of the pair of an ADD.
    pub const CREATE_PAIR: &str = "create the pair";
    /// Deletes the route of another interface that cannot carry packets.
    pub const DELETE_IDLE_ROUTE: &str = "delete an idle route";
    /// Sets the alias of the host end.
    pub const SET_ALIAS: &str = "set the alias";
    /// Sets the host end up.
    pub const SET_HOST_END_UP: &str = "bring up the host end";
    /// Adds a route through the host end.
    pub const ADD_HOST_ROUTE: &str = "add a host route";
    /// Adds a route in place of an idle one.
    pub const ADD_HOST_ROUTE_AGAIN: &str = "add a host route again";
    /// Sets the pod's end up and adds its addresses.
    pub const CONFIGURE_POD_END: &str = "configure the pod's end";
    /// Cuts the traffic of an interface to be deleted.
    pub const SET_DOWN: &str = "set down";
    /// Deletes both ends of a pair: of a DEL, a GC or a failed ADD, or one that an ADD replaces.
    pub const DELETE_PAIR: &str = "delete the pair";

    /// The steps that the plugin sends together with the step before. Other programs may act before
    /// such a step, but the plugin's process cannot end there.
    pub const SENT_WITH_THE_STEP_BEFORE: [&str; 2] = [SET_HOST_END_UP, ADD_HOST_ROUTE];
}

/// A function that is called with the name of each step before the step. The kernel refuses the
/// step with the error that the function returns. A function that panics ends the call before the
/// step. The function may use the model.
pub type StepHook = Arc<dyn Fn(&'static str) -> Option<Errno> + Send + Sync>;

/// The network of one node. Clones are the same network.
#[derive(Clone, Default)]
pub struct KernelModel {
    tables: Arc<Mutex<Tables>>,
    hook: Option<StepHook>,
}

/// An open network namespace, which exists as long as this value, even if its path is removed.
#[derive(Debug)]
pub struct ModelNetns {
    model: KernelModel,
    id: NetnsId,
    path: PathBuf,
}

/// The lock by which ADDs and deletions of interfaces without an alias exclude each other. It is
/// released when this value is dropped, also by a panic.
#[derive(Debug)]
pub(crate) struct ModelLock {
    model: KernelModel,
    token: u64,
}

impl KernelModel {
    /// Returns the network of a node without interfaces and namespaces.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the same network for calls whose steps call `hook`.
    pub fn with_hook(&self, hook: StepHook) -> Self {
        KernelModel {
            hook: Some(hook),
            ..self.clone()
        }
    }

    /// Returns the tables, as the steps before a panic left them.
    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a step unless the hook refuses it.
    fn step<T>(
        &self,
        name: &'static str,
        change: impl FnOnce(&mut Tables) -> Result<T, Errno>,
    ) -> Result<T, NetlinkError> {
        let refused = |errno| NetlinkError::Refused {
            step: name.to_owned(),
            errno,
            detail: None,
        };
        match self.hook.as_ref().and_then(|hook| hook(name)) {
            Some(errno) => Err(refused(errno)),
            None => change(&mut self.tables()).map_err(refused),
        }
    }

    fn open(&self, path: &Path) -> Option<ModelNetns> {
        let id = self.tables().open(path)?;
        Some(ModelNetns {
            model: self.clone(),
            id,
            path: path.to_owned(),
        })
    }

    fn try_lock(&self, is_exclusive: bool) -> Option<ModelLock> {
        let token = self.tables().lock(is_exclusive)?;
        Some(ModelLock {
            model: self.clone(),
            token,
        })
    }
}

impl fmt::Debug for KernelModel {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("KernelModel").finish_non_exhaustive()
    }
}

impl Drop for ModelNetns {
    fn drop(&mut self) {
        self.model.tables().close(self.id);
    }
}

impl Drop for ModelLock {
    fn drop(&mut self) {
        self.model.tables().unlock(self.token);
    }
}

#[cfg(test)]
mod tests;
