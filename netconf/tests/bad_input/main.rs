//! The keys come from the schema, so a key that is added to the types is tested without a new line
//! here.

mod keys;

use keys::{Key, full, keys, path, with};
use libcalico::variables::Variables;
use netconf::{CallError, Code, read_call};
use serde_json::{Value, json};

fn call(command: &str, stdin: &str) -> Result<netconf::Call, CallError> {
    let lookup = |name: &str| match name {
        "CNI_COMMAND" => Some(command.to_owned()),
        "CNI_CONTAINERID" | "CNI_NETNS" | "CNI_IFNAME" | "CNI_PATH" => Some("x".to_owned()),
        _ => None,
    };
    read_call(Variables::new(&lookup), || Ok(stdin.as_bytes().to_vec()))
}

/// Asserts that ADD rejects `stdin` with `code`, `path` and the allowed values. DEL must do the
/// same, or ignore the key and report it.
fn assert_refused(stdin: &str, code: Code, path: &str) {
    let refused = |command: &str, error: netconf::CniError| {
        assert_eq!(error.code, code, "{command} {path}: {error}");
        assert!(
            error.msg.contains(&format!(": {path}: found ")),
            "{command} {path}: {error}"
        );
        assert!(error.msg.contains(", want "), "{command} {path}: {error}");
    };
    refused(
        "ADD",
        call("ADD", stdin)
            .expect_err(&format!("ADD took {path} of {stdin}"))
            .error,
    );
    match call("DEL", stdin) {
        Err(CallError { error, .. }) => refused("DEL", error),
        Ok(call) => {
            let mut told = call.ignored_settings.iter().map(ToString::to_string);
            assert!(
                told.any(|told| told.contains(path)),
                "DEL took {path} of {stdin}"
            );
        }
    }
}

#[test]
fn complete_configuration_is_accepted_by_every_command() {
    let stdin = full().to_string();
    for command in ["ADD", "DEL", "CHECK", "STATUS", "GC"] {
        call(command, &stdin).unwrap_or_else(|error| panic!("{command}: {error}"));
    }
}

#[test]
fn values_of_a_wrong_type_are_rejected() {
    let values = [
        json!(true),
        json!(7),
        json!(1.5),
        json!("text"),
        json!([]),
        json!({}),
    ];
    let mut refused = 0;
    for key in keys() {
        for value in values.iter().filter(|value| !key.takes(value)) {
            assert_refused(
                &with(&full(), &key.steps, value).to_string(),
                Code::DECODE,
                &path(&key.steps),
            );
            refused += 1;
        }
    }
    assert!(refused > 400, "{refused}");
}

fn integers() -> Vec<Key> {
    let integers: Vec<Key> = keys()
        .into_iter()
        .filter(|key| key.kind == "integer")
        .collect();
    assert!(integers.len() > 5, "{} keys", integers.len());
    integers
}

#[test]
fn fractional_numbers_are_rejected_for_integers() {
    for key in integers() {
        for text in ["1500.0", "1e3", "0.5", "-0.5"] {
            let stdin = with(&full(), &key.steps, &json!("NUMBER"))
                .to_string()
                .replace("\"NUMBER\"", text);
            assert_refused(&stdin, Code::DECODE, &path(&key.steps));
        }
    }
}

#[test]
fn integers_out_of_range_are_rejected() {
    for key in integers() {
        let mut texts = vec![
            "1e30".to_owned(),
            "-1e30".to_owned(),
            "18446744073709551616".to_owned(),
        ];
        texts.extend(
            key.limits("minimum")
                .into_iter()
                .map(|minimum| (minimum - 1).to_string()),
        );
        texts.extend(
            key.limits("maximum")
                .into_iter()
                .map(|maximum| (maximum + 1).to_string()),
        );
        for text in texts {
            let stdin = with(&full(), &key.steps, &json!("NUMBER"))
                .to_string()
                .replace("\"NUMBER\"", &text);
            assert_refused(&stdin, Code::INVALID_CONFIG, &path(&key.steps));
        }
    }
}

#[test]
fn values_outside_an_enumeration_are_rejected() {
    let words: Vec<Key> = keys()
        .into_iter()
        .filter(|key| !key.words().is_empty())
        .collect();
    assert_eq!(words.len(), 6);
    for key in words {
        for word in ["other", " ", "local ", "TRUE"] {
            assert_refused(
                &with(&full(), &key.steps, &json!(word)).to_string(),
                Code::INVALID_CONFIG,
                &path(&key.steps),
            );
        }
        for word in key.words() {
            let stdin = with(&full(), &key.steps, &json!(word)).to_string();
            call("ADD", &stdin).unwrap_or_else(|error| panic!("{word}: {error}"));
        }
    }
}

#[test]
fn invalid_values_are_rejected_with_their_path() {
    let table = [
        ("$.ipam.type", "a/b"),
        ("$.ipam.ipv4_pools[0]", ""),
        ("$.ipam.ipv4_pools[0]", "10.0.0.0/33"),
        ("$.ipam.ipv4_pools[0]", "fd00::/64"),
        ("$.ipam.ipv6_pools[0]", "10.0.0.0/24"),
        ("$.ipam.routes[0].dst", "10.0.0.0"),
        ("$.readiness_gates[0]", "tcp://x"),
        ("$.readiness_gates[0]", "http://"),
    ];
    let keys = keys();
    for (at, value) in table {
        let key = keys
            .iter()
            .find(|key| path(&key.steps) == at)
            .unwrap_or_else(|| panic!("no key {at}"));
        assert_refused(
            &with(&full(), &key.steps, &json!(value)).to_string(),
            Code::INVALID_CONFIG,
            at,
        );
    }
}

#[test]
fn null_means_the_default_except_in_arrays() {
    for key in keys()
        .iter()
        .filter(|key| !["name", "containerID", "ifname", "socket"].contains(&key.name()))
    {
        let stdin = with(&full(), &key.steps, &Value::Null).to_string();
        if key.is_item() {
            assert_refused(&stdin, Code::DECODE, &path(&key.steps));
        } else {
            call("ADD", &stdin).unwrap_or_else(|error| panic!("{}: {error}", path(&key.steps)));
        }
    }
}

#[test]
fn keys_are_recognized_in_any_letter_case() {
    for key in keys()
        .iter()
        .filter(|key| key.steps.len() == 1 && key.name() != "name")
    {
        let text = full().to_string();
        let upper = key.name().to_uppercase();
        let stdin = with(
            &serde_json::from_str(&text).unwrap(),
            &key.steps,
            &json!("VALUE"),
        )
        .to_string()
        .replacen(
            &format!("{:?}:\"VALUE\"", key.name()),
            &format!("{upper:?}:[[[]]]"),
            1,
        );
        assert!(stdin.contains("[[[]]]"), "{stdin}");
        let error = call("ADD", &stdin).expect_err(&upper).error;
        assert_eq!(error.code, Code::DECODE, "{error}");
        assert!(error.msg.contains(&upper), "{error}");
    }
}

#[test]
fn duplicate_keys_are_rejected_in_any_letter_case() {
    for key in keys().iter().filter(|key| key.steps.len() == 1) {
        let text = full().to_string();
        let name = key.name();
        let exact = format!("{{{name:?}:null,{}", &text[1..]);
        let error = call("ADD", &exact).expect_err(name).error;
        assert_eq!(error.code, Code::DECODE, "{error}");
        assert!(
            error
                .msg
                .ends_with(&format!("duplicate key {}", path(&key.steps))),
            "{error}"
        );
        let folded = format!("{{{:?}:null,{}", name.to_uppercase(), &text[1..]);
        let error = call("ADD", &folded).expect_err(name).error;
        assert_eq!(error.code, Code::DECODE, "{error}");
        assert!(error.msg.contains("remove one of them"), "{error}");
    }
}
