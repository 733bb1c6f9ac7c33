//! Tests of the whole command line.

use clap::{CommandFactory, Parser};

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
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let example = format!("calico-ipam {}", command.get_name());
        assert!(help.starts_with("Examples:\n") && help.contains(&example), "{}: {help}", command.get_name());
    }
}

/// A tenant can write the annotations of a pod, which become parts of the pod's endpoint.
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
        &["export"],
        &["get", "nodes"],
        &["trace", TEXT, "--node", "node1"],
        &["adopt", "--node", "node1", "--runtime-socket", "/nowhere.sock"],
    ] {
        for format in ["table", "json", "yaml"] {
            let ran = shell.run(&[line, &["-o", format]].concat());
            let said = format!("{}{}", ran.out, ran.notices);
            assert!(!said.contains(|c: char| c.is_control() && c != '\n'), "{line:?} {format}: {said:?}");
            let forged = said.lines().any(|line| line == "nothing is wrong");
            assert!(!forged, "{line:?} {format}: {said}");
        }
    }
}

#[test]
fn own_commands_are_distinguished_from_plugin_flags() {
    for first in ["show", "help", "shwo", "-h", "--help", "-o", "-ojson", "--output=json", "--datastore-type=local"] {
        assert!(is_command_line_argument(first), "{first}");
    }
    for first in ["-v", "--v", "-v=true", "-upgrade", "-t", "-x", "{\"name\":\"n\"}", "", "--", "-"] {
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
        &["show", "-o", "xml"],
        &["release"],
        &["release", "10.0.0.1", "--from-report", "f"],
        &["get"],
        &["get", "felixconfigurations"],
        &["delete", "node"],
        &["apply"],
        &["import"],
        &["completions", "powershell"],
        &["show", "--datastore-path", "f", "--etcd-endpoints", "http://e:2379"],
    ] {
        assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line:?}");
    }
    assert!(parse(&["shwo"]).unwrap_err().to_string().contains("'show'"));
    assert!(parse(&["get", "wep"]).unwrap_err().to_string().contains("calico-ipam endpoints"));
}

#[test]
fn options_are_accepted_before_and_after_the_command() {
    for line in [&["-o", "json", "show"][..], &["show", "-ojson"], &["show", "--output=json"]] {
        assert_eq!(parse(line).unwrap().output, super::documents::Format::Json);
    }
    let report = parse(&["check", "--json", "report"]).unwrap();
    assert!(format!("{report:?}").contains("json_report: Some(\"report\")"));
}

#[test]
fn completions_list_the_commands() {
    let shell = Shell::new();
    for (name, sign) in [("bash", "complete -F"), ("zsh", "#compdef calico-ipam"), ("fish", "complete -c calico-ipam")]
    {
        let script = shell.ok(&["completions", name]);
        assert!(script.contains(sign) && script.contains("show-blocks"), "{name}");
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
