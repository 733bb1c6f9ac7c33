//! Selects the program to run, by the executable's name, `CNI_COMMAND` and the first arguments. The
//! accepted command lines include those of upstream's CNI images (INST-3).

/// The program to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// `calico-ipam`, as a plugin or on the command line.
    Ipam,
    /// `calico`, the plugin.
    Plugin,
    /// `calicoctl` or `calico ctl`, which only upstream provides.
    Ctl,
    /// `uds`, the flex volume driver, which only upstream provides.
    FlexVolume,
    /// A command for installers and people.
    Command(Command, Words),
}

/// The number of first arguments that form the command's name.
pub type Words = usize;

/// A command for installers and people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Installs the plugins on this node.
    Install,
    /// Runs the node agent.
    RefreshToken,
    /// Removes the installed files.
    Uninstall,
    /// Checks the node for problems.
    Doctor,
    /// Queries a health probe.
    Health,
    /// Prints the version.
    Version,
    /// Prints the list of commands.
    Help,
    /// An unknown command.
    Unknown,
}

/// Selects the program. `name` is the executable's name without its directory; `words` are the
/// arguments.
#[must_use]
pub fn dispatch(name: &str, words: &[&str], cni_command: Option<&str>) -> Program {
    match name {
        "calico-ipam" => return Program::Ipam,
        "calicoctl" => return Program::Ctl,
        "uds" => return Program::FlexVolume,
        "install" => return Program::Command(Command::Install, 0),
        _ => {}
    }
    let first = words.first().copied().unwrap_or_default();
    let is_called = cni_command.is_some_and(|command| !command.is_empty());
    if let Some(program) = command(words) {
        return program;
    }
    match first {
        _ if is_called => Program::Plugin,
        "--version" => Program::Command(Command::Version, 1),
        // Also an option such as `-v` or `-t`, and no argument at all, select the plugin.
        word if word.is_empty() || word.starts_with('{') || word.starts_with('-') => {
            Program::Plugin
        }
        _ => Program::Command(Command::Unknown, 0),
    }
}

fn command(words: &[&str]) -> Option<Program> {
    let (command, count) = match words {
        ["ctl", ..] => return Some(Program::Ctl),
        ["component", "cni", "plugin", ..] => return Some(Program::Plugin),
        ["component", "cni", "ipam", ..] => return Some(Program::Ipam),
        ["component", "cni", "install", ..] => (Command::Install, 3),
        ["component", "cni", "agent", ..] => (Command::RefreshToken, 3),
        ["component", ..] => (Command::Unknown, 0),
        ["health", ..] => (Command::Health, 1),
        ["version", ..] => (Command::Version, 1),
        ["help", ..] => (Command::Help, 1),
        ["install", ..] => (Command::Install, 1),
        ["refresh-token", ..] => (Command::RefreshToken, 1),
        ["uninstall", ..] => (Command::Uninstall, 1),
        ["doctor", ..] => (Command::Doctor, 1),
        _ => return None,
    };
    Some(Program::Command(command, count))
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
        let unknown = Program::Command(Command::Unknown, 0);
        for (line, cni_command, expected) in [
            ("calicoctl get nodes", None, Program::Ctl),
            ("calicoctl get nodes", add, Program::Ctl),
            ("calicoctl", None, Program::Ctl),
            (
                "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/nodeagent~uds/uds mount x",
                None,
                Program::FlexVolume,
            ),
            ("uds", None, Program::FlexVolume),
            ("uds", add, Program::FlexVolume),
            ("/opt/cni/bin/calico-ipam", add, Program::Ipam),
            ("/opt/cni/bin/calico", add, Program::Plugin),
            // Upstream prints the help of its subcommands here; this program runs the plugin.
            ("calico", None, Program::Plugin),
            ("calico component felix", add, unknown),
            (r#"calico {"cniVersion":"1.0.0"}"#, add, Program::Plugin),
            ("calico -t", Some("VERSION"), Program::Plugin),
            (
                "calico health --port=9099",
                None,
                Program::Command(Command::Health, 1),
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
        let install = |words| Program::Command(Command::Install, words);
        for (line, expected) in [
            ("/opt/cni/bin/install", install(0)),
            ("/usr/bin/calico component cni install", install(3)),
            ("calico install --root /mnt", install(1)),
            ("calico component cni plugin", Program::Plugin),
            ("calico component cni ipam", Program::Ipam),
            (
                "calico component cni agent",
                Program::Command(Command::RefreshToken, 3),
            ),
            (
                "calico refresh-token",
                Program::Command(Command::RefreshToken, 1),
            ),
            (
                "calico component kube-controllers",
                Program::Command(Command::Unknown, 0),
            ),
            ("calico show", Program::Command(Command::Unknown, 0)),
            ("calico help", Program::Command(Command::Help, 1)),
            ("calico --help", Program::Plugin),
            ("calico --version", Program::Command(Command::Version, 1)),
        ] {
            assert_eq!(of(line, None), expected, "{line}");
        }
        // A person may have set `CNI_COMMAND` while testing a plugin.
        assert_eq!(of("calico install", Some("ADD")), install(1));
    }
}
