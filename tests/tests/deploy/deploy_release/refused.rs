//! Releases that are rejected.

use std::fs;

use integration_tests::command::run;
use integration_tests::images::in_tree;

use super::{can_release, release};

/// Every node loads the images.
#[test]
fn release_with_too_large_programs_is_refused() {
    if !can_release() {
        return;
    }
    let error = release(&["MOST_BYTES=1000000"]).unwrap_err().to_string();
    assert!(
        error.contains("images: cni: ") && error.contains("an image may have at most 1000000"),
        "{error}"
    );
}

/// The output folder could be one of the user's own, given by mistake.
#[test]
fn release_does_not_replace_a_foreign_directory() {
    let directory = tempfile::tempdir().unwrap();
    let mine = directory.path().join("mine");
    fs::write(&mine, "mine").unwrap();
    let out = directory.path().display().to_string();
    let error = run(
        &in_tree("deploy/release.sh"),
        &["--programs", "/nowhere", "--out", &out],
    )
    .unwrap_err()
    .to_string();
    assert!(
        error.contains(&out) && error.contains("has no SHA256SUMS"),
        "{error}"
    );
    assert_eq!(fs::read_to_string(mine).unwrap(), "mine");
}

/// A release of uncommitted changes could not be reproduced.
#[test]
fn release_of_a_tree_with_changes_is_refused_naming_each_file() {
    let directory = tempfile::tempdir().unwrap();
    let tree = directory.path().join("tree").display().to_string();
    // The commit may lack the changes under test.
    run("git", &["init", "--quiet", &tree]).unwrap();
    let from = in_tree("");
    let copy = format!(
        "cd '{from}' && git ls-files -z Cargo.toml CHANGELOG.md deploy | tar --null -T - -c | tar \
         -x -C '{tree}'"
    );
    run("sh", &["-c", &copy]).unwrap();
    run("git", &["-C", &tree, "add", "."]).unwrap();
    let who = [
        "-c",
        "user.name=n",
        "-c",
        "user.email=e",
        "-c",
        "commit.gpgsign=false",
    ];
    run(
        "git",
        &[
            &["-C", &tree],
            &who[..],
            &["commit", "--quiet", "--message=all"],
        ]
        .concat(),
    )
    .unwrap();
    fs::write(directory.path().join("tree/deploy/README.md"), "another").unwrap();
    fs::write(directory.path().join("tree/new"), "new").unwrap();
    let error = run(&format!("{tree}/deploy/release.sh"), &[] as &[&str])
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("commit or stash")
            && error.contains("deploy/README.md")
            && error.contains("?? new"),
        "{error}"
    );
}
