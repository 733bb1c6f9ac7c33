//! A CNI call: its environment and stdin, validated in upstream's order.

use libcalico::variables::Variables;
use std::io;

use serde_json::Value;

use crate::conf::{LogConf, NetConf, NodeConf};
use crate::decode::{self, DecodeError, FromNode, Malformed, Node};
use crate::env::{Environment, is_id};
use crate::result::CniResult;
use crate::{CniArgs, CniError, Code, Command, Version, list};

/// An operation that a runtime requests, with all its inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The operation. [`crate::invocation()`] makes no call of VERSION, which needs no
    /// configuration.
    pub command: Command,
    /// The container ID. Neither required nor validated for STATUS and GC.
    pub container_id: String,
    /// Path of the container's network namespace. May be empty for DEL, STATUS and GC.
    pub netns: String,
    /// Name of the interface inside the container. Neither required nor validated for STATUS and
    /// GC.
    pub ifname: String,
    /// `CNI_ARGS`.
    pub args: CniArgs,
    /// `CNI_ARGS` as given.
    pub raw_args: String,
    /// The directories of `CNI_PATH`.
    pub path: Vec<String>,
    /// Whether to accept a `CNI_NETNS` that is the plugin's own network namespace (CNI-27).
    pub netns_override: bool,
    /// The configuration's `cniVersion`, or 0.1.0 if the configuration has none.
    pub version: Version,
    /// The network configuration, with the datastore settings of the environment applied.
    pub conf: NetConf,
    /// The errors of invalid keys that a DEL does not need, which have their defaults; empty for
    /// other commands.
    pub ignored_settings: Vec<DecodeError>,
    /// `prevResult` of the configuration, for ADD and CHECK only: an invalid `prevResult` must not
    /// fail a DEL, which calls [`NetConf::read_prev_result`] itself.
    pub prev_result: Option<CniResult>,
    /// The bytes of stdin.
    pub raw: Vec<u8>,
}

/// An error together with the parts of the configuration that could be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct CallError {
    /// The error itself.
    pub error: CniError,
    /// The configuration's `cniVersion`; `None` if it has not been decoded.
    pub version: Option<Version>,
    /// The log settings of the rejected configuration, if they can be decoded.
    pub log: Option<Box<LogConf>>,
    /// The node settings of the rejected configuration, if they can be decoded.
    pub node: Option<Box<NodeConf>>,
}

impl CallError {
    /// Returns the JSON for stdout; see [`CniError::to_json`].
    pub fn to_json(&self) -> String {
        self.error.to_json(self.version)
    }
}

impl From<CniError> for CallError {
    fn from(error: CniError) -> CallError {
        CallError {
            error,
            version: None,
            log: None,
            node: None,
        }
    }
}

/// Reads and validates one CNI call in upstream's order (CNI-16, CNI-23). Returns the first
/// failure.
///
/// # Errors
/// Codes 1, 4, 5, 6 and 7, as the CNI specification defines them.
pub fn read_call(
    variables: Variables<'_>,
    read_stdin: impl FnOnce() -> io::Result<Vec<u8>>,
) -> Result<Call, CallError> {
    let environment = Environment::read(variables)?;
    let raw = read_stdin()
        .map_err(|error| CniError::new(Code::IO, format!("error reading from stdin: {error}")))?;
    let document = decode::parse(&raw).map_err(|malformed| json_error(&raw, &malformed))?;
    let document = if document.is_null() {
        Value::Object(serde_json::Map::new())
    } else {
        document
    };
    let root = Node::root("$", &document);
    let call = Call::read(environment, variables, &root, raw);
    let (log, node) = (
        LogConf::from_node(&root).ok(),
        NodeConf::from_node(&root).ok(),
    );
    call.map_err(|error| CallError {
        log: log.map(Box::new),
        node: node.map(Box::new),
        ..error
    })
}

impl Call {
    fn read(
        environment: Environment,
        variables: Variables<'_>,
        root: &Node<'_>,
        raw: Vec<u8>,
    ) -> Result<Call, CallError> {
        check_name(root)?;
        let command = Command::parse(&environment.command)?;
        let version = config_version(root)?;
        let call = Call::from_parts(command, environment, version, variables, root, raw);
        call.map_err(|error| CallError {
            version: Some(version),
            ..error.into()
        })
    }

    fn from_parts(
        command: Command,
        environment: Environment,
        version: Version,
        variables: Variables<'_>,
        root: &Node<'_>,
        raw: Vec<u8>,
    ) -> Result<Call, CniError> {
        command.check_version(version)?;
        let (conf, ignored_settings) = match command {
            Command::Del => NetConf::read_for_del(root)?,
            _ => (NetConf::read(root)?, Vec::new()),
        };
        let conf = conf.with_environment(variables)?;
        let prev_result = match command {
            Command::Add | Command::Check => conf.read_prev_result(version)?,
            _ => None,
        };
        if command == Command::Gc && conf.valid_attachments.is_none() {
            return Err(CniError::new(
                Code::INVALID_CONFIG,
                "failed to load netconf: $[\"cni.dev/valid-attachments\"]: missing, want the \
                 existing attachments",
            )
            .with_details(
                "GC removes every attachment that this list does not contain; the runtime must \
                 pass the list, even if the list is empty",
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
            ignored_settings,
            prev_result,
            raw,
        })
    }

    /// Returns the version in which the main plugin prints its result, which is 0.2.0 without
    /// `cniVersion` (CNI-35).
    pub fn result_version(&self) -> Version {
        if self.conf.cni_version.is_empty() {
            Version::V0_2_0
        } else {
            self.version
        }
    }
}

fn json_error(raw: &[u8], malformed: &Malformed) -> CniError {
    let error = CniError::new(
        Code::DECODE,
        format!("error unmarshall network config: {malformed}"),
    );
    if raw.is_empty() {
        return error.with_details(
            "nothing on standard input; the network configuration is expected there",
        );
    }
    error
}

/// Validates the name of the network before the command, as upstream does. Gives advice for two
/// common mistakes.
fn check_name(root: &Node<'_>) -> Result<(), CniError> {
    const CONTEXT: &str = "error unmarshall network config";
    let object = root.object().map_err(|error| error.with_context(CONTEXT))?;
    list::refuse_list(root)?;
    let name: String = object
        .read_or_default("name")
        .map_err(|error| error.with_context(CONTEXT))?;
    if name.is_empty() {
        return Err(invalid_config("missing network name").with_details(format!(
            "a plugin of a network configuration list has neither name nor cniVersion of its own; \
             {}",
            list::LIST_ADVICE
        )));
    }
    if !is_id(&name) {
        return Err(invalid_config("invalid characters found in network name").with_details(name));
    }
    Ok(())
}

fn config_version(root: &Node<'_>) -> Result<Version, CniError> {
    let text: Result<String, _> = root
        .object()
        .and_then(|object| object.read_or_default("cniVersion"));
    parse_config_version(
        &text.map_err(|error| error.with_context("decoding version from network config"))?,
    )
}

/// Returns the version of a configuration whose `cniVersion` is `text`. An empty text means 0.1.0.
fn parse_config_version(text: &str) -> Result<Version, CniError> {
    if text.is_empty() {
        return Ok(Version::WHEN_MISSING);
    }
    Version::parse(text).ok_or_else(|| {
        let supported: Vec<String> = Version::ALL
            .iter()
            .map(|version| format!("{:?}", version.as_str()))
            .collect();
        CniError::new(Code::INCOMPATIBLE_VERSION, "incompatible CNI versions").with_details(
            format!(
                "config is {text:?}, plugin supports [{}]",
                supported.join(" ")
            ),
        )
    })
}

fn invalid_config(msg: &str) -> CniError {
    CniError::new(Code::INVALID_CONFIG, msg)
}

#[cfg(test)]
mod tests;
