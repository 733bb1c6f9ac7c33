use std::collections::BTreeMap;
use std::time::Instant;

use data_encoding::BASE64URL_NOPAD;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use repository::effort::fuzz_time;
use sha2::{Digest, Sha224};

use super::{MAX_NESTING, Selector, SelectorErrorReason};

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

/// Returns the ID that Felix gives the selector: equal IDs mean equal canonical text (DS-115).
fn unique_id(selector: &Selector) -> String {
    let digest = Sha224::digest(format!("s:{selector}"));
    format!("s:{}", BASE64URL_NOPAD.encode(&digest))
}

/// Upstream's results: input, canonical form, ID, match on `{}`, match on `{a: b}`.
#[rustfmt::skip]
const VECTORS: &[(&str, &str, &str, bool, bool)] = &[
    ("", "all()", "s:5y5I3VdRZfDU01O--xXAPx2yxCQQqMf0M6IWug", true, true),
    ("  all( ) ", "all()", "s:5y5I3VdRZfDU01O--xXAPx2yxCQQqMf0M6IWug", true, true),
    ("global()", "global()", "s:fiJDJdBoaP_zQxty70sMjIrxwAb5lgM6LYCAow", true, true),
    ("a == 'b'", r#"a == "b""#, "s:flMh0m0X_BowkAK_W3j3MgH8oQOsj3WxGDoXCQ", false, true),
    (
        r#"a=='b'&&c!="d""#, r#"(a == "b" && c != "d")"#,
        "s:TWOrd5OgdrPD-XuMqU2QQ_74JvEt9gDkwzqUqQ", false, true,
    ),
    ("has( a/b.c )", "has(a/b.c)", "s:TGbjevrELR1aJsAO0-Rz4cOdh6w0vOotu2hGdw", false, false),
    ("!has(a)", "!has(a)", "s:o54_r2fLf2o-LJfoAaKVj8JvPRHKmJA2mXVR7g", true, false),
    ("!!has(a)", "has(a)", "s:JpRGrxZ4kdS6g7WoF-uG_g7qlh2ipw2zGYBMpQ", false, true),
    ("!(a == 'b')", r#"!a == "b""#, "s:Nx82quSiQDReg0K-G_bP30Nmx32uDaoGbVK4Pw", true, false),
    ("!a == 'b'", r#"!a == "b""#, "s:Nx82quSiQDReg0K-G_bP30Nmx32uDaoGbVK4Pw", true, false),
    (
        "a in {'z','a','z'}", r#"a in {"a", "z"}"#, "s:DM70ClaqX_dfWkUrFy68O9ZR5zcGtQpx-8ramA",
        false, false,
    ),
    ("a in {}", "a in {}", "s:kb2fVDRrw4GCK1BiCSFIDXY6INw32pzbLrG4dQ", false, false),
    ("a notin {'a'}", r#"a not in {"a"}"#, "s:g28oYi_xvRLqqfW9DPqLOL1GRdhJOsVGntkCZA", true, true),
    (
        "a startswith 'x'", r#"a starts with "x""#, "s:0jk0-bi8Whp1_S41kdD7TENMzrNPlQtg4CquPw",
        false, false,
    ),
    (
        "a == 'b' || c == 'd' && e == 'f'", r#"(a == "b" || (c == "d" && e == "f"))"#,
        "s:S-qCSUXi1P0ft42eE8dHG6vx6ub86WkArSBbTw", false, true,
    ),
    (
        "(a == 'b' || c == 'd') && e == 'f'", r#"((a == "b" || c == "d") && e == "f")"#,
        "s:VD8JFdkkXztcu2ld5eHpEP8bFJir7so4adReFg", false, false,
    ),
    (r#"a == 'it"s'"#, r#"a == 'it"s'"#, "s:xyyfX4RhugSo4cTZT2SvAiWuYL9F2WxwBqb4RQ", false, false),
    ("not in {'a'}", r#"not in {"a"}"#, "s:C2y1yy8oDsAq_UjEv4AmJYxC63Eep1-ucyfB1w", false, false),
    (
        "projectcalico.org/namespace == 'x'", r#"projectcalico.org/namespace == "x""#,
        "s:9ZmYzDtXZhpFhyVzLV5uypS6mhPf9gQMIVGtzg", false, false,
    ),
];

#[test]
fn selectors_match_upstreams_vectors() {
    for (input, canonical, id, over_nothing, over_a_b) in VECTORS {
        let selector = Selector::parse(input).unwrap_or_else(|e| panic!("{input:?}: {e}"));
        assert_eq!(&selector.to_string(), canonical, "{input:?}");
        assert_eq!(&unique_id(&selector), id, "{input:?}");
        assert_eq!(
            selector.matches(&labels(&[])),
            *over_nothing,
            "{input:?} over nothing"
        );
        assert_eq!(
            selector.matches(&labels(&[("a", "b")])),
            *over_a_b,
            "{input:?} over a=b"
        );
    }
}

/// Upstream's errors, except that of `a (`: input, start of the error text, offset.
#[rustfmt::skip]
const ERRORS: &[(&str, &str, usize)] = &[
    ("a == 'b", "unterminated string", 5),
    (r#"a == "b'"#, "unterminated string", 5),
    ("a = 'b'", "expected ==", 2),
    ("a", "unexpected end of string looking for op", 1),
    ("!", "unexpected end of string looking for op", 1),
    ("a == 'b' &&", "unexpected end of string looking for op", 11),
    ("a == b", "expected string", 5),
    ("a ==", "expected string", 4),
    ("has(a", "no closing ')' after has(", 0),
    ("has()", "expected identifier", 0),
    ("all(x)", "no closing ')' after all(", 0),
    ("global(x)", "no closing ')' after global(", 0),
    ("a\n== 'b'", "expected operator after label \"a\"", 1),
    ("a:b == 'x'", "expected operator after label \"a\"", 1),
    ("a inn {'b'}", "expected operator after label \"a\"", 2),
    ("a (", "expected operator after label \"a\"", 2),
    ("a == 'b' c", "unexpected content at end of selector", 9),
    ("all () ", "expected operator after label \"all\"", 4),
    ("()", "unexpected token", 1),
    ("'a'", "unexpected token", 0),
    ("(has(a)", "expected )", 7),
    ("a in 'b'", "expected set literal", 5),
    ("a in {'b'", "expected }", 9),
    ("a in {'b' 'c'}", "expected }", 10),
    ("a in {,}", "expected }", 6),
    ("a&b", "expected &&", 1),
    ("a|b", "expected ||", 1),
    ("ä == 'b'", "expected identifier", 0),
    ("has(ä)", "expected identifier", 0),
];

#[test]
fn selector_errors_match_upstreams() {
    for (input, text, offset) in ERRORS {
        let error = Selector::parse(input).expect_err(input);
        assert!(error.to_string().starts_with(text), "{input:?}: {error}");
        assert_eq!(error.offset, *offset, "{input:?}: {error}");
    }
}

#[test]
fn operator_keywords_parse_as_labels_in_label_position() {
    for (input, canonical) in [
        ("in == 'x'", r#"in == "x""#),
        ("in in {'x'}", r#"in in {"x"}"#),
        ("contains contains 'x'", r#"contains contains "x""#),
        ("has == 'x'", r#"has == "x""#),
        (
            "all == 'x' && global != 'y'",
            r#"(all == "x" && global != "y")"#,
        ),
        ("a not\t in{'x' , }", r#"a not in {"x"}"#),
        ("a ends  with'x'", r#"a ends with "x""#),
    ] {
        assert_eq!(
            Selector::parse(input).unwrap().to_string(),
            canonical,
            "{input:?}"
        );
    }
}

#[test]
fn selector_operators_match_present_and_absent_labels() {
    let present = labels(&[("a", "value"), ("empty", "")]);
    for (input, expected) in [
        ("a == 'value'", true),
        ("a != 'value'", false),
        ("a in {'value'}", true),
        ("a not in {'value'}", false),
        ("a contains 'alu'", true),
        ("a starts with 'val'", true),
        ("a ends with 'ue'", true),
        (
            "a contains 'x' || a starts with 'x' || a ends with 'x'",
            false,
        ),
        ("has(a)", true),
        ("has(empty) && empty == ''", true),
        ("absent == ''", false),
        (
            "absent contains '' || absent starts with '' || absent ends with ''",
            false,
        ),
        ("absent in {''}", false),
        ("absent != '' && absent not in {''}", true),
        ("has(absent)", false),
    ] {
        assert_eq!(
            Selector::parse(input).unwrap().matches(&present),
            expected,
            "{input:?}"
        );
    }
}

#[test]
fn selector_labels_have_at_most_512_characters() {
    let longest = "l".repeat(512);
    assert!(Selector::parse(&format!("has({longest})")).is_ok());
    let error = Selector::parse(&format!("{longest}l == 'x'")).unwrap_err();
    assert!(
        error.to_string().starts_with("label too long: lll"),
        "{error}"
    );
}

/// Uses a quarter of a thread's default stack.
#[test]
fn selector_nesting_is_limited_before_the_stack_overflows() {
    let nested =
        |open: &str, depth: usize| format!("{}has(a){}", open.repeat(depth), ")".repeat(depth));
    let deepest = move || {
        for open in ["(", "!(", "x == 'y' || ("] {
            let selector = Selector::parse(&nested(open, MAX_NESTING)).unwrap();
            assert!(selector.matches(&labels(&[("a", "")])), "{open}");
            assert!(Selector::parse(&selector.to_string()).is_ok());
            let error = Selector::parse(&nested(open, MAX_NESTING + 1)).unwrap_err();
            assert_eq!(error.reason, SelectorErrorReason::TooDeep);
        }
        let error = Selector::parse(&"(".repeat(1_000_000)).unwrap_err();
        assert_eq!(error.reason, SelectorErrorReason::TooDeep);
        assert_eq!(
            Selector::parse(&format!("{}has(a)", "!".repeat(1_000_001)))
                .unwrap()
                .to_string(),
            "!has(a)"
        );
    };
    std::thread::Builder::new()
        .stack_size(512 * 1024)
        .spawn(deepest)
        .unwrap()
        .join()
        .unwrap();
}

#[rustfmt::skip]
const WORDS: &[&str] = &[
    "a", "b", "has(", "all(", "global(", "(", ")", "{", "}", ",", "==", "!=", "=", "!", "&&", "||",
    "in", "not in",
    "starts with", "ends with", "contains", "'x'", "\"it's\"", "'", "\n", "ä", "all()", "has(a)",
    "a == 'x'",
    "b in {'x', 'y'}",
];

fn almost_selectors() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => prop::collection::vec(
            prop::sample::select(WORDS), 0..12,
        ).prop_map(|words| words.join(" ")),
        1 => ".{0,40}",
    ]
}

/// FUZZ_SECONDS sets the duration of the search.
#[test]
fn any_selector_text_is_parsed_or_rejected_and_its_canonical_form_is_equivalent() {
    let end = Instant::now() + fuzz_time();
    let worlds = [
        labels(&[]),
        labels(&[("a", "x")]),
        labels(&[("b", "y")]),
        labels(&[("a", "it's"), ("b", "x")]),
    ];
    let mut parsed = 0u64;
    while Instant::now() < end {
        let mut runner = TestRunner::new(Config {
            cases: 512,
            failure_persistence: None,
            ..Config::default()
        });
        let counter = std::cell::Cell::new(0u64);
        runner
            .run(&almost_selectors(), |text| {
                let Ok(selector) = Selector::parse(&text) else {
                    return Ok(());
                };
                counter.set(counter.get() + 1);
                let canonical = selector.to_string();
                let again = Selector::parse(&canonical)
                    .map_err(|e| TestCaseError::fail(format!("{canonical}: {e}")))?;
                for world in &worlds {
                    prop_assert_eq!(
                        selector.matches(world),
                        again.matches(world),
                        "{} over {:?}",
                        canonical,
                        world
                    );
                }
                Ok(())
            })
            .unwrap();
        parsed += counter.get();
    }
    assert!(parsed > 0, "the generator made no selector at all");
}
