//! The `CNI_*` environment variables.

use libcalico::variables::Variables;

use crate::{CniError, Code, Command};

/// The kernel's maximum length of an interface name in bytes (IFNAMSIZ without the terminating
/// zero).
const IFNAME_MAX: usize = 15;

struct Variable {
    name: &'static str,
    required_for: &'static [Command],
    check: fn(&str) -> Result<(), CniError>,
}

use Command::{Add, Check, Del, Gc};

/// The required variables in upstream's order (CNI-16).
///
/// The CNI specification makes `CNI_PATH` optional for STATUS, and this table follows it. Upstream
/// requires the variable (CNI-211).
const VARIABLES: [Variable; 4] = [
    Variable {
        name: "CNI_CONTAINERID",
        required_for: &[Add, Check, Del],
        check: check_container_id,
    },
    Variable {
        name: "CNI_NETNS",
        required_for: &[Add, Check],
        check: |_| Ok(()),
    },
    Variable {
        name: "CNI_IFNAME",
        required_for: &[Add, Check, Del],
        check: check_ifname,
    },
    Variable {
        name: "CNI_PATH",
        required_for: &[Add, Check, Del, Gc],
        check: |_| Ok(()),
    },
];

/// The variables of one call. A variable that is not set is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// `CNI_COMMAND`, not yet validated: upstream reports errors of stdin before an unknown command
    /// (CNI-23).
    pub command: String,
    /// `CNI_CONTAINERID`: the container's ID.
    pub container_id: String,
    /// `CNI_NETNS`: path of the container's network namespace.
    pub netns: String,
    /// `CNI_IFNAME`: name of the interface inside the container.
    pub ifname: String,
    /// `CNI_ARGS` as given, not yet parsed.
    pub args: String,
    /// `CNI_PATH`, split at `:`.
    pub path: Vec<String>,
    /// Whether to skip the check that `CNI_NETNS` is not the plugin's own namespace (CNI-27).
    pub netns_override: bool,
}

impl Environment {
    /// Reads the variables and validates the ones that the command requires.
    ///
    /// # Errors
    /// Code 4 if a required variable is missing, empty or malformed.
    pub fn read(variables: Variables<'_>) -> Result<Environment, CniError> {
        let get = |name: &str| variables.text(name, "");
        let command = get("CNI_COMMAND");
        check_required(&command, &get)?;
        Ok(Environment {
            container_id: get("CNI_CONTAINERID"),
            netns: get("CNI_NETNS"),
            ifname: get("CNI_IFNAME"),
            args: get("CNI_ARGS"),
            path: get("CNI_PATH")
                .split(':')
                .filter(|entry| !entry.is_empty())
                .map(str::to_owned)
                .collect(),
            netns_override: matches!(
                get("CNI_NETNS_OVERRIDE").to_ascii_lowercase().as_str(),
                "1" | "true"
            ),
            command,
        })
    }
}

fn check_required(command: &str, get: &dyn Fn(&str) -> String) -> Result<(), CniError> {
    let mut missing = Vec::new();
    if command.is_empty() {
        missing.push("CNI_COMMAND");
    }
    let is_required = |variable: &&Variable| {
        variable
            .required_for
            .iter()
            .any(|needs| needs.as_str() == command)
    };
    for variable in VARIABLES.iter().filter(is_required) {
        match get(variable.name) {
            value if value.is_empty() => missing.push(variable.name),
            value => (variable.check)(&value)?,
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(CniError::new(
        Code::INVALID_ENVIRONMENT,
        format!("required env variables [{}] missing", missing.join(",")),
    ))
}

fn check_container_id(value: &str) -> Result<(), CniError> {
    if is_id(value) {
        return Ok(());
    }
    Err(CniError::new(
        Code::INVALID_ENVIRONMENT,
        "invalid characters in containerID",
    )
    .with_details(value))
}

fn check_ifname(value: &str) -> Result<(), CniError> {
    let invalid =
        |msg: &str| Err(CniError::new(Code::INVALID_ENVIRONMENT, msg).with_details(value));
    if value.len() > IFNAME_MAX {
        return invalid("interface name is too long");
    }
    if value == "." || value == ".." {
        return invalid("interface name is . or ..");
    }
    if value
        .chars()
        .any(|c| c == '/' || c == ':' || c.is_whitespace())
    {
        return invalid("interface name contains / or : or whitespace characters");
    }
    Ok(())
}

/// Returns true if `text` is a valid container ID or network name: `^[a-zA-Z0-9][a-zA-Z0-9_.\-]*$`.
pub(crate) fn is_id(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: [(&str, &str); 5] = [
        ("CNI_CONTAINERID", "c0ffee"),
        ("CNI_NETNS", "/run/netns/x"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/opt/cni/bin:/usr/lib/cni"),
        ("CNI_ARGS", "IP=10.0.0.1"),
    ];

    fn read(command: &str, changed: &[(&str, &str)]) -> Result<Environment, CniError> {
        let value = |name: &str| {
            if name == "CNI_COMMAND" {
                return Some(command.to_owned());
            }
            let find = |table: &[(&str, &str)]| {
                table
                    .iter()
                    .find(|(key, _)| *key == name)
                    .map(|(_, v)| v.to_string())
            };
            find(changed).or_else(|| find(&GOOD))
        };
        Environment::read(Variables::new(&value))
    }

    #[test]
    fn complete_environment_is_read() {
        let environment = read("ADD", &[("CNI_NETNS_OVERRIDE", "TRUE")]).unwrap();
        assert_eq!(environment.command, "ADD");
        assert_eq!(environment.container_id, "c0ffee");
        assert_eq!(environment.netns, "/run/netns/x");
        assert_eq!(environment.ifname, "eth0");
        assert_eq!(environment.args, "IP=10.0.0.1");
        assert_eq!(environment.path, ["/opt/cni/bin", "/usr/lib/cni"]);
        assert!(environment.netns_override);
    }

    #[test]
    fn all_missing_variables_are_reported_at_once_in_order() {
        let all: Vec<_> = GOOD.iter().map(|(name, _)| (*name, "")).collect();
        let table = [
            ("ADD", "CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH"),
            ("CHECK", "CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH"),
            ("DEL", "CNI_CONTAINERID,CNI_IFNAME,CNI_PATH"),
            ("GC", "CNI_PATH"),
            ("", "CNI_COMMAND"),
        ];
        for (command, names) in table {
            let error = read(command, &all).unwrap_err();
            assert_eq!(error.code, Code::INVALID_ENVIRONMENT, "{command}");
            assert_eq!(
                error.msg,
                format!("required env variables [{names}] missing"),
                "{command}"
            );
        }
        for command in ["STATUS", "VERSION", "NONSENSE"] {
            read(command, &all).unwrap();
        }
    }

    #[test]
    fn each_missing_variable_is_reported() {
        for name in ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"] {
            let error = read("ADD", &[(name, "")]).unwrap_err();
            assert_eq!(
                error.msg,
                format!("required env variables [{name}] missing")
            );
        }
        read("DEL", &[("CNI_NETNS", "")]).unwrap();
    }

    #[test]
    fn malformed_variable_is_reported_before_missing_variables() {
        let error = read("ADD", &[("CNI_CONTAINERID", "a/b"), ("CNI_NETNS", "")]).unwrap_err();
        assert_eq!(
            error,
            CniError::new(
                Code::INVALID_ENVIRONMENT,
                "invalid characters in containerID"
            )
            .with_details("a/b")
        );
        let error = read("ADD", &[("CNI_CONTAINERID", ""), ("CNI_IFNAME", "..")]).unwrap_err();
        assert_eq!(error.msg, "interface name is . or ..");
    }

    #[test]
    fn invalid_container_ids_are_rejected() {
        for id in ["a", "0", "A_.-9"] {
            read("DEL", &[("CNI_CONTAINERID", id)]).unwrap();
        }
        for id in ["-a", ".a", "_a", "a b", "a/b", "é", "a\n"] {
            let error = read("DEL", &[("CNI_CONTAINERID", id)]).unwrap_err();
            assert_eq!(error.details, id);
        }
    }

    #[test]
    fn invalid_interface_names_are_rejected() {
        for name in ["eth0", "a", "fifteen-bytes-x", "eth0.100", "ü"] {
            read("DEL", &[("CNI_IFNAME", name)]).unwrap();
        }
        let table = [
            ("sixteen-bytes-xx", "interface name is too long"),
            (".", "interface name is . or .."),
            ("..", "interface name is . or .."),
            (
                "a/b",
                "interface name contains / or : or whitespace characters",
            ),
            (
                "a:b",
                "interface name contains / or : or whitespace characters",
            ),
            (
                "a b",
                "interface name contains / or : or whitespace characters",
            ),
            (
                "a\u{2003}b",
                "interface name contains / or : or whitespace characters",
            ),
        ];
        for (name, msg) in table {
            let error = read("DEL", &[("CNI_IFNAME", name)]).unwrap_err();
            assert_eq!(
                (error.code, error.msg.as_str()),
                (Code::INVALID_ENVIRONMENT, msg),
                "{name}"
            );
        }
    }

    #[test]
    fn netns_override_parses_boolean_values() {
        for (value, on) in [
            ("1", true),
            ("true", true),
            ("True", true),
            ("0", false),
            ("yes", false),
            ("", false),
        ] {
            assert_eq!(
                read("ADD", &[("CNI_NETNS_OVERRIDE", value)])
                    .unwrap()
                    .netns_override,
                on,
                "{value}"
            );
        }
    }
}
