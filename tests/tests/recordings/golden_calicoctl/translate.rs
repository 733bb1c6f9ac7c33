//! The arguments of `calico-ipam` for those of `calicoctl ipam`.

use integration_tests::golden::calicoctl::Step;

/// Returns our arguments for the call of a step. Most are the same; an address to release is no
/// option of ours.
pub(crate) fn ours(step: &Step) -> Vec<String> {
    let arguments = step.ipam_arguments();
    let is_release = arguments.first().is_some_and(|verb| verb == "release");
    let translate = |argument: &String| match argument.strip_prefix("--ip=") {
        Some(address) if is_release => address.to_owned(),
        _ => argument.clone(),
    };
    arguments.iter().map(translate).collect()
}

#[test]
fn arguments_of_calicoctl_are_translated() {
    let step = |argv: &[&str]| {
        let argv: Vec<String> = argv.iter().map(|&argument| argument.to_owned()).collect();
        let empty = serde_json::json!({
            "why": "", "argv": argv, "exit": 0, "stdout": "", "stderr": "", "files_before": {},
            "files_after": {},
            "changed": {},
        });
        serde_json::from_value::<Step>(empty).unwrap()
    };
    let translated = |argv: &[&str]| ours(&step(argv)).join(" ");
    assert_eq!(
        translated(&["calicoctl", "ipam", "show", "--ip=10.0.0.1"]),
        "show --ip=10.0.0.1"
    );
    assert_eq!(
        translated(&["calicoctl", "ipam", "release", "--ip=10.0.0.1"]),
        "release 10.0.0.1"
    );
    assert_eq!(
        translated(&["calicoctl", "ipam", "split", "2", "--name=big"]),
        "split 2 --name=big"
    );
}
