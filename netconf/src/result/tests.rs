use serde_json::json;

use super::*;
use crate::{Code, Version};

fn dual_stack() -> CniResult {
    let interface = |name: &str| Interface {
        name: name.to_owned(),
        ..Interface::default()
    };
    let ip = |address: &str| IpConfig {
        interface: Some(1),
        address: address.parse().unwrap(),
        gateway: None,
    };
    CniResult {
        interfaces: vec![
            interface("calic440f455693"),
            Interface {
                mac: "7a:11:22:33:44:55".to_owned(),
                mtu: 1450,
                sandbox: "/var/run/netns/cni-1234".to_owned(),
                ..interface("eth0")
            },
        ],
        ips: vec![ip("10.65.0.5/32"), ip("fd00:65::5/128")],
        routes: vec![
            Route::to("10.65.0.5/26".parse().unwrap()),
            Route::to("fd00:65::5/122".parse().unwrap()),
        ],
        dns: Dns::default(),
    }
}

#[test]
fn result_in_version_1_0_0_matches_byte_by_byte() {
    let want = r#"{
    "cniVersion": "1.0.0",
    "interfaces": [
        {
            "name": "calic440f455693"
        },
        {
            "mac": "7a:11:22:33:44:55",
            "mtu": 1450,
            "name": "eth0",
            "sandbox": "/var/run/netns/cni-1234"
        }
    ],
    "ips": [
        {
            "address": "10.65.0.5/32",
            "interface": 1
        },
        {
            "address": "fd00:65::5/128",
            "interface": 1
        }
    ],
    "routes": [
        {
            "dst": "10.65.0.5/26"
        },
        {
            "dst": "fd00:65::5/122"
        }
    ]
}"#;
    assert_eq!(dual_stack().to_json(Version::V1_0_0).unwrap(), want);
    assert_eq!(
        dual_stack().to_json(Version::V1_1_0).unwrap(),
        want.replace("1.0.0", "1.1.0")
    );
}

#[test]
fn result_in_version_0_3_1_matches_byte_by_byte() {
    let want = r#"{
    "cniVersion": "0.3.1",
    "interfaces": [
        {
            "name": "calic440f455693"
        },
        {
            "name": "eth0",
            "mac": "7a:11:22:33:44:55",
            "sandbox": "/var/run/netns/cni-1234"
        }
    ],
    "ips": [
        {
            "version": "4",
            "interface": 1,
            "address": "10.65.0.5/32"
        },
        {
            "version": "6",
            "interface": 1,
            "address": "fd00:65::5/128"
        }
    ],
    "routes": [
        {
            "dst": "10.65.0.5/26"
        },
        {
            "dst": "fd00:65::5/122"
        }
    ],
    "dns": {}
}"#;
    for version in [Version::V0_3_0, Version::V0_3_1, Version::V0_4_0] {
        assert_eq!(
            dual_stack().to_json(version).unwrap(),
            want.replace("0.3.1", version.as_str())
        );
    }
}

#[test]
fn result_in_version_0_2_0_matches_byte_by_byte() {
    let want = r#"{
    "cniVersion": "0.2.0",
    "ip4": {
        "ip": "10.65.0.5/32",
        "routes": [
            {
                "dst": "10.65.0.5/26"
            }
        ]
    },
    "ip6": {
        "ip": "fd00:65::5/128",
        "routes": [
            {
                "dst": "fd00:65::5/122"
            }
        ]
    },
    "dns": {}
}"#;
    assert_eq!(dual_stack().to_json(Version::V0_2_0).unwrap(), want);
    assert_eq!(
        dual_stack().to_json(Version::V0_1_0).unwrap(),
        want.replace("0.2.0", "0.1.0")
    );
}

#[test]
fn every_route_and_dns_key_round_trips() {
    let route = Route {
        dst: "10.0.0.0/8".parse().unwrap(),
        gw: Some("10.0.0.1".parse().unwrap()),
        mtu: 1400,
        advmss: 1360,
        priority: 7,
        table: Some(0),
        scope: Some(253),
    };
    let dns = Dns {
        nameservers: vec!["10.0.0.53".to_owned()],
        domain: "a<b".to_owned(),
        search: vec!["c".to_owned()],
        options: vec!["d".to_owned()],
    };
    let result = CniResult {
        routes: vec![route],
        dns,
        ..CniResult::default()
    };
    let route = r#"{"dst":"10.0.0.0/8","gw":"10.0.0.1","mtu":1400,"advmss":1360,"priority":7,"table":0,"scope":253}"#;
    let dns = r#"{"nameservers":["10.0.0.53"],"domain":"a\u003cb","search":["c"],"options":["d"]}"#;
    let compact = |version| {
        result
            .to_json(version)
            .unwrap()
            .replace("\n", "")
            .replace("    ", "")
            .replace(": ", ":")
    };
    assert_eq!(
        compact(Version::V0_4_0),
        format!(r#"{{"cniVersion":"0.4.0","routes":[{route}],"dns":{dns}}}"#)
    );
    let route = r#"{"advmss":1360,"dst":"10.0.0.0/8","gw":"10.0.0.1","mtu":1400,"priority":7,"scope":253,"table":0}"#;
    let dns = r#"{"domain":"a\u003cb","nameservers":["10.0.0.53"],"options":["d"],"search":["c"]}"#;
    assert_eq!(
        compact(Version::V1_1_0),
        format!(r#"{{"cniVersion":"1.1.0","dns":{dns},"routes":[{route}]}}"#)
    );
}

#[test]
fn empty_result_omits_only_the_fields_that_upstream_omits() {
    let empty = CniResult::default();
    assert_eq!(
        empty.to_json(Version::V1_0_0).unwrap(),
        "{\n    \"cniVersion\": \"1.0.0\"\n}"
    );
    assert_eq!(
        empty.to_json(Version::V0_4_0).unwrap(),
        "{\n    \"cniVersion\": \"0.4.0\",\n    \"dns\": {}\n}"
    );
    for version in [Version::V0_1_0, Version::V0_2_0] {
        let error = empty.to_json(version).unwrap_err();
        assert_eq!(
            (error.code, error.msg.as_str()),
            (Code::INTERNAL, "cannot convert: no valid IP addresses")
        );
    }
}

#[test]
fn delegated_result_has_its_own_or_the_configured_version() {
    let old = json!({
        "ip4": { "ip": "10.0.0.7/24", "gateway": "10.0.0.1", "routes": [{ "dst": "0.0.0.0/0" }] },
        "dns": {},
    });
    let result = CniResult::parse(old.to_string().as_bytes(), Version::V0_2_0).unwrap();
    assert_eq!(
        result.ips,
        [IpConfig {
            interface: None,
            address: "10.0.0.7/24".parse().unwrap(),
            gateway: Some("10.0.0.1".parse().unwrap()),
        }]
    );
    assert_eq!(result.routes, [Route::to("0.0.0.0/0".parse().unwrap())]);
    let new = r#"{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.0.0.7/24"}],"interfaces":null}"#;
    assert_eq!(
        CniResult::parse(new.as_bytes(), Version::V0_2_0)
            .unwrap()
            .ips
            .len(),
        1
    );
    assert_eq!(
        CniResult::parse(b"null", Version::V1_0_0).unwrap(),
        CniResult::default()
    );
}

#[test]
fn invalid_result_is_rejected_with_the_path() {
    let table = [
        ("", Code::DECODE, "unexpected end of JSON input"),
        ("[]", Code::DECODE, "$: found an array, want an object"),
        (
            r#"{"cniVersion":"9.9.9"}"#,
            Code::INVALID_CONFIG,
            r#"$.cniVersion: found the string "9.9.9", want the string "0.1.0" or"#,
        ),
        (
            r#"{"ips":{}}"#,
            Code::DECODE,
            "$.ips: found an object, want an array",
        ),
        (
            r#"{"ips":[{}]}"#,
            Code::INVALID_CONFIG,
            "$.ips[0].address: missing",
        ),
        (
            r#"{"ips":[{"address":"10.0.0.1"}]}"#,
            Code::INVALID_CONFIG,
            r#"$.ips[0].address: found the string "10.0.0.1""#,
        ),
        (
            r#"{"ips":[{"address":"10.0.0.1/8","interface":0}]}"#,
            Code::INVALID_CONFIG,
            "$.ips[0].interface: found the number 0",
        ),
        (
            r#"{"ips":[{"address":"10.0.0.1/8","gateway":"x"}]}"#,
            Code::INVALID_CONFIG,
            "$.ips[0].gateway: found",
        ),
        (
            r#"{"interfaces":[{"name":7}]}"#,
            Code::DECODE,
            "$.interfaces[0].name: found the number 7",
        ),
        (
            r#"{"interfaces":[{"mtu":-1}]}"#,
            Code::INVALID_CONFIG,
            "$.interfaces[0].mtu: found the number -1",
        ),
        (
            r#"{"routes":[{"gw":"10.0.0.1"}]}"#,
            Code::INVALID_CONFIG,
            "$.routes[0].dst: missing",
        ),
        (
            r#"{"routes":[{"dst":"0.0.0.0/0","scope":256}]}"#,
            Code::INVALID_CONFIG,
            "$.routes[0].scope: found",
        ),
        (
            r#"{"dns":{"search":"x"}}"#,
            Code::DECODE,
            "$.dns.search: found",
        ),
    ];
    for (stdout, code, msg) in table {
        let error = CniResult::parse(stdout.as_bytes(), Version::V1_0_0).unwrap_err();
        assert_eq!(error.code, code, "{stdout}");
        assert!(
            error.msg.starts_with(&format!(
                "cannot read the result of the delegated plugin: {msg}"
            )),
            "{error}"
        );
    }
    let error = CniResult::parse(br#"{"ip4":{"ip":"x"}}"#, Version::V0_1_0).unwrap_err();
    assert!(error.msg.contains("$.ip4.ip: found"), "{error}");
}
