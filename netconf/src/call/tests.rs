use std::cell::Cell;

use super::*;

type Pairs<'a> = &'a [(&'a str, &'a str)];

const MINIMAL: &str = r#"{"name":"net","cniVersion":"1.1.0","type":"calico"}"#;

fn call_with(variables: Pairs<'_>, stdin: &str) -> Result<Call, CallError> {
    let defaults = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "c0ffee"),
        ("CNI_NETNS", "/run/netns/x"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/opt/cni/bin"),
    ];
    let lookup = |name: &str| {
        let find = |table: &[(&str, &str)]| {
            table
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| value.to_string())
        };
        find(variables).or_else(|| find(&defaults))
    };
    read_call(Variables::new(&lookup), || Ok(stdin.as_bytes().to_vec()))
}

fn error(variables: Pairs<'_>, stdin: &str) -> CniError {
    call_with(variables, stdin).unwrap_err().error
}

#[test]
fn complete_call_is_decoded() {
    let stdin = r#"{ "cniVersion": "0.4.0", "name": "net", "mtu": 1400 }"#;
    let call = call_with(
        &[("CNI_ARGS", "IP=10.0.0.7"), ("ETCD_ENDPOINTS", "http://e")],
        stdin,
    )
    .unwrap();
    assert_eq!(call.command, Command::Add);
    assert_eq!(
        (
            call.container_id.as_str(),
            call.netns.as_str(),
            call.ifname.as_str()
        ),
        ("c0ffee", "/run/netns/x", "eth0")
    );
    assert_eq!(call.args.ip, Some("10.0.0.7".parse().unwrap()));
    assert_eq!(call.raw_args, "IP=10.0.0.7");
    assert_eq!(call.path, ["/opt/cni/bin"]);
    assert_eq!(
        (call.version, call.result_version()),
        (Version::V0_4_0, Version::V0_4_0)
    );
    assert_eq!(
        (call.conf.name.as_str(), call.conf.interface.mtu),
        ("net", 1400)
    );
    assert_eq!(call.conf.datastore.etcd_endpoints, "http://e");
    assert_eq!(call.raw, stdin.as_bytes());
}

#[test]
fn missing_version_is_checked_as_0_1_0_and_yields_a_0_2_0_result() {
    let call = call_with(&[], r#"{"name":"net"}"#).unwrap();
    assert_eq!(
        (call.version, call.result_version()),
        (Version::V0_1_0, Version::V0_2_0)
    );
    let check = error(&[("CNI_COMMAND", "CHECK")], r#"{"name":"net"}"#);
    assert_eq!(check.msg, "config version does not allow CHECK");
}

/// Each input has the fault of its stage and faults of later stages.
#[test]
fn checks_of_a_call_run_in_upstreams_order() {
    let bad = ("CNI_ARGS", "nonsense");
    let nonsense = ("CNI_COMMAND", "NONSENSE");
    let stages: [(Pairs<'_>, &str, Code, &str); 10] = [
        (
            &[("CNI_IFNAME", "a/b"), ("CNI_CONTAINERID", ""), bad],
            "{",
            Code(4),
            "interface name contains / or : or whitespace characters",
        ),
        (
            &[("CNI_CONTAINERID", ""), bad],
            "{",
            Code(4),
            "required env variables [CNI_CONTAINERID] missing",
        ),
        (
            &[nonsense, bad],
            "{",
            Code(6),
            "error unmarshall network config: unexpected end of JSON input",
        ),
        (
            &[nonsense, bad],
            r#"{"mtu":"x","cniVersion":7}"#,
            Code(7),
            "missing network name",
        ),
        (
            &[nonsense, bad],
            r#"{"mtu":"x","cniVersion":7,"name":"a/b"}"#,
            Code(7),
            "invalid characters found in network name",
        ),
        (
            &[nonsense, bad],
            r#"{"mtu":"x","cniVersion":7,"name":"n"}"#,
            Code(4),
            "unknown CNI_COMMAND: NONSENSE",
        ),
        (
            &[bad],
            r#"{"mtu":"x","cniVersion":7,"name":"n"}"#,
            Code(6),
            "decoding version from network config: $.cniVersion: found the number 7, want a string",
        ),
        (
            &[bad],
            r#"{"mtu":"x","cniVersion":"9.9.9","name":"n"}"#,
            Code(1),
            "incompatible CNI versions",
        ),
        (
            &[bad],
            r#"{"mtu":"x","cniVersion":"1.0.0","name":"n"}"#,
            Code(6),
            "failed to load netconf: $.mtu: found the string \"x\", want 0 or an integer from 68 \
             to 65535",
        ),
        (
            &[bad],
            r#"{"mtu":1400,"cniVersion":"1.0.0","name":"n"}"#,
            Code(4),
            "ARGS: invalid pair \"nonsense\"",
        ),
    ];
    for (variables, stdin, code, msg) in stages {
        let error = error(variables, stdin);
        assert_eq!((error.code, error.msg.as_str()), (code, msg));
    }
}

#[test]
fn stdin_is_not_read_if_the_environment_is_invalid() {
    let read = Cell::new(false);
    let stdin = || {
        read.set(true);
        Ok(Vec::new())
    };
    let lookup = |name: &str| (name == "CNI_COMMAND").then(|| "ADD".to_owned());
    read_call(Variables::new(&lookup), stdin).unwrap_err();
    assert!(!read.get());
}

#[test]
fn unreadable_stdin_is_an_io_error() {
    let lookup = |name: &str| Some(if name == "CNI_COMMAND" { "STATUS" } else { "x" }.to_owned());
    let error = read_call(Variables::new(&lookup), || {
        Err(io::Error::other("broken pipe"))
    })
    .unwrap_err()
    .error;
    assert_eq!(
        error,
        CniError::new(Code::IO, "error reading from stdin: broken pipe")
    );
}

#[test]
fn stdin_other_than_an_object_is_a_decode_error() {
    for (stdin, found) in [
        ("[]", "an array"),
        ("7", "the number 7"),
        (r#""x""#, r#"the string "x""#),
    ] {
        let error = error(&[], stdin);
        assert_eq!(
            (error.code, error.msg),
            (
                Code::DECODE,
                format!("error unmarshall network config: $: found {found}, want an object")
            )
        );
    }
    assert_eq!(error(&[], "null").msg, "missing network name");
    assert!(error(&[], "").details.contains("standard input"));
}

#[test]
fn plugin_entry_without_a_name_is_rejected_with_a_jq_hint() {
    let error = error(&[], r#"{"type":"calico","ipam":{"type":"calico-ipam"}}"#);
    assert_eq!(
        (error.code, error.msg.as_str()),
        (Code::INVALID_CONFIG, "missing network name")
    );
    assert!(
        error
            .details
            .contains("jq '.plugins[0] + {name, cniVersion}'"),
        "{error}"
    );
}

#[test]
fn configuration_list_is_rejected_with_a_jq_hint() {
    let error = error(
        &[],
        r#"{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"calico"}]}"#,
    );
    assert_eq!(error.code, Code::INVALID_CONFIG);
    assert!(error.msg.contains("network configuration list"), "{error}");
    assert!(
        error
            .details
            .contains("jq '.plugins[0] + {name, cniVersion}'"),
        "{error}"
    );
    call_with(&[], r#"{"name":"n","type":"calico","plugins":7}"#).unwrap();
}

#[test]
fn errors_carry_the_cni_version_once_decoded() {
    let version =
        |variables: Pairs<'_>, stdin: &str| call_with(variables, stdin).unwrap_err().version;
    assert_eq!(version(&[], "{"), None);
    assert_eq!(version(&[("CNI_COMMAND", "NONSENSE")], MINIMAL), None);
    assert_eq!(
        version(&[], r#"{"name":"n","cniVersion":"0.4.0","mtu":"x"}"#),
        Some(Version::V0_4_0)
    );
    assert_eq!(
        version(&[("CNI_ARGS", "x")], MINIMAL),
        Some(Version::V1_1_0)
    );
}

#[test]
fn prev_result_is_read_only_for_add_and_check() {
    let stdin = |ip: &str| {
        format!(
            r#"{{"name":"n","cniVersion":"1.0.0","prevResult":{{"ips":[{{"address":"{ip}"}}]}}}}"#
        )
    };
    for command in ["ADD", "CHECK"] {
        let call = call_with(&[("CNI_COMMAND", command)], &stdin("10.0.0.7/32")).unwrap();
        assert_eq!(
            call.prev_result.unwrap().ips[0].address.to_string(),
            "10.0.0.7/32"
        );
        let error = error(&[("CNI_COMMAND", command)], &stdin("10.0.0.7"));
        assert_eq!(error.code, Code::INVALID_CONFIG);
        assert!(
            error
                .msg
                .starts_with("failed to load netconf: $.prevResult.ips[0].address: found"),
            "{error}"
        );
    }
    assert_eq!(
        call_with(&[("CNI_COMMAND", "DEL")], &stdin("10.0.0.7"))
            .unwrap()
            .prev_result,
        None
    );
}

#[test]
fn gc_requires_the_list_of_valid_attachments() {
    let error = error(&[("CNI_COMMAND", "GC")], MINIMAL);
    assert_eq!(error.code, Code::INVALID_CONFIG);
    let missing = "failed to load netconf: $[\"cni.dev/valid-attachments\"]: missing, want the \
                   existing attachments";
    assert_eq!(error.msg, missing);
    let stdin = |list: &str| {
        format!(r#"{{"name":"n","cniVersion":"1.1.0","cni.dev/valid-attachments":{list}}}"#)
    };
    let gc = |list: &str| call_with(&[("CNI_COMMAND", "GC")], &stdin(list));
    assert_eq!(gc("[]").unwrap().conf.valid_attachments, Some(Vec::new()));
    let listed = gc(r#"[{"containerID":"c","ifname":"eth0"}]"#)
        .unwrap()
        .conf
        .valid_attachments
        .unwrap();
    assert_eq!(
        (listed[0].container_id.as_str(), listed[0].ifname.as_str()),
        ("c", "eth0")
    );
    let half = gc(r#"[{"containerID":"c"}]"#).unwrap_err().error;
    assert!(
        half.msg
            .contains(r#"$["cni.dev/valid-attachments"][0].ifname: missing"#),
        "{half}"
    );
    assert_eq!(gc("null").unwrap_err().error.code, Code::INVALID_CONFIG);
}

#[test]
fn commands_unsupported_by_the_version_are_rejected() {
    for (command, stdin, ok) in [
        ("STATUS", MINIMAL, true),
        ("STATUS", r#"{"name":"n","cniVersion":"1.0.0"}"#, false),
        ("GC", r#"{"name":"n","cniVersion":"1.0.0"}"#, false),
        ("CHECK", r#"{"name":"n","cniVersion":"0.4.0"}"#, true),
        ("CHECK", r#"{"name":"n","cniVersion":"0.3.1"}"#, false),
    ] {
        match call_with(&[("CNI_COMMAND", command)], stdin) {
            Ok(_) => assert!(ok, "{command} {stdin}"),
            Err(error) => {
                assert!(!ok, "{error}");
                assert_eq!(error.error.code, Code::INCOMPATIBLE_VERSION);
            }
        }
    }
}

#[test]
fn rewritten_configuration_preserves_other_bytes() {
    let call = call_with(
        &[],
        r#"{"name":"n","big":9007199254740993,"ipam":{"subnet":"usePodCidr"}}"#,
    )
    .unwrap();
    let bytes = call
        .rewritten(|object| object.change("ipam", |ipam| ipam.set("subnet", "10.1.0.0/24")))
        .unwrap();
    assert_eq!(
        bytes,
        br#"{"name":"n","big":9007199254740993,"ipam":{"subnet":"10.1.0.0/24"}}"#
    );
}

#[test]
fn unsupported_version_error_lists_the_supported_versions() {
    let error = parse_config_version("9.9.9").unwrap_err();
    assert_eq!(error.code, Code::INCOMPATIBLE_VERSION);
    assert_eq!(error.msg, "incompatible CNI versions");
    assert_eq!(
        error.details,
        r#"config is "9.9.9", plugin supports ["0.1.0" "0.2.0" "0.3.0" "0.3.1" "0.4.0" "1.0.0" "1.1.0"]"#
    );
    assert_eq!(parse_config_version("").unwrap(), Version::V0_1_0);
}
