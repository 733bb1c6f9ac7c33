//! Workflows of GitHub run actions of a fixed commit, and files and commands that exist. No test
//! runs the workflows themselves.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Result, ensure};
use regex::Regex;
use repository::workspace;

use crate::facts::tracked_texts;

/// Returns the workflows and their own actions, with their paths.
fn workflows() -> Result<Vec<(String, String)>> {
    let mut texts = tracked_texts()?;
    texts.retain(|(path, _)| {
        [".github/workflows/", ".github/actions/"]
            .iter()
            .any(|folder| path.starts_with(folder))
    });
    ensure!(texts.len() > 2, "only {} workflows", texts.len());
    Ok(texts)
}

/// The owner of an action can move a tag to another commit.
#[test]
fn actions_are_pinned_by_commit_and_name_their_version() -> Result<()> {
    let line = Regex::new(r"(?m)^[ \t]*(?:- )?uses:[ \t]*(.*)$")?;
    let pinned = Regex::new(r"^[\w.-]+(?:/[\w.-]+)+@[0-9a-f]{40} # v\d+(?:\.\d+)+$")?;
    let (mut checked, mut wrong) = (0, Vec::new());
    for (path, text) in workflows()? {
        for action in line.captures_iter(&text).map(|found| found[1].to_owned()) {
            let is_right = match action.strip_prefix("./") {
                Some(own) => workspace().join(own).exists(),
                None => pinned.is_match(&action),
            };
            if !is_right {
                wrong.push(format!("{path}: {action}"));
            }
            checked += 1;
        }
    }
    ensure!(
        wrong.is_empty(),
        "write OWNER/NAME@COMMIT # vVERSION, or the path of an action of this repository:\n{}",
        wrong.join("\n")
    );
    ensure!(checked > 4, "{checked} actions");
    Ok(())
}

/// A pattern such as `tests/cni/**` counts as the folder before it.
#[test]
fn workflows_name_make_targets_and_files_that_exist() -> Result<()> {
    let makefile = fs::read_to_string(workspace().join("Makefile"))?;
    let targets: BTreeSet<_> = Regex::new(r"(?m)^([a-z][a-z0-9-]*):")?
        .captures_iter(&makefile)
        .map(|found| found[1].to_owned())
        .collect();
    // A command begins its line or follows `run:`, variables or another command.
    let make =
        Regex::new(r"(?m)(?:^[ \t]*(?:- )?(?:run: )?|&& |; )(?:[A-Z_]+=\S* )*make ([a-z0-9-]+)")?;
    let file = Regex::new(r#"(?:^|[\s'"])((?:\.ci|\.devcontainer|deploy|tests)/[\w./-]*)"#)?;
    let (mut checked, mut missing) = (0, Vec::new());
    for (path, text) in workflows()? {
        for found in make.captures_iter(&text) {
            if !targets.contains(&found[1]) {
                missing.push(format!("{path}: make {}", &found[1]));
            }
            checked += 1;
        }
        for found in file.captures_iter(&text) {
            if !workspace().join(found[1].trim_end_matches('.')).exists() {
                missing.push(format!("{path}: {}", &found[1]));
            }
            checked += 1;
        }
    }
    ensure!(missing.is_empty(), "missing:\n{}", missing.join("\n"));
    ensure!(checked > 8, "{checked} targets and files");
    Ok(())
}
