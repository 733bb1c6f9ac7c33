//! `completions`: prints scripts for command completion in shells.

use std::io::Write;

use clap::{Args, Command, ValueEnum};
use clap_complete::{Generator, shells};

use super::app::CommandOutcome;
use super::error::CliError;

/// Print a completion script for a shell
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  calico-ipam completions bash >/etc/bash_completion.d/calico-ipam
  source <(calico-ipam completions zsh)
  calico-ipam completions fish >~/.config/fish/completions/calico-ipam.fish")]
pub(super) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

pub(super) fn run(args: &CompletionsArgs, command: Command, out: &mut dyn Write) -> Result<CommandOutcome, CliError> {
    match args.shell {
        Shell::Bash => generate(shells::Bash, command, out),
        Shell::Zsh => generate(shells::Zsh, command, out),
        Shell::Fish => generate(shells::Fish, command, out),
    }
}

fn generate(shell: impl Generator, mut command: Command, out: &mut dyn Write) -> Result<CommandOutcome, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "calico-ipam", &mut script);
    out.write_all(&script).map_err(CliError::Output)?;
    Ok(CommandOutcome::Fine)
}
