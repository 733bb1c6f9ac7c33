use serde_json::json;

use super::*;
use crate::api::{AssignmentMode, IpPoolSpec};

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs
        .iter()
        .map(|&(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

fn pool(name: &str, range: &str, change: impl FnOnce(&mut IpPool)) -> IpPool {
    let mut pool = IpPool::new(
        name,
        IpPoolSpec {
            cidr: range.into(),
            ..IpPoolSpec::default()
        },
    );
    change(&mut pool);
    pool
}

fn plain(name: &str, range: &str) -> IpPool {
    pool(name, range, |_| {})
}

struct Request {
    requested: Vec<Cidr>,
    purpose: AllowedUse,
    node: Labels,
    namespace: Option<Labels>,
    named: NamedPools,
}

impl Default for Request {
    fn default() -> Self {
        Request {
            requested: Vec::new(),
            purpose: AllowedUse::Workload,
            node: Labels::new(),
            namespace: None,
            named: NamedPools::default(),
        }
    }
}

fn choose(pools: &[IpPool], request: &Request) -> Result<PoolChoice, PoolChoiceError> {
    choose_pools(
        pools,
        &PoolRequest {
            version: IpVersion::V4,
            requested: &request.requested,
            purpose: request.purpose,
            node: "node1",
            node_labels: &request.node,
            namespace: request.namespace.as_ref().map(|labels| ("web", labels)),
            named: request.named,
        },
    )
}

fn names(pools: &[Pool]) -> Vec<&str> {
    pools.iter().map(|pool| pool.name.as_str()).collect()
}

fn texts(refused: &[RejectedPool]) -> Vec<String> {
    refused.iter().map(ToString::to_string).collect()
}

#[test]
fn pools_are_ordered_by_name_or_by_the_request() {
    let pools = [
        plain("b", "10.2.0.0/16"),
        plain("c", "10.3.0.0/16"),
        plain("a", "10.1.0.0/16"),
    ];
    let choice = choose(&pools, &Request::default()).unwrap();
    assert_eq!(
        (names(&choice.chosen), choice.refused),
        (vec!["a", "b", "c"], vec![])
    );

    let request = Request {
        requested: vec![cidr("10.3.0.0/16"), cidr("10.1.0.0/16")],
        ..Request::default()
    };
    let choice = choose(&pools, &request).unwrap();
    assert_eq!(names(&choice.chosen), ["c", "a"]);
    assert_eq!(
        texts(&choice.refused),
        ["pool b (10.2.0.0/16): the request names other pools"]
    );
}

#[test]
fn rejected_pool_is_reported_with_the_reason() {
    type Change = fn(&mut IpPool);
    let cases: [(&str, Change, &str); 9] = [
        (
            "10.0.0.0/16",
            |p| p.spec.disabled = true,
            "pool p (10.0.0.0/16): it is disabled",
        ),
        (
            "10.0.0.0/16",
            |p| p.metadata.deletion_timestamp = Some("2026-01-01T00:00:00Z".into()),
            "pool p (10.0.0.0/16): it is being deleted",
        ),
        (
            "10.0.0.0/16",
            |p| {
                p.status = Some(json!({"conditions": [
                    {"type": "Allocatable", "status": "False", "message": "overlaps pool q"}]}))
            },
            "pool p (10.0.0.0/16): its status is not Allocatable: overlaps pool q",
        ),
        ("ten", |_| {}, "pool p: its cidr `ten` is invalid"),
        (
            "fd00::/64",
            |_| {},
            "pool p (fd00::/64): it is an IPv6 pool",
        ),
        (
            "10.0.0.0/16",
            |p| p.spec.block_size = Some(19),
            "pool p (10.0.0.0/16): its blockSize 19 is outside 20..32",
        ),
        (
            "10.0.0.0/16",
            |p| p.spec.block_size = Some(33),
            "pool p (10.0.0.0/16): its blockSize 33 is outside 20..32",
        ),
        (
            "10.0.0.0/27",
            |_| {},
            "pool p (10.0.0.0/27): its blockSize 26 is outside 27..32",
        ),
        (
            "10.0.0.0/16",
            |p| p.spec.block_size = Some(255),
            "pool p (10.0.0.0/16): its blockSize 255 is outside 20..32",
        ),
    ];
    for (range, change, expected) in cases {
        let error = choose(&[pool("p", range, change)], &Request::default()).unwrap_err();
        assert_eq!(error.cause, NoPool::NoneEnabled, "{expected}");
        assert_eq!(texts(&error.refused), [expected]);
    }
}

#[test]
fn other_or_true_pool_conditions_do_not_exclude_a_pool() {
    for status in [
        json!({"conditions": [{"type": "Allocatable", "status": "True"}]}),
        json!({"conditions": [{"type": "Ready", "status": "False"}]}),
        json!({"conditions": "none"}),
        json!({}),
    ] {
        let pools = [pool("p", "10.0.0.0/16", |p| {
            p.status = Some(status.clone())
        })];
        assert!(choose(&pools, &Request::default()).is_ok(), "{status}");
    }
}

#[test]
fn pool_selectors_match_node_and_namespace() {
    let pools = [
        pool("manual", "10.1.0.0/16", |p| {
            p.spec.assignment_mode = Some(AssignmentMode::Manual.into())
        }),
        pool("node", "10.2.0.0/16", |p| {
            p.spec.node_selector = "rack == 'r1'".into()
        }),
        pool("space", "10.3.0.0/16", |p| {
            p.spec.namespace_selector = "team == 'a'".into()
        }),
        pool("spaceless", "10.4.0.0/16", |p| {
            p.spec.namespace_selector = "!has(team)".into()
        }),
        pool("any", "10.5.0.0/16", |p| p.spec.node_selector = " ".into()),
    ];
    let on = |node, namespace: Option<Labels>| {
        let choice = choose(
            &pools,
            &Request {
                node,
                namespace,
                ..Request::default()
            },
        )
        .unwrap();
        (names(&choice.chosen).join(" "), texts(&choice.refused))
    };
    let (chosen, refused) = on(labels(&[]), None);
    assert_eq!(chosen, "any spaceless");
    assert_eq!(
        refused,
        [
            "pool manual (10.1.0.0/16): its assignmentMode is Manual and the request does not name \
             it",
            "pool node (10.2.0.0/16): its nodeSelector `rack == 'r1'` does not match node node1",
            "pool space (10.3.0.0/16): its namespaceSelector `team == 'a'` does not match, as the \
             request has no namespace",
        ]
    );
    assert_eq!(
        on(labels(&[("rack", "r1")]), Some(labels(&[("team", "a")]))).0,
        "any node space"
    );
    let (chosen, refused) = on(labels(&[("rack", "r2")]), Some(labels(&[("team", "b")])));
    assert_eq!(chosen, "any");
    assert_eq!(
        refused[2],
        "pool space (10.3.0.0/16): its namespaceSelector `team == 'a'` does not match namespace web"
    );
}

#[test]
fn requested_pool_ignores_selectors_and_assignment_mode() {
    let pools = [pool("p", "10.0.0.0/16", |p| {
        p.spec.assignment_mode = Some(AssignmentMode::Manual.into());
        p.spec.node_selector = "!all()".into();
        p.spec.namespace_selector = "not a selector".into();
    })];
    let request = Request {
        requested: vec![cidr("10.0.0.0/16")],
        ..Request::default()
    };
    assert_eq!(names(&choose(&pools, &request).unwrap().chosen), ["p"]);
}

/// Shows SEC-24.
#[test]
fn pool_that_a_request_repeats_counts_once() {
    let pools = [plain("p", "10.0.0.0/16"), plain("q", "10.1.0.0/16")];
    let requested = [cidr("10.1.0.0/16"), cidr("10.0.0.0/16")].repeat(1000);
    let choice = choose(
        &pools,
        &Request {
            requested: requested.clone(),
            ..Request::default()
        },
    )
    .unwrap();
    assert_eq!(
        (names(&choice.chosen), names(&choice.selected)),
        (vec!["q", "p"], vec!["q", "p"])
    );
    let for_services = Request {
        requested,
        purpose: AllowedUse::LoadBalancer,
        ..Request::default()
    };
    assert_eq!(choose(&pools, &for_services).unwrap_err().refused.len(), 2);
}

#[test]
fn missing_pool_error_names_the_rule_that_excluded_the_last_pool() {
    let selective = pool("p", "10.0.0.0/16", |p| {
        p.spec.node_selector = "has(gpu)".into()
    });
    let malformed = pool("p", "10.0.0.0/16", |p| {
        p.spec.namespace_selector = "team ===".into()
    });
    let tunnels = pool("p", "10.0.0.0/16", |p| {
        p.spec.allowed_uses = vec![AllowedUse::Tunnel.into()]
    });
    let other = Request {
        requested: vec![cidr("10.9.0.0/16")],
        ..Request::default()
    };
    let plain_request = Request::default();
    let cause =
        |pools: &[IpPool], request: &Request| choose(pools, request).unwrap_err().to_string();
    assert_eq!(cause(&[], &plain_request), "cannot find a qualified ippool");
    assert_eq!(
        cause(&[selective], &plain_request),
        "no configured Calico pools for node node1"
    );
    assert_eq!(
        cause(&[plain("p", "10.0.0.0/16")], &other),
        "the given pool (10.9.0.0/16) does not exist, or is not enabled"
    );
    assert!(
        cause(&[malformed], &plain_request)
            .starts_with("IPPool p: namespaceSelector `team ===` is invalid: ")
    );

    let error = choose(&[tunnels], &plain_request).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot find a qualified ippool, no pools match the required use (Workload)"
    );
    assert_eq!(
        texts(&error.refused),
        ["pool p (10.0.0.0/16): its allowedUses [Tunnel] do not include Workload"]
    );
}

#[test]
fn pool_allows_workloads_and_tunnels_by_default() {
    let pools = [
        plain("default", "10.1.0.0/16"),
        pool("services", "10.2.0.0/16", |p| {
            p.spec.allowed_uses = vec![AllowedUse::LoadBalancer.into()]
        }),
    ];
    for (purpose, expected) in [
        (AllowedUse::Workload, "default"),
        (AllowedUse::Tunnel, "default"),
        (AllowedUse::LoadBalancer, "services"),
    ] {
        let choice = choose(
            &pools,
            &Request {
                purpose,
                ..Request::default()
            },
        )
        .unwrap();
        assert_eq!(names(&choice.chosen), [expected]);
        assert_eq!(names(&choice.selected), ["default", "services"]);
    }
}

#[test]
fn block_is_stale_only_if_its_enabled_pool_deselects_the_node() {
    let pools = [
        plain("current", "10.1.0.0/16"),
        pool("left", "10.2.0.0/16", |p| {
            p.spec.node_selector = "!all()".into()
        }),
        pool("disabled", "10.3.0.0/16", |p| {
            p.spec.disabled = true;
            p.spec.node_selector = "!all()".into();
        }),
        pool("manual", "10.4.0.0/16", |p| {
            p.spec.assignment_mode = Some(AssignmentMode::Manual.into())
        }),
        pool("tunnels", "10.5.0.0/16", |p| {
            p.spec.allowed_uses = vec![AllowedUse::Tunnel.into()]
        }),
        pool("spaced", "10.6.0.0/16", |p| {
            p.spec.namespace_selector = "!all()".into()
        }),
    ];
    let owned: Vec<Cidr> = (1..=7).map(|n| cidr(&format!("10.{n}.0.64/26"))).collect();
    let choice = choose(&pools, &Request::default()).unwrap();
    assert_eq!(
        stale_blocks(&owned, &choice, &Labels::new()),
        [cidr("10.2.0.64/26")]
    );

    let request = Request {
        requested: vec![cidr("10.2.0.0/16")],
        ..Request::default()
    };
    let choice = choose(&pools, &request).unwrap();
    assert_eq!(stale_blocks(&owned, &choice, &Labels::new()), []);

    // The second pool is for another use.
    let mut pools = pools;
    pools[4].spec.node_selector = "!all()".into();
    let request = Request {
        requested: vec![cidr("10.1.0.0/16"), cidr("10.5.0.0/16")],
        ..Request::default()
    };
    let choice = choose(&pools, &request).unwrap();
    assert_eq!(
        stale_blocks(&owned, &choice, &Labels::new()),
        [cidr("10.2.0.64/26")]
    );
}

#[test]
fn pool_rejection_serializes_with_reason_and_counts() {
    let refused = RejectedPool {
        pool: "p".into(),
        cidr: Some(cidr("10.0.0.0/16")),
        refusal: PoolRejection::Full {
            in_use: 63,
            capacity: 64,
        },
    };
    assert_eq!(
        serde_json::to_value(&refused).unwrap(),
        json!({"pool": "p", "cidr": "10.0.0.0/16", "reason": "full", "inUse": 63, "capacity": 64})
    );
    assert_eq!(
        refused.to_string(),
        "pool p (10.0.0.0/16): full: 63 of 64 in use"
    );
}

#[test]
fn requested_pools_of_a_restricted_request_must_select_the_namespace() {
    let of_team = |name: &str, range: &str, team: &str| {
        pool(name, range, |pool| {
            pool.spec.namespace_selector = format!("team == '{team}'")
        })
    };
    let pools = [
        of_team("red", "10.1.0.0/16", "red"),
        of_team("blue", "10.2.0.0/16", "blue"),
    ];
    let request = |requested: &[&str], restricted| Request {
        requested: requested.iter().map(|text| cidr(text)).collect(),
        namespace: Some(labels(&[("team", "red")])),
        named: NamedPools {
            by_namespace: restricted,
            by_node: false,
        },
        ..Request::default()
    };
    let both = ["10.2.0.0/16", "10.1.0.0/16"];
    assert_eq!(
        names(&choose(&pools, &request(&both, false)).unwrap().chosen),
        ["blue", "red"]
    );
    assert_eq!(
        names(&choose(&pools, &request(&both, true)).unwrap().chosen),
        ["red"]
    );
    let error = choose(&pools, &request(&both[..1], true)).unwrap_err();
    assert_eq!(error.cause, NoPool::NoneSelected("node1".into()));
    let reason = "pool blue (10.2.0.0/16): its namespaceSelector `team == 'blue'` does not match \
                  namespace web";
    assert!(
        texts(&error.refused).contains(&reason.to_owned()),
        "{error:?}"
    );
    let unknown = Request {
        namespace: None,
        ..request(&both, true)
    };
    choose(&pools, &unknown).unwrap_err();
}

#[test]
fn named_pools_that_do_not_select_the_node_are_refused() {
    let of_rack = |name: &str, range: &str, rack: &str| {
        pool(name, range, |pool| {
            pool.spec.node_selector = format!("rack == '{rack}'")
        })
    };
    let pools = [
        of_rack("one", "10.1.0.0/16", "r1"),
        of_rack("two", "10.2.0.0/16", "r2"),
    ];
    let request = |requested: &[&str], by_node| Request {
        requested: requested.iter().map(|text| cidr(text)).collect(),
        node: labels(&[("rack", "r1")]),
        named: NamedPools {
            by_namespace: false,
            by_node,
        },
        ..Request::default()
    };
    let both = ["10.2.0.0/16", "10.1.0.0/16"];
    assert_eq!(
        names(&choose(&pools, &request(&both, false)).unwrap().chosen),
        ["two", "one"]
    );
    let choice = choose(&pools, &request(&both, true)).unwrap();
    assert_eq!(
        (names(&choice.chosen), names(&choice.selected)),
        (vec!["one"], vec!["one"])
    );
    let reason =
        "pool two (10.2.0.0/16): its nodeSelector `rack == 'r2'` does not match node node1";
    assert_eq!(texts(&choice.refused), [reason]);
    // The node gives up its blocks in the pool, as in any pool that deselects it (IPAM-99).
    let owned = [cidr("10.1.0.64/26"), cidr("10.2.0.64/26")];
    assert_eq!(
        stale_blocks(&owned, &choice, &labels(&[("rack", "r1")])),
        owned[1..]
    );
    let error = choose(&pools, &request(&both[..1], true)).unwrap_err();
    assert_eq!(error.cause, NoPool::NoneSelected("node1".into()));
    assert!(
        texts(&error.refused).contains(&reason.to_owned()),
        "{error:?}"
    );
    let automatic = Request {
        named: NamedPools {
            by_namespace: true,
            by_node: true,
        },
        ..request(&[], true)
    };
    assert_eq!(names(&choose(&pools, &automatic).unwrap().chosen), ["one"]);
}

proptest::proptest! {
    /// A tenant names the pools: the switches take pools away and add none. Shows SEC-11.
    #[test]
    fn switches_for_named_pools_only_take_pools_away(
        selectors in proptest::collection::vec((0usize..4, 0usize..4, proptest::bool::ANY), 1..6),
        requested in proptest::collection::vec(0usize..6, 1..6),
        by_namespace in proptest::bool::ANY,
        by_node in proptest::bool::ANY,
    ) {
        const SELECTORS: [&str; 4] = ["", "all()", "!all()", "rack == 'r1'"];
        let pools: Vec<IpPool> = selectors.iter().enumerate().map(|(number, (node, namespace, is_manual))| {
            pool(&format!("p{number}"), &format!("10.{number}.0.0/16"), |pool| {
                pool.spec.node_selector = SELECTORS[*node].into();
                pool.spec.namespace_selector = SELECTORS[*namespace].into();
                pool.spec.assignment_mode = is_manual.then(|| AssignmentMode::Manual.into());
            })
        }).collect();
        let requested: Vec<Cidr> = requested.iter().map(|number| cidr(&format!("10.{number}.0.0/16"))).collect();
        let chosen = |named| {
            let node = labels(&[("rack", "r1")]);
            let request = Request { requested: requested.clone(), node, named, ..Request::default() };
            choose(&pools, &request).map(|choice| choice.chosen).unwrap_or_default()
        };
        let usual = chosen(NamedPools::default());
        let limited = chosen(NamedPools { by_namespace, by_node });
        proptest::prop_assert!(
            limited.iter().all(|pool| usual.contains(pool)), "{:?} of {:?}", limited, usual,
        );
    }
}

#[test]
fn pool_of_multicast_is_rejected_with_its_name_and_range() {
    let error = choose(&[plain("m", "224.1.0.0/16")], &Request::default()).unwrap_err();
    assert_eq!(
        error.refused[0].to_string(),
        "pool m (224.1.0.0/16): its cidr overlaps with 224.0.0.0/4; a pod with such an address \
         cannot communicate"
    );
}
