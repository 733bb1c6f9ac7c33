//! Our commands within sentences and tables of the documents.

use std::fs;
use std::path::Path;
use std::process::Command;

use integration_tests::plugin::Plugins;

use crate::documents::treatment::DOCUMENTS;

/// Pages with commands within sentences only.
const OTHERS: [&str; 8] = [
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/security/administrator.md",
    "docs/security/datastore.md",
    "docs/security/neighbor.md",
    "docs/security/tenant.md",
    "docs/security/token.md",
    "tests/README.md",
];

const PROGRAMS: [&str; 4] = ["calico", "calico-ipam", "kube-controllers", "check-status"];

/// The parts of a command that do not depend on the reader's cluster.
#[derive(Debug, PartialEq, Eq)]
struct Mention {
    program: String,
    verbs: Vec<String>,
    options: Vec<String>,
}

/// Returns the commands of these programs between backquotes, outside of fenced and indented
/// blocks.
fn mentions(text: &str, programs: &[&str]) -> Vec<Mention> {
    let mut is_fenced = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
        } else if !is_fenced && !line.starts_with("    ") {
            let codes = line.split('`').skip(1).step_by(2);
            found.extend(
                codes
                    .filter_map(mention)
                    .filter(|mention| programs.contains(&&*mention.program)),
            );
        }
    }
    found
}

fn mention(code: &str) -> Option<Mention> {
    let mut words = code.split_whitespace().peekable();
    let program = words.next()?.to_owned();
    let mut verbs = Vec::new();
    while let Some(verb) = words.next_if(|word| {
        word.bytes().all(|b| b.is_ascii_lowercase() || b == b'-') && !word.starts_with('-')
    }) {
        verbs.push(verb.to_owned());
    }
    let options = words
        .filter(|word| word.starts_with('-'))
        .map(|word| word.split('=').next().unwrap_or(word).to_owned());
    Some(Mention {
        program,
        verbs,
        options: options.collect(),
    })
}

/// Returns an error if the program rejects the subcommands or its help lacks an option.
fn fault(programs: &Path, mention: &Mention) -> Option<String> {
    let Mention {
        program,
        verbs,
        options,
    } = mention;
    let run = Command::new(programs.join(program))
        .args(verbs)
        .arg("--help")
        .output()
        .unwrap();
    let help = String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr);
    if !run.status.success() {
        return Some(format!(
            "{program} {} --help fails: {help}",
            verbs.join(" ")
        ));
    }
    let words: Vec<&str> = help
        .split(|c: char| !c.is_alphanumeric() && c != '-')
        .collect();
    let unknown = options
        .iter()
        .find(|option| !words.contains(&option.as_str()))?;
    Some(format!("{program} {} has no {unknown}", verbs.join(" ")))
}

#[test]
fn commands_in_sentences_use_existing_subcommands_and_options() {
    let programs = Plugins::locate().unwrap();
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let makefile = fs::read_to_string(workspace.join("Makefile")).unwrap();
    let mut faults = Vec::new();
    let mut count = 0;
    for document in DOCUMENTS.into_iter().chain(OTHERS) {
        let text = fs::read_to_string(workspace.join(document)).unwrap();
        for mention in mentions(&text, &PROGRAMS) {
            count += 1;
            faults.extend(
                fault(programs.dir(), &mention).map(|fault| format!("{document}: {fault}")),
            );
        }
        for Mention { verbs: targets, .. } in mentions(&text, &["make"]) {
            count += 1;
            let missing = targets.iter().filter(|target| {
                !makefile
                    .lines()
                    .any(|line| line.starts_with(&format!("{target}:")))
            });
            faults.extend(missing.map(|target| format!("{document}: make has no target {target}")));
        }
    }
    assert_eq!(faults, Vec::<String>::new());
    crate::documents::report(&format!(
        "{count} commands within sentences have verbs and options that exist"
    ));
}

#[test]
fn missing_subcommand_or_option_in_a_sentence_is_reported() {
    let programs = Plugins::locate().unwrap();
    let text = "So `calico-ipam sow --x` and\n\n| `calico-ipam show --block` | `ip link` |\n\n    \
                `calico-ipam indented`\n```\n`calico-ipam fenced`\n```\n";
    let faults: Vec<String> = mentions(text, &PROGRAMS)
        .iter()
        .filter_map(|mention| fault(programs.dir(), mention))
        .collect();
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert!(
        faults[0].starts_with("calico-ipam sow --help fails"),
        "{faults:?}"
    );
    assert_eq!(mentions(text, &["ip"]).len(), 1);
}
