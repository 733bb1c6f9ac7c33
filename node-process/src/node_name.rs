//! The name of this node: reads the inputs from which [`libcalico::names`] chooses.

use std::fs;
use std::io;
use std::path::Path;

use libcalico::names::{NodeName, NodeNameInputs, NodeNameSource, node_name};
use netconf::conf::DatastoreType;
use netconf::{CniError, Code, NetConf};
use os::atomic_file::regular_file;

const KERNEL_HOSTNAME: &str = "/proc/sys/kernel/hostname";

/// Returns the name of the node (CNI-72), or an error if no source gives the name.
pub fn from_conf(conf: &NetConf) -> Result<String, CniError> {
    let file = read(&conf.node.nodename_file);
    let chosen = choose(conf, file.as_deref()).ok_or_else(|| {
        CniError::new(
            Code::INVALID_CONFIG,
            "cannot determine the name of this node",
        )
        .with_details(format!(
            "set nodename, or let calico-node write {}",
            conf.node.nodename_file
        ))
    })?;
    if chosen.source == NodeNameSource::DeprecatedHostname {
        tracing::warn!("configuration option 'hostname' is deprecated, use 'nodename' instead");
    }
    Ok(chosen.name)
}

/// Returns the source of the node's name, for a message; `None` if no source gives the name.
pub fn source(conf: &NetConf) -> Option<String> {
    let file = read(&conf.node.nodename_file);
    let source = match choose(conf, file.as_deref())?.source {
        NodeNameSource::Config => "nodename of the network configuration".to_owned(),
        NodeNameSource::File => format!("the file {}", conf.node.nodename_file),
        NodeNameSource::DeprecatedHostname => "hostname of the network configuration".to_owned(),
        NodeNameSource::OsHostname => "the host's name".to_owned(),
    };
    Some(source)
}

/// Returns the name of the node for log lines, without logging. The kernel's host name does not
/// count if the nodename file is required.
pub(crate) fn without_logging(conf: &NetConf) -> Option<String> {
    let needs_file = conf.node.nodename.is_empty();
    let file = needs_file
        .then(|| regular_file::utf8(Path::new(&conf.node.nodename_file)).ok())
        .flatten();
    let chosen = choose(conf, file.as_deref())?;
    (chosen.source != NodeNameSource::OsHostname || !is_file_required(conf)).then_some(chosen.name)
}

/// Returns true if the plugins refuse to work without the nodename file. calico-node, which writes
/// the file, does not run with the embedded datastore.
pub fn is_file_required(conf: &NetConf) -> bool {
    match conf.datastore.kind() {
        DatastoreType::Etcdv3 | DatastoreType::Kubernetes => !conf.node.nodename_file_optional,
        DatastoreType::Local => false,
    }
}

fn choose(conf: &NetConf, file: Option<&str>) -> Option<NodeName> {
    let os_hostname = fs::read_to_string(KERNEL_HOSTNAME).unwrap_or_default();
    let (nodename, hostname) = (conf.node.nodename.as_str(), conf.node.hostname.as_str());
    node_name(NodeNameInputs {
        nodename,
        nodename_file: file,
        hostname,
        os_hostname: &os_hostname,
    })
}

fn read(path: &str) -> Option<String> {
    match regular_file::utf8(Path::new(path)) {
        Ok(content) => Some(content),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            tracing::debug!(
                %path, "the nodename file is missing; another source may give the node's name",
            );
            None
        }
        Err(error) => {
            tracing::error!(
                %path, %error,
                "cannot read the nodename file; another source may give the node's name",
            );
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
    fn special_node_name_file_counts_as_missing() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("nodename");
        assert!(
            std::process::Command::new("mkfifo")
                .arg(&fifo)
                .status()
                .unwrap()
                .success()
        );
        for path in [fifo.to_str().unwrap(), "/dev/zero"] {
            assert_eq!(read(path), None);
        }
    }

    #[test]
    fn node_name_file_is_the_fallback_and_its_newline_is_stripped() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("nodename");
        fs::write(&file, "node-7\n").unwrap();
        let file = file.to_str().unwrap();
        assert_eq!(from_conf(&conf("", file)).unwrap(), "node-7");
        assert_eq!(from_conf(&conf("node-1", file)).unwrap(), "node-1");
        assert_eq!(source(&conf("", file)).unwrap(), format!("the file {file}"));
        assert_eq!(
            source(&conf("node-1", file)).unwrap(),
            "nodename of the network configuration"
        );
        assert_eq!(without_logging(&conf("", file)).unwrap(), "node-7");
        assert_eq!(without_logging(&conf("node-1", file)).unwrap(), "node-1");
    }

    #[test]
    fn without_configuration_or_file_the_node_name_is_the_hostname() {
        let hostname = fs::read_to_string(KERNEL_HOSTNAME)
            .unwrap()
            .trim()
            .to_lowercase();
        for unreadable in ["/no/such/file", "/proc/self/mem", "/"] {
            assert_eq!(from_conf(&conf("", unreadable)).unwrap(), hostname);
        }
    }
}
