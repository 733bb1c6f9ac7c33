//! Programs that a test looks for are installed by `make test`. A machine on which somebody built
//! them by hand hides a missing one.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, ensure};
use regex::Regex;
use repository::workspace;

use crate::rust_files;

/// Returns the programs that group `test` of tests/install-needs.sh installs, from Debian or built
/// from Go.
fn installed() -> Result<BTreeSet<String>> {
    let script = fs::read_to_string(workspace().join("tests/install-needs.sh"))?;
    let packages = Regex::new(r#"(?s)\[test\]="(.*?)""#)?
        .captures(&script)
        .context("no packages of group test")?;
    let tools = Regex::new(r"(?s)\n    test\)\n(.*?);;")?
        .captures(&script)
        .context("no Go programs of group test")?;
    let programs = packages[1]
        .split_whitespace()
        .filter_map(|need| need.split(':').next());
    let built = Regex::new(r"install-go-tools\.sh ([^|]*?) \|\|")?;
    let built: Vec<_> = built
        .captures_iter(&tools[1])
        .map(|found| found[1].to_owned())
        .collect();
    ensure!(!built.is_empty(), "group test builds no Go program");
    Ok(programs
        .chain(built.iter().flat_map(|names| names.split_whitespace()))
        .map(str::to_owned)
        .collect())
}

#[test]
fn each_program_that_a_test_looks_for_is_installed_by_make_test() -> Result<()> {
    let named = Regex::new(
        r#"\bpresent\("([a-z][a-z0-9-]*)"\)|tests/install-go-tools\.sh ([a-z][a-z -]*)[")]"#,
    )?;
    let (installed, mut looked_for) = (installed()?, BTreeSet::new());
    for file in rust_files(&workspace().join("tests")) {
        let text = fs::read_to_string(&file)?;
        for found in named
            .captures_iter(&text)
            .filter(|_| !file.ends_with("sources/programs.rs"))
        {
            let programs = found
                .get(1)
                .or(found.get(2))
                .context("no program")?
                .as_str()
                .split_whitespace();
            looked_for.extend(programs.map(str::to_owned));
        }
    }
    let missing: Vec<_> = looked_for.difference(&installed).collect();
    ensure!(
        missing.is_empty(),
        "group test of tests/install-needs.sh does not install {missing:?}"
    );
    ensure!(
        looked_for.contains("containerd") && looked_for.contains("strace"),
        "only {looked_for:?} were found"
    );
    Ok(())
}
