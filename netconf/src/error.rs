//! The error object of the CNI specification.

use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::{Version, printable};

/// The code of a CNI error. The specification defines the codes below 100, and the plugin those
/// from 100 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Code(pub u32);

impl Code {
    /// The configuration's `cniVersion` is not supported, or does not have the command.
    pub const INCOMPATIBLE_VERSION: Code = Code(1);
    /// A field of the configuration has a legal value that the plugin does not support.
    pub const UNSUPPORTED_FIELD: Code = Code(2);
    /// The container does not exist, so the runtime need not call DEL.
    pub const UNKNOWN_CONTAINER: Code = Code(3);
    /// A variable of the environment is missing or invalid, mostly a `CNI_*` variable.
    pub const INVALID_ENVIRONMENT: Code = Code(4);
    /// Reading or writing a file or standard input failed.
    pub const IO: Code = Code(5);
    /// A document, such as the configuration, is not JSON, or has a duplicate key or a value of the
    /// wrong JSON type.
    pub const DECODE: Code = Code(6);
    /// A key of the configuration, or of another document, is missing or has a value that is not
    /// allowed.
    pub const INVALID_CONFIG: Code = Code(7);
    /// `CNI_NETNS` is the plugin's own network namespace.
    pub const SAME_NETNS: Code = Code(8);
    /// The failure is transient; the runtime should retry.
    pub const TRY_AGAIN: Code = Code(11);
    /// An ADD cannot be served now; only STATUS uses this code.
    pub const NOT_AVAILABLE: Code = Code(50);
    /// The datastore connection test (`-t`) failed; the code is upstream's.
    pub const CONNECTION_TEST: Code = Code(100);
    /// CHECK found a difference between the attachment and the state that ADD created.
    pub const CHECK_FAILED: Code = Code(101);
    /// Any other failure; upstream uses this code for its own errors of ADD and DEL (CNI-26).
    pub const INTERNAL: Code = Code(999);
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An error in the form that a runtime reads from stdout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{msg}{}{details}", if details.is_empty() { "" } else { "; " })]
pub struct CniError {
    /// The kind of failure.
    pub code: Code,
    /// A line for a person, often with upstream's text for the same failure.
    pub msg: String,
    /// Further help; empty if there is none.
    pub details: String,
}

impl CniError {
    /// The exit status of a plugin that printed an error.
    pub const EXIT_STATUS: i32 = 1;

    /// Creates an error without details.
    pub fn new(code: Code, msg: impl Into<String>) -> CniError {
        CniError {
            code,
            msg: msg.into(),
            details: String::new(),
        }
    }

    /// Creates an error of code 999.
    pub fn internal(msg: impl Into<String>) -> CniError {
        CniError::new(Code::INTERNAL, msg)
    }

    /// Returns the error with its details replaced.
    #[must_use]
    pub fn with_details(mut self, details: impl Into<String>) -> CniError {
        self.details = details.into();
        self
    }

    /// Returns the JSON for stdout. `version` is the configuration's `cniVersion`, or `None` if
    /// that is unknown or invalid. The specification requires the key `cniVersion`; upstream always
    /// omits it (CNI-218).
    ///
    /// Control characters of `msg` and `details`, except line breaks at the end of `msg`, are
    /// escaped, because runtimes print these texts, and kubelet puts them into an Event.
    pub fn to_json(&self, version: Option<Version>) -> String {
        let body = self.msg.trim_end_matches('\n');
        let msg = format!("{}{}", printable::line(body), &self.msg[body.len()..]);
        let details = printable::line(&self.details);
        printable::indented_json(&Encoded {
            cni_version: version,
            code: self.code,
            msg: &msg,
            details: &details,
        })
    }

    /// Returns the error object that a delegated plugin printed, or `None` if `stdout` is not such
    /// an object. As in Go's decoder, every key may be absent (CNI-57).
    pub fn parse(stdout: &[u8]) -> Option<CniError> {
        let object: Map<String, Value> = serde_json::from_slice(stdout).ok()?;
        let text = |key| match find_field(&object, key) {
            None | Some(Value::Null) => Some(String::new()),
            Some(Value::String(text)) => Some(text.clone()),
            Some(_) => None,
        };
        let code = match find_field(&object, "code") {
            None | Some(Value::Null) => 0,
            Some(number) => u32::try_from(number.as_u64()?).ok()?,
        };
        Some(CniError {
            code: Code(code),
            msg: text("msg")?,
            details: text("details")?,
        })
    }
}

#[derive(Serialize)]
struct Encoded<'a> {
    #[serde(rename = "cniVersion", skip_serializing_if = "Option::is_none")]
    cni_version: Option<Version>,
    code: Code,
    msg: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    details: &'a str,
}

fn find_field<'a>(object: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    object.get(key).or_else(|| {
        object
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(key))
            .map(|(_, value)| value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_json_matches_upstreams_format() {
        let error = CniError::new(Code::INVALID_ENVIRONMENT, "unknown CNI_COMMAND: <X>");
        assert_eq!(
            error.to_json(None),
            "{\n    \"code\": 4,\n    \"msg\": \"unknown CNI_COMMAND: \\u003cX\\u003e\"\n}"
        );
    }

    #[test]
    fn error_json_escapes_control_characters() {
        let error = CniError::internal("bad \"a\x1b[2J\nb\"\n").with_details("c\u{9b}d\ne");
        let decoded: serde_json::Value = serde_json::from_str(&error.to_json(None)).unwrap();
        assert_eq!(decoded["msg"], "bad \"a\\u001b[2J\\nb\"\n");
        assert_eq!(decoded["details"], "c\\u009bd\\ne");
    }

    #[test]
    fn error_json_includes_details_and_version() {
        let error = CniError::internal("m").with_details("d");
        assert_eq!(
            error.to_json(Some(Version::V0_3_1)),
            "{\n    \"cniVersion\": \"0.3.1\",\n    \"code\": 999,\n    \"msg\": \"m\",\n    \
             \"details\": \"d\"\n}"
        );
    }

    #[test]
    fn error_of_a_delegated_plugin_round_trips() {
        let error = CniError::new(Code(123), "no room").with_details("pool full");
        assert_eq!(
            CniError::parse(error.to_json(Some(Version::V1_0_0)).as_bytes()),
            Some(error)
        );
        assert_eq!(
            CniError::parse(br#"{"Code":7,"MSG":"x"}"#),
            Some(CniError::new(Code(7), "x"))
        );
        assert_eq!(CniError::parse(b"{}"), Some(CniError::new(Code(0), "")));
    }

    #[test]
    fn output_without_an_error_object_is_rejected() {
        for stdout in [
            "",
            "oops",
            "[]",
            "null",
            r#"{"code":-1}"#,
            r#"{"code":"4"}"#,
            r#"{"code":4,"msg":1}"#,
        ] {
            assert_eq!(CniError::parse(stdout.as_bytes()), None, "{stdout}");
        }
    }
}
