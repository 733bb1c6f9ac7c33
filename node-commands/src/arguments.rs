//! Arguments of the commands, parsed by clap as those of `calico-ipam`. Go's `-name` is accepted,
//! too, and the texts of errors are one line.

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::NonEmptyStringValueParser;
use clap::error::{ContextKind, ErrorKind};
use clap::{Args, Parser};
use netconf::printable;

use installation::layout::Layout;

/// `--root`, and the plugin directories on the node.
#[derive(Debug, Args)]
pub(super) struct LayoutArgs {
    #[arg(long, default_value = "/")]
    root: PathBuf,
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    bin_dir: Option<String>,
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    secondary_bin_dir: Option<String>,
}

impl LayoutArgs {
    pub(super) fn layout(&self) -> Layout {
        let mut layout = Layout::below(&self.root);
        if let Some(directory) = &self.bin_dir {
            layout = layout.with_bin_dir(directory);
        }
        if let Some(directory) = &self.secondary_bin_dir {
            layout = layout.with_secondary_bin_dir(directory);
        }
        layout
    }
}

/// Runs `command` with its arguments, or prints its help or the error about an argument.
pub(super) fn run_with<A: Parser>(
    arguments: impl IntoIterator<Item = String>,
    command: impl FnOnce(A) -> ExitCode,
) -> ExitCode {
    match parse(arguments) {
        Ok(arguments) => command(arguments),
        Err(error) if error.kind() == ErrorKind::DisplayHelp => {
            print(&error.to_string());
            ExitCode::SUCCESS
        }
        Err(error) => {
            let (name, reason) = (A::command().get_name().to_owned(), reason(&error));
            exit_with(
                2,
                &format!("calico {name}: {reason}; see `calico {name} --help`"),
            )
        }
    }
}

pub(super) fn parse<A: Parser>(
    arguments: impl IntoIterator<Item = String>,
) -> Result<A, clap::Error> {
    let arguments = arguments.into_iter().map(with_two_dashes);
    A::try_parse_from(std::iter::once("calico".to_owned()).chain(arguments))
}

/// Turns Go's `-name` into `--name`. Options of one letter stay.
fn with_two_dashes(argument: String) -> String {
    let name = argument.split('=').next().unwrap_or_default();
    let is_long = name.len() > 2 && name.starts_with('-') && !name.starts_with("--");
    if is_long {
        format!("-{argument}")
    } else {
        argument
    }
}

/// Returns the reason why clap rejects the arguments.
fn reason(error: &clap::Error) -> String {
    let context = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    let (argument, value) = (
        context(ContextKind::InvalidArg),
        context(ContextKind::InvalidValue),
    );
    // In `--root <ROOT>`, the name of the value follows that of the option.
    let option = argument.split(' ').next().unwrap_or_default();
    match (error.kind(), error.source()) {
        (ErrorKind::UnknownArgument, _) => format!("unknown argument `{argument}`"),
        (ErrorKind::TooManyValues, _) => format!("unknown argument `{option}={value}`"),
        (ErrorKind::ValueValidation, Some(way_out)) if !value.is_empty() => {
            let name = option.trim_start_matches('-');
            format!("invalid {name} `{value}`; {way_out}")
        }
        _ => format!("`{option}` needs a value"),
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
    use std::path::Path;

    use super::*;

    #[derive(Debug, Parser)]
    #[command(name = "test", override_help = "Tests.\n", args_override_self = true)]
    struct TestArgs {
        #[arg(short, long, alias = "o", value_parser = json)]
        output: Option<()>,
        #[command(flatten)]
        layout: LayoutArgs,
        #[arg(long)]
        yes: bool,
    }

    fn json(text: &str) -> Result<(), &'static str> {
        (text == "json").then_some(()).ok_or("use json")
    }

    fn parse_line(line: &str) -> Result<TestArgs, clap::Error> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_accept_both_spellings_and_switches() {
        for line in [
            "--yes -o json --root=/mnt --root /other --bin-dir /bin",
            "-yes -output json -root=/mnt -root /other -bin-dir=/bin",
            "--yes --o=json --root /other -bin-dir /bin",
        ] {
            let given = parse_line(line).unwrap();
            assert!(given.yes && given.output.is_some(), "{line}");
            assert_eq!(given.layout.root, Path::new("/other"));
            assert_eq!(given.layout.bin_dir.as_deref(), Some("/bin"));
        }
        let nothing = parse_line("").unwrap();
        assert!(!nothing.yes && nothing.output.is_none());
        assert_eq!(nothing.layout.root, Path::new("/"));
    }

    #[test]
    fn help_is_recognized_and_invalid_arguments_rejected() {
        for line in ["--yes --help", "-h", "-help"] {
            let help = parse_line(line).unwrap_err();
            assert_eq!(
                (help.kind(), help.to_string().as_str()),
                (ErrorKind::DisplayHelp, "Tests.\n"),
                "{line}"
            );
        }
        for (line, complaint) in [
            ("now", "unknown argument `now`"),
            ("--no", "unknown argument `--no`"),
            ("-x", "unknown argument `-x`"),
            ("--yes=no", "unknown argument `--yes=no`"),
            ("-o", "`--output` needs a value"),
            ("--output=", "`--output` needs a value"),
            ("--root=", "`--root` needs a value"),
            ("--bin-dir=", "`--bin-dir` needs a value"),
            ("-o xml", "invalid output `xml`; use json"),
        ] {
            assert_eq!(reason(&parse_line(line).unwrap_err()), complaint, "{line}");
        }
    }
}
