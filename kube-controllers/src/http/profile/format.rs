//! The format of pprof: <https://github.com/google/pprof/blob/main/proto/profile.proto>. The fields that our profiles have.

use std::collections::HashMap;

use prost::Message;

#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    time_nanos: i64,
    #[prost(int64, tag = "10")]
    duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    period: i64,
}

/// Indexes of the table of strings.
#[derive(Clone, Copy, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    kind: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
}

/// Collects samples.
pub(super) struct Builder {
    profile: Profile,
    strings: HashMap<String, i64>,
    /// By function and line.
    locations: HashMap<(u64, i64), u64>,
    /// By name and file.
    functions: HashMap<(i64, i64), u64>,
}

/// Where a sample was taken.
pub(super) struct Frame {
    pub(super) function: String,
    pub(super) file: String,
    pub(super) line: u32,
}

impl Builder {
    /// A profile whose samples have a value of each of these types, as `(type, unit)`.
    pub(super) fn new(types: &[(&str, &str)]) -> Self {
        let mut this = Builder {
            profile: Profile::default(),
            strings: HashMap::new(),
            locations: HashMap::new(),
            functions: HashMap::new(),
        };
        // The first string is the empty one.
        this.string("");
        for (kind, unit) in types {
            let value = ValueType { kind: this.string(kind), unit: this.string(unit) };
            this.profile.sample_type.push(value);
        }
        this
    }

    /// When it was taken, over how long, and how much of the last type passed between two samples.
    pub(super) fn timing(&mut self, time_nanos: i64, duration_nanos: i64, period: i64) {
        self.profile.time_nanos = time_nanos;
        self.profile.duration_nanos = duration_nanos;
        self.profile.period_type = self.profile.sample_type.last().copied();
        self.profile.period = period;
    }

    /// Adds a sample: where, innermost first, and its values.
    pub(super) fn sample(&mut self, frames: impl IntoIterator<Item = Frame>, value: Vec<i64>) {
        let location_id = frames.into_iter().map(|frame| self.location(frame)).collect();
        self.profile.sample.push(Sample { location_id, value });
    }

    /// The encoded profile. Compression is optional.
    pub(super) fn encode(self) -> Vec<u8> {
        self.profile.encode_to_vec()
    }

    fn location(&mut self, frame: Frame) -> u64 {
        let (name, filename) = (self.string(&frame.function), self.string(&frame.file));
        let next = self.functions.len() as u64 + 1;
        let function_id = *self.functions.entry((name, filename)).or_insert_with(|| {
            self.profile.function.push(Function { id: next, name, system_name: name, filename });
            next
        });
        let line = i64::from(frame.line);
        let next = self.locations.len() as u64 + 1;
        *self.locations.entry((function_id, line)).or_insert_with(|| {
            self.profile.location.push(Location { id: next, line: vec![Line { function_id, line }] });
            next
        })
    }

    fn string(&mut self, text: &str) -> i64 {
        if let Some(index) = self.strings.get(text) {
            return *index;
        }
        let index = self.profile.string_table.len() as i64;
        self.profile.string_table.push(text.to_owned());
        self.strings.insert(text.to_owned(), index);
        index
    }
}

#[cfg(test)]
pub(in crate::http) mod tests {
    use super::*;

    /// Each sample as `outermost;…;innermost values`, as flame graphs are drawn from.
    pub(in crate::http) fn folded(encoded: &[u8]) -> Vec<String> {
        let profile = Profile::decode(encoded).expect("a profile");
        assert_eq!(profile.string_table.first().map(String::as_str), Some(""));
        let name = |location: &u64| {
            let location = profile.location.iter().find(|one| one.id == *location).expect("its location");
            let function =
                profile.function.iter().find(|one| one.id == location.line[0].function_id).expect("its function");
            profile.string_table[usize::try_from(function.name).expect("an index")].clone()
        };
        let fold = |sample: &Sample| {
            let names: Vec<_> = sample.location_id.iter().rev().map(name).collect();
            assert_eq!(sample.value.len(), profile.sample_type.len());
            format!("{} {:?}", names.join(";"), sample.value)
        };
        profile.sample.iter().map(fold).collect()
    }

    #[test]
    fn what_is_the_same_is_stored_once() {
        let frame = |function: &str, line| Frame { function: function.into(), file: "main.rs".into(), line };
        let mut builder = Builder::new(&[("samples", "count"), ("cpu", "nanoseconds")]);
        builder.timing(1, 2, 3);
        builder.sample([frame("leaf", 7), frame("main", 1)], vec![2, 20]);
        builder.sample([frame("leaf", 8), frame("main", 1)], vec![1, 10]);
        let encoded = builder.encode();
        assert_eq!(folded(&encoded), ["main;leaf [2, 20]", "main;leaf [1, 10]"]);
        let profile = Profile::decode(encoded.as_slice()).expect("a profile");
        assert_eq!((profile.function.len(), profile.location.len()), (2, 3));
        assert_eq!(profile.string_table, ["", "samples", "count", "cpu", "nanoseconds", "leaf", "main.rs", "main"]);
        assert_eq!((profile.time_nanos, profile.duration_nanos, profile.period), (1, 2, 3));
        assert_eq!(profile.period_type, Some(ValueType { kind: 3, unit: 4 }));
    }
}
