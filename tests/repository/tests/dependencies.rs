//! Rules of the dependency tree: those of `deny.toml`, and dependencies that some crates must not
//! have.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use repository::installed::{arch, built, built_programs};
use repository::skip::skipped;
use repository::workspace;
use serde_json::json;

/// The address of RustSec's database in cargo-deny's default configuration.
const ADVISORIES: &str = "https://github.com/RustSec/advisory-db";

fn cargo(args: &[&str]) -> Result<String> {
    let output = Command::new(env!("CARGO"))
        .current_dir(workspace())
        .args(args)
        .output()?;
    ensure!(
        output.status.success(),
        "cargo {}: {}",
        args.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}

/// Returns the cargo-deny that `tests/install-cargo-deny.sh` installed, or `None` after marking the
/// test as skipped.
fn cargo_deny() -> Result<Option<PathBuf>> {
    let script = fs::read_to_string(workspace().join("tests/install-cargo-deny.sh"))?;
    let version = script
        .lines()
        .find_map(|line| line.strip_prefix("VERSION="))
        .context("the script has no version")?;
    let program = built_programs()?.join(format!("cargo-deny-{version}/bin/cargo-deny"));
    if !program.is_file() {
        skipped("there is no cargo-deny: run tests/install-cargo-deny.sh");
        return Ok(None);
    }
    Ok(Some(program))
}

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[test]
fn dependencies_follow_the_rules_of_deny_toml() -> Result<()> {
    let Some(program) = cargo_deny()? else {
        return Ok(());
    };
    // An entry of deny.toml without effect is an error too.
    let idle = [
        "unnecessary-skip",
        "unmatched-skip",
        "license-not-encountered",
    ]
    .map(|lint| ["-D", lint])
    .concat();
    let output = Command::new(program)
        .current_dir(workspace())
        .arg("check")
        .args(idle)
        .args(["bans", "licenses", "sources"])
        .output()?;
    ensure!(
        output.status.success(),
        "cargo-deny failed:\n{}",
        text(&output)
    );
    Ok(())
}

/// Git replaces the address of RustSec's database by the path of a local one.
#[test]
fn advisory_of_a_planted_database_is_reported() -> Result<()> {
    let Some(program) = cargo_deny()? else {
        return Ok(());
    };
    let planted = tempfile::tempdir()?;
    let database = planted.path().join("database");
    let advisory = r#"```toml
[advisory]
id = "RUSTSEC-2025-9999"
package = "serde"
date = "2025-01-01"

[versions]
patched = []
```

# A planted advisory

Every version is affected.
"#;
    fs::create_dir_all(database.join("crates/serde"))?;
    fs::write(database.join("crates/serde/RUSTSEC-2025-9999.md"), advisory)?;
    let git = |args: &[&str]| -> Result<()> {
        let output = Command::new("git")
            .current_dir(&database)
            .args(args)
            .output()?;
        ensure!(output.status.success(), "git {args:?}: {}", text(&output));
        Ok(())
    };
    git(&["init", "-q", "-b", "main"])?;
    git(&["add", "."])?;
    git(&[
        "-c",
        "user.name=test",
        "-c",
        "user.email=test@localhost",
        "commit",
        "-qm",
        "One advisory",
    ])?;

    let config = planted.path().join("deny.toml");
    let clone = planted.path().join("clone");
    fs::write(
        &config,
        format!("[advisories]\ndb-path = {clone:?}\ngit-fetch-with-cli = true\n"),
    )?;
    let output = Command::new(program)
        .current_dir(workspace())
        .arg("--config")
        .arg(&config)
        .args(["check", "advisories"])
        .env("GIT_CONFIG_COUNT", "1")
        .env(
            "GIT_CONFIG_KEY_0",
            format!("url.file://{}.insteadOf", database.display()),
        )
        .env("GIT_CONFIG_VALUE_0", ADVISORIES)
        .output()?;
    ensure!(
        !output.status.success() && text(&output).contains("RUSTSEC-2025-9999"),
        "{}",
        text(&output)
    );
    Ok(())
}

#[test]
fn go_advisory_of_a_planted_database_fails_the_audit_of_affected_versions() -> Result<()> {
    let script = |name: &str| workspace().join("tests").join(name);
    let output = Command::new(script("install-go-tools.sh"))
        .args(["--place", &format!("cni-plugins-{}", arch())])
        .output()?;
    let portmap = PathBuf::from(String::from_utf8(output.stdout)?.trim()).join("portmap");
    if !portmap.is_file() || built("govulncheck").is_err() {
        skipped("there is no govulncheck or no portmap: run tests/install-go-tools.sh");
        return Ok(());
    }
    let planted = tempfile::tempdir()?;
    let mut audit = Command::new(script("audit-go.sh"));
    audit.arg(&portmap).env(
        "GO_ADVISORIES",
        format!("file://{}", planted.path().display()),
    );
    for (fixed, is_affected) in [("99.0.0", true), ("1.0.0", false)] {
        let module = "github.com/containernetworking/plugins";
        let advisory = json!({
            "schema_version": "1.3.1", "id": "GO-2025-9999", "summary": "A planted advisory",
            "details": "Planted.",
            "database_specific": { "url": "https://pkg.go.dev/vuln/GO-2025-9999" },
            "published": "2025-01-01T00:00:00Z", "modified": "2025-01-01T00:00:00Z",
            "affected": [{
                "package": { "name": module, "ecosystem": "Go" },
                "ranges": [{
                    "type": "SEMVER", "events": [{ "introduced": "0" }, { "fixed": fixed }],
                }],
                "ecosystem_specific": {
                    "imports": [{ "path": format!("{module}/pkg/ns"), "symbols": ["GetNS"] }]
                },
            }],
        });
        fs::write(
            planted.path().join("GO-2025-9999.json"),
            advisory.to_string(),
        )?;
        let output = audit.output()?;
        let is_named = text(&output).contains("GO-2025-9999");
        ensure!(
            (output.status.success(), is_named) == (!is_affected, is_affected),
            "{fixed}: {}",
            text(&output)
        );
    }
    Ok(())
}

/// Returns the names of the crates that `package` contains, with dashes.
fn dependencies(package: &str) -> Result<Vec<String>> {
    let tree = cargo(&[
        "tree",
        "--package",
        package,
        "--edges=normal",
        "--prefix=none",
        "--format={lib}",
    ])?;
    let names: Vec<String> = tree.lines().map(|name| name.replace('_', "-")).collect();
    ensure!(
        names.iter().any(|name| name == "serde-json"),
        "{package}: {tree}"
    );
    Ok(names)
}

#[test]
fn pure_crates_have_no_io_dependencies() -> Result<()> {
    const IO: [&str; 12] = [
        "datastore",
        "etcd-client",
        "hyper",
        "kube",
        "libsqlite3-sys",
        "netlink-sys",
        "nix",
        "rtnetlink",
        "rusqlite",
        "rustls",
        "socket2",
        "tokio",
    ];
    for name in ["netconf", "libcalico"] {
        for dependency in dependencies(name)? {
            ensure!(
                !IO.contains(&dependency.as_str()),
                "{name} depends on {dependency}"
            );
        }
    }
    Ok(())
}

/// The embedded datastore is a file, which has no use in a Deployment.
#[test]
fn controllers_do_not_depend_on_the_embedded_datastore() -> Result<()> {
    for dependency in dependencies("kube-controllers-program")? {
        ensure!(
            dependency != "rusqlite" && dependency != "libsqlite3-sys",
            "kube-controllers depends on {dependency}"
        );
    }
    Ok(())
}

/// Garbage collection and the controllers work without the migration, which only the program adds.
#[test]
fn migration_is_a_dependency_of_the_program_alone() -> Result<()> {
    for (package, is_expected) in [
        ("kube-controllers", false),
        ("kube-controllers-program", true),
    ] {
        let depends = dependencies(package)?.contains(&"migration".to_owned());
        ensure!(depends == is_expected, "{package}: {depends}");
    }
    Ok(())
}

/// A plugin process runs for milliseconds, so it contains no crates of the controllers. The metrics
/// of the node's agent, which the same file contains, need `prometheus`.
#[test]
fn plugin_does_not_depend_on_crates_of_the_controllers() -> Result<()> {
    const LASTING: [&str; 5] = [
        "kube-controllers",
        "kube-runtime",
        "migration",
        "pprof",
        "procfs",
    ];
    for dependency in dependencies("cni-plugin")? {
        ensure!(
            !LASTING.contains(&dependency.as_str()),
            "the plugin depends on {dependency}"
        );
    }
    Ok(())
}

#[test]
fn installer_agent_and_doctor_do_not_depend_on_each_other() -> Result<()> {
    const APART: [&str; 3] = ["installer", "node-agent", "doctor"];
    for name in APART {
        let ours = dependencies(name)?;
        let others: Vec<_> = APART
            .iter()
            .filter(|other| **other != name && ours.iter().any(|found| found == *other))
            .collect();
        ensure!(others.is_empty(), "{name} depends on {others:?}");
    }
    Ok(())
}

/// The crate `os` handles files and processes of any node, and so needs no type of Calico or CNI.
#[test]
fn os_depends_on_no_crate_of_the_workspace() -> Result<()> {
    let tree = cargo(&[
        "tree",
        "--package",
        "os",
        "--edges=normal",
        "--prefix=none",
        "--format={p}",
    ])?;
    let ours: Vec<&str> = tree.lines().filter(|line| line.contains("(/")).collect();
    ensure!(ours.len() == 1, "{ours:?}");
    Ok(())
}
