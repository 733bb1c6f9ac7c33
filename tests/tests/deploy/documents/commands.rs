//! The commands of a document: its indented blocks, and its blocks fenced as `sh` or `console`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

#[derive(Debug)]
pub(crate) struct Chapter {
    pub(crate) document: &'static str,
    pub(crate) heading: String,
    pub(crate) commands: Vec<String>,
    /// Fenced blocks in other languages, each with its language.
    pub(crate) files: Vec<(String, String)>,
}

pub(crate) fn read(document: &'static str) -> Result<Vec<Chapter>> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("no workspace")?;
    let text = fs::read_to_string(workspace.join(document)).with_context(|| document.to_owned())?;
    Ok(chapters(document, &text))
}

fn chapters(document: &'static str, text: &str) -> Vec<Chapter> {
    let chapter = |heading: &str| Chapter {
        document,
        heading: heading.into(),
        commands: Vec::new(),
        files: Vec::new(),
    };
    let mut chapters = vec![chapter("")];
    let mut block = String::new();
    let (mut fence, mut after_blank, mut indented) = (None::<String>, true, false);
    for line in text.lines().chain([""]) {
        let current = chapters.len() - 1;
        if let Some(language) = &fence {
            match (line.trim_start().starts_with("```"), language.as_str()) {
                (false, _) => block += &format!("{line}\n"),
                (true, "sh" | "console") => chapters[current]
                    .commands
                    .extend(commands(&std::mem::take(&mut block))),
                (true, language) => chapters[current]
                    .files
                    .push((language.to_owned(), std::mem::take(&mut block))),
            }
            if line.trim_start().starts_with("```") {
                fence = None;
            }
            continue;
        }
        indented = line.starts_with("    ") && (after_blank || indented);
        if indented {
            block += &format!("{}\n", line.trim_start());
        } else if !line.is_empty() {
            chapters[current]
                .commands
                .extend(commands(&std::mem::take(&mut block)));
        }
        after_blank = line.is_empty();
        if let Some(language) = line.trim_start().strip_prefix("```") {
            fence = Some(language.trim().to_owned());
        } else if let Some((marks, heading)) = line.split_once(' ')
            && !marks.is_empty()
            && marks.bytes().all(|mark| mark == b'#')
        {
            chapters.push(chapter(heading));
        }
    }
    let last = chapters.len() - 1;
    chapters[last].commands.extend(commands(&block));
    chapters
}

/// Returns the commands of a block. Continuation lines, and the lines of a `for` loop, are one
/// command.
fn commands(block: &str) -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    let mut is_open = false;
    for line in block
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        let line = line.strip_prefix("$ ").unwrap_or(line);
        match commands.last_mut().filter(|_| is_open) {
            Some(command) => *command += &format!("\n{line}"),
            None => commands.push(line.to_owned()),
        }
        let command = commands.last().map_or("", String::as_str);
        let is_loop = command.starts_with("for ") && line != "done";
        is_open = line.ends_with('\\') || is_loop;
    }
    commands
}

#[test]
fn chapters_are_parsed_into_commands_and_files() {
    let text = "# Title\n\n    one \\\n        more\n    # said\n\n    $ two   # why\n\ntext\n    \
                no block\n\n## Next\n\n```json\n{}\n```\n\
                1. step\n\n       for a in b; do\n           c\n       done\n\n```sh\nthree\n```\n";
    let found = chapters("d", text);
    let found: Vec<_> = found
        .iter()
        .map(|chapter| (chapter.heading.as_str(), &chapter.commands))
        .collect();
    let (first, second) = (
        vec!["one \\\nmore".into(), "two   # why".into()],
        ["for a in b; do\nc\ndone".into(), "three".into()],
    );
    assert_eq!(
        found,
        [
            ("", &Vec::new()),
            ("Title", &first),
            ("Next", &second.to_vec())
        ]
    );
    assert_eq!(
        chapters("d", text)[2].files,
        [("json".to_owned(), "{}\n".to_owned())]
    );
}
