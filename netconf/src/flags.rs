//! Parses command-line flags as Go's `flag` package does, because callers of upstream rely on it
//! (CNI-7).

use libcalico::api::go_bool;

pub(crate) struct Flag {
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
}

/// The texts that a process prints, and its exit status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandOutput {
    /// Text for stdout.
    pub stdout: String,
    /// Text for stderr.
    pub stderr: String,
    /// The exit status.
    pub status: i32,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Flags {
    Set(Vec<&'static str>),
    /// The usage text, or an error about the command line, to print before the process exits.
    Print(CommandOutput),
}

/// Parses `arguments` up to the first that is not a flag. The last value of a repeated flag
/// applies.
pub(crate) fn parse(title: &str, defined: &[Flag], arguments: &[String]) -> Flags {
    let mut set = Vec::new();
    for argument in arguments {
        let Some(text) = argument
            .strip_prefix('-')
            .filter(|text| !["", "-"].contains(text))
        else {
            break;
        };
        let text = text.strip_prefix('-').unwrap_or(text);
        let (name, value) = text
            .split_once('=')
            .map_or((text, None), |(name, value)| (name, Some(value)));
        if name.is_empty() || name.starts_with('-') {
            return usage_error(title, defined, &format!("bad flag syntax: {argument}"));
        }
        match defined.iter().find(|flag| flag.name == name) {
            None if name == "h" || name == "help" => {
                let stderr = format_usage(title, defined);
                return Flags::Print(CommandOutput {
                    stderr,
                    ..CommandOutput::default()
                });
            }
            None => {
                return usage_error(
                    title,
                    defined,
                    &format!("flag provided but not defined: -{name}"),
                );
            }
            Some(flag) => match value.map_or(Some(true), go_bool) {
                Some(true) => set.push(flag.name),
                Some(false) => set.retain(|&on| on != flag.name),
                None => {
                    let value = value.unwrap_or_default();
                    let message =
                        format!("invalid boolean value {value:?} for -{name}: parse error");
                    return usage_error(title, defined, &message);
                }
            },
        }
    }
    Flags::Set(set)
}

pub(crate) fn format_usage(title: &str, defined: &[Flag]) -> String {
    let flags = defined
        .iter()
        .map(|flag| format!("  -{}\t{}\n", flag.name, flag.help));
    format!("Usage of {title}:\n{}", flags.collect::<String>())
}

fn usage_error(title: &str, defined: &[Flag], message: &str) -> Flags {
    let stderr = format!("{message}\n{}", format_usage(title, defined));
    Flags::Print(CommandOutput {
        stderr,
        status: 2,
        ..CommandOutput::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [Flag; 2] = [
        Flag {
            name: "t",
            help: "Test",
        },
        Flag {
            name: "v",
            help: "Version",
        },
    ];
    const USAGE: &str = "Usage of X:\n  -t\tTest\n  -v\tVersion\n";

    fn run(arguments: &[&str]) -> Flags {
        let arguments: Vec<String> = arguments
            .iter()
            .map(|argument| argument.to_string())
            .collect();
        parse("X", &KNOWN, &arguments)
    }

    #[test]
    fn boolean_flags_parse_in_every_spelling() {
        let table: [(&[&str], &[&str]); 9] = [
            (&[], &[]),
            (&["-v"], &["v"]),
            (&["--v", "-t"], &["v", "t"]),
            (&["-v=T"], &["v"]),
            (&["-v=false"], &[]),
            (&["-v", "-v=0"], &[]),
            (&["{}", "-v"], &[]),
            (&["-", "-v"], &[]),
            (&["--", "-v"], &[]),
        ];
        for (arguments, on) in table {
            assert_eq!(run(arguments), Flags::Set(on.to_vec()), "{arguments:?}");
        }
    }

    #[test]
    fn help_flag_prints_to_stderr_with_status_0() {
        for argument in ["-h", "-help", "--help", "--h"] {
            let want = CommandOutput {
                stderr: USAGE.to_owned(),
                ..CommandOutput::default()
            };
            assert_eq!(run(&[argument]), Flags::Print(want), "{argument}");
        }
    }

    #[test]
    fn invalid_flags_exit_with_status_2() {
        let table = [
            ("-x", "flag provided but not defined: -x"),
            ("--version", "flag provided but not defined: -version"),
            ("---v", "bad flag syntax: ---v"),
            ("-=v", "bad flag syntax: -=v"),
            (
                "-v=perhaps",
                "invalid boolean value \"perhaps\" for -v: parse error",
            ),
        ];
        for (argument, message) in table {
            let Flags::Print(printed) = run(&[argument]) else {
                panic!("{argument}")
            };
            assert_eq!(
                printed,
                CommandOutput {
                    stdout: String::new(),
                    stderr: format!("{message}\n{USAGE}"),
                    status: 2
                }
            );
        }
    }
}
