//! The part of pprof's format that the profiles use, and their error:
//! <https://github.com/google/pprof/blob/main/proto/profile.proto>.

use std::collections::HashMap;

use prost::Message;

#[derive(Debug, thiserror::Error)]
pub(in crate::http) enum ProfileError {
    #[error("another profile is being taken; ask again when it is done")]
    Busy,
    #[error("cannot take a profile: {0}")]
    Sampler(#[from] pprof::Error),
    #[error("cannot read the memory map: {0}")]
    Map(#[from] procfs::ProcError),
    /// The task that encodes the profile panicked or was aborted.
    #[error("the profile was cut off: {0}")]
    Interrupted(#[from] tokio::task::JoinError),
}

#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "7")]
    drop_frames: i64,
    #[prost(int64, tag = "9")]
    time_nanos: i64,
    #[prost(int64, tag = "10")]
    duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    period: i64,
}

/// A type and its unit, as indexes into the string table.
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

#[derive(Clone, Copy, PartialEq, Message)]
struct Mapping {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    memory_start: u64,
    #[prost(uint64, tag = "3")]
    memory_limit: u64,
    #[prost(uint64, tag = "4")]
    file_offset: u64,
    #[prost(int64, tag = "5")]
    filename: i64,
    #[prost(int64, tag = "6")]
    build_id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    mapping_id: u64,
    #[prost(uint64, tag = "3")]
    address: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
}

pub(super) struct Builder {
    profile: Profile,
    strings: HashMap<String, i64>,
    locations: HashMap<Frame, u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Frame {
    /// Address of an instruction, which the reader resolves with the program's file.
    Address(u64),
    /// A name that is in no file.
    Name(String),
}

/// A part of a program's file that is mapped into memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MappedCode {
    /// Address range: the first address, and the first address after the mapping.
    pub(super) memory: (u64, u64),
    /// Offset of the first address in the file, in bytes.
    pub(super) offset: u64,
    pub(super) file: String,
    /// Build ID in hexadecimal; empty if there is none.
    pub(super) build_id: String,
}

impl Builder {
    /// Creates a profile whose samples have a value for each of these types, given as
    /// `(type, unit)`.
    pub(super) fn new(types: &[(&str, &str)]) -> Self {
        let mut this = Builder {
            profile: Profile::default(),
            strings: HashMap::new(),
            locations: HashMap::new(),
        };
        // The format requires the empty string at index 0.
        this.string("");
        for (kind, unit) in types {
            let value = ValueType {
                kind: this.string(kind),
                unit: this.string(unit),
            };
            this.profile.sample_type.push(value);
        }
        this
    }

    /// Sets the time and the duration of the profile, and `period`: the amount, in the unit of the
    /// last sample type, between two samples.
    pub(super) fn timing(&mut self, time_nanos: i64, duration_nanos: i64, period: i64) {
        self.profile.time_nanos = time_nanos;
        self.profile.duration_nanos = duration_nanos;
        self.profile.period_type = self.profile.sample_type.last().copied();
        self.profile.period = period;
    }

    /// Sets the mappings that contain the addresses of samples. Call it before adding samples, with
    /// the program itself first.
    pub(super) fn code(&mut self, code: &[MappedCode]) {
        for (id, mapping) in (1..).zip(code) {
            let (filename, build_id) = (self.string(&mapping.file), self.string(&mapping.build_id));
            let (memory_start, memory_limit) = mapping.memory;
            let file_offset = mapping.offset;
            self.profile.mapping.push(Mapping {
                id,
                memory_start,
                memory_limit,
                file_offset,
                filename,
                build_id,
            });
        }
    }

    /// Sets a regular expression of function names. The reader drops these functions and all that
    /// they call.
    pub(super) fn drop_functions(&mut self, names: &str) {
        self.profile.drop_frames = self.string(names);
    }

    /// Adds a sample with its stack, innermost frame first, and its values.
    pub(super) fn sample(&mut self, frames: impl IntoIterator<Item = Frame>, value: Vec<i64>) {
        let location_id = frames
            .into_iter()
            .map(|frame| self.location(frame))
            .collect();
        self.profile.sample.push(Sample { location_id, value });
    }

    /// Returns the encoded profile. The format also allows uncompressed profiles, such as this.
    pub(super) fn encode(self) -> Vec<u8> {
        self.profile.encode_to_vec()
    }

    fn location(&mut self, frame: Frame) -> u64 {
        if let Some(id) = self.locations.get(&frame) {
            return *id;
        }
        let id = self.locations.len() as u64 + 1;
        let location = match &frame {
            Frame::Address(address) => {
                let holds = |mapping: &&Mapping| {
                    (mapping.memory_start..mapping.memory_limit).contains(address)
                };
                let mapping_id = self
                    .profile
                    .mapping
                    .iter()
                    .find(holds)
                    .map_or(0, |mapping| mapping.id);
                Location {
                    id,
                    mapping_id,
                    address: *address,
                    line: Vec::new(),
                }
            }
            Frame::Name(name) => {
                let name = self.string(name);
                // Function IDs count from 1 without a gap, because pprof derives the IDs of
                // functions that it adds from their number.
                let function_id = self.profile.function.len() as u64 + 1;
                self.profile.function.push(Function {
                    id: function_id,
                    name,
                    system_name: name,
                });
                Location {
                    id,
                    line: vec![Line { function_id }],
                    ..Location::default()
                }
            }
        };
        self.profile.location.push(location);
        self.locations.insert(frame, id);
        id
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
pub(in crate::http) mod tests;
