//! `CNI_ARGS`: the `KEY=value;KEY=value` pairs that a runtime passes along.

use std::net::IpAddr;

use crate::{CniError, Code};

/// The parsed `CNI_ARGS`. Unknown keys are ignored, unless `IgnoreUnknown` is false. A text is
/// empty if its key is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CniArgs {
    /// `IP`: the requested address, if any. Only IPAM plugins read it.
    pub ip: Option<IpAddr>,
    /// `K8S_POD_NAME`: the pod's name.
    pub pod_name: String,
    /// `K8S_POD_NAMESPACE`: the pod's namespace.
    pub pod_namespace: String,
    /// `K8S_POD_INFRA_CONTAINER_ID`: the sandbox; not used.
    pub pod_infra_container_id: String,
    /// `K8S_POD_UID`: the pod's UID, which upstream ignores.
    pub pod_uid: String,
    /// `CNI_TEST_NAMESPACE`: the namespace of an endpoint outside of Kubernetes; empty stands for
    /// `default`.
    pub test_namespace: String,
}

/// The pod that a runtime names in `CNI_ARGS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pod<'a> {
    /// The pod's namespace.
    pub namespace: &'a str,
    /// The pod's name.
    pub name: &'a str,
    /// The pod's UID, or `None` if the runtime does not pass `K8S_POD_UID`.
    pub uid: Option<&'a str>,
}

impl CniArgs {
    /// Parses the value of `CNI_ARGS`.
    ///
    /// # Errors
    /// Code 4 with upstream's text, where upstream uses code 999 (CNI-28).
    pub fn parse(text: &str) -> Result<CniArgs, CniError> {
        let mut args = CniArgs::default();
        let mut ignore_unknown = true;
        let mut unknown = Vec::new();
        for pair in text.split(';').filter(|_| !text.is_empty()) {
            let (key, value) = split_pair(pair)?;
            match key {
                "IgnoreUnknown" => ignore_unknown = parse_boolean(pair, value)?,
                "IP" => args.ip = parse_address(pair, value)?,
                "K8S_POD_NAME" => args.pod_name = value.to_owned(),
                "K8S_POD_NAMESPACE" => args.pod_namespace = value.to_owned(),
                "K8S_POD_INFRA_CONTAINER_ID" => args.pod_infra_container_id = value.to_owned(),
                "K8S_POD_UID" => args.pod_uid = value.to_owned(),
                "CNI_TEST_NAMESPACE" => args.test_namespace = value.to_owned(),
                _ => unknown.push(pair),
            }
        }
        if !ignore_unknown && !unknown.is_empty() {
            return Err(invalid_environment(format!(
                "ARGS: unknown args {unknown:?}"
            )));
        }
        Ok(args)
    }

    /// Returns the pod if both its name and its namespace are given. Only these two keys decide if
    /// a call is one of Kubernetes (CNI-31).
    pub fn pod(&self) -> Option<Pod<'_>> {
        if self.pod_name.is_empty() || self.pod_namespace.is_empty() {
            return None;
        }
        let uid = Some(self.pod_uid.as_str()).filter(|uid| !uid.is_empty());
        Some(Pod {
            namespace: &self.pod_namespace,
            name: &self.pod_name,
            uid,
        })
    }

    /// Returns the pod that `CNI_ARGS` names, even if [`CniArgs::parse`] rejects the text. A
    /// missing part is empty. For log lines only.
    pub fn pod_as_written(text: &str) -> Pod<'_> {
        let value = |key: &str| {
            let mut values = text
                .split(';')
                .filter_map(|pair| pair.strip_prefix(key)?.strip_prefix('='));
            values.next_back().unwrap_or_default()
        };
        Pod {
            namespace: value("K8S_POD_NAMESPACE"),
            name: value("K8S_POD_NAME"),
            uid: None,
        }
    }

    /// Returns the pod, for operations that require one.
    ///
    /// # Errors
    /// Code 4. The error names the keys that `CNI_ARGS` lacks.
    pub fn require_pod(&self) -> Result<Pod<'_>, CniError> {
        self.pod().ok_or_else(|| {
            let keys = [
                ("K8S_POD_NAMESPACE", &self.pod_namespace),
                ("K8S_POD_NAME", &self.pod_name),
            ];
            let missing: Vec<_> = keys
                .into_iter()
                .filter(|(_, value)| value.is_empty())
                .map(|(key, _)| key)
                .collect();
            invalid_environment(format!(
                "CNI_ARGS names no pod: {} missing",
                missing.join(" and ")
            ))
            .with_details(
                "set CNI_ARGS='K8S_POD_NAMESPACE=<namespace>;K8S_POD_NAME=<pod>', as a Kubernetes \
                 runtime does",
            )
        })
    }
}

/// Returns the `CNI_ARGS` for a delegated plugin: `IgnoreUnknown=1`, followed by the `text` of this
/// call (CNI-14).
pub fn for_delegate(text: &str) -> String {
    if text.is_empty() {
        return "IgnoreUnknown=1".to_owned();
    }
    format!("IgnoreUnknown=1;{text}")
}

fn split_pair(pair: &str) -> Result<(&str, &str), CniError> {
    match pair.split_once('=') {
        Some((key, value)) if !value.contains('=') => Ok((key, value)),
        _ => Err(
            invalid_environment(format!("ARGS: invalid pair {pair:?}")).with_details(
                "write CNI_ARGS as KEY=value;KEY=value, without '=' in a value and without an \
                 empty pair",
            ),
        ),
    }
}

fn parse_boolean(pair: &str, value: &str) -> Result<bool, CniError> {
    match value.to_ascii_lowercase().as_str() {
        "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        _ => Err(unparsable_pair(
            pair,
            &format!("boolean unmarshal error: invalid input {value}"),
        )),
    }
}

fn parse_address(pair: &str, value: &str) -> Result<Option<IpAddr>, CniError> {
    if value.is_empty() {
        return Ok(None);
    }
    value
        .parse()
        .map(Some)
        .map_err(|_| unparsable_pair(pair, &format!("invalid IP address: {value}")))
}

fn unparsable_pair(pair: &str, reason: &str) -> CniError {
    invalid_environment(format!(
        "ARGS: error parsing value of pair {pair:?}: {reason}"
    ))
}

fn invalid_environment(msg: String) -> CniError {
    CniError::new(Code::INVALID_ENVIRONMENT, msg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containerds_args_parse_to_the_pod() {
        let args = CniArgs::parse(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=golden;K8S_POD_NAME=p1;K8S_POD_INFRA_CONTAINER_ID=c0ffee;K8S_POD_UID=u-1",
        )
        .unwrap();
        assert_eq!(
            args.pod(),
            Some(Pod {
                namespace: "golden",
                name: "p1",
                uid: Some("u-1")
            })
        );
        assert_eq!(args.pod_infra_container_id, "c0ffee");
    }

    #[test]
    fn requested_ip_is_parsed_and_an_invalid_ip_rejected() {
        assert_eq!(
            CniArgs::parse("IP=10.0.0.7").unwrap().ip,
            Some("10.0.0.7".parse().unwrap())
        );
        assert_eq!(
            CniArgs::parse("IP=fd00::7").unwrap().ip,
            Some("fd00::7".parse().unwrap())
        );
        assert_eq!(CniArgs::parse("IP=").unwrap().ip, None);
        for text in ["not-an-ip", "10.0.0.7/32", "10.0.0", "010.0.0.7"] {
            let error = CniArgs::parse(&format!("IP={text}")).unwrap_err();
            assert_eq!(error.code, Code::INVALID_ENVIRONMENT);
            assert_eq!(
                error.msg,
                format!(
                    "ARGS: error parsing value of pair \"IP={text}\": invalid IP address: {text}"
                )
            );
        }
    }

    #[test]
    fn malformed_arg_pairs_are_rejected() {
        for (text, pair) in [
            ("A", "A"),
            ("A=1;", ""),
            (";A=1", ""),
            ("A=1;;B=2", ""),
            ("A=1=2", "A=1=2"),
        ] {
            assert_eq!(
                CniArgs::parse(text).unwrap_err().msg,
                format!("ARGS: invalid pair {pair:?}"),
                "{text}"
            );
        }
        assert_eq!(CniArgs::parse("").unwrap(), CniArgs::default());
    }

    #[test]
    fn unknown_args_fail_only_if_requested() {
        assert_eq!(CniArgs::parse("FOO=bar;ip=x").unwrap(), CniArgs::default());
        assert_eq!(
            CniArgs::parse("IgnoreUnknown=0;IgnoreUnknown=TRUE;FOO=bar").unwrap(),
            CniArgs::default()
        );
        let error = CniArgs::parse("FOO=bar;IgnoreUnknown=false;K8S_POD_NAME=p;BAZ=").unwrap_err();
        assert_eq!(error.msg, r#"ARGS: unknown args ["FOO=bar", "BAZ="]"#);
        let error = CniArgs::parse("IgnoreUnknown=perhaps").unwrap_err();
        assert_eq!(
            error.msg,
            "ARGS: error parsing value of pair \"IgnoreUnknown=perhaps\": boolean unmarshal error: \
             invalid input perhaps"
        );
    }

    #[test]
    fn pod_is_found_in_rejected_args() {
        for (text, namespace, name) in [
            ("K8S_POD_NAMESPACE=n;K8S_POD_NAME=p;x;A=1=2", "n", "p"),
            ("K8S_POD_NAME=a;K8S_POD_NAME=b\n", "", "b\n"),
            ("K8S_POD_NAMES=a", "", ""),
            ("", "", ""),
        ] {
            assert_eq!(
                CniArgs::pod_as_written(text),
                Pod {
                    namespace,
                    name,
                    uid: None
                },
                "{text}"
            );
        }
    }

    #[test]
    fn last_of_duplicate_args_wins() {
        assert_eq!(
            CniArgs::parse("K8S_POD_NAME=a;K8S_POD_NAME=b")
                .unwrap()
                .pod_name,
            "b"
        );
    }

    #[test]
    fn args_without_a_pod_name_or_namespace_are_rejected_for_a_pod() {
        let table = [
            ("", "K8S_POD_NAMESPACE and K8S_POD_NAME"),
            ("K8S_POD_NAME=p", "K8S_POD_NAMESPACE"),
            ("K8S_POD_NAMESPACE=n;K8S_POD_NAME=", "K8S_POD_NAME"),
        ];
        for (text, missing) in table {
            let args = CniArgs::parse(text).unwrap();
            assert_eq!(args.pod(), None);
            let error = args.require_pod().unwrap_err();
            assert_eq!(
                error.msg,
                format!("CNI_ARGS names no pod: {missing} missing")
            );
            assert!(error.details.contains("K8S_POD_NAME=<pod>"));
        }
    }

    #[test]
    fn delegated_args_start_with_ignore_unknown() {
        assert_eq!(for_delegate(""), "IgnoreUnknown=1");
        assert_eq!(for_delegate("IP=10.0.0.7"), "IgnoreUnknown=1;IP=10.0.0.7");
    }
}
