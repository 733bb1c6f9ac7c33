//! The node's network, as far as the commands here look at it. The plugin speaks with the kernel, and it depends on this
//! crate: so it is asked through [`HostNetwork`].

/// An interface of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its MTU in bytes.
    pub mtu: u32,
}

/// What the kernel says and does. Errors are the kernel's words.
pub trait HostNetwork {
    /// All interfaces.
    fn interfaces(&self) -> Result<Vec<Interface>, String>;

    /// Removes the host's end of a pod's interface, and with it the pod's end and all routes through it. An interface that is
    /// none of Calico's, by its kind and its address, is left alone. Says whether there was one.
    fn remove_pod_interface(&self, name: &str) -> Result<bool, String>;
}
