//! The tests speak one language: an attribute names their datastores, and a fixture is named for
//! its subject.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};
use regex::Regex;
use repository::workspace;

use crate::all_files;

/// Most functions that take a test as a closure. The attribute `#[on]` calls a function `on`, which
/// does not count.
const MOST_ENTRIES: usize = 12;

#[test]
fn few_functions_of_the_harness_take_a_test() -> Result<()> {
    let entry = Regex::new(
        r"\bfn ((?:on|with)_\w+)(?:<[^>]*>)?\([^{;]*(?:impl (?:Async)?Fn|Fn(?:Once|Mut)?\(|: fn\()",
    )?;
    let mut entries = Vec::new();
    for file in all_files()?.iter().filter(|file| is_of_tests(file)) {
        let text = fs::read_to_string(file)?;
        let found = entry.captures_iter(&text);
        entries.extend(found.map(|found| format!("{}: {}", file.display(), &found[1])));
    }
    ensure!(
        entries.len() <= MOST_ENTRIES,
        "write a function `on(place, test)` with #[on], or return a value: {entries:#?}"
    );
    Ok(())
}

#[test]
fn fixtures_are_named_for_their_subject() -> Result<()> {
    let vague = Regex::new(r"\bstruct (?:Scene|Lab|World)\b")?;
    for file in all_files()?.iter().filter(|file| is_of_tests(file)) {
        let text = fs::read_to_string(file)?;
        let found = vague.find(&text).map(|found| found.as_str());
        ensure!(found.is_none(), "{}: {found:?}", file.display());
    }
    Ok(())
}

fn is_of_tests(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default();
    let in_folder = file
        .strip_prefix(workspace())
        .unwrap_or(file)
        .iter()
        .any(|part| ["tests", "testing"].iter().any(|folder| part == *folder));
    in_folder || name == "tests.rs" || name == "testing.rs"
}
