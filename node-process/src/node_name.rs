//! The name of this node: reads the inputs from which [`libcalico::names`] chooses.

use std::fs;
use std::io;

use libcalico::names::{NodeName, NodeNameInputs, NodeNameSource, node_name};
use netconf::conf::DatastoreType;
use netconf::{CniError, Code, NetConf};

const KERNEL_HOSTNAME: &str = "/proc/sys/kernel/hostname";

/// Returns the name of the node (CNI-72), or an error if no source gives the name.
pub fn from_conf(conf: &NetConf) -> Result<String, CniError> {
    let file = read(&conf.node.nodename_file);
    let chosen = choose(conf, file.as_deref()).ok_or_else(|| {
        CniError::new(Code::INVALID_CONFIG, "cannot determine the name of this node")
            .with_details(format!("set nodename, or let calico-node write {}", conf.node.nodename_file))
    })?;
    if chosen.source == NodeNameSource::DeprecatedHostname {
        tracing::warn!("configuration option 'hostname' is deprecated, use 'nodename' instead");
    }
    Ok(chosen.name)
}

/// Returns the name of the node for log lines, without logging. The kernel's host name does not count if the nodename
/// file is required.
pub(crate) fn without_logging(conf: &NetConf) -> Option<String> {
    let needs_file = conf.node.nodename.is_empty();
    let file = needs_file.then(|| fs::read_to_string(&conf.node.nodename_file).ok()).flatten();
    let requires_file = !conf.node.nodename_file_optional && conf.datastore.kind() != DatastoreType::Local;
    let chosen = choose(conf, file.as_deref())?;
    (chosen.source != NodeNameSource::OsHostname || !requires_file).then_some(chosen.name)
}

fn choose(conf: &NetConf, file: Option<&str>) -> Option<NodeName> {
    let os_hostname = fs::read_to_string(KERNEL_HOSTNAME).unwrap_or_default();
    let (nodename, hostname) = (conf.node.nodename.as_str(), conf.node.hostname.as_str());
    node_name(NodeNameInputs { nodename, nodename_file: file, hostname, os_hostname: &os_hostname })
}

fn read(path: &str) -> Option<String> {
    match fs::read_to_string(path) {
        Ok(content) => Some(content),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            tracing::debug!(%path, "the nodename file is missing; another source may give the node's name");
            None
        }
        Err(error) => {
            tracing::error!(%path, %error, "cannot read the nodename file; another source may give the node's name");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conf(nodename: &str, file: &str) -> NetConf {
        let mut conf = NetConf::default();
        (conf.node.nodename, conf.node.nodename_file) = (nodename.into(), file.into());
        conf
    }

    #[test]
    fn node_name_file_is_the_fallback_and_its_newline_is_stripped() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("nodename");
        fs::write(&file, "node-7\n").unwrap();
        let file = file.to_str().unwrap();
        assert_eq!(from_conf(&conf("", file)).unwrap(), "node-7");
        assert_eq!(from_conf(&conf("node-1", file)).unwrap(), "node-1");
        assert_eq!(without_logging(&conf("", file)).unwrap(), "node-7");
        assert_eq!(without_logging(&conf("node-1", file)).unwrap(), "node-1");
    }

    #[test]
    fn without_configuration_or_file_the_node_name_is_the_hostname() {
        let hostname = fs::read_to_string(KERNEL_HOSTNAME).unwrap().trim().to_lowercase();
        for unreadable in ["/no/such/file", "/proc/self/mem", "/"] {
            assert_eq!(from_conf(&conf("", unreadable)).unwrap(), hostname);
        }
    }
}
