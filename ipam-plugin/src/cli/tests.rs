//! Tests of the whole command line.

use clap::{CommandFactory, Parser};
use serde_json::json;

use super::error::CliError;
use super::testing::Shell;
use super::{Arguments, LEADING_OPTIONS, is_command_line_argument};

fn parse(line: &[&str]) -> Result<Arguments, clap::Error> {
    Arguments::try_parse_from(std::iter::once(&"calico-ipam").chain(line))
}

#[test]
fn clap_definition_passes_its_debug_assertions() {
    Arguments::command().debug_assert();
}

#[test]
fn help_of_every_command_has_examples() {
    for command in Arguments::command().get_subcommands() {
        let help = command
            .get_after_help()
            .map(ToString::to_string)
            .unwrap_or_default();
        let example = format!("calico-ipam {}", command.get_name());
        assert!(
            help.starts_with("Examples:\n") && help.contains(&example),
            "{}: {help}",
            command.get_name()
        );
    }
}

#[test]
fn help_of_every_command_names_its_exit_status() {
    for command in Arguments::command().get_subcommands_mut() {
        let help = command.render_long_help().to_string();
        assert!(
            help.contains("Exit status"),
            "{}: {help}",
            command.get_name()
        );
    }
}

#[test]
fn every_verb_that_reports_prints_json_and_yaml() {
    for format in ["json", "yaml"] {
        let shell = Shell::with_pool();
        let address = shell.allocate("a");
        shell.endpoint("a", &address);
        let reservation = json!({
            "apiVersion": "projectcalico.org/v3", "kind": "IPReservation",
            "metadata": {"name": "r"}, "spec": {},
        });
        let manifest = shell.file("reservation.json", &reservation.to_string());
        let information = shell.ok(&["get", "clusterinformation", "default", "-o", "json"]);
        let lock = shell.file("lock.json", &information.replace("true", "false"));
        let backup = shell.dir.path().join(format!("backup-{format}"));
        let backup = backup.to_str().unwrap();
        for line in [
            &["show"][..],
            &["show", "--show-blocks"],
            &["show", "--show-borrowed"],
            &["show", "--show-configuration"],
            &["show", "--ip", &address],
            &["usage"],
            &["check", "--settle", "0"],
            &["release", "--dry-run", &address],
            &["apply", "-f", &manifest],
            &["get", "ippools"],
            &["delete", "ipreservation", "r"],
            &["endpoints"],
            &["configure", "--ip-cooldown-seconds", "30"],
            &["export", backup],
            &["import", backup],
            &["apply", "-f", &lock],
            &["migrate", "lock"],
            &["split", "2", "--name", "default-ipv4-ippool"],
            &["migrate", "unlock"],
        ] {
            let ran = shell.run(&[line, &["-o", format]].concat());
            assert!(ran.outcome.is_ok(), "{line:?}: {ran:?}");
            let document = serde_norway::from_str::<serde_json::Value>(&ran.out);
            assert!(
                document.is_ok_and(|document| document.is_object() || document.is_array()),
                "{line:?}: {ran:?}"
            );
            assert_eq!(
                ran.out.starts_with(['{', '[']),
                format == "json",
                "{line:?}: {ran:?}"
            );
        }
    }
}

/// A tenant can write the annotations of a pod, which become parts of the pod's endpoint.
/// Shows SEC-30.
#[test]
fn command_output_escapes_control_characters_of_stored_objects() {
    const TEXT: &str = "x\nnothing is wrong\r\x1b[2K\u{9b}1A\u{202e}\x7f";
    let shell = Shell::with_pool();
    let address = shell.allocate(TEXT);
    shell.endpoint(TEXT, &address);
    shell.endpoint(&format!("other{TEXT}"), "10.0.0.250");
    shell.put("/calico/ipam/v2/handle/\x1b[2J", "{");
    for line in [
        &["check", "--settle", "0"][..],
        &["endpoints"],
        &["endpoints", "--pod", TEXT],
        &["show", "--ip", &address],
        &["show", "--show-blocks"],
        &["usage"],
        &["show", "--show-borrowed"],
        &["export"],
        &["get", "nodes"],
        &["trace", TEXT, "--node", "node1"],
        &[
            "adopt",
            "--node",
            "node1",
            "--runtime-socket",
            "/nowhere.sock",
        ],
    ] {
        for format in ["table", "json", "yaml"] {
            let ran = shell.run(&[line, &["-o", format]].concat());
            let said = format!("{}{}", ran.out, ran.notices);
            assert!(
                !said.contains(|c: char| c.is_control() && c != '\n'),
                "{line:?} {format}: {said:?}"
            );
            let forged = said.lines().any(|line| line == "nothing is wrong");
            assert!(!forged, "{line:?} {format}: {said}");
        }
    }
}

#[test]
fn own_commands_are_distinguished_from_plugin_flags() {
    for first in [
        "show",
        "help",
        "shwo",
        "-h",
        "--help",
        "-o",
        "-ojson",
        "--output=json",
        "--datastore-type=local",
    ] {
        assert!(is_command_line_argument(first), "{first}");
    }
    for first in [
        "-v",
        "--v",
        "-v=true",
        "-upgrade",
        "-t",
        "-x",
        "{\"name\":\"n\"}",
        "",
        "--",
        "-",
    ] {
        assert!(!is_command_line_argument(first), "{first}");
    }
}

#[test]
fn every_global_option_is_a_leading_option() {
    for option in Arguments::command().get_arguments() {
        let long = format!("--{}", option.get_long().unwrap());
        assert!(LEADING_OPTIONS.contains(&long.as_str()), "{long}");
    }
}

#[test]
fn invalid_command_lines_exit_with_status_2() {
    for line in [
        &["shwo"][..],
        &[],
        &["show", "--ip", "ten"],
        &["show", "--ip", "10.0.0.1", "--show-blocks"],
        &["show", "--show-borrowed", "--show-blocks"],
        &["show", "--show-configuration", "--ip", "10.0.0.1"],
        &["split", "-2", "--name", "p"],
        &["split", "2", "--name", "p", "--cidr", "10.0.0.0/24"],
        &["split", "2", "--cidr", "10.0.0.0"],
        &["configure", "--strictaffinity", "perhaps"],
        &["endpoints", "-A", "-n", "default"],
        &["show", "-o", "xml"],
        &["usage", "--by", "pod"],
        &["usage", "--node", "node1", "--by", "node"],
        &["release"],
        &["release", "10.0.0.1", "--from-report", "f"],
        &["release", "10.0.0.1", "--require-lock"],
        &["release", "--from-report", "f", "--report-version", "v1"],
        &["check", "--report-version", "v1"],
        &["get"],
        &["get", "felixconfigurations"],
        &["delete", "node"],
        &["apply"],
        &["import"],
        &["migrate"],
        &["migrate", "import"],
        &["migrate", "lock", "now"],
        &["completions", "powershell"],
        &[
            "show",
            "--datastore-path",
            "f",
            "--etcd-endpoints",
            "http://e:2379",
        ],
    ] {
        assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line:?}");
    }
    assert!(parse(&["shwo"]).unwrap_err().to_string().contains("'show'"));
    assert!(
        parse(&["get", "wep"])
            .unwrap_err()
            .to_string()
            .contains("calico-ipam endpoints")
    );
}

#[test]
fn options_are_accepted_before_and_after_the_command() {
    for line in [
        &["-o", "json", "show"][..],
        &["show", "-ojson"],
        &["show", "--output=json"],
    ] {
        assert_eq!(parse(line).unwrap().output, super::documents::Format::Json);
    }
    let report = parse(&["check", "--json", "report"]).unwrap();
    assert!(format!("{report:?}").contains("report: Some(\"report\")"));
}

#[test]
fn completions_list_the_commands() {
    let shell = Shell::new();
    for (name, sign) in [
        ("bash", "complete -F"),
        ("zsh", "#compdef calico-ipam"),
        ("fish", "complete -c calico-ipam"),
    ] {
        let script = shell.ok(&["completions", name]);
        assert!(
            script.contains(sign) && script.contains("show-blocks"),
            "{name}"
        );
        let missing = Arguments::command()
            .get_subcommands()
            .find(|command| !script.contains(command.get_name()))
            .cloned();
        assert!(missing.is_none(), "{name}: {missing:?}");
    }
}

#[test]
fn closed_output_pipe_is_recognized() {
    let broken = || std::io::Error::from(std::io::ErrorKind::BrokenPipe);
    assert!(CliError::Output(broken()).is_closed_pipe());
    assert!(CliError::Transfer(broken().into()).is_closed_pipe());
    assert!(CliError::Output(serde_json::Error::io(broken()).into()).is_closed_pipe());
    assert!(!CliError::Output(std::io::ErrorKind::StorageFull.into()).is_closed_pipe());
}
