use super::*;

/// Returns each sample as `outermost;…;innermost values`, the input of flame graphs.
pub(in crate::http) fn folded(encoded: &[u8]) -> Vec<String> {
    let profile = Profile::decode(encoded).expect("a profile");
    assert_eq!(profile.string_table.first().map(String::as_str), Some(""));
    let string =
        |index: i64| profile.string_table[usize::try_from(index).expect("an index")].as_str();
    let name = |location: &u64| {
        let location = profile
            .location
            .iter()
            .find(|one| one.id == *location)
            .expect("its location");
        let Some(line) = location.line.first() else {
            let mapping = profile
                .mapping
                .iter()
                .find(|one| one.id == location.mapping_id);
            return format!(
                "{:x}@{}",
                location.address,
                mapping.map_or("", |one| string(one.filename))
            );
        };
        let function = profile
            .function
            .iter()
            .find(|one| one.id == line.function_id)
            .expect("its function");
        string(function.name).to_owned()
    };
    let fold = |sample: &Sample| {
        let names: Vec<_> = sample.location_id.iter().rev().map(name).collect();
        assert_eq!(sample.value.len(), profile.sample_type.len());
        format!("{} {:?}", names.join(";"), sample.value)
    };
    profile.sample.iter().map(fold).collect()
}

#[test]
fn equal_profile_entries_are_stored_once() {
    let code = |memory, offset, file: &str, id: &str| MappedCode {
        memory,
        offset,
        file: file.into(),
        build_id: id.into(),
    };
    let mut builder = Builder::new(&[("samples", "count"), ("cpu", "nanoseconds")]);
    builder.timing(1, 2, 3);
    builder.drop_functions("handler");
    builder.code(&[
        code((0x1000, 0x2000), 16, "program", "ab"),
        code((0x8000, 0x9000), 0, "library", ""),
    ]);
    let thread = || Frame::Name("thread 1".into());
    builder.sample(
        [Frame::Address(0x1fff), Frame::Address(0x1000), thread()],
        vec![2, 20],
    );
    builder.sample(
        [Frame::Address(0x8000), Frame::Address(0x1000), thread()],
        vec![1, 10],
    );
    builder.sample([Frame::Address(0x2000), thread()], vec![1, 10]);
    let encoded = builder.encode();
    assert_eq!(
        folded(&encoded),
        [
            "thread 1;1000@program;1fff@program [2, 20]",
            "thread 1;1000@program;8000@library [1, 10]",
            "thread 1;2000@ [1, 10]",
        ]
    );
    let profile = Profile::decode(encoded.as_slice()).expect("a profile");
    assert_eq!((profile.function.len(), profile.location.len()), (1, 5));
    assert_eq!(
        profile.string_table,
        [
            "",
            "samples",
            "count",
            "cpu",
            "nanoseconds",
            "handler",
            "program",
            "ab",
            "library",
            "thread 1"
        ]
    );
    assert_eq!(
        (profile.time_nanos, profile.duration_nanos, profile.period),
        (1, 2, 3)
    );
    assert_eq!(profile.period_type, Some(ValueType { kind: 3, unit: 4 }));
    assert_eq!(profile.drop_frames, 5);
    let program = Mapping {
        id: 1,
        memory_start: 0x1000,
        memory_limit: 0x2000,
        file_offset: 16,
        filename: 6,
        build_id: 7,
    };
    assert_eq!(profile.mapping[0], program);
}
