//! [`Shell`]: runs the commands of a chapter, one after the other, in one process.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use integration_tests::namespaces::Host;
use integration_tests::plugin::Plugins;
use nix::mount::{MsFlags, mount};

use crate::documents::commands::Chapter;
use crate::documents::treatment::{self, Treatment};

/// Commands whose exit status 1 means that they found something.
const MAY_FIND: [&str; 3] = [
    "/opt/cni/bin/calico doctor",
    "/opt/cni/bin/calico uninstall",
    "kubectl diff",
];

/// A shell in a directory that looks like a checkout with built programs, with a home directory.
#[derive(Debug)]
pub(crate) struct Shell {
    checkout: PathBuf,
    path: String,
}

#[derive(Debug)]
pub(crate) struct Output {
    /// The output of all commands, each after a line `+ command`.
    pub(crate) printed: String,
    pub(crate) count: usize,
}

impl Shell {
    /// Creates a shell on a host, with an empty `/opt`. `tools` are directories for PATH.
    pub(crate) fn at(host: &Host, tools: &[PathBuf]) -> Result<Shell> {
        mount(
            Some("tmpfs"),
            "/opt",
            Some("tmpfs"),
            MsFlags::empty(),
            Some("mode=755"),
        )?;
        let checkout = host.dir("checkout");
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .context("no workspace")?;
        for name in ["tests", "Makefile"] {
            symlink(workspace.join(name), checkout.join(name))?;
        }
        // A copy, because some commands write to it.
        run(
            "cp",
            &[
                "--recursive",
                &workspace.join("deploy").display().to_string(),
                &checkout.display().to_string(),
            ],
        )?;
        fs::create_dir_all(checkout.join("target"))?;
        symlink(Plugins::locate()?.dir(), checkout.join("target/plugin"))?;
        let bin = host.dir("shell-bin");
        fs::write(
            bin.join("sudo"),
            "#!/bin/sh\nexec env -i PATH=\"$PATH\" HOME=\"$HOME\" \"$@\"\n",
        )?;
        run("chmod", &["0755", &bin.join("sudo").display().to_string()])?;
        let own = [bin].into_iter().chain(tools.iter().cloned());
        let own = own
            .map(|directory| directory.display().to_string())
            .collect::<Vec<_>>()
            .join(":");
        let path = format!(
            "{own}:{}:/usr/sbin:/sbin",
            std::env::var("PATH").unwrap_or_default()
        );
        fs::create_dir_all("/etc/cni/net.d")?;
        Ok(Shell { checkout, path })
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.checkout.join("home")
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> Result<()> {
        Ok(fs::write(self.checkout.join(name), text)?)
    }

    /// Runs the commands `before`, and those of the chapter that tests run. `written` replaces
    /// placeholders in a command; a command for which it returns `None` is left out.
    pub(crate) fn run_chapter(
        &self,
        before: &str,
        chapter: &Chapter,
        written: impl Fn(&str) -> Option<String>,
    ) -> Result<Output> {
        let commands: Vec<String> = chapter
            .commands
            .iter()
            .filter(|command| treatment::of(chapter, command) == Treatment::Run)
            .filter_map(|command| written(command))
            .collect();
        let mut script = format!("set -euo pipefail\n{before}\n");
        for command in &commands {
            let shown = command.replace('\'', "'\\''");
            script += &format!("printf '%s\\n' '+ {shown}' >&2\n");
            match MAY_FIND
                .iter()
                .any(|beginning| command.starts_with(beginning))
            {
                true => script += &format!("{{\n{command}\n}} || [ $? -eq 1 ]\n"),
                false => script += &format!("{command}\n"),
            }
        }
        let printed = self
            .run(&script)
            .with_context(|| format!("{}, {}", chapter.document, chapter.heading))?;
        Ok(Output {
            printed,
            count: commands.len(),
        })
    }

    /// Runs a script in the checkout and returns its output.
    pub(crate) fn run(&self, script: &str) -> Result<String> {
        let file = self.checkout.join("chapter.sh");
        fs::write(&file, format!("exec 2>&1\n{script}"))?;
        fs::create_dir_all(self.home())?;
        let output = Command::new("bash")
            .arg(&file)
            .current_dir(&self.checkout)
            .env_clear()
            .env("PATH", &self.path)
            .env("HOME", self.home())
            .stdin(Stdio::null())
            .output()?;
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(output.status.success(), "{}: {printed}", output.status);
        Ok(printed)
    }
}

fn run(program: &str, args: &[&str]) -> Result<String> {
    integration_tests::command::run(program, args)
}
