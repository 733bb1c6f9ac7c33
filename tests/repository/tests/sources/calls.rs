//! Each function of a list of calls in docs/architecture.md, except the first, can be called by an
//! earlier one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use regex::Regex;
use repository::workspace;

use crate::arrows::file_arrows;
use crate::is_root;

struct CallLine {
    file: String,
    function: String,
}

fn calls(heading: &str) -> Result<Vec<CallLine>> {
    let page = fs::read_to_string(workspace().join("docs/architecture.md"))?;
    let (_, section) = page
        .split_once(&format!("\n### {heading}\n"))
        .with_context(|| format!("no heading {heading}"))?;
    let section = section.split("\n#").next().unwrap_or_default();
    let line = Regex::new(r"(?m)^\d+\. `([^`]+)`: `([^`]+)`")?;
    Ok(line
        .captures_iter(section)
        .map(|found| CallLine {
            file: found[1].to_owned(),
            function: found[2].to_owned(),
        })
        .collect())
}

/// Returns true if `file` is a part of the module in the file `module`.
fn is_part(file: &str, module: &str) -> bool {
    let module = module
        .trim_end_matches(".rs")
        .trim_end_matches("/lib")
        .trim_end_matches("/main");
    file.starts_with(&format!("{module}/"))
}

/// Returns true if code of the file `from` can call code of `to`.
fn reaches(arrows: &BTreeMap<String, BTreeSet<String>>, from: &str, to: &str) -> Result<bool> {
    let crate_of = |file: &str| file.split('/').next().unwrap_or_default().to_owned();
    let passes_on = |target: &String| !is_root(Path::new(target)) && is_part(to, target);
    if from == to
        || arrows
            .get(from)
            .is_some_and(|targets| targets.contains(to) || targets.iter().any(passes_on))
    {
        return Ok(true);
    }
    if crate_of(from) != crate_of(to) {
        let text = fs::read_to_string(workspace().join(from))?;
        return Ok(text.contains(&format!("{}::", crate_of(to).replace('-', "_"))));
    }
    Ok(is_part(to, from))
}

fn check(heading: &str, most_files: usize) -> Result<()> {
    let (calls, arrows) = (calls(heading)?, file_arrows()?);
    ensure!(calls.len() > 10, "{heading} lists {} calls", calls.len());
    let files: BTreeSet<_> = calls.iter().map(|call| call.file.as_str()).collect();
    ensure!(
        files.len() <= most_files,
        "{heading} leads through {} files, the limit is {most_files}",
        files.len()
    );
    for (number, CallLine { file, function }) in calls.iter().enumerate() {
        let mut callers = Vec::new();
        for earlier in &calls[..number] {
            if reaches(&arrows, &earlier.file, file)? {
                callers.push(earlier.file.as_str());
            }
        }
        ensure!(
            number == 0 || !callers.is_empty(),
            "no earlier file of the list imports {file} ({function})"
        );
        for caller in callers.into_iter().filter(|caller| *caller != file) {
            let back = arrows
                .get(file)
                .is_some_and(|targets| targets.contains(caller));
            ensure!(
                !back,
                "{caller} calls {function} in {file}, which imports {caller}"
            );
        }
    }
    Ok(())
}

#[test]
fn calls_of_an_add_exist_and_have_one_direction() -> Result<()> {
    check("The calls of an ADD", 24)
}

#[test]
fn calls_of_a_del_exist_and_have_one_direction() -> Result<()> {
    check("The calls of a DEL", 15)
}
