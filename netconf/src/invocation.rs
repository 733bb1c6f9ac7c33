//! Maps a process's arguments, environment and stdin to one [`Invocation`].

use libcalico::variables::Variables;
use std::io;

use serde_json::Value;

use crate::flags::{self, CommandOutput, Flag, Flags};
use crate::{Call, CallError, Version, read_call, version};

/// The plugin as which the process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plugin {
    /// `calico`, the main plugin.
    Calico,
    /// `calico-ipam`, the IPAM plugin.
    CalicoIpam,
}

/// The task of the process.
#[derive(Clone, Debug, PartialEq)]
pub enum Invocation {
    /// Print the texts and exit with the status.
    Print(CommandOutput),
    /// Serve an operation of the runtime.
    Call(Box<Call>),
    /// `-t` of `calico`: test the connection to the datastore of the configuration on stdin.
    TestConnection,
    /// `-upgrade` of `calico-ipam`: migrate the addresses of host-local.
    Upgrade,
}

impl Plugin {
    fn flags(self) -> &'static [Flag] {
        const DISPLAY_VERSION: Flag = Flag {
            name: "v",
            help: "Display version",
        };
        match self {
            Plugin::Calico => &[
                Flag {
                    name: "t",
                    help: "Test datastore connection",
                },
                DISPLAY_VERSION,
            ],
            Plugin::CalicoIpam => &[
                Flag {
                    name: "upgrade",
                    help: "Upgrade from host-local",
                },
                DISPLAY_VERSION,
            ],
        }
    }

    fn title(self) -> &'static str {
        match self {
            Plugin::Calico => "Calico",
            Plugin::CalicoIpam => "calico-ipam",
        }
    }

    fn about(self) -> &'static str {
        match self {
            Plugin::Calico => "Calico CNI plugin",
            Plugin::CalicoIpam => "Calico CNI IPAM",
        }
    }

    fn subcommand_hint(self) -> &'static str {
        match self {
            Plugin::Calico => "For installers and operators: calico install; see `calico help`\n\n",
            Plugin::CalicoIpam => {
                "For operators: calico-ipam show, trace, check, release, apply, get, delete, \
                 endpoints, init, export, import; see --help\n\n"
            }
        }
    }
}

/// Determines the task of the process. `arguments` excludes the program's name; `build` is the
/// version to print. `read_stdin` should return no bytes if stdin is a terminal, so that the
/// process does not wait for input that never comes.
///
/// # Errors
/// Returns the errors of [`read_call`].
pub fn invocation(
    plugin: Plugin,
    build: &str,
    arguments: &[String],
    variables: Variables<'_>,
    read_stdin: impl FnOnce() -> io::Result<Vec<u8>>,
) -> Result<Invocation, CallError> {
    let set = match flags::parse(plugin.title(), plugin.flags(), arguments) {
        Flags::Set(set) => set,
        Flags::Print(mut output) => {
            if plugin == Plugin::Calico {
                output
                    .stderr
                    .push_str(&format!("\n{}", plugin.subcommand_hint().trim_end()));
                output.stderr.push('\n');
            }
            return Ok(Invocation::Print(output));
        }
    };
    if set.contains(&"v") {
        return Ok(Invocation::Print(CommandOutput {
            stdout: format!("{build}\n"),
            ..CommandOutput::default()
        }));
    }
    if set.contains(&"t") {
        return Ok(Invocation::TestConnection);
    }
    if set.contains(&"upgrade") {
        return Ok(Invocation::Upgrade);
    }
    match variables.text("CNI_COMMAND", "").as_str() {
        "" => Ok(Invocation::Print(format_about(plugin, build))),
        "VERSION" => Ok(Invocation::Print(answer_version(read_stdin))),
        _ => read_call(variables, read_stdin).map(|call| Invocation::Call(Box::new(call))),
    }
}

/// Returns the help that a process without `CNI_COMMAND` prints: upstream's two lines (CNI-20), and
/// advice.
fn format_about(plugin: Plugin, build: &str) -> CommandOutput {
    let versions = Version::ALL.map(Version::as_str).join(", ");
    let stderr = format!(
        "{} {build}\n\
         CNI protocol versions supported: {versions}\n\
         \n\
         A container runtime runs this program. To run it by hand for a network namespace made \
         with\n\
         `ip netns add test`:\n\
         \n  jq '.plugins[0] + {{name, cniVersion}}' /etc/cni/net.d/10-calico.conflist |\n  \
         CNI_COMMAND=ADD CNI_CONTAINERID=test CNI_NETNS=/var/run/netns/test CNI_IFNAME=eth0 \
         CNI_PATH=/opt/cni/bin {}\n\
         \n{}{}",
        plugin.about(),
        match plugin {
            Plugin::Calico => "calico",
            Plugin::CalicoIpam => "calico-ipam",
        },
        plugin.subcommand_hint(),
        flags::format_usage(plugin.title(), plugin.flags()),
    );
    CommandOutput {
        stderr,
        ..CommandOutput::default()
    }
}

/// VERSION never fails: invalid stdin counts as a request without `cniVersion`.
fn answer_version(read_stdin: impl FnOnce() -> io::Result<Vec<u8>>) -> CommandOutput {
    let document: Option<Value> = read_stdin()
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let requested = document
        .as_ref()
        .and_then(|value| value.get("cniVersion"))
        .and_then(Value::as_str);
    let requested = requested.filter(|text| !text.is_empty());
    CommandOutput {
        stdout: version::format_answer(requested),
        ..CommandOutput::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(
        plugin: Plugin,
        arguments: &[&str],
        command: &str,
        stdin: &str,
    ) -> Result<Invocation, CallError> {
        let arguments: Vec<String> = arguments
            .iter()
            .map(|argument| argument.to_string())
            .collect();
        let lookup = |name: &str| match name {
            "CNI_COMMAND" => Some(command.to_owned()),
            "CNI_CONTAINERID" | "CNI_NETNS" | "CNI_IFNAME" | "CNI_PATH" => Some("x".to_owned()),
            _ => None,
        };
        invocation(plugin, "v9", &arguments, Variables::new(&lookup), || {
            Ok(stdin.as_bytes().to_vec())
        })
    }

    fn output(plugin: Plugin, arguments: &[&str], command: &str, stdin: &str) -> CommandOutput {
        match run(plugin, arguments, command, stdin).unwrap() {
            Invocation::Print(output) => output,
            other => panic!("{other:?}"),
        }
    }

    fn unreadable() -> io::Result<Vec<u8>> {
        panic!("stdin must not be read")
    }

    #[test]
    fn version_flag_takes_precedence_over_other_flags() {
        for arguments in [&["-v"][..], &["--v"], &["-v=true"], &["-t", "-v"]] {
            assert_eq!(
                output(Plugin::Calico, arguments, "ADD", "").stdout,
                "v9\n",
                "{arguments:?}"
            );
        }
        assert_eq!(
            output(Plugin::CalicoIpam, &["-v", "-upgrade"], "", "").stdout,
            "v9\n"
        );
    }

    #[test]
    fn test_and_upgrade_flags_select_their_own_invocation() {
        assert_eq!(
            run(Plugin::Calico, &["-t"], "", "").unwrap(),
            Invocation::TestConnection
        );
        assert_eq!(
            run(Plugin::CalicoIpam, &["-upgrade"], "", "").unwrap(),
            Invocation::Upgrade
        );
        for (plugin, other) in [(Plugin::Calico, "-upgrade"), (Plugin::CalicoIpam, "-t")] {
            assert_eq!(output(plugin, &[other], "ADD", "").status, 2);
        }
    }

    #[test]
    fn configuration_argument_is_ignored() {
        let call = run(Plugin::Calico, &["{}", "-v"], "ADD", r#"{"name":"n"}"#).unwrap();
        assert!(matches!(call, Invocation::Call(_)));
    }

    #[test]
    fn without_a_command_a_short_help_prints_and_stdin_is_not_read() {
        for (plugin, name) in [
            (Plugin::Calico, "Calico CNI plugin"),
            (Plugin::CalicoIpam, "Calico CNI IPAM"),
        ] {
            let Ok(Invocation::Print(help)) =
                invocation(plugin, "v9", &[], Variables::NONE, unreadable)
            else {
                panic!()
            };
            let supported = "CNI protocol versions supported: 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, \
                             1.0.0, 1.1.0\n";
            assert!(
                help.stderr.starts_with(&format!("{name} v9\n{supported}")),
                "{}",
                help.stderr
            );
            assert!(
                help.stderr
                    .contains("jq '.plugins[0] + {name, cniVersion}'")
            );
            assert!(help.stderr.lines().count() < 20);
            assert_eq!(
                help.stderr.contains("calico-ipam show, trace, check"),
                plugin == Plugin::CalicoIpam
            );
            assert_eq!((help.stdout.as_str(), help.status), ("", 0));
        }
    }

    #[test]
    fn help_flag_of_calico_names_the_help_of_its_commands() {
        let help = output(Plugin::Calico, &["--help"], "", "").stderr;
        assert!(help.starts_with("Usage of Calico:\n  -t\t"), "{help}");
        assert!(
            help.ends_with("calico install; see `calico help`\n"),
            "{help}"
        );
    }

    #[test]
    fn version_command_echoes_the_version_and_never_fails() {
        for (stdin, said) in [
            (r#"{"cniVersion":"1.0.0"}"#, "1.0.0"),
            (r#"{"cniVersion":""}"#, "1.1.0"),
            (r#"{"cniVersion":7}"#, "1.1.0"),
            ("{", "1.1.0"),
            ("", "1.1.0"),
        ] {
            let answer = output(Plugin::Calico, &[], "VERSION", stdin);
            assert!(
                answer
                    .stdout
                    .starts_with(&format!("{{\"cniVersion\":\"{said}\",")),
                "{stdin}"
            );
            assert_eq!((answer.stderr.as_str(), answer.status), ("", 0));
        }
        let lookup = |name: &str| (name == "CNI_COMMAND").then(|| "VERSION".to_owned());
        let broken = invocation(Plugin::Calico, "v9", &[], Variables::new(&lookup), || {
            Err(io::Error::other("broken"))
        });
        assert!(matches!(
            broken,
            Ok(Invocation::Print(CommandOutput { status: 0, .. }))
        ));
    }
}
