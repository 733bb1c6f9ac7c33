//! The commands for installers and people, and the help of all commands.

mod arguments;
mod doctor;
mod health;
mod installation;
mod uninstall;

use std::io::{self, Write};
use std::process::ExitCode;

use node_process::process::build_version;

use self::arguments::print;
pub use self::doctor::doctor;
pub use self::health::health;
pub use self::installation::{install, refresh_token};
pub use self::uninstall::uninstall;

const COMMANDS: &str = "\
calico is Calico's CNI plugin and its installer.

Commands:
  calico install        install the plugins, their credentials and their configuration on this node
  calico refresh-token  renew the plugins' token, and restore the installed files
  calico uninstall      remove the installed files; without --yes, only print the plan
  calico doctor         find problems on this node and their remedies
  calico health         query a health probe
  calico version        print the version of the build
  calico -t             test the connection to the datastore of the configuration on stdin
  calico -v             print the version
  calico help           print this text

Each command describes its options with --help, such as `calico install --help`. calico-ipam, the same program under
another name, manages addresses: see calico-ipam --help. Container runtimes run both with CNI_COMMAND set.
";

/// Prints the list of all commands.
pub fn help() -> ExitCode {
    print(COMMANDS);
    ExitCode::SUCCESS
}

/// Prints the same three lines as upstream's `calico version`. The date and the commit are unknown
/// unless the build sets them, so that builds are reproducible.
pub fn version() -> ExitCode {
    let version = build_version();
    let date = option_env!("CALICO_BUILD_DATE").unwrap_or("unknown");
    let commit = option_env!("CALICO_GIT_COMMIT").unwrap_or("unknown");
    print(&format!(
        "Version:            {version}\nBuild date:         {date}\nGit commit:         {commit}\n"
    ));
    ExitCode::SUCCESS
}

/// Reports an unknown command with a hint, such as the program that may have this command.
pub fn refuse(name: &str, words: &[&str]) -> ExitCode {
    let _ = io::stderr().write_all(refusal(name, words).as_bytes());
    ExitCode::FAILURE
}

fn refusal(name: &str, words: &[&str]) -> String {
    let line = [&[name], words].concat().join(" ");
    let hint = match (name, words) {
        ("calicoctl", _) | (_, ["ctl", ..]) => {
            "use upstream's calicoctl, or `calico-ipam --help` for addresses and pools"
        }
        ("uds", _) => "use upstream's flex volume driver",
        (_, ["component", "kube-controllers", ..]) => {
            "this command is in the image of kube-controllers"
        }
        _ => "see `calico help`",
    };
    format!("{line}: unknown command; {hint}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_command_is_rejected_with_a_hint() {
        for (name, words, expected) in [
            (
                "calico",
                &["show"][..],
                "calico show: unknown command; see `calico help`\n",
            ),
            ("calicoctl", &["get"], "calico-ipam --help"),
            ("calico", &["ctl"], "calico-ipam --help"),
            (
                "calico",
                &["component", "kube-controllers"],
                "image of kube-controllers",
            ),
        ] {
            assert!(refusal(name, words).contains(expected), "{name} {words:?}");
        }
    }
}
