//! One invocation by a runtime: environment and stdin, checked in upstream's order.

use std::io;

use serde_json::Value;

use crate::conf::{self, LogConf, NetConf, NodeConf};
use crate::decode::{self, DecodeError, FromNode, Malformed, Node};
use crate::env::{Environment, is_id};
use crate::result::CniResult;
use crate::{CniArgs, CniError, Code, Command, Lookup, Version};

/// An operation that a runtime asks for, with everything it says about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// What to do; never VERSION, which needs no configuration.
    pub command: Command,
    /// The container; empty for STATUS and GC.
    pub container_id: String,
    /// Path of the container's network namespace; may be empty for DEL, is empty for STATUS and GC.
    pub netns: String,
    /// Name of the interface inside the container; empty for STATUS and GC.
    pub ifname: String,
    /// `CNI_ARGS`.
    pub args: CniArgs,
    /// `CNI_ARGS` as given, for delegated plugins: see [`crate::args::for_delegate`].
    pub raw_args: String,
    /// The directories of `CNI_PATH`.
    pub path: Vec<String>,
    /// Whether a network namespace that is the plugin's own is accepted (CNI-27).
    pub netns_override: bool,
    /// The configuration's `cniVersion`; 0.1.0 when it has none.
    pub version: Version,
    /// The network configuration, with what the environment says about the datastore.
    pub conf: NetConf,
    /// What is wrong in the configuration of a DEL that DEL does not need. For the log.
    pub passed_over: Vec<DecodeError>,
    /// `prevResult` of the configuration. Read for ADD and CHECK only: a DEL must not fail on it.
    pub prev_result: Option<CniResult>,
    /// stdin, for delegated plugins: see [`Call::rewritten`].
    pub raw: Vec<u8>,
}

/// An error together with the configuration's `cniVersion`, as far as it was known by then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct CallError {
    /// What went wrong.
    pub error: CniError,
    /// The version to print it with.
    pub version: Option<Version>,
    /// How the configuration wants calls to be logged, for an error of a configuration that says so although it is
    /// refused.
    pub log: Option<Box<LogConf>>,
    /// The node, for an error of a configuration that tells it although it is refused.
    pub node: Option<Box<NodeConf>>,
}

impl CallError {
    /// The JSON for stdout: see [`CniError::to_json`].
    pub fn to_json(&self) -> String {
        self.error.to_json(self.version)
    }
}

impl From<CniError> for CallError {
    fn from(error: CniError) -> CallError {
        CallError { error, version: None, log: None, node: None }
    }
}

/// Reads and checks one invocation: the variables, stdin, the network's name, the command, the version, the rest of the
/// configuration, `CNI_ARGS`. The first failure is the answer (CNI-16…25).
///
/// # Errors
/// Codes 1, 4, 5, 6 and 7, as the specification has them.
pub fn read_call(lookup: Lookup<'_>, read_stdin: impl FnOnce() -> io::Result<Vec<u8>>) -> Result<Call, CallError> {
    let environment = Environment::read(lookup)?;
    let raw = read_stdin().map_err(|error| CniError::new(Code::IO, format!("error reading from stdin: {error}")))?;
    let document = decode::parse(&raw).map_err(|malformed| not_json(&raw, &malformed))?;
    let document = if document.is_null() { Value::Object(serde_json::Map::new()) } else { document };
    let root = Node::root("$", &document);
    let call = Call::read(environment, lookup, &root, raw);
    let (log, node) = (LogConf::from_node(&root).ok(), NodeConf::from_node(&root).ok());
    call.map_err(|error| CallError { log: log.map(Box::new), node: node.map(Box::new), ..error })
}

impl Call {
    fn read(environment: Environment, lookup: Lookup<'_>, root: &Node<'_>, raw: Vec<u8>) -> Result<Call, CallError> {
        check_name(root)?;
        let command = Command::parse(&environment.command)?;
        let version = config_version(root)?;
        let rest = Call::of(command, environment, version, lookup, root, raw);
        rest.map_err(|error| CallError { version: Some(version), ..error.into() })
    }

    fn of(
        command: Command,
        environment: Environment,
        version: Version,
        lookup: Lookup<'_>,
        root: &Node<'_>,
        raw: Vec<u8>,
    ) -> Result<Call, CniError> {
        version.allow(command)?;
        let (conf, passed_over) = match command {
            Command::Del => NetConf::read_for_del(root)?,
            _ => (NetConf::read(root)?, Vec::new()),
        };
        let conf = conf.with_environment(lookup)?;
        let prev_result = match command {
            Command::Add | Command::Check => conf.read_prev_result(version)?,
            _ => None,
        };
        if command == Command::Gc && conf.valid_attachments.is_none() {
            return Err(CniError::new(
                Code::INVALID_CONFIG,
                "failed to load netconf: $[\"cni.dev/valid-attachments\"]: missing, want the attachments that exist",
            )
            .with_details(
                "GC removes what is not in this list; the runtime writes it, an empty one when nothing is left",
            ));
        }
        Ok(Call {
            command,
            args: CniArgs::parse(&environment.args)?,
            container_id: environment.container_id,
            netns: environment.netns,
            ifname: environment.ifname,
            raw_args: environment.args,
            path: environment.path,
            netns_override: environment.netns_override,
            version,
            conf,
            passed_over,
            prev_result,
            raw,
        })
    }

    /// The version that the main plugin prints its result in: a configuration without one gets 0.2.0 (CNI-35).
    pub fn result_version(&self) -> Version {
        if self.conf.cni_version.is_empty() { Version::V0_2_0 } else { self.version }
    }
}

fn not_json(raw: &[u8], malformed: &Malformed) -> CniError {
    let error = CniError::new(Code::DECODE, format!("error unmarshall network config: {malformed}"));
    if raw.is_empty() {
        return error.with_details("nothing on standard input; the network configuration is expected there");
    }
    error
}

/// What upstream checks before it looks at the command (CNI-22), and two mistakes that people make by hand.
fn check_name(root: &Node<'_>) -> Result<(), CniError> {
    const DOING: &str = "error unmarshall network config";
    let object = root.object().map_err(|error| error.while_doing(DOING))?;
    conf::refuse_list(root)?;
    let name: String = object.read_or_default("name").map_err(|error| error.while_doing(DOING))?;
    if name.is_empty() {
        return Err(invalid_config("missing network name").with_details(format!(
            "a plugin of a network configuration list has neither name nor cniVersion of its own; {}",
            conf::MEND_LIST
        )));
    }
    if !is_id(&name) {
        return Err(invalid_config("invalid characters found in network name").with_details(name));
    }
    Ok(())
}

fn config_version(root: &Node<'_>) -> Result<Version, CniError> {
    let text: Result<String, _> = root.object().and_then(|object| object.read_or_default("cniVersion"));
    Version::of_config(&text.map_err(|error| error.while_doing("decoding version from network config"))?)
}

fn invalid_config(msg: &str) -> CniError {
    CniError::new(Code::INVALID_CONFIG, msg)
}

#[cfg(test)]
mod tests;
