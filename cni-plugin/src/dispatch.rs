//! Selects the program to run, by the executable's name, then by the first arguments, then by
//! `CNI_COMMAND`. The accepted command lines include those of upstream's CNI images (INST-3).

/// The arguments after the name of a command.
pub type Options = Vec<String>;

/// The program to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    /// `calico-ipam`, as a plugin or on the command line.
    Ipam,
    /// `calico`, the plugin.
    Plugin,
    /// Installs the plugins on this node.
    Install(Options),
    /// Runs the node agent.
    RefreshToken(Options),
    /// Removes the installed files.
    Uninstall(Options),
    /// Checks the node for problems.
    Doctor(Options),
    /// Queries a health probe.
    Health(Options),
    /// Prints the version.
    Version,
    /// Prints the list of commands.
    Help,
    /// An unknown command, or one that only upstream provides: `calicoctl` or `calico ctl`, and
    /// `uds`, the flex volume driver.
    Unknown,
}

/// Selects the program. `name` is the executable's name without its directory.
#[must_use]
pub fn dispatch(name: &str, words: &[&str], cni_command: Option<&str>) -> Program {
    match name {
        "calico-ipam" => return Program::Ipam,
        "calicoctl" | "uds" => return Program::Unknown,
        "install" => return Program::Install(options(words)),
        _ => {}
    }
    if let Some(program) = named(words) {
        return program;
    }
    let is_called = cni_command.is_some_and(|command| !command.is_empty());
    match words.first().copied().unwrap_or_default() {
        _ if is_called => Program::Plugin,
        "--version" => Program::Version,
        // Also an option such as `-v` or `-t`, and no argument at all, select the plugin.
        word if word.is_empty() || word.starts_with('{') || word.starts_with('-') => {
            Program::Plugin
        }
        _ => Program::Unknown,
    }
}

/// Returns the program that the first words name; `None` if they name none.
fn named(words: &[&str]) -> Option<Program> {
    Some(match words {
        ["ctl", ..] => Program::Unknown,
        ["component", "cni", "plugin", ..] => Program::Plugin,
        ["component", "cni", "ipam", ..] => Program::Ipam,
        ["component", "cni", "install", rest @ ..] | ["install", rest @ ..] => {
            Program::Install(options(rest))
        }
        ["component", "cni", "agent", rest @ ..] | ["refresh-token", rest @ ..] => {
            Program::RefreshToken(options(rest))
        }
        ["component", ..] => Program::Unknown,
        ["health", rest @ ..] => Program::Health(options(rest)),
        ["version", ..] => Program::Version,
        ["help", ..] => Program::Help,
        ["uninstall", rest @ ..] => Program::Uninstall(options(rest)),
        ["doctor", rest @ ..] => Program::Doctor(options(rest)),
        _ => return None,
    })
}

fn options(words: &[&str]) -> Options {
    words.iter().map(|&word| word.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str, cni_command: Option<&str>) -> Program {
        let words: Vec<&str> = line.split(' ').collect();
        let name = words[0].rsplit('/').next().unwrap();
        dispatch(name, &words[1..], cni_command)
    }

    /// The 13 cases of upstream's own test.
    #[test]
    fn program_dispatch_matches_upstreams_cases() {
        let add = Some("ADD");
        for (line, cni_command, expected) in [
            ("calicoctl get nodes", None, Program::Unknown),
            ("calicoctl get nodes", add, Program::Unknown),
            ("calicoctl", None, Program::Unknown),
            (
                "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/nodeagent~uds/uds mount x",
                None,
                Program::Unknown,
            ),
            ("uds", None, Program::Unknown),
            ("uds", add, Program::Unknown),
            ("/opt/cni/bin/calico-ipam", add, Program::Ipam),
            ("/opt/cni/bin/calico", add, Program::Plugin),
            // Upstream prints the help of its subcommands here; this program runs the plugin.
            ("calico", None, Program::Plugin),
            ("calico component felix", add, Program::Unknown),
            (r#"calico {"cniVersion":"1.0.0"}"#, add, Program::Plugin),
            ("calico -t", Some("VERSION"), Program::Plugin),
            (
                "calico health --port=9099",
                None,
                Program::Health(vec!["--port=9099".into()]),
            ),
        ] {
            assert_eq!(of(line, cni_command), expected, "{line} {cni_command:?}");
        }
    }

    #[test]
    fn plugin_flags_select_the_plugin_without_cni_command() {
        for line in [
            "calico -v",
            "calico -t",
            "calico --v=true",
            "calico {}",
            "calico -nonsense",
            "calico --",
        ] {
            assert_eq!(of(line, None), Program::Plugin, "{line}");
            assert_eq!(of(line, Some("")), Program::Plugin, "{line}");
        }
    }

    #[test]
    fn old_and_new_install_command_lines_are_recognized() {
        let install = |words: &[&str]| Program::Install(options(words));
        for (line, expected) in [
            ("/opt/cni/bin/install", install(&[])),
            ("/usr/bin/calico component cni install", install(&[])),
            ("calico install --root /mnt", install(&["--root", "/mnt"])),
            ("calico component cni plugin", Program::Plugin),
            ("calico component cni ipam", Program::Ipam),
            (
                "calico component cni agent",
                Program::RefreshToken(Vec::new()),
            ),
            ("calico refresh-token", Program::RefreshToken(Vec::new())),
            ("calico component kube-controllers", Program::Unknown),
            ("calico show", Program::Unknown),
            ("calico help", Program::Help),
            ("calico --help", Program::Plugin),
            ("calico --version", Program::Version),
        ] {
            assert_eq!(of(line, None), expected, "{line}");
        }
        // A person may have set `CNI_COMMAND` while testing a plugin.
        assert_eq!(of("calico install", Some("ADD")), install(&[]));
    }
}
