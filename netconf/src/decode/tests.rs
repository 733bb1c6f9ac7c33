use serde_json::json;

use super::*;

#[test]
fn json_documents_are_parsed() {
    for (text, value) in [
        ("{}", json!({})),
        (" null\n", json!(null)),
        (
            r#"{"a":[1,-1,1.5,true,null,{"b":"\u00e9"}]}"#,
            json!({ "a": [1, -1, 1.5, true, null, { "b": "é" }] }),
        ),
    ] {
        assert_eq!(parse(text.as_bytes()), Ok(value), "{text}");
    }
}

#[test]
fn truncated_document_is_reported_with_upstreams_text() {
    for text in ["", "  ", "{", r#"{"a"#, r#"{"a":"#, r#"{"a":1"#, "[1,"] {
        assert_eq!(parse(text.as_bytes()), Err(Malformed::Truncated), "{text}");
    }
    assert_eq!(
        Malformed::Truncated.to_string(),
        "unexpected end of JSON input"
    );
}

#[test]
fn json_syntax_errors_report_line_and_column() {
    for text in [
        "{a:1}",
        "{} {}",
        "{'a':1}",
        r#"{"a":01}"#,
        r#"{"a":NaN}"#,
        r#"{"a":"\ud800"}"#,
        "\u{feff}{}",
    ] {
        let error = parse(text.as_bytes()).unwrap_err();
        assert!(
            matches!(&error, Malformed::Syntax(text) if text.contains("line 1 column")),
            "{text}: {error:?}"
        );
    }
}

#[test]
fn duplicate_keys_are_named_by_path() {
    for (text, path) in [
        (r#"{"mtu":1,"mtu":1}"#, "$.mtu"),
        (r#"{"a":{"b":[{"c":1},{"c":1,"d":2,"c":3}]}}"#, "$.a.b[1].c"),
        (r#"{"x.y":{"b":1,"b":2}}"#, r#"$["x.y"].b"#),
        (r#"{"a":1,"\u0061":1}"#, "$.a"),
    ] {
        assert_eq!(
            parse(text.as_bytes()),
            Err(Malformed::DuplicateKey(path.to_owned())),
            "{text}"
        );
    }
}

#[test]
fn input_size_is_limited() {
    let padded = |len: usize| format!("{{}}{}", " ".repeat(len - 2));
    assert!(parse(padded(MAX_INPUT).as_bytes()).is_ok());
    assert_eq!(
        parse(padded(MAX_INPUT + 1).as_bytes()),
        Err(Malformed::TooLong)
    );
}

#[test]
fn nesting_depth_is_limited() {
    for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
        let nested = |depth: usize| format!("{}1{}", open.repeat(depth), close.repeat(depth));
        assert!(parse(nested(100).as_bytes()).is_ok());
        for depth in [200, 100_000] {
            let error = parse(nested(depth).as_bytes()).unwrap_err();
            assert!(
                matches!(&error, Malformed::Syntax(text) if text.contains("recursion limit")),
                "{error:?}"
            );
        }
    }
}

#[test]
fn invalid_utf8_is_rejected_with_its_position() {
    assert_eq!(parse(b"{\"a\":\"\xff\"}"), Err(Malformed::NotUtf8(6)));
    assert_eq!(parse(b"{\"a\":\"\xc3"), Err(Malformed::NotUtf8(6)));
}

#[test]
fn decode_error_paths_quote_unusual_keys() {
    let value = json!({ "a": { "cni.dev/x": [0, { "b_1": "" }] } });
    let read = |key: &str| {
        let last = |node: &Node<'_>| match node.object() {
            Ok(object) => object.read::<bool>(key).map(drop),
            Err(_) => Ok(()),
        };
        let items = |node: &Node<'_>| node.items(last).map(drop);
        Node::root("$", &value)
            .object()?
            .read_with("a", |node| node.object()?.read_with("cni.dev/x", items))
            .map(drop)
    };
    assert_eq!(read("other"), Ok(()));
    let error = read("b_1").unwrap_err().to_string();
    assert_eq!(
        error,
        r#"$.a["cni.dev/x"][1].b_1: found the string "", want true or false"#
    );
}

#[test]
fn long_values_are_truncated_in_errors() {
    let value = json!("ä".repeat(200));
    let error = Node::root("$", &value).wrong_type("less").to_string();
    assert!(
        error.ends_with("…, want less") && error.chars().count() < 120,
        "{error}"
    );
}
