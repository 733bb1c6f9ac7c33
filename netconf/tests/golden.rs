//! Compares with upstream's recorded output as far as this crate determines it.

use std::path::Path;

use libcalico::variables::Variables;
use netconf::{CniResult, Code, Invocation, Plugin, Version, invocation};
use serde_json::{Value, json};

struct Step {
    name: String,
    plugin: Plugin,
    recorded: Value,
}

fn steps(scenarios: &[&str]) -> Vec<Step> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/etcd");
    let mut found = Vec::new();
    for file in std::fs::read_dir(&directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
    {
        let path = file.unwrap().path();
        let scenario = path.file_stem().unwrap().to_string_lossy().into_owned();
        if !scenarios.is_empty() && !scenarios.contains(&scenario.as_str()) {
            continue;
        }
        let recording: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        for (number, step) in recording["steps"].as_array().unwrap().iter().enumerate() {
            let plugin = if step["prog"] == "calico" {
                Plugin::Calico
            } else {
                Plugin::CalicoIpam
            };
            found.push(Step {
                name: format!("{scenario} {number}"),
                plugin,
                recorded: step.clone(),
            });
        }
    }
    found
}

/// Returns the exit status and stdout of this implementation, or `None` if this crate accepts the
/// call.
fn answer(step: &Step) -> Option<(i32, Value)> {
    let stdin = match &step.recorded["stdin"] {
        Value::String(text) => text.clone(),
        object => object.to_string(),
    };
    // The recordings omit CNI_PATH, which was set.
    let lookup = |name: &str| match name {
        "CNI_PATH" => Some("/usr/lib/cni".to_owned()),
        _ => step.recorded["env"][name].as_str().map(str::to_owned),
    };
    match invocation(step.plugin, "v", &[], Variables::new(&lookup), || {
        Ok(stdin.into_bytes())
    }) {
        Ok(Invocation::Print(printed)) => Some((
            printed.status,
            serde_json::from_str(&printed.stdout).unwrap(),
        )),
        Ok(_) => None,
        Err(error) => Some((1, serde_json::from_str(&error.error.to_json(None)).unwrap())),
    }
}

/// Returns upstream's output `theirs` of `step`, with the intended differences.
fn wanted(step: &str, theirs: &Value) -> Value {
    let mut ours = theirs.clone();
    match step {
        // Upstream gives no details here.
        "errors 1" => {
            ours["details"] =
                json!("nothing on standard input; the network configuration is expected there")
        }
        "errors 2" => ours["details"] = json!("known are ADD, DEL, CHECK, STATUS, GC, VERSION"),
        // Upstream does not support 1.1.0.
        "errors 6" => {
            let list = ours["details"]
                .as_str()
                .unwrap()
                .replace("\"1.0.0\"]", "\"1.0.0\" \"1.1.0\"]");
            ours["details"] = json!(list);
        }
        // Code and path follow the CNI specification.
        "errors 8" => {
            ours = json!({
                "code": Code::DECODE,
                "msg": "failed to load netconf: $.mtu: found the string \"x\", want 0 or an \
                        integer from 68 to 65535",
            });
        }
        "errors 11" => ours["code"] = json!(Code::INVALID_ENVIRONMENT),
        // The output has the requested version.
        "errors 14" => {
            ours["cniVersion"] = json!("1.0.0");
            ours["supportedVersions"]
                .as_array_mut()
                .unwrap()
                .push(json!("1.1.0"));
        }
        _ => {}
    }
    ours
}

#[test]
fn rejected_calls_and_version_match_upstreams_recordings() {
    let decided_here = ["0", "1", "2", "3", "4", "5", "6", "8", "11", "13", "14"]
        .map(|number| format!("errors {number}"));
    let mut decided = 0;
    for step in steps(&["errors"]) {
        let answer = answer(&step);
        assert_eq!(
            answer.is_some(),
            decided_here.contains(&step.name),
            "{}: {answer:?}",
            step.name
        );
        let Some((status, stdout)) = answer else {
            continue;
        };
        decided += 1;
        assert_eq!(
            stdout,
            wanted(&step.name, &step.recorded["stdout"]),
            "{}",
            step.name
        );
        assert_eq!(json!(status), step.recorded["exit"], "{}", step.name);
    }
    assert_eq!(decided, decided_here.len());
}

#[test]
fn every_call_accepted_by_upstream_is_accepted() {
    let steps = steps(&[]);
    assert!(steps.len() > 50, "{}", steps.len());
    for step in steps
        .iter()
        .filter(|step| step.recorded["exit"] == 0 && step.name != "errors 14")
    {
        assert_eq!(answer(step), None, "{}", step.name);
    }
}

#[test]
fn recorded_results_round_trip() {
    let mut versions = Vec::new();
    for step in steps(&[]) {
        let stdout = &step.recorded["stdout"];
        if step.recorded["exit"] != 0 || step.recorded["env"]["CNI_COMMAND"] != "ADD" {
            continue;
        }
        let version = Version::parse(stdout["cniVersion"].as_str().unwrap()).unwrap();
        let result = CniResult::parse(stdout.to_string().as_bytes(), Version::LATEST).unwrap();
        let written: Value = serde_json::from_str(&result.to_json(version).unwrap()).unwrap();
        assert_eq!(&written, stdout, "{}", step.name);
        versions.push(version);
    }
    versions.sort();
    versions.dedup();
    assert_eq!(versions, Version::ALL[..6]);
}
