//! The dependency tree keeps the rules of `deny.toml`, and the pure crates stay pure.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// The part of `deny.toml` that these tests keep.
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

/// The part of `cargo metadata` that tells what is built for the plugin's platform.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    source: Option<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
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

/// Every package that is compiled on Linux, tests included.
fn packages() -> Result<Vec<Package>> {
    let json = cargo(&["metadata", "--format-version=1", "--filter-platform=x86_64-unknown-linux-musl"])?;
    let metadata: Metadata = serde_json::from_str(&json)?;
    let built: BTreeSet<String> = metadata.resolve.nodes.into_iter().map(|node| node.id).collect();
    Ok(metadata.packages.into_iter().filter(|package| built.contains(&package.id)).collect())
}

#[test]
fn every_licence_is_allowed() -> Result<()> {
    let allowed = rules()?.licenses.allow.join(" OR ");
    let allowed = spdx::Expression::parse(&allowed)?;
    let allowed: Vec<_> = allowed.requirements().map(|requirement| &requirement.req).collect();
    for package in packages()? {
        let licence = package.license.with_context(|| format!("{} names no licence", package.name))?;
        let expression = spdx::Expression::parse_mode(&licence, spdx::ParseMode::LAX)
            .with_context(|| format!("{}: {licence}", package.name))?;
        ensure!(expression.evaluate(|wanted| allowed.contains(&wanted)), "{}: {licence}", package.name);
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
        let source = package.source.as_deref().unwrap_or("registry+https://github.com/rust-lang/crates.io-index");
        ensure!(source == "registry+https://github.com/rust-lang/crates.io-index", "{} from {source}", package.name);
    }
    Ok(())
}

#[test]
fn pure_crates_know_no_io() -> Result<()> {
    const IO: [&str; 12] = [
        "datastore", "etcd-client", "hyper", "kube", "libsqlite3-sys", "netlink-sys", "nix", "rtnetlink", "rusqlite",
        "rustls", "socket2", "tokio",
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
