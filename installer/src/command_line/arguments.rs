//! Arguments of the commands: `--name value`, `--name=value` and switches. Parsed by hand, because
//! a parser library would enlarge the binary.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use netconf::printable;

use crate::layout::Layout;

/// The arguments that a command accepts, without their dashes.
#[derive(Debug, Clone, Copy)]
pub(super) struct OptionSpec {
    /// Options with a value. Options of one letter have one dash in the help.
    pub(super) options: &'static [&'static str],
    /// Options without a value.
    pub(super) switches: &'static [&'static str],
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct GivenOptions(Vec<(&'static str, String)>);

#[derive(Debug, PartialEq, Eq)]
pub(super) enum ParsedArguments {
    /// Run the command with these arguments.
    Run(GivenOptions),
    /// Print the help.
    Help,
    Invalid(String),
}

impl OptionSpec {
    pub(super) fn parse(self, arguments: impl IntoIterator<Item = String>) -> ParsedArguments {
        let mut arguments = arguments.into_iter();
        let mut given = GivenOptions::default();
        while let Some(argument) = arguments.next() {
            if matches!(argument.as_str(), "-h" | "-help" | "--help") {
                return ParsedArguments::Help;
            }
            let Some(text) = argument
                .strip_prefix("--")
                .or_else(|| argument.strip_prefix('-'))
            else {
                return ParsedArguments::Invalid(format!("unknown argument `{argument}`"));
            };
            let (name, value) = match text.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (text, None),
            };
            if let (Some(name), None) = (find(self.switches, name), &value) {
                given.0.push((name, String::new()));
            } else if let Some(name) = find(self.options, name) {
                match value
                    .or_else(|| arguments.next())
                    .filter(|value| !value.is_empty())
                {
                    Some(value) => given.0.push((name, value)),
                    None => return ParsedArguments::Invalid(format!("`{argument}` needs a value")),
                }
            } else {
                return ParsedArguments::Invalid(format!("unknown argument `{argument}`"));
            }
        }
        ParsedArguments::Run(given)
    }
}

fn find(options: &[&'static str], name: &str) -> Option<&'static str> {
    options.iter().find(|option| **option == name).copied()
}

impl GivenOptions {
    /// Returns the value of an option: the last one if the option is repeated.
    pub(super) fn value(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .rev()
            .find(|(option, _)| *option == name)
            .map(|(_, value)| value.as_str())
    }

    pub(super) fn is_on(&self, name: &str) -> bool {
        self.value(name).is_some()
    }

    /// Returns the layout below `--root` with the given plugin directories.
    pub(super) fn layout(&self) -> Layout {
        let mut layout = Layout::below(Path::new(self.value("root").unwrap_or("/")));
        if let Some(directory) = self.value("bin-dir") {
            layout = layout.with_bin_dir(directory);
        }
        if let Some(directory) = self.value("secondary-bin-dir") {
            layout = layout.with_secondary_bin_dir(directory);
        }
        layout
    }
}

pub(super) fn run_with(
    name: &str,
    help: &str,
    parsed: ParsedArguments,
    command: impl FnOnce(&GivenOptions) -> ExitCode,
) -> ExitCode {
    match parsed {
        ParsedArguments::Run(given) => command(&given),
        ParsedArguments::Help => {
            print(help);
            ExitCode::SUCCESS
        }
        ParsedArguments::Invalid(reason) => exit_with(
            2,
            &format!("calico {name}: {reason}; see `calico {name} --help`"),
        ),
    }
}

/// Ignores errors, for example if the reader closed the pipe.
pub(super) fn print(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout
        .write_all(printable::lines(text).as_bytes())
        .and_then(|()| stdout.flush());
}

pub(super) fn exit_with(status: u8, line: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "{}", printable::lines(line));
    ExitCode::from(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: OptionSpec = OptionSpec {
        options: &["o", "root"],
        switches: &["yes"],
    };

    fn parse(line: &str) -> ParsedArguments {
        SPEC.parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_accept_both_spellings_and_switches() {
        let ParsedArguments::Run(given) = parse("--yes -o json --root=/mnt --root /other") else {
            panic!()
        };
        assert!(given.is_on("yes"));
        assert_eq!(
            (given.value("o"), given.value("root")),
            (Some("json"), Some("/other"))
        );
        let ParsedArguments::Run(nothing) = parse("") else {
            panic!()
        };
        assert!(!nothing.is_on("yes") && nothing.value("o").is_none());
    }

    #[test]
    fn help_is_recognized_and_invalid_arguments_rejected() {
        assert_eq!(parse("--yes --help"), ParsedArguments::Help);
        for (line, complaint) in [
            ("now", "unknown argument `now`"),
            ("--no", "unknown argument `--no`"),
            ("--yes=no", "unknown argument `--yes=no`"),
            ("-o", "`-o` needs a value"),
            ("--root=", "`--root=` needs a value"),
        ] {
            assert_eq!(
                parse(line),
                ParsedArguments::Invalid(complaint.into()),
                "{line}"
            );
        }
    }
}
