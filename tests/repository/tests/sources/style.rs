//! The parts of docs/style.md that a tool can check, and the sizes of files.

use std::fs;

use anyhow::{Result, ensure};
use repository::workspace;

use crate::{Source, all_files, program_sources};

/// Words with which no comment paragraph begins. "Whether to" may describe a field.
const OPENERS: [&str; 12] = [
    "What", "Who", "Whom", "Whose", "Where", "Which", "How", "Why", "One", "Nothing", "Nobody",
    "Those",
];
/// Most lines of a source file, tests left out.
const MOST_LINES: usize = 500;
/// Most lines of a file of tests.
const MOST_TEST_LINES: usize = 700;
const MOST_COLUMNS: usize = 100;
/// Names that say nothing about a type.
const VAGUE_NAMES: [&str; 6] = ["Known", "Step", "Seen", "Said", "Memory", "Held"];

/// A number of places to rewrite. The number may only fall.
struct Remaining {
    what: &'static str,
    number: usize,
}

impl Remaining {
    fn check(&self, found: &[String]) -> Result<()> {
        let (what, number) = (self.what, self.number);
        ensure!(
            found.len() <= number,
            "{what}: {} places, {number} are allowed:\n{}",
            found.len(),
            found.join("\n")
        );
        Ok(())
    }
}

/// Returns the first line of each comment paragraph, with its place.
fn paragraphs(path: &str, text: &str) -> Vec<(String, String)> {
    let (mut found, mut is_within) = (Vec::new(), false);
    for (number, line) in text.lines().enumerate() {
        let comment = line
            .trim_start()
            .strip_prefix("//")
            .map(|rest| rest.trim_start_matches(['/', '!']).trim());
        let is_comment = comment.is_some_and(|comment| !comment.is_empty());
        if is_comment && !is_within {
            found.push((
                format!("{path}:{}", number + 1),
                comment.unwrap_or_default().to_owned(),
            ));
        }
        is_within = is_comment;
    }
    found
}

fn opens_badly(paragraph: &str) -> bool {
    let first = paragraph
        .split(|letter: char| !letter.is_alphanumeric())
        .next()
        .unwrap_or_default();
    OPENERS.contains(&first) || first == "Whether" && !paragraph.starts_with("Whether to")
}

#[test]
fn comments_begin_with_a_verb_or_a_noun() -> Result<()> {
    let (mut all, mut bad) = (0, Vec::new());
    for file in all_files()? {
        let paragraphs = paragraphs(&file.display().to_string(), &fs::read_to_string(&file)?);
        all += paragraphs.len();
        bad.extend(
            paragraphs
                .into_iter()
                .filter(|(_, text)| opens_badly(text))
                .map(|(place, text)| format!("{place}: {text}")),
        );
    }
    ensure!(
        bad.len() * 100 < all,
        "{} of {all} paragraphs:\n{}",
        bad.len(),
        bad.join("\n")
    );
    Ok(())
}

/// Texts of logs and of upstream, URLs and data are not broken, because people search for them.
#[test]
fn lines_have_at_most_100_columns() -> Result<()> {
    let mut long = Vec::new();
    for file in all_files()? {
        let text = fs::read_to_string(&file)?;
        let lines = text.lines().enumerate();
        let lines = lines.filter(|(_, line)| line.chars().count() > MOST_COLUMNS);
        long.extend(lines.map(|(number, _)| format!("{}:{}", file.display(), number + 1)));
    }
    Remaining {
        what: "lines past 100 columns",
        number: 321,
    }
    .check(&long)
}

#[test]
fn source_files_are_not_too_long() -> Result<()> {
    let mut long = Vec::new();
    for Source { path, text } in program_sources()? {
        let lines = text.lines().count();
        if lines > MOST_LINES {
            long.push(format!("{path}: {lines} lines, split it by noun"));
        }
    }
    Remaining {
        what: "long source files",
        number: 0,
    }
    .check(&long)
}

#[test]
fn test_files_are_not_too_long() -> Result<()> {
    let mut long = Vec::new();
    for file in all_files()? {
        let lines = fs::read_to_string(&file)?.lines().count();
        if lines > MOST_TEST_LINES {
            long.push(format!(
                "{}: {lines} lines, split it by noun",
                file.display()
            ));
        }
    }
    Remaining {
        what: "long test files",
        number: 0,
    }
    .check(&long)
}

/// The name of a module then stands in the tab of an editor and in a backtrace.
#[test]
fn module_with_a_folder_has_the_name_of_the_folder() -> Result<()> {
    for file in all_files()? {
        let place = file.display();
        ensure!(
            !file.ends_with("mod.rs"),
            "{place}: rename it to the folder's name, beside it"
        );
    }
    Ok(())
}

#[test]
fn type_names_are_specific_and_unique_within_a_crate() -> Result<()> {
    let declaration =
        regex::Regex::new(r"(?m)^\s*(pub(?:\([a-z: ]+\))? )?(?:struct|enum|trait) (\w+)")?;
    let (mut vague, mut twice) = (Vec::new(), Vec::new());
    let mut public = std::collections::BTreeMap::<(String, String), Vec<String>>::new();
    for Source { path, text } in program_sources()? {
        for found in declaration.captures_iter(&text) {
            let (visibility, name) = (found.get(1).map(|found| found.as_str().trim()), &found[2]);
            if VAGUE_NAMES.contains(&name) {
                vague.push(format!("{path}: {name}"));
            }
            if matches!(visibility, Some("pub" | "pub(crate)"))
                && !["Error", "Key", "Settings"].contains(&name)
            {
                let name = (
                    path.split('/').next().unwrap_or_default().to_owned(),
                    name.to_owned(),
                );
                public.entry(name).or_default().push(path.clone());
            }
        }
    }
    for ((package, name), paths) in public.into_iter().filter(|(_, paths)| paths.len() > 1) {
        twice.push(format!("{package}: {name} in {}", paths.join(", ")));
    }
    Remaining {
        what: "vague type names",
        number: 0,
    }
    .check(&vague)?;
    Remaining {
        what: "types with the name of another type of the crate",
        number: 0,
    }
    .check(&twice)
}

#[test]
fn results_have_typed_errors() -> Result<()> {
    let text_error = regex::Regex::new(r"Result<[^<>]*, String>")?;
    let mut found = Vec::new();
    for Source { path, text } in program_sources()? {
        found.extend(
            text_error
                .find_iter(&text)
                .map(|error| format!("{path}: {}", error.as_str())),
        );
    }
    Remaining {
        what: "signatures with a text as the error",
        number: 0,
    }
    .check(&found)
}

/// The context of a CNI call is for the verbs, their reads, deferred DELs, and the names of an
/// interface.
#[test]
fn only_commands_take_the_context_of_a_call() -> Result<()> {
    const VERBS: [&str; 10] = [
        "add.rs",
        "add/",
        "del",
        "check.rs",
        "gc.rs",
        "status.rs",
        "reads.rs",
        "reads/",
        "deferred_del.rs",
        "interface_names.rs",
    ];
    let parameter = regex::Regex::new(r"&(?:mut )?(?:Session|Context)\b")?;
    for Source { path, text } in program_sources()? {
        let Some(file) = path.strip_prefix("cni-plugin/src/") else {
            continue;
        };
        let is_verb = VERBS.iter().any(|verb| file.starts_with(verb))
            && !file.starts_with("deferred_del/urgency");
        ensure!(
            is_verb || !parameter.is_match(&text),
            "{path} takes the whole context"
        );
        ensure!(!text.contains("&mut Context"), "{path} changes the context");
    }
    Ok(())
}

/// The operations of the CNI plugins and the passes of garbage collection get their store, clock,
/// network and files as arguments. The excepted files choose those of this process, and one
/// measures its time.
#[test]
fn operations_use_no_clock_thread_store_or_network_but_those_of_the_call() -> Result<()> {
    const OPERATIONS: [&str; 4] = [
        "cni-plugin/src/",
        "ipam-plugin/src/cni",
        "allocation/src/",
        "kube-controllers/src/gc/",
    ];
    const EXCEPTED: [&str; 10] = [
        "allocation/src/journal.rs",
        "cni-plugin/src/agent_replay.rs",
        "cni-plugin/src/context.rs",
        "cni-plugin/src/main.rs",
        "cni-plugin/src/run.rs",
        "cni-plugin/src/timings.rs",
        "cni-plugin/src/world.rs",
        "kube-controllers/src/gc/clock.rs",
        "kube-controllers/src/gc/gate.rs",
        "kube-controllers/src/gc/this_replica.rs",
    ];
    let of_this_node = regex::Regex::new(
        r"\bSystemClock\b|Instant::now|SystemTime::now|now_utc|\bthread::|tokio::time::|\bKernelNetwork\b|\bNetnsFd\b|of_this_node|Datastore::open",
    )?;
    for Source { path, text } in program_sources()? {
        let is_operation = OPERATIONS.iter().any(|folder| path.starts_with(folder));
        if let Some(found) = of_this_node.find(&text) {
            ensure!(
                !is_operation || EXCEPTED.contains(&path.as_str()),
                "{path}: {}: take it from the call",
                found.as_str()
            );
        }
    }
    Ok(())
}

/// Two of the files read paths, which need not be UTF-8, and one a guard that holds for any caller.
#[test]
fn environment_variables_are_read_in_one_place() -> Result<()> {
    const READERS: [&str; 4] = [
        "node-process/src/process.rs",
        "datastore/src/kubernetes/access.rs",
        "cni-plugin/src/timings.rs",
        "kube-controllers/src/status/file.rs",
    ];
    let read = regex::Regex::new(r"\benv::vars?(?:_os)?\(")?;
    for Source { path, text } in program_sources()? {
        let is_reader = READERS.contains(&path.as_str()) || path.ends_with("/build.rs");
        ensure!(
            is_reader || !read.is_match(&text),
            "{path}: use node_process::process::variables"
        );
    }
    Ok(())
}

#[test]
fn readme_has_at_most_150_lines() -> Result<()> {
    let lines = fs::read_to_string(workspace().join("README.md"))?
        .lines()
        .count();
    ensure!(
        lines <= 150,
        "{lines} lines: move what only some readers need into docs/"
    );
    Ok(())
}
