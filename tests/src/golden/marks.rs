//! Marks: placeholders in recordings for values that differ from run to run. [`Concrete`] replaces
//! marks by values, and [`Bindings`] finds the values of marks in results. Within a scenario,
//! different numbered marks of one family have different values.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use regex::{Captures, Regex};
use serde_json::{Value, json};

/// The value of `<time>` in loaded content. Any time written during a replay is later.
pub const LOADED_TIME: &str = "2026-08-20T10:00:00Z";

/// A mark anywhere in a text: its family, its number and, for a sequence number, its distance from
/// the first one.
static MARK: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"<(uid|rv|mac|ll|time|go-time|seq|lab|tmp|bin)([0-9]*)([+-][0-9]+)?>")
        .expect("a constant pattern")
});

/// Cache of compiled patterns.
static TEMPLATES: LazyLock<Mutex<HashMap<String, Regex>>> = LazyLock::new(Mutex::default);

/// The first sequence number that [`Concrete`] generates.
const FIRST_SEQUENCE: i64 = 1_787_360_523_123_400_000;

/// Directories of the replay.
#[derive(Debug, Clone, Default)]
pub struct Places {
    /// `<bin>`: the binaries under test.
    pub bin: String,
    /// `<tmp>`: scratch.
    pub tmp: String,
    /// `<lab>`: configuration of the recorder's machine.
    pub lab: String,
}

/// Replaces marks by values, equal marks by equal values.
#[derive(Debug)]
pub struct Concrete<'a> {
    places: &'a Places,
}

impl<'a> Concrete<'a> {
    /// Creates a replacer that inserts these directories for `<bin>`, `<tmp>` and `<lab>`.
    pub fn new(places: &'a Places) -> Self {
        Concrete { places }
    }

    /// Returns the value with every mark replaced.
    pub fn value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => self.string(text),
            Value::Array(items) => items.iter().map(|item| self.value(item)).collect(),
            Value::Object(fields) => fields
                .iter()
                .map(|(name, v)| (name.clone(), self.value(v)))
                .collect(),
            other => other.clone(),
        }
    }

    fn string(&self, text: &str) -> Value {
        if let Some(number) = sequence(text) {
            return json!(FIRST_SEQUENCE + number.family * 1_000_000 + number.distance);
        }
        Value::String(
            MARK.replace_all(text, |mark: &Captures<'_>| self.mark(&mark[1], &mark[2]))
                .into_owned(),
        )
    }

    fn mark(&self, family: &str, number: &str) -> String {
        let number: u32 = number.parse().unwrap_or(0);
        match family {
            "uid" => format!("00000000-0000-4000-8000-{number:012x}"),
            // A revision that no API server assigns.
            "rv" => "0".to_owned(),
            "mac" => format!("02:00:00:00:00:{number:02x}"),
            "ll" => format!("fe80::ff:fe00:{number:x}"),
            "time" => LOADED_TIME.to_owned(),
            "go-time" => "2026-08-20 10:00:00.123456789 +0000 UTC".to_owned(),
            "tmp" => self.places.tmp.clone(),
            "lab" => self.places.lab.clone(),
            "bin" => self.places.bin.clone(),
            // A sequence number is a number of its own, never a part of a text.
            _ => panic!("the mark <{family}> is a part of a text"),
        }
    }
}

/// A mark `<seqN+k>`, which stands for a JSON number if it is the whole string.
struct Sequence {
    family: i64,
    distance: i64,
}

fn sequence(text: &str) -> Option<Sequence> {
    let mark = MARK
        .captures(text)
        .filter(|mark| mark[0].len() == text.len() && &mark[1] == "seq")?;
    let distance = mark.get(3).map_or("0", |m| m.as_str());
    Some(Sequence {
        family: mark[2].parse().ok()?,
        distance: distance.parse().ok()?,
    })
}

/// The values bound to marks so far.
#[derive(Debug, Clone, Default)]
pub struct Bindings {
    places: Places,
    values: HashMap<String, String>,
    marks: HashMap<(String, String), String>,
    sequences: HashMap<i64, i64>,
    /// Whether to accept any time for `<time>`. Otherwise only times after [`LOADED_TIME`] match.
    any_time: bool,
}

impl Bindings {
    /// Creates bindings with only the directories bound.
    pub fn new(places: Places) -> Self {
        Bindings {
            places,
            ..Bindings::default()
        }
    }

    /// Returns these bindings, but with any time accepted for `<time>`.
    #[must_use]
    pub fn at_any_time(mut self) -> Self {
        self.any_time = true;
        self
    }

    /// Returns true if `actual` matches `expected`, and then binds the marks that occur for the
    /// first time.
    pub fn matches(&mut self, expected: &Value, actual: &Value) -> bool {
        let Value::String(pattern) = expected else {
            return expected == actual;
        };
        if let Some(wanted) = sequence(pattern) {
            return self.matches_sequence(&wanted, actual);
        }
        actual
            .as_str()
            .is_some_and(|text| self.matches_text(pattern, text))
    }

    fn matches_sequence(&mut self, wanted: &Sequence, actual: &Value) -> bool {
        let Some(actual) = actual.as_i64() else {
            return false;
        };
        let first = actual - wanted.distance;
        first >= 0 && *self.sequences.entry(wanted.family).or_insert(first) == first
    }

    fn matches_text(&mut self, pattern: &str, text: &str) -> bool {
        let marks: Vec<Captures<'_>> = MARK.captures_iter(pattern).collect();
        if marks.is_empty() {
            return pattern == text;
        }
        let Some(found) = self.template(pattern, &marks).captures(text) else {
            return false;
        };
        let fits = marks
            .iter()
            .enumerate()
            .all(|(i, mark)| self.may_bind(mark, &found[i + 1]));
        if fits {
            for (i, mark) in marks.iter().enumerate() {
                self.bind(mark, &found[i + 1]);
            }
        }
        fits
    }

    /// Returns a pattern with a group for each mark.
    fn template(&self, pattern: &str, marks: &[Captures<'_>]) -> Regex {
        let mut template = String::from("^");
        let mut end = 0;
        for mark in marks {
            let whole = mark.get(0).expect("group 0 is the match");
            template += &regex::escape(&pattern[end..whole.start()]);
            template += &format!("({})", self.form(&mark[1]));
            end = whole.end();
        }
        template += &regex::escape(&pattern[end..]);
        template += "$";
        let mut compiled = TEMPLATES.lock().unwrap_or_else(PoisonError::into_inner);
        let compile = || Regex::new(&template).expect("escaped text and constant groups");
        compiled
            .entry(template.clone())
            .or_insert_with(compile)
            .clone()
    }

    fn form(&self, family: &str) -> String {
        match family {
            "uid" => "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}".into(),
            "mac" => "[0-9a-f]{2}(?::[0-9a-f]{2}){5}".into(),
            "ll" => "fe80::[0-9a-f:]+".into(),
            "time" => "20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z".into(),
            "go-time" => {
                r"20[0-9]{2}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{0,8}[1-9])? \+0000 UTC".into()
            }
            "tmp" => regex::escape(&self.places.tmp),
            "lab" => regex::escape(&self.places.lab),
            "bin" => regex::escape(&self.places.bin),
            _ => "[0-9]+".into(),
        }
    }

    fn may_bind(&self, mark: &Captures<'_>, value: &str) -> bool {
        let family = &mark[1];
        if mark[2].is_empty() {
            // All times have the same mark. The time of loaded content is compared as a literal.
            return family != "time" || self.any_time || value > LOADED_TIME;
        }
        match self.values.get(&mark[0]) {
            Some(bound) => bound == value,
            None => !self
                .marks
                .contains_key(&(family.to_owned(), value.to_owned())),
        }
    }

    fn bind(&mut self, mark: &Captures<'_>, value: &str) {
        if !mark[2].is_empty() {
            self.values.insert(mark[0].to_owned(), value.to_owned());
            self.marks
                .insert((mark[1].to_owned(), value.to_owned()), mark[0].to_owned());
        }
    }

    /// Returns `step` with the loaded text at each position, outside of lists, where both `step`
    /// and `initial` have a mark: an object that existed before keeps its UID and its time.
    /// `loaded` is `initial` made concrete.
    pub fn keep_loaded(&mut self, step: &Value, initial: &Value, loaded: &Value) -> Value {
        match (step, initial, loaded) {
            (Value::Object(fields), Value::Object(initial), Value::Object(loaded)) => {
                let keep = |(name, value): (&String, &Value)| match (
                    initial.get(name),
                    loaded.get(name),
                ) {
                    (Some(initial), Some(loaded)) => {
                        (name.clone(), self.keep_loaded(value, initial, loaded))
                    }
                    _ => (name.clone(), value.clone()),
                };
                Value::Object(fields.iter().map(keep).collect())
            }
            (Value::String(step_mark), Value::String(initial_mark), Value::String(loaded))
                if MARK.is_match(step_mark) && MARK.is_match(initial_mark) =>
            {
                if let Some(mark) = MARK.captures(step_mark) {
                    self.bind(&mark, loaded);
                }
                Value::String(loaded.clone())
            }
            _ => step.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bindings() -> Bindings {
        Bindings::new(Places {
            bin: "/b".into(),
            tmp: "/t".into(),
            lab: "/l".into(),
        })
    }

    #[test]
    fn equal_marks_match_equal_values_only() {
        let mut b = bindings();
        assert!(b.matches(&json!("<mac1>"), &json!("02:00:00:00:00:01")));
        assert!(b.matches(&json!("<mac1>"), &json!("02:00:00:00:00:01")));
        assert!(!b.matches(&json!("<mac1>"), &json!("02:00:00:00:00:02")));
    }

    #[test]
    fn different_marks_match_different_values_only() {
        let mut b = bindings();
        assert!(b.matches(&json!("<ll1>/64 link"), &json!("fe80::1/64 link")));
        assert!(!b.matches(&json!("<ll2>"), &json!("fe80::1")));
        assert!(b.matches(&json!("<ll2>"), &json!("fe80::2")));
    }

    #[test]
    fn mark_matches_only_values_of_its_format() {
        let mut b = bindings();
        assert!(!b.matches(&json!("<uid1>"), &json!("not-a-uid")));
        assert!(
            !b.matches(&json!("<time>"), &json!("2026-11-21T10:00:00.5Z")),
            "whole seconds"
        );
        assert!(
            !b.matches(&json!("<time>"), &json!(LOADED_TIME)),
            "not written during the replay"
        );
        assert!(b.matches(&json!("<time>"), &json!("2026-11-21T10:00:00Z")));
        assert!(b.matches(
            &json!("<go-time>"),
            &json!("2026-11-21 10:00:00.12 +0000 UTC")
        ));
        assert!(b.matches(&json!("<go-time>"), &json!("2026-11-21 10:00:00 +0000 UTC")));
        assert!(
            !b.matches(
                &json!("<go-time>"),
                &json!("2026-11-21 10:00:00.120 +0000 UTC")
            ),
            "IPAM-28"
        );
    }

    #[test]
    fn sequence_number_marks_match_only_at_equal_distances() {
        let mut b = bindings();
        assert!(b.matches(&json!("<seq1+0>"), &json!(100)));
        assert!(b.matches(&json!("<seq1-1>"), &json!(99)));
        assert!(!b.matches(&json!("<seq1+2>"), &json!(101)));
        assert!(b.matches(&json!("<seq2+5>"), &json!(7)));
        assert!(!b.matches(&json!("<seq1+0>"), &json!("100")));
    }

    #[test]
    #[should_panic(expected = "the mark <seq> is a part of a text")]
    fn sequence_number_inside_a_text_has_no_value() {
        _ = Concrete::new(&Places::default()).value(&json!("number <seq1+0>"));
    }

    #[test]
    fn mismatch_binds_no_mark() {
        let mut b = bindings();
        assert!(!b.matches(&json!("a <mac1> b"), &json!("a 02:00:00:00:00:01 c")));
        assert!(b.matches(&json!("<mac1>"), &json!("02:00:00:00:00:02")));
    }

    #[test]
    fn text_around_a_mark_matches_literally() {
        let mut b = bindings();
        assert!(b.matches(&json!("in path [<bin> /usr]"), &json!("in path [/b /usr]")));
        assert!(!b.matches(&json!("in path [<bin> /usr]"), &json!("in path [/c /usr]")));
        assert!(!b.matches(&json!("a.c"), &json!("abc")));
    }

    #[test]
    fn loaded_objects_keep_their_values_in_later_steps() {
        let mut b = bindings();
        let initial = json!({"p": {"uid": "<uid7>", "t": "<time>", "x": 1}});
        let loaded = Concrete::new(&b.places.clone()).value(&initial);
        let step = json!({"p": {"uid": "<uid2>", "t": "<time>", "x": 2}, "q": {"uid": "<uid3>"}});
        let expected = b.keep_loaded(&step, &initial, &loaded);
        assert_eq!(
            expected["p"],
            json!({"uid": loaded["p"]["uid"], "t": LOADED_TIME, "x": 2})
        );
        assert!(
            !b.matches(&json!("<uid3>"), &loaded["p"]["uid"]),
            "the uid is taken"
        );
    }
}
