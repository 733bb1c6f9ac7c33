//! Checks that the dependency tree follows the rules of `deny.toml`, and that the pure crates do no I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// The part of `deny.toml` that these tests check.
#[derive(Deserialize)]
struct Rules {
    licenses: Licenses,
    bans: Bans,
}

#[derive(Deserialize)]
struct Licenses {
    allow: Vec<String>,
}

#[derive(Deserialize)]
struct Bans {
    deny: Vec<Entry>,
    skip: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "crate")]
    name: String,
}

/// A crate that is built on Linux, for the programs, for their build or for their tests.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Package {
    name: String,
    version: String,
    /// Source of the crate, if it is not crates.io.
    source: Option<String>,
    licence: String,
}

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package is a folder of the workspace")
}

fn cargo(args: &[&str]) -> Result<String> {
    let output = Command::new(env!("CARGO")).current_dir(workspace()).args(args).output()?;
    ensure!(output.status.success(), "cargo {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

fn rules() -> Result<Rules> {
    Ok(toml::from_str(&std::fs::read_to_string(workspace().join("deny.toml"))?)?)
}

/// Returns the packages that `cargo tree` lists. Unlike `cargo metadata`, it leaves out packages that no enabled
/// feature needs.
fn packages() -> Result<BTreeSet<Package>> {
    let tree = cargo(&[
        "tree",
        "--workspace",
        "--target=x86_64-unknown-linux-musl",
        "--edges=normal,build,dev",
        "--prefix=none",
        "--no-dedupe",
        "--format={p};{l}",
    ])?;
    let lines = tree.lines().filter(|line| !line.is_empty());
    lines.map(|line| package(line).with_context(|| format!("cargo tree printed {line}"))).collect()
}

/// Parses `name v1.2.3 (proc-macro) (source);licence`. The line of a repeated package ends in ` (*)`.
fn package(line: &str) -> Option<Package> {
    let (package, licence) = line.trim_end_matches(" (*)").split_once(';')?;
    let mut words = package.split(' ');
    let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
    let source = words.find(|word| *word != "(proc-macro)").map(str::to_owned);
    Some(Package { name: name.to_owned(), version: version.to_owned(), source, licence: licence.to_owned() })
}

#[test]
fn every_licence_is_allowed() -> Result<()> {
    let allowed = rules()?.licenses.allow.join(" OR ");
    let allowed = spdx::Expression::parse(&allowed)?;
    let allowed: Vec<_> = allowed.requirements().map(|requirement| &requirement.req).collect();
    for package in packages()? {
        let Package { name, licence, .. } = &package;
        let expression = spdx::Expression::parse_mode(licence, spdx::ParseMode::LAX)
            .with_context(|| format!("{name} has the licence {licence:?}"))?;
        ensure!(expression.evaluate(|wanted| allowed.contains(&wanted)), "{name}: {licence} is not in deny.toml");
    }
    Ok(())
}

#[test]
fn no_crate_is_built_in_two_versions() -> Result<()> {
    let skipped: BTreeSet<String> = rules()?.bans.skip.into_iter().map(|entry| entry.name).collect();
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in packages()? {
        versions.entry(package.name).or_default().insert(package.version);
    }
    let excess: Vec<_> =
        versions.iter().filter(|(name, versions)| versions.len() > 1 && !skipped.contains(*name)).collect();
    ensure!(excess.is_empty(), "{excess:?}: settle on one, or give the reason in deny.toml");
    let idle: Vec<_> = skipped.iter().filter(|name| versions.get(*name).is_none_or(|found| found.len() < 2)).collect();
    ensure!(idle.is_empty(), "deny.toml skips without need: {idle:?}");
    Ok(())
}

#[test]
fn no_banned_crate_and_no_source_but_crates_io() -> Result<()> {
    let banned: BTreeSet<String> = rules()?.bans.deny.into_iter().map(|entry| entry.name).collect();
    for package in packages()? {
        ensure!(!banned.contains(&package.name), "{} is banned by deny.toml", package.name);
        let own = format!("({}/", workspace().display());
        let foreign = package.source.filter(|source| !source.starts_with(&own));
        ensure!(foreign.is_none(), "{} comes from {foreign:?}", package.name);
    }
    Ok(())
}

#[test]
fn pure_crates_know_no_io() -> Result<()> {
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
        let tree = cargo(&["tree", "--package", name, "--edges=normal", "--prefix=none", "--format={lib}"])?;
        for dependency in tree.lines() {
            let dependency = dependency.replace('_', "-");
            ensure!(!IO.contains(&dependency.as_str()), "{name} depends on {dependency}");
        }
    }
    Ok(())
}

/// Only the plugin on nodes uses the embedded datastore; a file has no use in a Deployment.
#[test]
fn the_controllers_carry_no_embedded_datastore() -> Result<()> {
    let tree = cargo(&["tree", "--package", "kube-controllers", "--edges=normal", "--prefix=none", "--format={lib}"])?;
    for dependency in tree.lines() {
        let dependency = dependency.replace('_', "-");
        ensure!(dependency != "rusqlite" && dependency != "libsqlite3-sys", "kube-controllers depends on {dependency}");
    }
    Ok(())
}

/// A plugin process runs for milliseconds, so it contains no crates for long-running processes.
#[test]
fn the_plugin_carries_nothing_of_the_controllers() -> Result<()> {
    const LASTING: [&str; 5] = ["kube-controllers", "kube-runtime", "pprof", "procfs", "prometheus"];
    let tree = cargo(&["tree", "--package", "cni-plugin", "--edges=normal", "--prefix=none", "--format={lib}"])?;
    for dependency in tree.lines() {
        let dependency = dependency.replace('_', "-");
        ensure!(!LASTING.contains(&dependency.as_str()), "the plugin depends on {dependency}");
    }
    Ok(())
}
